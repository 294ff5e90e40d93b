"""Operators as rows: what a kernel works on, whichever model, framework or measurement it is from.

The shape columns mean, by kind (N rows in all):

    linear, bmm      ``batch`` products (m, k) x (k, n); linear has weights and may add a bias
    attention        ``batch`` sequences, m queries, n keys, ``heads`` and ``kv_heads`` of k columns
    embedding        m rows of n columns out of a table of k rows
    optimizer        m parameters; n = 1
    everything else  m rows of n columns; ``reads`` and ``writes`` count arrays of that size,
                     ``work`` the arithmetic of one element

Formulas for FLOPs and bytes are in ``lower/operators.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
NameArray = NDArray[np.str_]

KINDS = (
    "linear",
    "bmm",
    "attention",
    "elementwise",
    "softmax",
    "layer_norm",
    "rms_norm",
    "rope",
    "embedding",
    "cross_entropy",
    "optimizer",
    "copy",
)
PHASES = ("forward", "backward")
DTYPE_BYTES: Mapping[str, float] = {
    "fp32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0,
    "fp4": 0.5,
}
NAMES = ("kind", "name", "phase", "dtype")
SHAPES = ("batch", "m", "n", "k", "heads", "kv_heads", "causal", "reads", "writes", "work", "count")
DEFAULTS: Mapping[str, float] = {
    "batch": 1.0,
    "m": 1.0,
    "n": 1.0,
    "k": 1.0,
    "heads": 1.0,
    "kv_heads": 1.0,
    "causal": 0.0,
    "reads": 1.0,
    "writes": 1.0,
    "work": 1.0,
    "count": 1.0,
}
POSITIVE = ("batch", "m", "n", "k", "heads", "kv_heads")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    """Columns of N operators; every array has shape (N,)."""

    kind: NameArray
    """One of ``KINDS``: which family of kernels."""
    name: NameArray
    """The operator within its kind (``gelu``, ``add``), or a label of the caller's."""
    phase: NameArray
    """forward, or backward: all that autograd runs for this operator (both GEMMs of a linear)."""
    dtype: NameArray
    batch: FloatArray
    m: FloatArray
    n: FloatArray
    k: FloatArray
    heads: FloatArray
    kv_heads: FloatArray
    causal: FloatArray
    """1 where attention skips the upper triangle, 0 where it works on all of it."""
    reads: FloatArray
    writes: FloatArray
    work: FloatArray
    count: FloatArray
    """How often it runs; prices include it."""

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Operators:
        """The chosen rows."""
        return Operators(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """All columns by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def operators(
    kind: str | Sequence[str] | NameArray,
    *,
    dtype: str | Sequence[str] | NameArray,
    phase: str | Sequence[str] | NameArray = "forward",
    name: str | Sequence[str] | NameArray = "",
    **shapes: float | Sequence[float] | NDArray[np.generic],
) -> Operators:
    """Operators from columns or single values, broadcast against each other.

    Raises:
        ValueError: a column, kind, phase or dtype is unknown, or a size is not positive and finite.
    """
    unknown = set(shapes) - set(SHAPES)
    if unknown:
        raise ValueError(
            f"unknown shape column {sorted(unknown)[0]!r}; use one of {', '.join(SHAPES)}"
        )
    given = {**DEFAULTS, **shapes}
    names = [
        np.atleast_1d(np.asarray(value, dtype=np.str_)) for value in (kind, name, phase, dtype)
    ]
    sizes = [np.atleast_1d(np.asarray(given[shape], dtype=np.float64)) for shape in SHAPES]
    rows = np.broadcast_shapes(*(array.shape for array in (*names, *sizes)))
    columns: dict[str, NDArray[np.generic]] = {
        label: np.broadcast_to(array, rows)
        for label, array in zip((*NAMES, *SHAPES), (*names, *sizes), strict=True)
    }
    made = Operators(**columns)  # type: ignore[arg-type]
    check(made)
    return made


def check(ops: Operators) -> None:
    """``ValueError`` for the first row with a word or a size that no operator can have."""
    for column, known in (("kind", KINDS), ("phase", PHASES), ("dtype", tuple(DTYPE_BYTES))):
        values = getattr(ops, column)
        bad = ~np.isin(values, known)
        if bad.any():
            row = int(np.argmax(bad))
            raise ValueError(
                f"row {row + 1}: unknown {column} {str(values[row])!r}; "
                f"use one of {', '.join(known)}"
            )
    for column in SHAPES:
        values = getattr(ops, column)
        bad = ~np.isfinite(values) | (values <= 0 if column in POSITIVE else values < 0)
        if bad.any():
            row = int(np.argmax(bad))
            least = "positive" if column in POSITIVE else "0 or more"
            raise ValueError(f"row {row + 1}: {column}={values[row]:g} must be {least} and finite")


def concatenate(parts: Sequence[Operators]) -> Operators:
    """All rows of several tables, in order."""
    return Operators(
        **{
            f.name: np.concatenate([getattr(part, f.name) for part in parts])
            for f in fields(Operators)
        }
    )
