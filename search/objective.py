"""What is minimised, and what holds a plan back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from estimator import estimate, peak_memory
from estimator.estimate import TIME_PARTS, Estimate, Estimates, FloatArray
from estimator.plan import Plans
from spaces import Problem

NOTICEABLE = 0.05
"""Share of a step from which a part other than compute counts as what limits it."""


@dataclass(frozen=True, slots=True)
class Pricing:
    """Where seconds and bytes come from: the two questions that a search asks of a plan.

    Both take the arguments of :func:`estimator.estimate`; ``peak_memory`` has no cost model.
    """

    estimate: Callable[..., Estimates] = estimate
    peak_memory: Callable[..., FloatArray] = peak_memory
    cost: str = "analytic"

    def peak_bytes(self, problem: Problem, plans: Plans) -> FloatArray:
        """Bytes at the peak of each plan, shape (P,)."""
        model, workload, cluster = problem.model, problem.workload, problem.cluster
        return self.peak_memory(model, workload, cluster, plans, stack=problem.stack)

    def estimates(self, problem: Problem, plans: Plans) -> Estimates:
        """All parts of each plan's cost."""
        model, workload, cluster = problem.model, problem.workload, problem.cluster
        return self.estimate(model, workload, cluster, plans, stack=problem.stack, cost=self.cost)


@dataclass(frozen=True, slots=True)
class Scores:
    """What a strategy learns of P plans, each of shape (P,)."""

    seconds: FloatArray
    """The objective: seconds per step; infinite where the plan does not fit.

    For a token budget, days and dollars are proportional to it, so they rank plans the same way.
    """
    peak_bytes: FloatArray
    excess_bytes: FloatArray
    """Bytes over the device's capacity; a plan fits where it is not positive."""


def score(problem: Problem, plans: Plans, pricing: Pricing) -> Scores:
    """Memory of all plans first, then time of those that fit: the cheap question prunes."""
    peak = pricing.peak_bytes(problem, plans)
    excess = peak - problem.cluster.capacity_bytes
    fits = excess <= 0
    seconds = np.full(len(plans), np.inf)
    if fits.any():
        seconds[fits] = pricing.estimates(problem, plans[fits]).step_seconds
    return Scores(seconds, peak, excess)


def limited_by(estimate: Estimate) -> str:
    """The largest time part besides compute, or ``compute`` where none is noticeable."""
    others = [part for part in TIME_PARTS if part != "compute"]
    largest = max(others, key=lambda part: estimate.time[part])
    noticeable = estimate.time[largest] >= NOTICEABLE * estimate.step_seconds
    return largest if noticeable else "compute"
