"""What readers of published layouts share: columns by type, names translated, rows left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from estimator.operators import FloatArray
from estimator.samples import Samples

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A layout: the columns that give it away, and its reader (table, file stem) -> samples."""

    columns: frozenset[str]
    read: Callable[[pd.DataFrame, str], Samples]


def words(frame: pd.DataFrame, name: str) -> NDArray[np.str_]:
    """A column as text."""
    return np.asarray(frame[name].astype(str), dtype=np.str_)


def sizes(frame: pd.DataFrame, name: str) -> FloatArray:
    """A column as numbers."""
    return np.asarray(frame[name], dtype=np.float64)


def named(values: NDArray[np.str_], names: Mapping[str, str], what: str) -> NDArray[np.str_]:
    """The project's names of published ones; ``ValueError`` for one that is unknown."""
    unknown = sorted(set(values.tolist()) - set(names))
    if unknown:
        raise ValueError(f"unknown {what} {unknown[0]!r}; known are {', '.join(names)}")
    return np.array([names[value] for value in values.tolist()], dtype=np.str_)


def without(made: Samples, rules: Mapping[str, NDArray[np.bool_]]) -> Samples:
    """Drop rows by rule; a row that two rules hit counts for the first."""
    keep = np.ones(len(made), dtype=bool)
    excluded: dict[str, int] = {}
    for rule, bad in rules.items():
        count = int((bad & keep).sum())
        if count:
            excluded[rule] = count
        keep &= ~bad
    return replace(made.take(keep), excluded=excluded)
