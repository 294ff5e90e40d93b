"""Fitted collectives as a pricer: measured tables in, seconds of any size and group out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from estimator.cost.sigmoid import (
    FEWEST_SIZES,
    Interval,
    Line,
    Sigmoid,
    fit_line,
    fit_sigmoid,
    impossible,
)
from estimator.lower.slots import FloatArray

FittedKind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv"
]

HEADROOM = 1.25
"""Over the best measured bus bandwidth: the peak of a link that is not named."""
SEEN_LATENCY = 8.0
"""How far the latency region must reach over the smallest size for smaller ones to be priced."""


def bus_factor(kind: FittedKind, group: FloatArray | float) -> FloatArray | float:
    """Bus bandwidth over size per second in a group of ranks (nccl-tests, PERFORMANCE.md)."""
    if kind in ("broadcast", "reduce", "send_recv"):
        return np.ones_like(group, np.float64) if isinstance(group, np.ndarray) else 1.0
    return (2 if kind == "all_reduce" else 1) * (group - 1) / group


def bus_peak(
    kind: FittedKind, group: int, inside: int, scale_up: float, scale_out: float | None
) -> float:
    """Bytes/s of bus bandwidth that links of nominal rates (per device and direction) allow.

    A collective has moved at least what must pass a port: for an all-reduce the buffer once, where
    switches add (a ring moves up to twice as much), else all but a rank's own share. Between
    domains the ports are all NICs of the domain's ``inside`` ranks, which a reduction or a gather
    shares and an all-to-all or a transfer does not.
    """
    factor = float(bus_factor(kind, group))
    once = kind in ("all_reduce", "broadcast", "reduce", "send_recv")
    up = scale_up * factor / (1.0 if once else (group - 1) / group)
    domains = math.ceil(group / inside)
    if domains == 1 or scale_out is None:
        return up
    if kind == "all_to_all":
        return scale_out * factor / ((group - inside) / group)
    if kind == "send_recv":
        return scale_out * inside
    share = 1.0 if once else (domains - 1) / domains
    return min(scale_out * inside * factor / share, up + scale_out * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCollective:
    """One collective over one group: a curve, how sure it is, and where it was measured.

    Raises ``ValueError`` for a curve that breaks a law of physics.
    """

    kind: FittedKind
    group: int
    """Ranks."""
    inside: int
    """Of these, ranks in one scale-up domain."""
    parameters: Sigmoid | Line
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    """90 % confidence of each parameter of a sigmoid."""
    peak: float
    """Bytes/s of bus bandwidth that the curve stays under."""
    low_bytes: float
    """The smallest size measured."""
    high_bytes: float
    """The largest."""
    source: str = ""

    def __post_init__(self) -> None:
        if self.group < 2 or not 1 <= self.inside <= self.group:
            raise ValueError(
                f"{self.kind} over group={self.group} with inside={self.inside} is none; "
                "a group has 2 ranks or more, of which 1 or more are inside a domain"
            )
        broken = impossible(self.parameters, self.factor, self.peak)
        if broken:
            raise ValueError(f"{self.kind} over {self.group} ranks: {broken}; fit it again")

    @property
    def domains(self) -> int:
        """Scale-up domains that the group spans."""
        return math.ceil(self.group / self.inside)

    @property
    def factor(self) -> float:
        """Bus bandwidth over size per second."""
        return float(bus_factor(self.kind, self.group))

    def seconds(self, size: FloatArray) -> FloatArray:
        """Seconds at each size in bytes, whether or not it was measured near there."""
        return self.parameters.seconds(size, self.factor)

    def covers(self, size: FloatArray) -> NDArray[np.bool_]:
        """Whether each size lies in what was measured, or follows from it.

        Larger sizes follow from the bandwidth; smaller ones only where the latency was seen.
        """
        seen = (
            isinstance(self.parameters, Sigmoid)
            and self.parameters.latency_bytes >= SEEN_LATENCY * self.low_bytes
        )
        return np.asarray((size >= self.low_bytes) | seen, np.bool_)


def fit_collective(
    kind: FittedKind,
    group: int,
    inside: int,
    size: FloatArray,
    seconds: FloatArray,
    *,
    peak: float | None = None,
    source: str = "",
) -> FittedCollective:
    """Fit one table of sizes (bytes) and times (seconds); a line where it has under four sizes.

    ``peak`` is the bus bandwidth that the links allow, by default a quarter over the best measured.
    Raises ``ValueError`` for a table of a single size.
    """
    factor = float(bus_factor(kind, group))
    distinct = len(np.unique(size))
    if distinct < 2:
        raise ValueError(
            f"{kind} over {group} ranks has {distinct} size, which tells latency and bandwidth "
            "not apart; measure from 8 bytes to 1 GiB or more"
        )
    if peak is None:
        peak = HEADROOM * float(np.max(factor * size / seconds))
    curve: Sigmoid | Line
    intervals: dict[str, Interval] = {}
    if distinct < FEWEST_SIZES:
        curve = fit_line(size, seconds, factor, peak)
    else:
        curve, intervals = fit_sigmoid(size, seconds, factor, peak)
    return FittedCollective(
        kind=kind,
        group=group,
        inside=inside,
        parameters=curve,
        intervals=intervals,
        peak=peak,
        low_bytes=float(size.min()),
        high_bytes=float(size.max()),
        source=source,
    )


def fitted_seconds(
    kind: str,
    size: FloatArray,
    group: FloatArray,
    inside: FloatArray,
    table: Sequence[FittedCollective],
) -> FloatArray:
    """Seconds of a collective from fitted tables; nan where they do not cover it.

    Inside one domain, a group size that was not measured is priced from its measured neighbours
    (see :func:`between_groups`); across domains from numbers of domains at equal ``inside``. Beyond
    the smallest and largest measured group there is no answer, nor below the smallest measured size
    unless the latency was seen. A group of one takes no time.

    Args:
        kind: A collective; one that no table has is not covered.
        size: Bytes as nccl-tests counts them (the full buffer), any shape.
        group: Ranks, broadcasting with ``size``.
        inside: Of these, ranks in one scale-up domain.
        table: The fitted collectives; of equal ones the first counts.
    """
    size, group, inside = np.broadcast_arrays(
        *(np.asarray(v, float) for v in (size, group, inside))
    )
    seconds = np.full(size.shape, np.nan)
    seconds[group <= 1] = 0.0
    known = [fitted for fitted in table if fitted.kind == kind]
    if not known:
        return seconds
    for ranks in np.unique(group[group > 1]):
        same = group == ranks
        for near in np.unique(inside[same]):
            here = same & (inside == near)
            seconds[here] = _between(size[here], float(ranks), float(near), known)
    return seconds


def _between(
    size: FloatArray, group: float, inside: float, known: Sequence[FittedCollective]
) -> FloatArray:
    """Seconds in one group, from the measured groups on either side of it."""
    domains = math.ceil(group / inside)
    if domains == 1:
        at, points = group, {f.group: f for f in reversed(known) if f.domains == 1}
    else:
        spread = [f for f in reversed(known) if f.domains > 1 and f.inside == inside]
        at, points = domains, {f.domains: f for f in spread}
    below = max((n for n in points if n <= at), default=None)
    above = min((n for n in points if n >= at), default=None)
    if below is None or above is None:
        return np.full(size.shape, np.nan)
    low, high = points[below], points[above]
    seconds = low.seconds(size)
    if above > below:
        seconds = between_groups(size, group, low, high)
    return np.where(low.covers(size) & high.covers(size), seconds, np.nan)


def between_groups(
    size: FloatArray, group: float, low: FittedCollective, high: FittedCollective
) -> FloatArray:
    """Seconds at each size in a group, from two other groups that were measured.

    Latency goes with the number of ranks (the hops of a ring), seconds per byte of bus traffic with
    its inverse (a rank's own share needs no link). Where the groups span domains, with the number
    of domains. The best of nine such rules on published tables with a group left out.
    """
    at, first, last = group, float(low.group), float(high.group)
    if low.domains > 1:
        at, first, last = group / low.inside, float(low.domains), float(high.domains)
    hops = (at - first) / (last - first)
    traffic = (1 / at - 1 / first) / (1 / last - 1 / first)
    latency = _mix(hops, low.parameters.latency, high.parameters.latency)
    per_byte = _mix(
        traffic,
        (low.seconds(size) - low.parameters.latency) / low.factor,
        (high.seconds(size) - high.parameters.latency) / high.factor,
    )
    factor = float(bus_factor(low.kind, group))
    seconds = np.maximum(latency, 0.0) + factor * np.maximum(per_byte, 0.0)
    # A mean of two bounds may pass the bound of the group between them by a hair.
    return np.maximum(seconds, factor * size / max(low.peak, high.peak))


def _mix(weight: float, low: FloatArray | float, high: FloatArray | float) -> FloatArray | float:
    return (1 - weight) * low + weight * high
