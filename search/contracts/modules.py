"""One pass of a PyTorch module, operator by operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from search.contracts.files import plain
from search.contracts.shapes import NUMBER, Shape
from search.versions import versions

if TYPE_CHECKING:
    from search.module import ModuleEstimate


MODULE = "trainplan.module.v1"
SCHEMAS: dict[str, Shape] = {
    MODULE: {
        **dict.fromkeys(("schema", "module", "cost", "mode"), str),
        "device": dict,
        "fused": bool,
        "parameters": int,
        **dict.fromkeys(("seconds", "forward_seconds", "backward_seconds"), NUMBER),
        "kinds": [{"kind": str} | dict.fromkeys(("calls", "seconds", "flops", "bytes"), NUMBER)],
        "operators": [{"kind": str, "name": str, "in_backward": bool, "origin": str}],
        **dict.fromkeys(("unrecognised", "assumed", "versions"), dict),
    },
}


def module(value: ModuleEstimate) -> dict[str, Any]:
    """The document ``trainplan.module.v1``: one pass of a PyTorch module, operator by operator."""
    return {"schema": MODULE, **plain(value.to_dict()), "versions": versions()}
