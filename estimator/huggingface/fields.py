"""The keys of a ``config.json``: read safely, typed, and each remembered once it is read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from estimator.catalog.reading import fault, short

LARGEST_FILE = 5_000_000
"""Bytes; a configuration has a few thousand, or some hundred thousand with labels of classes."""
LARGEST_SIZE = 10_000_000
"""Elements or units; it keeps products of three sizes inside int64."""

PARTS = ("text_config", "llm_config", "language_config")
"""Where a model of several parts keeps its language model."""

UNMODELLED = {
    "is_encoder_decoder": "an encoder beside its decoder",
    "add_cross_attention": "cross-attention",
    "cross_attention_layers": "cross-attention",
    "linear_attn_config": "linear attention",
    "linear_num_value_heads": "linear attention",
    "hybrid_override_pattern": "state-space layers",
    "layers_block_type": "state-space layers",
    "mamba_num_heads": "state-space layers",
    "ssm_state_size": "state-space layers",
    "state_size": "state-space layers",
    "compress_ratios": "compressed attention",
    "index_topk": "sparse attention",
    "sparse_attention_config": "sparse attention",
    "block_configs": "layers of different shapes",
    "hybrid_layer_pattern": "attention of two shapes",
    "global_head_dim": "attention of two shapes",
    "attention_k_eq_v": "values that are the keys",
    "attn_output_gate": "gated attention",
    "attention_output_gate": "gated attention",
    "num_kv_shared_layers": "layers that share keys and values",
    "hidden_size_per_layer_input": "an embedding per layer",
    "moe_latent_size": "experts in a latent space",
}
"""Keys that change shapes, and what of the model they stand for: refused where they are set."""

HARMLESS = frozenset(
    {
        "audio_config",
        "chunk_size_feed_forward",
        "compression_config",
        "encoder_no_repeat_ngram_size",
        "ep_size",
        "experts_per_token",
        "id2label",
        "init_config",
        "initial_context_length",
        "label2id",
        "max_window_layers",
        "n_group",
        "n_head_kv",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_kv_heads",
        "num_logits_to_keep",
        "num_return_sequences",
        "output_hidden_states",
        "pretraining_tp",
        "qk_head_dim",
        "quantization_config",
        "rotary_dim",
        "topk_group",
        "type_vocab_size",
        "vision_config",
    }
)
"""Keys named like sizes that change no shape of the layers."""

_SHAPE = re.compile(
    r"(^|_)(size|dims?|heads?|layers?|experts?|ranks?|width|groups?|freq|pattern|types?|interval|"
    r"ratios?|modules|steps?|windows?|states?|kernel|config|channels|topk)($|_)"
)


def content_of(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds; every fault is a ``ValueError`` of one line."""
    try:
        if path.is_dir():
            raise fault(path, "is a directory; name the config.json inside it")
        if not path.is_file():
            raise fault(path, "no such regular file; check the path")
        with path.open("rb") as file:
            text = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise fault(path, f"{error.strerror or 'cannot be read'}; check the path") from None
    if len(text) > LARGEST_FILE:
        raise fault(path, f"is larger than {LARGEST_FILE // 10**6} MB; name a config.json")
    try:
        content = json.loads(text)
    except RecursionError:
        raise fault(path, "is nested too deeply; name a config.json") from None
    except ValueError as error:  # not JSON, not UTF-8, or a number of thousands of digits
        raise fault(path, f"is not JSON: {error}; name a config.json") from None
    if not isinstance(content, dict):
        raise fault(path, f"holds {short(content)}; a config.json holds one object")
    return content


class Fields:
    """The keys of one configuration, and those that were read; faults are ``ValueError``."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.outer = content
        part = next((p for p in PARTS if isinstance(content.get(p), Mapping)), None)
        self._content: dict[str, Any] = dict(content[part] if part else content)
        self._seen: set[str] = set()
        for nested in ("attn_config", "ffn_config"):  # as DBRX and MPT group their keys
            inner = self._content.get(nested)
            if isinstance(inner, Mapping):
                self._content = {**inner, **self._content}
                self._seen.add(nested)
        self.defaults: Mapping[str, int] = {}

    def given(self, *names: str) -> tuple[str, Any]:
        """The first of these keys that has a value, and the value; ``("", None)`` if none has."""
        self._seen.update(names)
        for name in names:
            if self._content.get(name) is not None:
                return name, self._content[name]
        return "", None

    def has(self, *names: str) -> bool:
        """Whether one of these keys is there, if only with the value null."""
        return any(name in self._content for name in names)

    def whole(self, *names: str, default: int | None = None, least: int = 1) -> int | None:
        """A whole number under one of several names, else the family's default, else this one."""
        name, value = self.given(*names)
        if not name:
            known = next((self.defaults[name] for name in names if name in self.defaults), None)
            return default if known is None or self.has(*names) else known  # null: no default
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{name}={short(value)} must be a whole number")
        most = LARGEST_SIZE * (100 if "position" in name else 1)
        if not least <= value <= most:
            raise ValueError(f"{name}={short(value)} must lie from {least} to {most}")
        return value

    def need(self, *names: str) -> int:
        """A whole number that must be there."""
        value = self.whole(*names)
        if value is None:
            aliases = f" (or {', '.join(names[1:])})" if names[1:] else ""
            raise ValueError(f"{names[0]}{aliases} is missing; add it")
        return value

    def flag(self, *names: str, default: bool) -> bool:
        """A truth value under one of several names."""
        name, value = self.given(*names)
        if not name:
            return default
        if not isinstance(value, bool):
            raise ValueError(f"{name}={short(value)} must be true or false")
        return value

    def per_layer(self, name: str, layers: int) -> list[Any] | None:
        """A list with one item for each layer."""
        _, value = self.given(name)
        if value is None or value == []:
            return None
        if not isinstance(value, list) or len(value) != layers:
            raise ValueError(f"{name}={short(value)} must list each of the {layers} layers")
        return value

    def unmodelled(self) -> None:
        """Refuse what no ``Transformer`` can hold, by name."""
        for name, what in UNMODELLED.items():
            if self._content.get(name):
                raise ValueError(f"has {what} ({name}), which is not modelled")

    def unread(self) -> list[str]:
        """Keys not read that are named and valued like shapes."""
        return [
            name
            for name, value in self._content.items()
            if name not in self._seen
            and name not in HARMLESS
            and name not in UNMODELLED
            and _SHAPE.search(str(name))
            and not isinstance(value, bool | float | str)
            and value not in (None, 0, 1, [], {})
        ]
