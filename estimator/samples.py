"""Measured operators: one schema, whatever the layout that they were published in.

A file of samples is CSV or Parquet, one row a measurement. Columns: those of
``estimator.operators`` (``kind`` and ``dtype`` are needed, the rest have defaults), ``device`` (a
name of the catalogue), one column of time whose name is its unit (``seconds``, ``milliseconds`` or
``microseconds``), and if known ``source`` and ``library``. The published layouts of
``sample_layouts.py`` are recognised by their columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from estimator.operators import (
    DEFAULTS,
    NAMES,
    SHAPES,
    FloatArray,
    NameArray,
    Operators,
    concatenate,
    operators,
)

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

UNITS: Mapping[str, float] = {"seconds": 1.0, "milliseconds": 1e-3, "microseconds": 1e-6}
OWN_COLUMNS = (*NAMES, *SHAPES, "device", "source", "library")
LARGEST_FILE = 2 * 2**30
UNDER_LIGHT = 0.9
"""Share of the speed of light that a time must reach: boards clock over their nominal peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """N measured operators; ``seconds`` is one run of each (``ops.count`` does not multiply it)."""

    ops: Operators
    device: NameArray
    seconds: FloatArray
    source: NameArray
    library: NameArray
    """Version of what ran it, or the name of the collection; empty where it is unknown."""
    excluded: Mapping[str, int]
    """Rows that a named rule left out, by rule: ``sample_layouts.py`` says why of each."""

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Samples:
        """The chosen rows."""
        return replace(
            self,
            ops=self.ops.take(rows),
            device=self.device[rows],
            seconds=self.seconds[rows],
            source=self.source[rows],
            library=self.library[rows],
        )


def samples(
    ops: Operators,
    *,
    device: str | NameArray,
    seconds: FloatArray,
    source: str | NameArray = "",
    library: str | NameArray = "",
    excluded: Mapping[str, int] | None = None,
) -> Samples:
    """Samples from columns or single values.

    Raises:
        ValueError: a time is not positive and finite; the message names the row.
    """
    shape = (len(ops),)
    values = np.broadcast_to(np.asarray(seconds, dtype=np.float64), shape)
    bad = ~(np.isfinite(values) & (values > 0))
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(f"row {row + 1}: seconds={values[row]:g} must be positive and finite")
    return Samples(
        ops=ops,
        device=np.broadcast_to(np.asarray(device, dtype=np.str_), shape),
        seconds=values,
        source=np.broadcast_to(np.asarray(source, dtype=np.str_), shape),
        library=np.broadcast_to(np.asarray(library, dtype=np.str_), shape),
        excluded=dict(excluded or {}),
    )


def pooled(parts: Sequence[Samples]) -> Samples:
    """All rows of several sets, in order; counts of excluded rows add up."""
    excluded: dict[str, int] = {}
    for part in parts:
        for rule, count in part.excluded.items():
            excluded[rule] = excluded.get(rule, 0) + count
    return Samples(
        ops=concatenate([part.ops for part in parts]),
        device=np.concatenate([part.device for part in parts]),
        seconds=np.concatenate([part.seconds for part in parts]),
        source=np.concatenate([part.source for part in parts]),
        library=np.concatenate([part.library for part in parts]),
        excluded=excluded,
    )


def provenance(samples: Samples, hold_out: Sequence[str], seed: int) -> dict[str, Any]:
    """What a file of parameters says of its samples: sources, rows left out by rule, the seed."""
    sources, rows = np.unique(samples.source, return_counts=True)
    return {
        "sources": dict(zip(sources.tolist(), rows.tolist(), strict=True)),
        "excluded": dict(samples.excluded),
        "hold_out": list(hold_out),
        "seed": seed,
    }


