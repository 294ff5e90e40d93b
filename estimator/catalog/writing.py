"""A stack as the YAML that :func:`load_stack` reads: what a calibration leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from estimator.catalog.quantities import Dimension, render
from estimator.stack import Stack

DIMENSIONS: dict[str, Dimension] = {
    "weight_bytes": "bytes",
    "gradient_bytes": "bytes",
    "logit_bytes": "bytes",
    "context_bytes": "bytes",
    "launch_forward": "seconds",
    "launch_backward": "seconds",
    "launch_experts": "seconds",
    "step_seconds": "seconds",
}
"""The fields of a stack that are written with a unit."""


SECTIONS = {
    "weight_bytes": "What it keeps in memory.",
    "launch_forward": "What it launches and fuses.",
    "overlap_grad": "What it overlaps, and how well that hides.",
    "straggler_per_doubling": "What remains.",
    "zero": "What it allows.",
    "calibration": "What it was fitted to; scalars in SI units, sd and residuals of logarithms.",
}
"""Headings, each above the first field of its part."""


_SEQUENCE = "tag:yaml.org,2002:seq"


def stack_yaml(stack: Stack) -> str:
    """The text of a stack's file: every field with its source, numbers with their units.

    ``load_stack`` of the file gives back an equal stack, where each field has a source.
    """
    lines = []
    for field in fields(stack):
        value = getattr(stack, field.name)
        if field.name == "sources" or (field.name == "calibration" and value is None):
            continue
        if field.name in SECTIONS:
            lines.append(f"\n# {SECTIONS[field.name]}\n")
        source = stack.sources.get(field.name)
        if field.name == "calibration":
            content = _numbers(asdict(value))
        else:
            content = _plain(field.name, value)
        if source is not None:
            content = {"value": content, "source": source}
        lines.append(_yaml({field.name: content}, inline=field.name == "calibration"))
    return "".join(lines)


def _yaml(content: dict[str, Any], inline: bool) -> str:
    """One field, lists on one line; ``inline`` does so with innermost objects as well."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Lists on one line."""

    Dumper.add_representer(
        list, lambda self, items: self.represent_sequence(_SEQUENCE, items, flow_style=True)
    )
    text: str = yaml.dump(
        content,
        Dumper=Dumper,
        sort_keys=False,
        width=98,
        allow_unicode=True,
        default_flow_style=None if inline else False,
    )
    return text


def _plain(field: str, value: Any) -> Any:
    """The value in the types that YAML has."""
    if field in DIMENSIONS:
        return render(value, DIMENSIONS[field])
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return {str(key): float(number) for key, number in value.items()}
    return float(value) if isinstance(value, float) else value  # also NumPy's float64


def _numbers(value: Any) -> Any:
    """Nested objects and lists, with every number a plain one."""
    if isinstance(value, Mapping):
        return {str(key): _numbers(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_numbers(item) for item in value]
    return float(value) if isinstance(value, float) else value
