"""Numbers with units, as people write them (``80 GB``, ``400 Gb/s``), in SI and back."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Literal

from estimator.catalog.reading import short

Dimension = Literal["bytes", "bytes/s", "FLOP/s", "seconds", "watts"]

EXAMPLES: dict[Dimension, str] = {
    "bytes": "80 GB",
    "bytes/s": "2039 GB/s",
    "FLOP/s": "312 TFLOP/s",
    "seconds": "20 us",
    "watts": "700 W",
}

_DECIMAL = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50}
_BIT = Decimal("0.125")


def _units() -> dict[str, tuple[str, Decimal]]:
    """Every unit with its dimension and its size in SI; a lone ``b`` counts bits."""
    units: dict[str, tuple[str, Decimal]] = {}
    for prefix, power in _DECIMAL.items():
        size = Decimal(10) ** power
        units[f"{prefix}B"] = ("bytes", size)
        units[f"{prefix}b"] = ("bits", size * _BIT)
        units[f"{prefix}B/s"] = ("bytes/s", size)
        units[f"{prefix}b/s"] = ("bytes/s", size * _BIT)
        units[f"{prefix}FLOP/s"] = units[f"{prefix}FLOPS"] = ("FLOP/s", size)
    for prefix, power in _BINARY.items():
        units[f"{prefix}B"] = ("bytes", Decimal(2) ** power)
        units[f"{prefix}B/s"] = ("bytes/s", Decimal(2) ** power)
    for name, power in {"s": 0, "ms": -3, "us": -6, "µs": -6, "ns": -9}.items():
        units[name] = ("seconds", Decimal(10) ** power)
    for name, power in {"mW": -3, "W": 0, "kW": 3, "MW": 6}.items():
        units[name] = ("watts", Decimal(10) ** power)
    return units


UNITS = _units()
_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?|[+-]?(?:nan|NaN|inf|Inf|infinity))"
    r"\s*([A-Za-zµ]+(?:/s)?)?"
)
_LONGEST = 80


def parse(text: object, dimension: Dimension) -> float:
    """Read a number and its unit; the result is in bytes, bytes/s, FLOP/s, seconds or watts.

    The number is multiplied exactly and rounded once, so ``989.4 TFLOP/s`` is ``989.4e12``.

    Raises:
        ValueError: one line with the remedy, where the unit is missing, unknown or of another
            dimension, or the number is negative or not finite.
    """
    remedy = f"write for example '{EXAMPLES[dimension]}'"
    if isinstance(text, int | float) and not isinstance(text, bool):
        raise ValueError(f"{short(text)} has no unit; {remedy}")
    match = _QUANTITY.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None or len(match.string) > _LONGEST:
        raise ValueError(f"{short(text)} is not a number with a unit; {remedy}")
    number, unit = match.groups()
    if unit is None:
        raise ValueError(f"{number} has no unit; {remedy}")
    if unit not in UNITS:
        raise ValueError(f"{text!r} has the unknown unit {unit!r}; {remedy}")
    found, factor = UNITS[unit]
    if found != dimension:
        raise ValueError(f"{text!r} is {found}, not {dimension}; {remedy}")
    value = float(Decimal(number) * factor)
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a finite number; {remedy}")
    if number.startswith("-"):
        raise ValueError(f"{text!r} is negative; {remedy}")
    return value


def render(value: float, dimension: Dimension) -> str:
    """The shortest plain text that :func:`parse` reads back as exactly ``value`` (SI, from 0)."""
    texts = [
        f"{value / float(factor):.12g} {name}"
        for name, (found, factor) in UNITS.items()
        if found == dimension and not set(name) & set("bSµ")  # bits, FLOPS, µs: other spellings
    ]
    exact = [text for text in texts if "e" not in text and parse(text, dimension) == value]
    base = next(n for n, (found, factor) in UNITS.items() if found == dimension and factor == 1)
    return min(exact, key=len, default=f"{float(value)!r} {base}")