def medians(made: Samples) -> Samples:
    """One row for each device and operator: the median of its measurements, by log seconds."""
    ops = made.ops
    labels = [made.device, *(getattr(ops, name) for name in NAMES)]
    words = [np.unique(label, return_inverse=True)[1].ravel() for label in labels]
    shapes = np.stack([*words, *(getattr(ops, shape) for shape in SHAPES)], axis=1)
    _, first, group = np.unique(shapes, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(group.ravel(), kind="stable")
    ends = np.cumsum(np.bincount(group.ravel()))[:-1]
    parts = np.split(np.log(made.seconds)[order], ends)
    middle = np.exp(np.array([np.median(part) for part in parts]))
    return replace(made.take(first), seconds=middle)


def check_light(made: Samples) -> None:
    """``ValueError`` for the first row that its device cannot have run in that time."""
    from estimator.catalog import load_device
    from estimator.cost.kernels import light_seconds

    for name in np.unique(made.device).tolist():
        mine = np.flatnonzero(made.device == name)
        light = light_seconds(made.ops.take(mine), load_device(name))
        bad = made.seconds[mine] < UNDER_LIGHT * light
        if bad.any():
            at = int(np.argmax(bad))
            row = int(mine[at])
            raise ValueError(
                f"row {row + 1}: {made.ops.kind[row]} in seconds={made.seconds[row]:.3g} is "
                f"faster than {name} can be ({light[at]:.3g}); check its unit, or leave it out"
            )


def load_samples(path: str | Path) -> Samples:
    """Read one file of samples: the schema above, or a published layout.

    Raises:
        ValueError: the file cannot be read, is empty, has an unknown column, two units, or a row
            that no operator can have; the message names file, row and column.
    """
    from estimator.sample_layouts import LAYOUTS

    frame = _frame(Path(path))
    if frame.empty:
        raise ValueError(f"{path} has no rows")
    try:
        for layout in LAYOUTS:
            if layout.columns <= set(frame.columns):
                return layout.read(frame, Path(path).stem)
        return _own(frame)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _frame(path: Path) -> pd.DataFrame:
    import pandas as pd

    if path.suffix not in (".csv", ".parquet"):
        raise ValueError(f"{path} must end in .csv or .parquet")
    if not path.is_file():
        raise ValueError(f"{path} is not a file")
    if path.stat().st_size > LARGEST_FILE:
        raise ValueError(f"{path} has more than {LARGEST_FILE >> 30} GiB; split it")
    if path.suffix == ".csv":
        try:
            return pd.read_csv(path)
        except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not a CSV table: {error}") from error
    try:
        return pd.read_parquet(path)
    except ImportError as error:
        raise ValueError(
            f"{path}: reading Parquet needs pyarrow; pip install 'trainplan[learn]'"
        ) from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not a Parquet table: {error}") from error


def _own(frame: pd.DataFrame) -> Samples:
    from estimator.catalog import load_device

    times = [name for name in UNITS if name in frame.columns]
    if len(times) != 1:
        found = " and ".join(times) or "none"
        raise ValueError(f"needs exactly one column of time ({', '.join(UNITS)}); found {found}")
    unknown = set(frame.columns) - {*OWN_COLUMNS, *times}
    if unknown:
        raise ValueError(
            f"unknown column {sorted(unknown)[0]!r}; known are {', '.join((*OWN_COLUMNS, *UNITS))}"
        )
    for needed in ("kind", "dtype", "device"):
        if needed not in frame.columns:
            raise ValueError(f"has no column {needed}")
    given: dict[str, Any] = {
        name: frame[name].fillna("").astype(str).to_numpy(dtype=np.str_)
        for name in NAMES
        if name in frame.columns
    }
    given |= {name: _numbers(frame, name) for name in DEFAULTS if name in frame.columns}
    for device in frame["device"].astype(str).unique():
        load_device(device)
    made = samples(
        operators(given.pop("kind"), **given),
        device=frame["device"].astype(str).to_numpy(dtype=np.str_),
        seconds=_numbers(frame, times[0]) * UNITS[times[0]],
        source=_text(frame, "source"),
        library=_text(frame, "library"),
    )
    check_light(made)
    return made


def _text(frame: pd.DataFrame, name: str) -> NameArray:
    if name not in frame.columns:
        return np.zeros(len(frame), dtype="U1")
    return np.asarray(frame[name].fillna("").astype(str), dtype=np.str_)


def _numbers(frame: pd.DataFrame, name: str) -> FloatArray:
    import pandas as pd

    numbers: FloatArray = np.asarray(pd.to_numeric(frame[name], errors="coerce"), dtype=np.float64)
    bad = np.isnan(numbers)
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(f"row {row + 1}: {name}={frame[name].iloc[row]} is not a number")
    return numbers
