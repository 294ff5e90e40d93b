"""The order in which each pipeline stage runs its micro-batches: schedules as lists of tasks.

Suffixes: S stages, L tasks of a stage.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from estimator.lower.slots import IntArray
from estimator.schedule import micro_batch_group

FORWARD, BACKWARD, WEIGHT = 0, 1, 2
"""Indices of ``graph.PHASES``."""


LAGS = {"zb-h1": 1, "zb-h2": 2}
"""Micro-batches by which each stage puts its weights' gradients off, per stage before it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Order:
    """What every stage runs, one after the other; arrays of shape (S, L)."""

    phase: IntArray
    micro_batch: IntArray
    chunk: IntArray


def schedule_order(schedule: str, stages: int, chunks: int, micro_batches: int) -> Order:
    """The order of a schedule of ``plan.CHOICES`` with any number of chunks and micro-batches.

    ``gpipe`` runs all forwards, then all backwards (arXiv 1811.06965). ``1f1b`` runs as many
    forwards ahead as stages follow, then one backward and one forward in turn (arXiv 2006.09503);
    with several chunks, groups of micro-batches go through chunk after chunk (arXiv 2104.04473).
    ``zb-h1`` and ``zb-h2`` cut the weights' gradients off backwards and put them off by one or two
    micro-batches per stage passed; H2 also runs about twice as many forwards ahead (arXiv
    2401.10241). One stage alone has nothing to put off.
    """
    if schedule in LAGS and stages > 1:
        return _zero_bubble(LAGS[schedule], stages, micro_batches)
    forward, backward = _units(stages, chunks, micro_batches, schedule)
    units = chunks * micro_batches
    following = stages - 1 - np.arange(stages)
    if schedule == "gpipe":
        ahead = np.full(stages, units)
    elif chunks == 1:
        ahead = following + 1
    else:
        group = min(int(micro_batch_group(*_pair(stages, micro_batches))[0]), micro_batches)
        ahead = 2 * following + (chunks - 1) * group + 1
    ahead = np.minimum(ahead, units)[:, None]
    unit = np.arange(units)
    # A backward and a forward take turns once those ahead have run, until no forward is left.
    at_forward = np.where(unit < ahead, unit, 2 * unit - ahead + 1)
    at_backward = np.where(unit < units - ahead, ahead + 2 * unit, units + unit)
    shape = (stages, 2 * units)
    order = Order(
        phase=np.zeros(shape, dtype=np.int64),
        micro_batch=np.zeros(shape, dtype=np.int64),
        chunk=np.zeros(shape, dtype=np.int64),
    )
    for phase, place, (batch, chunk) in (
        (FORWARD, at_forward, forward),
        (BACKWARD, at_backward, backward),
    ):
        np.put_along_axis(order.phase, place, phase, axis=1)
        for column, values in ((order.micro_batch, batch), (order.chunk, chunk)):
            np.put_along_axis(column, place, np.broadcast_to(values, place.shape), axis=1)
    return order


def _zero_bubble(lag: int, stages: int, micro_batches: int) -> Order:
    """Forwards ahead, then a backward, a weight gradient that is due, and a forward in turn."""
    batch = np.arange(micro_batches)
    rows = []
    for stage in range(stages):
        ahead = lag * (stages - 1 - stage) + 1
        # Moments of backwards are 3, 6, 9...; what else runs lies between them.
        moments = (
            np.where(batch < ahead, (batch - ahead) / (ahead + 1), 3 * (batch - ahead) + 2),
            3 * batch + 0,
            np.where(
                batch + lag * stage < micro_batches,
                3 * (batch + lag * stage) + 1,
                3 * micro_batches + batch,
            ),
        )
        phase = np.repeat([FORWARD, BACKWARD, WEIGHT], micro_batches)
        by_time = np.argsort(np.concatenate(moments), kind="stable")
        rows.append((phase[by_time], np.tile(batch, 3)[by_time]))
    phases, batches = (np.stack(side) for side in zip(*rows, strict=True))
    return Order(phase=phases, micro_batch=batches, chunk=np.zeros_like(phases))


def _pair(stages: int, micro_batches: int) -> tuple[IntArray, IntArray]:
    return np.array([stages]), np.array([micro_batches])


def _units(
    stages: int, chunks: int, micro_batches: int, schedule: str
) -> tuple[tuple[IntArray, IntArray], tuple[IntArray, IntArray]]:
    """Micro-batch and chunk of each forward and of each backward, in the order they run."""
    group = int(micro_batch_group(*_pair(stages, micro_batches))[0])
    if schedule == "gpipe":
        group = micro_batches
    batch, chunk = [], []
    for start in range(0, micro_batches, group):
        members = np.arange(start, min(start + group, micro_batches))
        batch.append(np.tile(members, chunks))
        chunk.append(np.repeat(np.arange(chunks), len(members)))
    batches, chunk_of = np.concatenate(batch), np.concatenate(chunk)
    return (batches, chunk_of), (batches, chunks - 1 - chunk_of)
