"""The funnel's second stage: the best of the closed form, each run task by task."""

from __future__ import annotations

from collections.abc import Sequence

from estimator.compose import composition
from estimator.estimate import Estimate
from estimator.plan import Plans
from estimator.simulate import simulated_estimates
from spaces import Problem

MOST_FINALISTS = 64
"""More than these would be a search by simulation."""


def simulated(
    problem: Problem, estimates: Sequence[Estimate], cost: str, most: int
) -> list[Estimate]:
    """The estimates, fastest first, with those that may be the best replaced by their simulation.

    A plan may be the best while its interval overlaps that of the leader; at most ``most`` are run.

    Args:
        problem: What the plans are for.
        estimates: Closed forms, fastest first.
        cost: The cost model that priced them.
        most: How many at most.

    Raises:
        ValueError: the cost model does not price layers.
    """
    leader = estimates[0]
    near = [each for each in estimates[:most] if each.low_seconds <= leader.high_seconds]
    run = [] if not near else simulations(problem, Plans.of(each.plan for each in near), cost)
    return sorted([*run, *estimates[len(near) :]], key=lambda each: each.step_seconds)


def simulations(problem: Problem, plans: Plans, cost: str) -> list[Estimate]:
    """Each plan run task by task.

    Raises:
        ValueError: the cost model does not price layers.
    """
    composed = composition(
        problem.model, problem.workload, problem.cluster, plans, stack=problem.stack, cost=cost
    )
    return simulated_estimates(composed)
