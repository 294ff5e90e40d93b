"""Passes of micro-batches through model chunks: one template each, laid out in schedule order.

Suffixes: O tasks of a template, E its edges, S stages, L passes of a stage, V chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from estimator.layer import PARTS
from estimator.lower.slots import IntArray
from estimator.simulate.costs import StageWork
from estimator.simulate.graph import KINDS
from estimator.simulate.orders import FORWARD, Order
from estimator.simulate.rows import COMPUTE, LAYER_GROUP, Rows

HELD_LAUNCHES = 32
"""Layers that a host may launch ahead of the device: a queue of 1024 kernels (CUDA's) holds about
that many, at some thirty kernels each."""
HELD_WEIGHTS = 2
"""Layers whose weights are gathered at a time under zero=3: the running one and the next."""


@dataclass(slots=True, kw_only=True)
class Template:
    """Tasks of one pass of one chunk; numbers count from its first task."""

    seconds: list[float] = field(default_factory=list)
    resource: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    name: list[int] = field(default_factory=list)
    mix: list[int] = field(default_factory=list)
    scope: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    first: int = 0
    """Waits for what the pass reads."""
    last: int = 0
    """Its end is the pass's end."""
    marks: list[int] = field(default_factory=list)
    """Where buckets are due: tasks that wait for one of weights, or send one of gradients off."""
    launches: list[int] = field(default_factory=list)
    launched: list[int] = field(default_factory=list)
    """The last task of what each launch sends to the device."""
    gathers: list[int] = field(default_factory=list)
    """Of each layer, the task that gathers its weights; -1 where none does."""
    gathered: list[int] = field(default_factory=list)
    """The last task that reads them."""


Templates = Callable[[int, int, int, int], Template]
"""From phase, stage, chunk and number of buckets to a template."""
_COLUMNS = ("seconds", "resource", "kind", "name", "mix", "scope")


def whole_passes(work: StageWork) -> Templates:
    """A pass as one task, or as equal pieces where buckets are due within it."""
    seconds = work.passes[..., :PARTS].sum(axis=-1).tolist()
    kind = KINDS.index("compute")

    def template(phase: int, stage: int, chunk: int, buckets: int) -> Template:
        mix = len(KINDS) + (phase * work.stages + stage) * work.chunks + chunk
        return Template(
            seconds=[seconds[phase][stage][chunk] / buckets] * buckets,
            resource=[COMPUTE] * buckets,
            kind=[kind] * buckets,
            name=[phase] * buckets,
            mix=[mix] * buckets,
            scope=[LAYER_GROUP] * buckets,
            last=buckets - 1,
            marks=list(range(buckets)),
        )

    return template


@dataclass(slots=True, kw_only=True, eq=False)
class Passes:
    """Numbers of the tasks that run forwards and backwards."""

    first: IntArray
    """First task of a pass, by phase, stage, micro-batch and chunk; (phases, S, m, V)."""
    last: IntArray
    following: IntArray
    """First task of the pass that its stage runs next, -1 after the last; (phases, S, m, V)."""
    gather_marks: IntArray
    """Tasks of the first forward of each chunk that wait for a bucket of weights; (S, V, n)."""
    reduce_marks: IntArray
    """Tasks of the backwards in pieces that send a bucket of gradients off; (S, m, V, n)."""
    gradients_in: int
    """The phase that ends with a micro-batch's gradients."""
    final: IntArray
    """Micro-batch whose backward is the last of a chunk, (S, V)."""
    first_of_stage: IntArray
    last_of_stage: IntArray


def add_passes(work: StageWork, order: Order, templates: Templates, rows: Rows) -> Passes:
    """Add the passes of every stage to the table, in the schedule's order."""
    stages, chunks, m = work.stages, work.chunks, work.micro_batches
    per_chunk = -(-work.buckets // chunks)
    gather = per_chunk if work.overlap_param and work.weights.any() else 1
    every = bool(work.every_gradients.any())
    reduce = per_chunk if work.overlap_grad and (every or work.gradients.any()) else 1
    shape = order.phase.shape
    stage = np.broadcast_to(np.arange(stages)[:, None], shape)
    cell = (order.phase, stage, order.micro_batch, order.chunk)
    phases = int(order.phase.max()) + 1
    ending = phases - 1
    place = np.zeros((phases, stages, m, chunks), dtype=np.int64)
    place[cell] = np.broadcast_to(np.arange(shape[1]), shape)
    final = place[ending].argmax(axis=1)
    split = np.where(
        order.phase == FORWARD,
        order.micro_batch == 0,
        (order.phase == ending) & (every | (order.micro_batch == final[stage, order.chunk])),
    )
    made = [
        templates(phase, s, c, buckets)
        for phase, most in enumerate((gather, *[1] * (phases - 2), reduce))
        for s in range(stages)
        for c in range(chunks)
        for buckets in (1, most)
    ]
    which = np.ravel_multi_index(
        (order.phase, stage, order.chunk, split.astype(np.int64)), (phases, stages, chunks, 2)
    ).reshape(-1)
    base = _lay_out(made, which, cell, rows)
    first = _by_cell(base + _each(made, which, lambda t: t.first), cell, place.shape)
    last = _by_cell(base + _each(made, which, lambda t: t.last), cell, place.shape)
    in_order = first[cell]
    following = np.full(place.shape, -1)
    following[tuple(index[:, :-1] for index in cell)] = in_order[:, 1:]
    for begins, ends, held in (
        ("launches", "launched", HELD_LAUNCHES),
        ("gathers", "gathered", HELD_WEIGHTS),
    ):
        _queue(made, which, base, shape[1], rows, begins, ends, held)
    based = _by_cell(base, cell, place.shape)
    return Passes(
        first=first,
        last=last,
        following=following,
        gather_marks=based[FORWARD][:, 0, :, None] + _marks(made, FORWARD, stages, chunks),
        reduce_marks=based[ending][..., None] + _marks(made, ending, stages, chunks)[:, None],
        gradients_in=ending,
        final=final,
        first_of_stage=in_order[:, 0],
        last_of_stage=last[cell][:, -1],
    )


def _by_cell(values: IntArray, cell: Any, shape: tuple[int, ...]) -> IntArray:
    placed = np.empty(shape, dtype=np.int64)
    placed[cell] = values.reshape(cell[0].shape)
    return placed


def _each(made: list[Template], which: IntArray, value: Callable[[Template], int]) -> IntArray:
    return np.array([value(template) for template in made], dtype=np.int64)[which]


def _marks(made: list[Template], phase: int, stages: int, chunks: int) -> IntArray:
    """Marks of the split template of each stage and chunk, (S, V, n)."""
    mine = made[phase * 2 * stages * chunks :][1 : 2 * stages * chunks : 2]
    return np.array([t.marks for t in mine]).reshape(stages, chunks, -1)


def _lay_out(made: list[Template], which: IntArray, cell: Any, rows: Rows) -> IntArray:
    """Add a template per pass to the table; returns the number of the first task of each."""
    lengths = _each(made, which, lambda t: len(t.seconds))
    starts = np.concatenate(([0], np.cumsum([len(t.seconds) for t in made])[:-1]))
    base = rows.count + np.cumsum(lengths) - lengths
    owner, inner = _ragged(lengths)
    task = starts[which][owner] + inner
    columns = {
        name: np.array([value for t in made for value in getattr(t, name)])[task]
        for name in _COLUMNS
    }
    phase, stage, batch, chunk = (index.reshape(-1)[owner] for index in cell)
    rows.add(phase=phase, stage=stage, micro_batch=batch, chunk=chunk, **columns)
    edges = _each(made, which, lambda t: len(t.sources))
    if edges.any():
        starts = np.concatenate(([0], np.cumsum([len(t.sources) for t in made])[:-1]))
        owner, inner = _ragged(edges)
        edge = starts[which][owner] + inner
        ends = [np.array([v for t in made for v in getattr(t, n)]) for n in ("sources", "targets")]
        rows.edge(*(base[owner] + side[edge] for side in ends))
    return base


def _ragged(lengths: IntArray) -> tuple[IntArray, IntArray]:
    """For rows of the given lengths: the row of each item, and its place there."""
    owner = np.repeat(np.arange(len(lengths)), lengths)
    return owner, np.arange(len(owner)) - (np.cumsum(lengths) - lengths)[owner]


def _queue(
    made: list[Template],
    which: IntArray,
    base: IntArray,
    passes: int,
    rows: Rows,
    begins: str,
    ends: str,
    held: int,
) -> None:
    """What begins ahead on a stage may do so by ``held`` of its kind, then waits for the oldest."""
    counts = _each(made, which, lambda t: len(getattr(t, begins)))
    if not counts.any():
        return
    starts = np.concatenate(([0], np.cumsum([len(getattr(t, begins)) for t in made])[:-1]))
    owner, inner = _ragged(counts)
    entry = starts[which][owner] + inner
    begin, end = (
        np.array([v for t in made for v in getattr(t, name)])[entry] for name in (begins, ends)
    )
    stage = owner // passes
    waits = (stage[:-held] == stage[held:]) & (begin[held:] >= 0)
    begin, end = base[owner] + begin, base[owner] + end
    rows.edge(end[:-held][waits], begin[held:][waits])
