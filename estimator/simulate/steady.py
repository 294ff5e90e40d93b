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
from estimator.simulate.rows import COMPUTE, SEND, TP

STEP = PHASES.index("step")
WINDOWS = 3
"""Times what is in flight at most: settling, repeating, draining; a group more repeats."""
ALIKE = 1e-12
"""Share of the makespan within which two times are the same."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """Micro-batches left out of a simulated step, and the seconds that they add."""

    micro_batches: int
    seconds: float


def _in_flight(plan: Plan) -> int:
    """How many micro-batches a stage may begin between the first and the last pass of one."""
    if plan.interleave > 1:
        return 2 * plan.pp + 1
    return LAGS.get(plan.schedule, 1) * plan.pp


def fewer(work: StageWork, plan: Plan) -> int:
    """Micro-batches that show a steady state, if any; else all.

    Not where something happens after every micro-batch, under GPipe, nor where interleaved groups
    are not all of as many micro-batches as stages.
    """
    m, group = work.micro_batches, group_of(plan)
    if work.every_gradients.any() or plan.schedule == "gpipe" or m % group:
        return m
    few = WINDOWS * _in_flight(plan) + group
    return min(m, few + (m - few) % group)


def group_of(plan: Plan) -> int:
    """Micro-batches after which the order of passes repeats."""
    return plan.pp if plan.interleave > 1 else 1


def repetition(
    work: StageWork, plan: Plan, built: Built, timing: Timing, left_out: int
) -> Repeated | None:
    """What so many further micro-batches add; ``None`` where the passes do not repeat yet."""
    tasks, group, window = built.tasks, group_of(plan), _in_flight(plan)
    mine = np.flatnonzero(
        ((tasks.resource == COMPUTE) | (tasks.resource >= SEND)) & (tasks.phase < STEP)
    )
    place = (tasks.resource, tasks.phase, built.stage, tasks.micro_batch, built.chunk)
    end = np.zeros((TP, STEP, work.stages, work.micro_batches, work.chunks))
    # Of a pass in pieces the last one is written last; what never runs stays zero.
    end[tuple(column[mine] for column in place)] = timing.end[mine]
    until = work.micro_batches - window
    before = end[..., until - window - group : until - group, :]
    later = end[..., until - window : until, :] - before
    period = float(later[COMPUTE, 0, 0, 0, 0])
    if np.abs(later - period * (before > 0)).max() > ALIKE * timing.makespan:
        return None
    return Repeated(left_out, left_out / group * period)
