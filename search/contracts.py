"""The JSON documents that other tools read. Fields may be added, never renamed; SI units."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from estimator.cluster import Cluster, Device
from estimator.estimate import HIDDEN_PARTS, MEMORY_PARTS, TIME_PARTS, Estimate
from estimator.model import Transformer
from estimator.stack import Stack
from search.accuracy import Validation
from search.files import save
from search.rules_of_thumb import Baseline
from search.study import Recommendation
from search.sweep import Point, Swept
from search.validate import Scored
from search.versions import versions
from spaces import Problem

if TYPE_CHECKING:
    from estimator.simulate import Simulation
    from search.module import ModuleEstimate

RECOMMENDATION = "trainplan.recommendation.v1"
CATALOG = "trainplan.catalog.v1"
ESTIMATE = "trainplan.estimate.v1"
EXPLANATION = "trainplan.explanation.v1"
MODULE = "trainplan.module.v1"
SIMULATION = "trainplan.simulation.v1"
SWEEP = "trainplan.sweep.v1"
VALIDATION = "trainplan.validation.v1"

_NUMBER = (int, float)
_MAYBE = (int, float, type(None))
PLAN_COSTS: dict[str, Any] = {
    "plan": dict,
    "step_seconds": _NUMBER,
    "low_seconds": _NUMBER,
    "high_seconds": _NUMBER,
    "closed_form_seconds": _NUMBER,
    "time": dict.fromkeys(TIME_PARTS, _NUMBER),
    "hidden": dict.fromkeys(HIDDEN_PARTS, _NUMBER),
    "peak_bytes": _NUMBER,
    "allocated_bytes": _NUMBER,
    "capacity_bytes": _NUMBER,
    "memory": dict.fromkeys(MEMORY_PARTS, _NUMBER),
    "stages": list,
    "tokens_per_second": _NUMBER,
    "mfu": _NUMBER,
    "limited_by": str,
    "origin": dict,
}
"""What is said of one plan: field -> type(s), or the fields of a nested object."""
_PROBLEM = {"model": dict, "workload": dict, "cluster": dict, "stack": dict, "cost": str}
_RANKED = {"rank": int, "tie_group": int, "budget": (dict, type(None)), **PLAN_COSTS}
SCHEMAS: dict[str, dict[str, Any]] = {
    RECOMMENDATION: {
        "schema": str,
        "problem": _PROBLEM,
        "considered": int,
        "legal": int,
        "fitting": int,
        "evaluated": int,
        "left_out": dict,
        "fidelity": str,
        "ranked": [_RANKED],
        "front": [{"plan": dict, "step_seconds": _NUMBER, "peak_bytes": _NUMBER}],
        "nearest_misses": [
            {
                "plan": dict,
                "peak_bytes": _NUMBER,
                "excess_bytes": _NUMBER,
                "change": (str, type(None)),
            }
        ],
        "rules_of_thumb": [
            {
                "name": str,
                "plan": (dict, type(None)),
                "step_seconds": _MAYBE,
                "over_best": _MAYBE,
            }
        ],
        "versions": dict,
    },
    SWEEP: {
        "schema": str,
        "problem": _PROBLEM,
        "field": str,
        "unit": str,
        "points": [
            {
                "value": _NUMBER,
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
    ESTIMATE: {"schema": str, "problem": _PROBLEM, "fits": bool, **PLAN_COSTS, "versions": dict},
    SIMULATION: {
        "schema": str,
        "problem": _PROBLEM,
        "fits": bool,
        **PLAN_COSTS,
        "naive_seconds": _NUMBER,
        "closed_form_time": dict.fromkeys(TIME_PARTS, _NUMBER),
        "ranks": [{"rank": int, "stage": int, "idle_seconds": dict}],
        "memory_over_time": [
            {
                "stage": int,
                "peak_bytes": _NUMBER,
                "closed_form_bytes": _NUMBER,
                "seconds": list,
                "allocated_bytes": list,
            }
        ],
        "critical_path": [
            {"rank": int, "stream": str, "task": str, "start_seconds": _NUMBER}
            | {"seconds": _NUMBER, "micro_batch": (int, type(None))}
        ],
        "versions": dict,
    },
    MODULE: {
        **dict.fromkeys(("schema", "module", "cost", "mode"), str),
        "device": dict,
        "fused": bool,
        "parameters": int,
        **dict.fromkeys(("seconds", "forward_seconds", "backward_seconds"), _NUMBER),
        "kinds": [{"kind": str} | dict.fromkeys(("calls", "seconds", "flops", "bytes"), _NUMBER)],
        "operators": [{"kind": str, "name": str, "in_backward": bool, "origin": str}],
        **dict.fromkeys(("unrecognised", "assumed", "versions"), dict),
    },
    EXPLANATION: {"schema": str, "plans": [{"schema": str, "fits": bool, **PLAN_COSTS}]},
    VALIDATION: {
        "schema": str,
        "rows": [
            {
                "row_id": (str, type(None)),
                "measured_seconds": _MAYBE,
                "predicted_seconds": _NUMBER,
                "low_seconds": _NUMBER,
                "high_seconds": _NUMBER,
                "measured_bytes": _MAYBE,
                "predicted_bytes": _NUMBER,
                "oom": (bool, type(None)),
                "predicted_fits": bool,
                "time": dict,
                "plan": dict,
                "assumed": dict,
            }
        ],
        "unmapped": [{"row_id": (str, type(None)), "reason": str}],
        "groups": [
            {"by": str, "key": str, "rows": int, "mapped": int}
            | dict.fromkeys(("mape", "median", "p90", "bias", "noise"), _MAYBE)
        ],
        "choices": [
            {
                "choice_group": str,
                "plans": int,
                "concordance": _MAYBE,
                "regret": _NUMBER,
                "regret_random": _NUMBER,
                "regret_rule_of_thumb": _NUMBER,
            }
        ],
        "memory": {"kinds": list, "oom": dict},
        "interval": {"coverage": _MAYBE, "width": _MAYBE},
        "versions": dict,
    },
    CATALOG: {
        "schema": str,
        "models": [{"name": str, "parameters": int, "active_parameters": int}],
        "devices": [{"name": str, "memory_bytes": _NUMBER, "peaks": dict}],
        "clusters": [{"name": str, "device": str, "gpus": int}],
        "stacks": [{"name": str}],
    },
}
"""Required fields of each document. A list holds the shape of its items."""


def faults(value: Any, shape: Any, where: str = "document") -> list[str]:
    """What keeps ``value`` from having ``shape``, one line each; empty when nothing does."""
    if isinstance(value, float) and not math.isfinite(value):
        return [f"{where} is {value}"]
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [f"{where} must be a list"]
        return [f for i, item in enumerate(value) for f in faults(item, shape[0], f"{where}[{i}]")]
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return [f"{where} must be an object"]
        missing = [f"{where}.{name} is missing" for name in shape if name not in value]
        nested = [
            fault
            for name, part in shape.items()
            if name in value
            for fault in faults(value[name], part, f"{where}.{name}")
        ]
        return missing + nested
    if not isinstance(value, shape) or (isinstance(value, bool) and shape is not bool):
        return [f"{where} is a {type(value).__name__}"]
    return []


def recommendation(result: Recommendation, rules: Iterable[Baseline] = ()) -> dict[str, Any]:
    """The document ``trainplan.recommendation.v1``, with what rules of thumb would pick."""
    return {
        "schema": RECOMMENDATION,
        "problem": _problem(result.problem, result.cost),
        "considered": result.considered,
        "legal": result.legal,
        "evaluated": result.evaluated,
        "fitting": result.fitting,
        "left_out": dict(result.left_out),
        "fidelity": result.fidelity,
        "ranked": [
            {"rank": row.rank, "tie_group": row.tie_group}
            | _costs(row.estimate, row.limited_by)
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
        "problem": _problem(swept.problem, swept.cost),
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
        else _costs(best.estimate, best.limited_by)
        | {"budget": budget_of(point.problem, best.estimate)},
    }


def estimate(problem: Problem, cost: str, value: Estimate, limit: str) -> dict[str, Any]:
    """The document ``trainplan.estimate.v1``: one plan, whether or not it fits."""
    return {
        "schema": ESTIMATE,
        "problem": _problem(problem, cost),
        "fits": value.fits,
        **_costs(value, limit),
        "versions": versions(),
    }


def simulation(problem: Problem, cost: str, value: Simulation, limit: str) -> dict[str, Any]:
    """The document ``trainplan.simulation.v1``: one step, its idle ranks and its critical path."""
    tasks, timing = value.tasks, value.timing
    return {
        "schema": SIMULATION,
        "problem": _problem(problem, cost),
        "fits": value.estimate.fits,
        **_costs(value.estimate, limit),
        "closed_form_seconds": value.closed_form.step_seconds,
        "closed_form_time": dict(value.closed_form.time),
        "naive_seconds": value.naive_seconds,
        "ranks": [
            {
                "rank": rank,
                "stage": value.stage_of_rank(rank),
                "idle_seconds": {stream: float(idle[rank]) for stream, idle in value.idle.items()},
            }
            for rank in range(value.built.ranks)
        ],
        "memory_over_time": [
            {
                "stage": stage,
                "peak_bytes": memory.peak,
                "closed_form_bytes": float(value.closed_form_bytes[stage]),
                "seconds": memory.seconds.tolist(),
                "allocated_bytes": memory.allocated.tolist(),
            }
            for stage, memory in enumerate(value.memory)
        ],
        "critical_path": [
            {
                "rank": int(tasks.rank[task]),
                "stream": tasks.resources[tasks.resource[task]],
                "task": tasks.names[tasks.name[task]],
                "micro_batch": int(tasks.micro_batch[task])
                if tasks.micro_batch[task] >= 0
                else None,
                "start_seconds": float(timing.start[task]),
                "seconds": float(timing.end[task] - timing.start[task]),
            }
            for task in value.critical_path.tolist()
        ],
        "versions": versions(),
    }


def module(value: ModuleEstimate) -> dict[str, Any]:
    """The document ``trainplan.module.v1``: one pass of a PyTorch module, operator by operator."""
    return {"schema": MODULE, **plain(value.to_dict()), "versions": versions()}


def explanation(estimates: list[dict[str, Any]]) -> dict[str, Any]:
    """The document ``trainplan.explanation.v1``: one plan, or two to compare."""
    return {"schema": EXPLANATION, "plans": estimates}


def validation(report: Validation) -> dict[str, Any]:
    """The document ``trainplan.validation.v1``."""
    every = report.overall
    return {
        "schema": VALIDATION,
        "rows": [_scored(row) for row in report.rows if row.predicted is not None],
        "unmapped": [
            {"row_id": row.run.row_id, "reason": row.reason}
            for row in report.rows
            if row.reason is not None
        ],
        "groups": [plain(group) for group in (every, *report.groups)],
        "choices": [plain(choice) for choice in report.choices],
        "memory": {
            "kinds": [plain(kind) for kind in report.memory],
            "oom": plain(report.oom)
            | {"precision": report.oom.precision, "recall": report.oom.recall},
        },
        "interval": {"coverage": every.coverage, "width": every.width},
        "versions": versions(),
    }


def _scored(row: Scored) -> dict[str, Any]:
    value, mapped = row.predicted, row.mapped
    assert value is not None and mapped is not None
    return {
        "row_id": row.run.row_id,
        "measured_seconds": row.seconds,
        "predicted_seconds": value.step_seconds,
        "low_seconds": value.low_seconds,
        "high_seconds": value.high_seconds,
        "measured_bytes": row.bytes,
        "predicted_bytes": row.predicted_bytes,
        "oom": row.run.oom,
        "predicted_fits": value.fits,
        "time": dict(value.time),
        "plan": mapped.plan.to_dict(),
        "assumed": dict(mapped.assumed),
    }


def catalog(
    models: Iterable[Transformer] = (),
    devices: Iterable[Device] = (),
    clusters: Iterable[Cluster] = (),
    stacks: Iterable[Stack] = (),
) -> dict[str, Any]:
    """The document ``trainplan.catalog.v1``."""
    return {
        "schema": CATALOG,
        "models": [
            plain(m) | {"parameters": m.parameters, "active_parameters": m.active_parameters}
            for m in models
        ],
        "devices": [plain(device) for device in devices],
        "clusters": [
            {
                "name": c.name,
                "device": c.device.name,
                "gpus": c.gpus,
                "nodes": c.nodes,
                "gpus_per_node": c.gpus_per_node,
                "collectives": [
                    {"kind": f.kind, "group": f.group, "inside": f.inside, "source": f.source}
                    for f in c.collectives
                ],
            }
            for c in clusters
        ],
        "stacks": [plain(stack) for stack in stacks],
    }


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


def plain(value: Any) -> Any:
    """Values of the nouns as JSON has them: objects, lists, numbers, words."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(plain(item) for item in value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def write(document: Mapping[str, Any], target: str) -> None:
    """Write a document to a file (whole or not at all) or, for ``-``, to standard output.

    Raises ``ValueError`` where the file cannot be written.
    """
    save((json.dumps(document, indent=2, allow_nan=False) + "\n").encode(), target)


def _problem(problem: Problem, cost: str) -> dict[str, Any]:
    return {
        "model": plain(problem.model) | {"parameters": problem.model.parameters},
        "workload": plain(problem.workload),
        "cluster": plain(problem.cluster) | {"gpus": problem.cluster.gpus},
        "stack": plain(problem.stack),
        "cost": cost,
    }


def _costs(value: Estimate, limit: str) -> dict[str, Any]:
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
        "allocated_bytes": value.allocated_bytes,
        "capacity_bytes": value.capacity_bytes,
        "memory": dict(value.memory),
        "stages": value.stages,
        "tokens_per_second": value.tokens_per_second,
        "mfu": value.mfu,
        "limited_by": limit,
        "origin": dict(value.origin),
    }
