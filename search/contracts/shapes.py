"""What a document must hold: shapes of plain values, and what is wrong with one."""

from __future__ import annotations

import math
from typing import Any

NUMBER = (int, float)
MAYBE = (int, float, type(None))
Shape = dict[str, Any]
"""Field -> type(s), or the fields of a nested object. A list holds the shape of its items."""


def faults(value: Any, shape: Any, where: str = "document") -> list[str]:
    """What keeps ``value`` from having ``shape``, one line each; empty when nothing does."""
    if isinstance(value, float) and not math.isfinite(value):
        return [f"{where} is {value}"]
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [f"{where} must be a list"]
        return [f for i, item in enumerate(value) for f in faults(item, shape[0], f"{where}[{i}]")]
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return [f"{where} must be an object"]
        missing = [f"{where}.{name} is missing" for name in shape if name not in value]
        nested = [
            fault
            for name, part in shape.items()
            if name in value
            for fault in faults(value[name], part, f"{where}.{name}")
        ]
        return missing + nested
    if not isinstance(value, shape) or (isinstance(value, bool) and shape is not bool):
        return [f"{where} is a {type(value).__name__}"]
    return []
