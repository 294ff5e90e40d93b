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


def stack_yaml(stack: Stack) -> str:
    """The text of a stack's file: every field with its source, numbers with their units.

    ``load_stack`` of the file gives back an equal stack, where each field has a source.
    """
    import yaml

    content: dict[str, Any] = {"name": stack.name}
    for field in fields(stack):
        if field.name in ("name", "sources", "calibration"):
            continue
        value = _plain(field.name, getattr(stack, field.name))
        source = stack.sources.get(field.name)
        content[field.name] = value if source is None else {"value": value, "source": source}
    if stack.calibration is not None:
        content["calibration"] = _numbers(asdict(stack.calibration))
    text: str = yaml.safe_dump(content, sort_keys=False, width=98, allow_unicode=True)
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
