"""Fit measured collectives, and say how wrong the fits are where they were not fitted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from estimator.cluster import Cluster
from estimator.collective_tables import MeasuredTable
from estimator.cost.fitted import (
    HEADROOM,
    FittedCollective,
    between_groups,
    bus_factor,
    bus_peak,
    fit_collective,
)
from estimator.cost.sigmoid import fit_line
from estimator.lower.slots import FloatArray

LEAST_ERROR = 1e-4
"""Below it an error is rounding of what was printed; a geometric mean would reward it."""
OVER_PEAK = 1.03
"""Measured over nominal bandwidth that rounding and clocks explain."""
SCORED_SIZES = 8
"""Sizes of a table that is worth leaving a third out of."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scored:
    """Relative errors of the sigmoid and of a straight line on the same sizes of one table."""

    table: MeasuredTable
    size: FloatArray
    sigmoid: FloatArray
    line: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class DecadeErrors:
    """Geometric mean errors of one collective within one decade of sizes."""

    kind: str
    decade: int
    """Sizes from ``10 ** decade`` bytes to below ten times that."""
    points: int
    sigmoid: float
    line: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutGroup:
    """Median error on a group that was predicted from the tables of other groups."""

    table: MeasuredTable
    between: bool
    """Whether the others enclose it; else it was predicted from beyond their range."""
    error: float


def geometric_mean(errors: FloatArray) -> float:
    """Geometric mean of absolute errors, none counted below ``LEAST_ERROR``."""
    return float(np.exp(np.mean(np.log(np.maximum(np.abs(errors), LEAST_ERROR)))))


def peak_of(table: MeasuredTable, cluster: Cluster | None = None) -> float | None:
    """The bus bandwidth that the links allow; ``None`` where they are not stated.

    Raises ``ValueError`` for a table that was measured above it.
    """
    up, out = table.scale_up, table.scale_out
    if cluster is not None:
        up = cluster.scale_up.bandwidth
        out = None if cluster.scale_out is None else cluster.scale_out.bandwidth
    if up is None or (out is None and table.inside < table.group):
        return None
    peak = bus_peak(table.kind, table.group, table.inside, up, out)
    factor = bus_factor(table.kind, table.group)
    best = float(np.max(factor * table.size / table.seconds))
    if best > OVER_PEAK * peak:
        raise ValueError(
            f"{table.source}: {table.name} was measured at {best / 1e9:.4g} GB/s of bus bandwidth, "
            f"above the {peak / 1e9:.4g} GB/s of its links; check the units and the cluster"
        )
    return peak


def pooled(tables: Sequence[MeasuredTable]) -> list[MeasuredTable]:
    """One table per collective and group, with the rows of all that repeat it."""
    groups: dict[tuple[str, int, int], list[MeasuredTable]] = {}
    for table in tables:
        groups.setdefault((table.kind, table.group, table.inside), []).append(table)
    merged = []
    for same in groups.values():
        size = np.concatenate([table.size for table in same])
        order = np.argsort(size, kind="stable")
        merged.append(
            replace(
                same[0],
                size=size[order],
                seconds=np.concatenate([table.seconds for table in same])[order],
                in_place=None,
                source=", ".join(table.source for table in same),
            )
        )
    return merged


def fit(table: MeasuredTable, cluster: Cluster | None = None) -> FittedCollective:
    """Fit one table; ``ValueError`` in one line where it cannot be."""
    return fit_collective(
        table.kind,
        table.group,
        table.inside,
        table.size,
        table.seconds,
        peak=peak_of(table, cluster),
        source=table.source,
    )


def score_fit(table: MeasuredTable, fitted: FittedCollective) -> Scored:
    """Errors on the sizes that were fitted."""
    return _scored(table, fitted, np.ones(len(table.size), bool), np.ones(len(table.size), bool))


def score_left_out(table: MeasuredTable, cluster: Cluster | None = None) -> Scored:
    """Errors on every third size (the second, the fifth, ...), fitted on the others."""
    kept = np.arange(len(table.size)) % 3 != 1
    part = replace(table, size=table.size[kept], seconds=table.seconds[kept], in_place=None)
    return _scored(table, fit(part, cluster), kept, ~kept)


def _scored(
    table: MeasuredTable,
    fitted: FittedCollective,
    kept: np.typing.NDArray[np.bool_],
    judged: np.typing.NDArray[np.bool_],
) -> Scored:
    line = fit_line(table.size[kept], table.seconds[kept], fitted.factor, fitted.peak)
    size, seconds = table.size[judged], table.seconds[judged]
    return Scored(
        table=table,
        size=size,
        sigmoid=fitted.seconds(size) / seconds - 1,
        line=line.seconds(size, fitted.factor) / seconds - 1,
    )


def by_decade(scores: Sequence[Scored]) -> list[DecadeErrors]:
    """Errors per collective and decade of size, both pricers on the same points."""
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for score in scores:
        for size, sigmoid, line in zip(score.size, score.sigmoid, score.line, strict=True):
            key = score.table.kind, math.floor(math.log10(size) + 1e-12)
            found.setdefault(key, []).append((sigmoid, line))
    return [
        DecadeErrors(
            kind=kind,
            decade=decade,
            points=len(errors),
            sigmoid=geometric_mean(np.array([error[0] for error in errors])),
            line=geometric_mean(np.array([error[1] for error in errors])),
        )
        for (kind, decade), errors in sorted(found.items())
    ]


def left_out_groups(
    tables: Sequence[MeasuredTable], cluster: Cluster | None = None
) -> list[LeftOutGroup]:
    """Predict each group from the other groups of its machine, inside a domain or across.

    The group sizes of a machine share its device, collective and links; across domains they also
    share the ranks inside one. Those at either end are predicted from the two nearest by the same
    rule; pricing gives no answer there.
    """
    families: dict[tuple[object, ...], list[MeasuredTable]] = {}
    for table in tables:
        across = table.inside if table.inside < table.group else None
        key = (table.device, table.kind, across, table.scale_up, table.scale_out)
        families.setdefault(key, []).append(table)
    found = []
    for family in families.values():
        fits = {table.group: (table, fit(table, cluster)) for table in pooled(family)}
        for group, (table, _) in fits.items():
            others = sorted((n for n in fits if n != group), key=lambda n: (abs(n - group), n))
            below, above = ([n for n in others if n < group], [n for n in others if n > group])
            if len(others) < 2:
                continue
            near = (max(below), min(above)) if below and above else (others[0], others[1])
            low, high = (fits[n][1] for n in near)
            seconds = between_groups(table.size, group, low, high)
            errors = np.abs(seconds / table.seconds - 1)
            found.append(
                LeftOutGroup(
                    table=table,
                    between=bool(below and above),
                    error=float(np.median(errors)),
                )
            )
    return found


def peak_words(table: MeasuredTable, cluster: Cluster | None) -> str:
    """Where the bound on bandwidth of a fit comes from."""
    if peak_of(table, cluster) is None:
        return f"{HEADROOM:g} x the best measured"
    return cluster.name if cluster is not None else "the link named in the file"
