"""Steps of many micro-batches from fewer: a pipeline in its steady state repeats itself.

A pass depends on passes of micro-batches that are in flight with its own and on nothing older. Once
all of those come a fixed time after their like, one group of micro-batches earlier, so does every
later pass until the pipeline drains: a step of more micro-batches is longer by that time for each
further group, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from estimator.plan import Plan
from estimator.simulate.costs import StageWork
from estimator.simulate.engine import Timing
from estimator.simulate.graph import PHASES
from estimator.simulate.orders import LAGS
from estimator.simulate.ranks import Built
from estimator.simulate.rows import COMPUTE

WINDOWS = 3
"""Times what is in flight at most: settling, repeating, draining; a group more repeats."""
ALIKE = 1e-12
"""Share of the makespan within which two times are the same."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """Micro-batches left out of a simulated step, and the seconds that they add."""

    micro_batches: int
    seconds: float


def _in_flight(work: StageWork, plan: Plan) -> int:
    """How many micro-batches a stage may begin between the first and the last pass of one."""
    if plan.interleave > 1:
        return 2 * plan.pp + 1
    return LAGS.get(plan.schedule, 1) * plan.pp


def fewer(work: StageWork, plan: Plan) -> int:
    """Micro-batches that show a steady state, if any; else all.

    Not where something happens after every micro-batch, where transfers run beside compute, under
    GPipe, nor where interleaved groups are not all of as many micro-batches as stages.
    """
    m, group = work.micro_batches, _group(plan)
    if work.every_gradients.any() or work.crossing or plan.schedule == "gpipe" or m % group:
        return m
    few = WINDOWS * _in_flight(work, plan) + group
    return min(m, few + (m - few) % group)


def _group(plan: Plan) -> int:
    return plan.pp if plan.interleave > 1 else 1


def repetition(
    work: StageWork, plan: Plan, built: Built, timing: Timing, left_out: int
) -> Repeated | None:
    """What so many further micro-batches add; ``None`` where the passes do not repeat yet."""
    tasks, group, window = built.tasks, _group(plan), _in_flight(work, plan)
    mine = np.flatnonzero((tasks.resource == COMPUTE) & (tasks.phase < PHASES.index("step")))
    shape = (len(PHASES), work.stages, work.micro_batches, work.chunks)
    end = np.zeros(shape)
    # Of a pass in pieces the last one is written last.
    end[tasks.phase[mine], built.stage[mine], tasks.micro_batch[mine], built.chunk[mine]] = (
        timing.end[mine]
    )
    end = end[: int(tasks.phase[mine].max()) + 1]
    until = work.micro_batches - window
    later = end[:, :, until - window : until] - end[:, :, until - window - group : until - group]
    period = float(later.flat[0])
    if np.abs(later - period).max() > ALIKE * timing.makespan:
        return None
    return Repeated(left_out, left_out / group * period)
