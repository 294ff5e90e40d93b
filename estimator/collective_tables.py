"""Measured tables of collectives: what a reader gives to a fit, checked for units and mix-ups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from estimator.catalog.reading import fault
from estimator.cost.fitted import FittedKind, bus_factor
from estimator.lower.slots import FloatArray

LARGEST_FILE = 64_000_000
"""Bytes; NCCL_DEBUG=INFO on a thousand ranks prints a tenth of it."""

LARGEST_SIZE, SHORTEST, LONGEST = 2.0**50, 1e-8, 1e5
"""Bytes and seconds between which every collective lies."""

NAMES: dict[str, FittedKind] = {
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
    "p2p": "send_recv",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    **{kind: kind for kind in get_args(FittedKind)},
}
"""Spellings of collectives in programs and tables."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredTable:
    """Times of one collective over one group, by rising size."""

    kind: FittedKind
    group: int
    """Ranks."""
    inside: int
    """Of these, ranks in one scale-up domain."""
    device: str
    """As the benchmark printed it; empty where it did not."""
    size: FloatArray
    """Bytes of the full buffer, shape (rows,)."""
    seconds: FloatArray
    """Out of place, shape (rows,)."""
    in_place: FloatArray | None = None
    """In place, shape (rows,), where that was measured at every size."""
    scale_up: float | None = None
    """Bytes/s per direction and device that the link inside can carry, where that is stated."""
    scale_out: float | None = None
    """The same between domains."""
    partial: bool = False
    """An excerpt of a table."""
    source: str = ""

    @property
    def name(self) -> str:
        """Short enough for a table."""
        spread = f", {self.inside} a domain" if self.inside < self.group else ""
        return f"{self.kind} over {self.group} ranks{spread}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a file holds: tables, and what a reader of the answer should know about them."""

    tables: tuple[MeasuredTable, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """The numbers of a table as printed, before they are believed; shape (rows,) each."""

    size: FloatArray
    """Bytes."""
    seconds: FloatArray
    algbw: FloatArray | None = None
    """Size over time in GB/s (1e9)."""
    busbw: FloatArray | None = None
    """That times the bus factor."""


def read_bounded(path: Path) -> str:
    """The text of a file, undecodable bytes replaced; ``ValueError`` if missing or too large."""
    try:
        if not path.is_file():
            raise fault(path, "no such file; name a log of nccl-tests or a CSV")
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise fault(path, f"{error.strerror or 'cannot be read'}; check the path") from None
    if len(content) > LARGEST_FILE:
        raise fault(path, f"is larger than {LARGEST_FILE // 10**6} MB; cut it to its tables")
    return content.decode("utf-8", errors="replace")


def check_columns(columns: Columns, kind: FittedKind, group: int, path: Path, where: str) -> None:
    """Refuse a table whose numbers contradict each other.

    Raises:
        ValueError: one line for no rows, sizes that do not rise, times that are not positive, a
            bandwidth in bits or GiB, a time in another unit, busbw where algbw should be, or
            another number of ranks than the bandwidths were computed with.
    """
    size, seconds = columns.size, columns.seconds
    if not len(size):
        raise fault(path, f"{where}: no measured row; name a file with a table of results")
    falls = np.flatnonzero(np.diff(size) <= 0)
    if len(falls):
        i = int(falls[0])
        raise fault(
            path,
            f"{where}: sizes must rise, but {size[i + 1]:.0f} follows {size[i]:.0f} bytes; "
            "keep one run to a table",
        )
    if not (np.all(np.isfinite(size) & np.isfinite(seconds)) and seconds.min() > 0 < size.min()):
        raise fault(path, f"{where}: sizes and times must be above zero; leave failed rows out")
    _check_bandwidths(columns, kind, group, path, where)
    if size.max() > LARGEST_SIZE or seconds.min() < SHORTEST or seconds.max() > LONGEST:
        raise fault(
            path,
            f"{where}: {size.max():.3g} bytes in {seconds.min():.3g} to {seconds.max():.3g} s "
            "is no measurement; check the units",
        )


def _check_bandwidths(
    columns: Columns, kind: FittedKind, group: int, path: Path, where: str
) -> None:
    """Refuse bandwidths that do not follow from sizes, times and the number of ranks."""
    size, seconds = columns.size, columns.seconds
    if columns.algbw is None or not np.nanmax(columns.algbw, initial=0.0) > 0:
        return
    top = columns.algbw >= min(1.0, float(np.nanmax(columns.algbw)) / 2)
    rounding = 0.012 / float(np.nanmax(columns.algbw))  # printed with two decimals
    factor = float(bus_factor(kind, group))
    if columns.busbw is not None:
        ratio = float(np.median(columns.busbw[top] / columns.algbw[top]))
        if abs(ratio / factor - 1) > 0.01 + rounding:
            raise fault(path, f"{where}: {_other_ranks(ratio, kind, group, factor)}")
    ratio = float(np.median(columns.algbw[top] * 1e9 * seconds[top] / size[top]))
    if abs(ratio - 1) > 0.04 + rounding:
        raise fault(path, f"{where}: {_other_unit(ratio, factor)}")


def _other_ranks(ratio: float, kind: FittedKind, group: int, factor: float) -> str:
    if abs(ratio - 1) < 0.01:
        return (
            f"busbw equals algbw, but over {group} ranks {kind} has busbw = {factor:.4g} x algbw; "
            "give algbw as size over time, not busbw"
        )
    return (
        f"busbw is {ratio:.4g} x algbw, but {kind} over {group} ranks has {factor:.4g}; "
        "check the collective, the number of ranks and that the file holds one machine"
    )


def _other_unit(ratio: float, factor: float) -> str:
    """What algbw x time / size, which should be 1, says of the units."""
    reasons = {
        8.0: "the bandwidths are in bits (Gb/s); write GB/s",
        1 / 8: "the sizes are in bits; write bytes",
        1e9 / 2**30: "the bandwidths are in GiB/s; write GB/s (1e9 bytes)",
        2.0**10: "the sizes are in KiB; write bytes",
        2.0**20: "the sizes are in MiB; write bytes",
        2.0**30: "the sizes are in GiB; write bytes",
        1e3: "the times are in nanoseconds; write microseconds",
        1e-3: "the times are in milliseconds; write microseconds",
        1e-6: "the times are in seconds; write microseconds",
        factor: "algbw is busbw; give algbw as size over time",
    }
    nearest = min(reasons, key=lambda r: abs(math.log(ratio / r)))
    known = abs(ratio / nearest - 1) < 0.02
    reason = reasons[nearest] if known else "check the units of size, time and algbw"
    return f"algbw x time is {ratio:.4g} x size, not 1 x; {reason}"


UNLIKE = 1.5
"""Ratio of times from which two tables of one collective cannot be of one machine."""


def one_machine(tables: Sequence[MeasuredTable]) -> str:
    """The device of all tables, empty where none says.

    Raises:
        ValueError: one line for two devices, or two tables of one collective that disagree.
    """
    devices = sorted({table.device for table in tables if table.device})
    if len(devices) > 1:
        shown = ", ".join(devices[:3]) + (", ..." if len(devices) > 3 else "")
        raise ValueError(
            f"tables of {len(devices)} machines ({shown}); fit one at a time, "
            "with --where for rows of a CSV"
        )
    first: dict[tuple[str, int, int], MeasuredTable] = {}
    for table in tables:
        known = first.setdefault((table.kind, table.group, table.inside), table)
        common = (table.size >= known.size[0]) & (table.size <= known.size[-1])
        if not common.any():
            continue
        expected = np.interp(np.log(table.size[common]), np.log(known.size), np.log(known.seconds))
        ratio = float(np.exp(np.median(np.log(table.seconds[common]) - expected)))
        if max(ratio, 1 / ratio) > UNLIKE:
            raise ValueError(
                f"{known.source} and {table.source} differ {max(ratio, 1 / ratio):.1f}-fold on "
                f"{known.name}: two machines or two settings; fit one at a time"
            )
    return devices[0] if devices else ""
