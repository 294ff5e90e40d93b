"""Fitted collectives as YAML that a cluster file can name: written by a fit, read by pricing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimator.catalog.quantities import Dimension, render
from estimator.catalog.reading import fault, read_mapping

if TYPE_CHECKING:
    from estimator.catalog.loader import Reference
    from estimator.cost.fitted import FittedCollective

UNITS: dict[str, Dimension] = {
    "latency": "seconds",
    "latency_bytes": "bytes",
    "saturation_bytes": "bytes",
    "bandwidth": "bytes/s",
}
"""Parameters that are written with a unit; those of the sigmoid are plain numbers."""


DIGITS = 8
"""Of each parameter: enough for a curve to stay continuous and under its peak."""


def load_collectives(path: Reference) -> tuple[FittedCollective, ...]:
    """The fitted collectives of a file, as ``trainplan fit collectives`` writes it.

    ``source`` says where all was measured, and ``collectives`` lists one entry per collective and
    group: ``collective``, ``group`` (ranks), ``inside`` (ranks in one scale-up domain), ``peak``
    (bus bandwidth, never exceeded), ``smallest`` and ``largest`` (sizes that were measured), and
    ``parameters`` with the fields of :class:`~estimator.cost.sigmoid.Sigmoid`, or of ``Line`` where
    there were under four sizes. ``intervals`` (90 %) inform people; ``null`` is a parameter that
    the measurements do not determine.

    Raises:
        ValueError: one line, also for curves that break a law (see ``sigmoid.impossible``) and for
            a collective that is given twice.
    """
    from estimator.catalog.check import check
    from estimator.catalog.fitted_schema import CollectivesEntry

    where = Path(path)
    entry = check(read_mapping(where), CollectivesEntry, where)
    found: dict[tuple[str, int, int], FittedCollective] = {}
    for each in entry.collectives:
        try:
            fitted = each.noun(entry.source)
        except ValueError as error:
            raise fault(where, str(error)) from None
        key = fitted.kind, fitted.group, fitted.inside
        if key in found:
            raise fault(
                where,
                f"{fitted.kind} over {fitted.group} ranks, {fitted.inside} a domain, is given "
                "twice; keep one",
            )
        found[key] = fitted
    return tuple(found.values())


def collectives_yaml(table: Sequence[FittedCollective], source: str) -> str:
    """The text of a file that :func:`load_collectives` reads back, to ``DIGITS`` of each number."""
    import yaml

    entries = []
    for fitted in table:
        values = {f.name: getattr(fitted.parameters, f.name) for f in fields(fitted.parameters)}
        entry: dict[str, Any] = {
            "collective": fitted.kind,
            "group": fitted.group,
            "inside": fitted.inside,
            "peak": render(_rounded(fitted.peak, DIGITS), "bytes/s"),
            "smallest": render(fitted.low_bytes, "bytes"),
            "largest": render(fitted.high_bytes, "bytes"),
            "parameters": {name: _text(name, value, DIGITS) for name, value in values.items()},
        }
        if fitted.intervals:
            entry["intervals"] = {
                name: None if ends is None else [_text(name, end, 3) for end in ends]
                for name, ends in fitted.intervals.items()
            }
        if fitted.source not in ("", source):
            entry["source"] = fitted.source
        entries.append(entry)
    content = {"source": source, "collectives": entries}
    text: str = yaml.safe_dump(content, sort_keys=False, width=98, allow_unicode=True)
    return text


def _text(name: str, value: float, digits: int) -> str | float:
    value = _rounded(value, digits)
    return render(value, UNITS[name]) if name in UNITS else value


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")
