"""Bytes over time on each stage: what forwards allocate and backwards release."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from estimator.lower.slots import FloatArray
from estimator.simulate.costs import StageWork
from estimator.simulate.engine import Timing
from estimator.simulate.orders import BACKWARD, FORWARD, WEIGHT
from estimator.simulate.ranks import Built
from estimator.simulate.rows import COMPUTE


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageMemory:
    """Allocated bytes of a stage as steps: from ``seconds[i]`` on they are ``allocated[i]``."""

    seconds: FloatArray
    allocated: FloatArray

    @property
    def peak(self) -> float:
        """Most bytes at any time."""
        return float(self.allocated.max())


def memory_over_time(work: StageWork, built: Built, timing: Timing) -> list[StageMemory]:
    """One entry per stage, of its first rank in the table.

    A forward allocates its chunk's share of a micro-batch when it starts, its backward releases it
    when it ends; while a backward runs, what passes (the layer that runs again, gradients, logits)
    is there too.
    """
    tasks = built.tasks
    return [
        _stage(work, built, timing, stage, int(tasks.rank[built.stage == stage][0]))
        for stage in range(work.stages)
    ]


def _stage(work: StageWork, built: Built, timing: Timing, stage: int, rank: int) -> StageMemory:
    tasks = built.tasks
    mine = np.flatnonzero((tasks.rank == rank) & (tasks.resource == COMPUTE))
    forward, backward = mine[tasks.phase[mine] == FORWARD], mine[tasks.phase[mine] == BACKWARD]
    # What late weight gradients read is released with them.
    ending = WEIGHT if (tasks.phase[mine] == WEIGHT).any() else BACKWARD
    # Of a pass in pieces, the first allocates and the last releases.
    place = tasks.micro_batch[mine].astype(np.int64) * work.chunks + built.chunk[mine]
    begins = forward[np.unique(place[tasks.phase[mine] == FORWARD], return_index=True)[1]]
    reverse = mine[tasks.phase[mine] == ending][::-1]
    ends = reverse[np.unique(place[tasks.phase[mine] == ending][::-1], return_index=True)[1]]
    share = float(work.kept[stage]) * work.shares[stage]
    passing = float(work.passing[stage])
    moments = np.concatenate(
        [timing.end[ends], timing.end[backward], timing.start[backward], timing.start[begins]]
    )
    pieces = np.full(len(backward), passing)
    changes = np.concatenate(
        [-share[built.chunk[ends]], -pieces, pieces, share[built.chunk[begins]]]
    )
    # At one moment releases come before allocations.
    order = np.lexsort((changes, moments))
    steps = float(work.states[stage]) + np.cumsum(changes[order])
    return StageMemory(
        seconds=np.concatenate([[0.0], moments[order]]),
        allocated=np.concatenate([[float(work.states[stage])], steps]),
    )
