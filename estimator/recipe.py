"""What the notes of a measured run say of its recipe, where its columns do not."""

from __future__ import annotations

import re
from typing import Any

WORDS: tuple[tuple[str, Any, str], ...] = (
    ("overlap_tp", True, r"tp_comm_overlap=(true|1)\b|\basynctp\b"),
    ("overlap_tp", False, r"tp_comm_overlap=(false|0)\b|\bno tp overlap\b|\bno comm overlap\b"),
    ("overlap_ep", True, r"(moe_a2a_overlap|overlap_moe_expert_parallel_comm)=(true|1)\b"),
    ("overlap_ep", False, r"(moe_a2a_overlap|overlap_moe_expert_parallel_comm)=(false|0)\b"),
    ("overlap_grad", False, r"\bno overlap-grad-reduce\b|\bno comm overlap\b"),
    ("overlap_p2p", False, r"\bno p2p overlap\b|\bno comm overlap\b"),
    ("compiled", False, r"\beager\b|\bno compile\b"),
    ("compiled", True, r"\bcompile\b"),
    ("cuda_graphs", True, r"cuda_graph=1\b"),
    ("cuda_graphs", False, r"cuda_graph=0\b"),
    ("optimizer", "adam-8bit", r"\b8-bit optimizer\b"),
    ("fp8_scaling", "row", r"\b(?:float8|fp8) rowwise\b"),
    ("fp8_scaling", "tensor", r"\b(?:float8|fp8) tensorwise\b"),
    ("interleaved", True, r"\binterleaved\b"),
    ("shard_size", None, r"\b(?:fsdp shard group |zero1 group=)(\d+)\b"),
)
"""Column, value (``None`` where the words hold it) and the words, lower case, that say so; the
first match of a column counts."""


SECTIONS: tuple[tuple[str, Any, str], ...] = (
    ("offload", "optimizer", r"\bfull (?:optim )?cpu offload\b"),
)
"""The same for the title of the section that a run stands in, of its ``source_ref``."""


def from_notes(row: dict[str, Any]) -> dict[str, Any]:
    """The row with blank columns of the recipe filled in from the words in its notes."""
    filled = dict(row)
    for where, words in (("notes", WORDS), ("source_ref", SECTIONS)):
        text = str(row.get(where) or "").lower()
        for column, value, pattern in words:
            found = re.search(pattern, text)
            if filled.get(column) is None and found:
                filled[column] = found[1] if value is None else value
    return filled
