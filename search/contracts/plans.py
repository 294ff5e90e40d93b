"""One plan: what it costs (``estimate``), in words (``explanation``), and its problem."""

from __future__ import annotations

from typing import Any

from estimator.estimate import HIDDEN_PARTS, MEMORY_PARTS, TIME_PARTS, Estimate
from search.contracts.files import plain
from search.contracts.shapes import NUMBER, Shape
from search.versions import versions
from spaces import Problem

ESTIMATE = "trainplan.estimate.v1"
EXPLANATION = "trainplan.explanation.v1"
PLAN_COSTS: dict[str, Any] = {
    "plan": dict,
    "step_seconds": NUMBER,
    "low_seconds": NUMBER,
    "high_seconds": NUMBER,
    "closed_form_seconds": NUMBER,
    "time": dict.fromkeys(TIME_PARTS, NUMBER),
    "hidden": dict.fromkeys(HIDDEN_PARTS, NUMBER),
    "peak_bytes": NUMBER,
    "low_bytes": NUMBER,
    "high_bytes": NUMBER,
    "allocated_bytes": NUMBER,
    "capacity_bytes": NUMBER,
    "memory": dict.fromkeys(MEMORY_PARTS, NUMBER),
    "stages": list,
    "tokens_per_second": NUMBER,
    "mfu": NUMBER,
    "limited_by": str,
    "origin": dict,
}
"""What is said of one plan: field -> type(s), or the fields of a nested object."""
PROBLEM = {"model": dict, "workload": dict, "cluster": dict, "stack": dict, "cost": str}
SCHEMAS: dict[str, Shape] = {
    ESTIMATE: {"schema": str, "problem": PROBLEM, "fits": bool, **PLAN_COSTS, "versions": dict},
    EXPLANATION: {"schema": str, "plans": [{"schema": str, "fits": bool, **PLAN_COSTS}]},
}


def estimate(problem: Problem, cost: str, value: Estimate, limit: str) -> dict[str, Any]:
    """The document ``trainplan.estimate.v1``: one plan, whether or not it fits."""
    return {
        "schema": ESTIMATE,
        "problem": problem_of(problem, cost),
        "fits": value.fits,
        **costs_of(value, limit),
        "versions": versions(),
    }


def explanation(estimates: list[dict[str, Any]]) -> dict[str, Any]:
    """The document ``trainplan.explanation.v1``: one plan, or two to compare."""
    return {"schema": EXPLANATION, "plans": estimates}


def budget_of(problem: Problem, value: Estimate) -> dict[str, float | None] | None:
    """Days and dollars that a plan takes for the token budget; ``None`` without a budget."""
    tokens = problem.workload.token_budget
    if tokens is None:
        return None
    seconds = tokens / value.tokens_per_second
    price = problem.cluster.price_per_hour
    return {
        "tokens": tokens,
        "seconds": seconds,
        "dollars": None if price is None else price * seconds / 3600,
    }


def problem_of(problem: Problem, cost: str) -> dict[str, Any]:
    """The problem that a document answers."""
    return {
        "model": plain(problem.model) | {"parameters": problem.model.parameters},
        "workload": plain(problem.workload),
        "cluster": plain(problem.cluster) | {"gpus": problem.cluster.gpus},
        "stack": plain(problem.stack),
        "cost": cost,
    }


def costs_of(value: Estimate, limit: str) -> dict[str, Any]:
    """The fields of ``PLAN_COSTS``, and what compute is made of."""
    return {
        "plan": value.plan.to_dict(),
        "step_seconds": value.step_seconds,
        "low_seconds": value.low_seconds,
        "high_seconds": value.high_seconds,
        "closed_form_seconds": value.step_seconds,
        "time": dict(value.time),
        "compute_phases": dict(value.compute_phases),
        "hidden": dict(value.hidden),
        "peak_bytes": value.peak_bytes,
        "low_bytes": value.low_bytes,
        "high_bytes": value.high_bytes,
        "allocated_bytes": value.allocated_bytes,
        "capacity_bytes": value.capacity_bytes,
        "memory": dict(value.memory),
        "stages": value.stages,
        "tokens_per_second": value.tokens_per_second,
        "mfu": value.mfu,
        "limited_by": limit,
        "origin": dict(value.origin),
    }
