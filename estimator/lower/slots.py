"""Static slots of a model and their columns; which plans share a column.

Suffixes: O slots, U unique keys, P plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Column = FloatArray | IntArray | float

Kind = Literal["gemm", "attention", "memory", "host_copy", "host_memory", "collective"]
Collective = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast"
]
Place = Literal["layer", "embedding", "head", "boundary", "stage"]
Phase = Literal["forward", "backward_input", "backward_weight", "step"]
Stream = Literal["compute", "tp", "cp", "ep", "dp", "pp"]

CORE = frozenset({"selective", "full"})
MLP = frozenset({"mlp", "full"})
FULL = frozenset({"full"})
NEVER: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One operation of every plan of a model; a plan that lacks it has a count of zero."""

    name: str
    kind: Kind
    place: Place
    phase: Phase
    stream: Stream = "compute"
    collective: Collective | None = None
    recomputed_by: frozenset[str] = NEVER
    """Recompute kinds that run this forward slot again in backward."""
    layer: int = 0
    """Index of the layer's kind; 0 outside layers."""
    low_precision: bool = False
    """A GEMM with weights, which fp8 (or fp4) training runs in fp8."""
    asynchronous: bool = False
    """A backward collective that may run beside the GEMMs of its own column-parallel layer."""
    shields: bool = False
    """A backward GEMM that such a collective may run beside."""


@dataclass(slots=True, kw_only=True)
class Columns:
    """What a pricer sees: arrays of shape (O, U). Sizes of one operation, times ``count``."""

    slots: tuple[Slot, ...]
    count: FloatArray
    flops: FloatArray
    bytes: FloatArray
    """Memory traffic, or for a collective the full size of its buffer."""
    m: FloatArray
    n: FloatArray
    k: FloatArray
    """GEMM: (m, k) x (k, n). Attention: queries, keys, head size."""
    group: FloatArray
    """Ranks of a collective."""
    inside: FloatArray
    """Of these, ranks in one scale-up domain."""
    between: FloatArray
    """All-to-all: bytes of a rank that leave its scale-up domain (``bytes`` stay inside)."""
    above_leaf: FloatArray
    """Traffic above leaf switches, as a share of what leaves scale-up domains."""
    starts: FloatArray
    """GEMM: products in one launch that each fill the device anew (grouped experts). Attention:
    heads of all sequences in one launch."""

    def rows(self, kind: Kind) -> IntArray:
        """Indices of the slots of one kind."""
        return np.array([i for i, slot in enumerate(self.slots) if slot.kind == kind], dtype=int)

    def collectives(self, kind: Collective) -> IntArray:
        """Indices of the slots that are collectives of one kind."""
        return np.array([i for i, slot in enumerate(self.slots) if slot.collective == kind], int)


COLUMNS = tuple(field.name for field in fields(Columns) if field.name != "slots")


@dataclass(slots=True)
class Builder:
    """Collects slots with their columns; anything not given is zero."""

    unique: int
    slots: list[Slot] = field(default_factory=list)
    columns: list[dict[str, Column]] = field(default_factory=list)

    def add(self, slot: Slot, **columns: Column) -> None:
        """Append a slot; each column broadcasts to (U,)."""
        self.slots.append(slot)
        self.columns.append({"count": 1.0, "starts": 1.0, **columns})

    def build(self) -> Columns:
        """The (O, U) columns of everything added."""
        shape = (len(self.slots), self.unique)
        stacked = {name: np.zeros(shape) for name in COLUMNS}
        for row, given in enumerate(self.columns):
            for name, value in given.items():
                stacked[name][row] = value
        return Columns(slots=tuple(self.slots), **stacked)


def unique_rows(columns: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    """Group equal rows of int columns of shape (P,).

    Returns one representative row per group, shape (U,), and each row's group, shape (P,).
    """
    code = np.zeros(len(columns[0]), dtype=np.int64)
    span = 1
    for column in columns:
        low = int(column.min())
        width = int(column.max()) - low + 1
        if width == 1:
            continue
        if span * width >= 2**62:
            _, code = np.unique(code, return_inverse=True)
            span = len(code)
        code = code * width + (column - low)
        span *= width
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    return first, inverse


def ranks_inside(size: IntArray, stride: IntArray, domain: int) -> FloatArray:
    """Ranks of a group that lie in one scale-up domain, when they are ``stride`` ranks apart."""
    return np.clip(domain // stride, 1, size).astype(float)


def above_leaf(
    kind: Collective, group: IntArray, inside: FloatArray, leaf: FloatArray
) -> FloatArray:
    """Traffic above leaf switches, as a share of what leaves scale-up domains.

    Of a group's ranks, ``inside`` lie in one domain and ``leaf`` below one leaf switch. A ring
    leaves each place once, however many of its ranks are there, and as many rings cross a place as
    its ranks have groups. An all-to-all sends to all ranks alike.
    """
    share = inside / leaf
    if kind == "all_to_all":
        share = (group - leaf) / np.maximum(group - inside, 1)
    return np.where(leaf < group, share, 0.0)


def largest_row(rows: FloatArray) -> IntArray:
    """``rows.argmax(axis=0)`` for few rows of many columns, several times as fast."""
    index = np.zeros(rows.shape[1], dtype=np.int64)
    best = rows[0]
    for i in range(1, len(rows)):
        index[rows[i] > best] = i
        best = np.maximum(best, rows[i])
    return index
