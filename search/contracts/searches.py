"""What a search found: a recommendation, and the best plan along a sweep."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from search.contracts.plans import PLAN_COSTS, PROBLEM, budget_of, costs_of, problem_of
from search.contracts.shapes import MAYBE, NUMBER, Shape
from search.rules_of_thumb import Baseline
from search.study import Recommendation
from search.sweep import Point, Swept
from search.versions import versions

RECOMMENDATION = "trainplan.recommendation.v1"
SWEEP = "trainplan.sweep.v1"
_RANKED = {"rank": int, "tie_group": int, "budget": (dict, type(None)), **PLAN_COSTS}
SCHEMAS: dict[str, Shape] = {
    RECOMMENDATION: {
        "schema": str,
        "problem": PROBLEM,
        "considered": int,
        "legal": int,
        "fitting": int,
        "evaluated": int,
        "left_out": dict,
        "fidelity": str,
        "ranked": [_RANKED],
        "front": [{"plan": dict, "step_seconds": NUMBER, "peak_bytes": NUMBER}],
        "nearest_misses": [
            {
                "plan": dict,
                "peak_bytes": NUMBER,
                "excess_bytes": NUMBER,
                "change": (str, type(None)),
            }
        ],
        "rules_of_thumb": [
            {
                "name": str,
                "plan": (dict, type(None)),
                "step_seconds": MAYBE,
                "over_best": MAYBE,
            }
        ],
        "versions": dict,
    },
    SWEEP: {
        "schema": str,
        "problem": PROBLEM,
        "field": str,
        "unit": str,
        "points": [
            {
                "value": NUMBER,
                "text": str,
                "gpus": int,
                "legal": int,
                "fitting": int,
                "reason": (str, type(None)),
                "best": (dict, type(None)),
            }
        ],
        "versions": dict,
    },
}


def recommendation(result: Recommendation, rules: Iterable[Baseline] = ()) -> dict[str, Any]:
    """The document ``trainplan.recommendation.v1``, with what rules of thumb would pick."""
    return {
        "schema": RECOMMENDATION,
        "problem": problem_of(result.problem, result.cost),
        "considered": result.considered,
        "legal": result.legal,
        "evaluated": result.evaluated,
        "fitting": result.fitting,
        "left_out": dict(result.left_out),
        "fidelity": result.fidelity,
        "ranked": [
            {"rank": row.rank, "tie_group": row.tie_group}
            | costs_of(row.estimate, row.limited_by)
            | {"closed_form_seconds": row.closed_form_seconds}
            | {"budget": budget_of(result.problem, row.estimate)}
            for row in result.ranked
        ],
        "front": [
            {
                "plan": row.estimate.plan.to_dict(),
                "step_seconds": row.estimate.step_seconds,
                "peak_bytes": row.estimate.peak_bytes,
            }
            for row in result.front
        ],
        "nearest_misses": [
            {
                "plan": miss.plan.to_dict(),
                "peak_bytes": miss.peak_bytes,
                "excess_bytes": miss.excess_bytes,
                "change": miss.change,
            }
            for miss in result.nearest_misses
        ],
        "rules_of_thumb": [_baseline(rule, result) for rule in rules],
        "versions": dict(result.versions),
    }


def _baseline(rule: Baseline, result: Recommendation) -> dict[str, Any]:
    cost = rule.estimate
    return {
        "name": rule.name,
        "plan": None if cost is None else cost.plan.to_dict(),
        "step_seconds": None if cost is None else cost.step_seconds,
        "over_best": rule.over(result.ranked[0].estimate) if result.ranked else None,
    }


def sweep(swept: Swept) -> dict[str, Any]:
    """The document ``trainplan.sweep.v1``: the best plan at each value of one field."""
    return {
        "schema": SWEEP,
        "problem": problem_of(swept.problem, swept.cost),
        "field": swept.sweep.field,
        "unit": swept.sweep.unit,
        "points": [_point(point) for point in swept.points],
        "versions": versions(),
    }


def _point(point: Point) -> dict[str, Any]:
    best = point.best
    return {
        "value": point.value,
        "text": point.text,
        "gpus": point.problem.cluster.gpus,
        "legal": point.legal,
        "fitting": point.fitting,
        "reason": point.reason,
        "best": None
        if best is None
        else costs_of(best.estimate, best.limited_by)
        | {"budget": budget_of(point.problem, best.estimate)},
    }
