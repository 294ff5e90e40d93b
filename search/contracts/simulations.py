"""One simulated step: idle ranks, memory over time and the critical path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from estimator.estimate import TIME_PARTS
from search.contracts.plans import PLAN_COSTS, PROBLEM, costs_of, problem_of
from search.contracts.shapes import NUMBER, Shape
from search.versions import versions
from spaces import Problem

if TYPE_CHECKING:
    from estimator.simulate import Simulation


SIMULATION = "trainplan.simulation.v1"
SCHEMAS: dict[str, Shape] = {
    SIMULATION: {
        "schema": str,
        "problem": PROBLEM,
        "fits": bool,
        **PLAN_COSTS,
        "naive_seconds": NUMBER,
        "closed_form_time": dict.fromkeys(TIME_PARTS, NUMBER),
        "ranks": [{"rank": int, "stage": int, "idle_seconds": dict}],
        "memory_over_time": [
            {
                "stage": int,
                "peak_bytes": NUMBER,
                "closed_form_bytes": NUMBER,
                "seconds": list,
                "allocated_bytes": list,
            }
        ],
        "critical_path": [
            {"rank": int, "stream": str, "task": str, "start_seconds": NUMBER}
            | {"seconds": NUMBER, "micro_batch": (int, type(None))}
        ],
        "versions": dict,
    },
}


def simulation(problem: Problem, cost: str, value: Simulation, limit: str) -> dict[str, Any]:
    """The document ``trainplan.simulation.v1``: one step, its idle ranks and its critical path."""
    tasks, timing = value.tasks, value.timing
    return {
        "schema": SIMULATION,
        "problem": problem_of(problem, cost),
        "fits": value.estimate.fits,
        **costs_of(value.estimate, limit),
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
