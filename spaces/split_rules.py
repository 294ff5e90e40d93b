"""Rules on how the batch and the layers are cut: micro-batches, stages and interleaving."""

from __future__ import annotations

import numpy as np

from estimator.plan import CHOICES, UNSET, Plan, Plans
from spaces.problem import BoolArray, Problem, Rule, divisors, offer
from spaces.stages import end_stages, inner_layers

ONE_F_ONE_B = CHOICES["schedule"].index("1f1b")
_ENDS = ("first_stage_layers", "last_stage_layers")


def _batch(problem: Problem, plans: Plans) -> BoolArray:
    legal: BoolArray = problem.workload.global_batch % (plans.dp * plans.micro_batch) == 0
    return legal


def _explain_batch(problem: Problem, plan: Plan) -> str:
    batch = problem.workload.global_batch
    if batch % plan.dp:
        near = batch // plan.dp * plan.dp
        sizes = [size for size in (near, near + plan.dp) if size]
        remedy = f"use another dp, or a batch of {' or '.join(str(size) for size in sizes)}"
    else:
        remedy = "micro_batch: " + offer(divisors(batch // plan.dp))
    return (
        f"dp={plan.dp} x micro_batch={plan.micro_batch} must divide the global batch of {batch}; "
        f"{remedy}"
    )


def _layers(problem: Problem, plans: Plans) -> BoolArray:
    inner, exact = inner_layers(problem.model.layers, plans)

    def whole_chunks(end: np.ndarray) -> BoolArray:
        # A stage one short is Megatron's account-for-... split: one of its chunks is short.
        fine: BoolArray = (end == UNSET) | (end % plans.interleave == 0) | (end == inner - 1)
        return fine

    legal: BoolArray = (
        exact
        & (inner % plans.interleave == 0)
        & whole_chunks(plans.first_stage_layers)
        & whole_chunks(plans.last_stage_layers)
    )
    return legal


def _explain_layers(problem: Problem, plan: Plan) -> str:
    model = problem.model
    if plan.first_stage_layers is not None or plan.last_stage_layers is not None:
        given = ", ".join(f"{n}={getattr(plan, n)}" for n in _ENDS if getattr(plan, n) is not None)
        return (
            f"{given} leaves layers that the other stages of pp={plan.pp} x "
            f"interleave={plan.interleave} cannot share evenly ({model.name} has {model.layers}); "
            "leave it out or change it"
        )
    pp, interleave = np.array([plan.pp]), np.array([plan.interleave])
    first, last = end_stages(model.layers, pp, interleave, problem.stack.uneven_stages)
    sizes = dict(zip(_ENDS, (int(first[0]), int(last[0])), strict=True))
    ends = ",".join(f"{name}={size}" for name, size in sizes.items() if size != UNSET)
    even = divisors(model.layers // plan.interleave, problem.stack.max_pp)
    even = even if model.layers % plan.interleave == 0 else []
    return (
        f"pp={plan.pp} x interleave={plan.interleave} must divide the {model.layers} layers of "
        f"{model.name}; "
        + (f"add {ends}" if ends else f"pp: {offer(even)}" if even else "try interleave=1")
    )


def _uneven(problem: Problem, plans: Plans) -> BoolArray:
    inner, _ = inner_layers(problem.model.layers, plans)
    ends = (plans.first_stage_layers, plans.last_stage_layers)
    even = [(end == UNSET) | (end == inner) for end in ends]
    legal: BoolArray = even[0] & even[1] | problem.stack.uneven_stages
    return legal


def _explain_uneven(problem: Problem, plan: Plan) -> str:
    return (
        f"first_stage_layers={plan.first_stage_layers}, last_stage_layers={plan.last_stage_layers} "
        f"make stages uneven and stack {problem.stack.name} has even stages only; leave them out"
    )


def _interleave(problem: Problem, plans: Plans) -> BoolArray:
    legal: BoolArray = (plans.interleave == 1) | (
        (plans.pp > 1) & (plans.schedule == ONE_F_ONE_B) & problem.stack.interleaving
    )
    return legal


def _explain_interleave(problem: Problem, plan: Plan) -> str:
    if not problem.stack.interleaving:
        reason = f"is not offered by stack {problem.stack.name}"
    elif plan.pp == 1:
        reason = "needs pp > 1"
    else:
        reason = f"needs schedule=1f1b, not {plan.schedule}"
    return f"interleave={plan.interleave} {reason}; use interleave=1"


def _interleave_batches(problem: Problem, plans: Plans) -> BoolArray:
    # Megatron-LM (core/pipeline_parallel/schedules.py) runs them in groups of at least pp and
    # refuses a smaller last group; one group of them all is always allowed.
    legal: BoolArray = (plans.interleave == 1) | (problem.micro_batches(plans) >= plans.pp)
    return legal


def _explain_interleave_batches(problem: Problem, plan: Plan) -> str:
    count = problem.workload.global_batch // (plan.dp * plan.micro_batch)
    return (
        f"interleave={plan.interleave} needs at least pp={plan.pp} micro-batches, not {count}; "
        "use interleave=1 or a smaller micro_batch"
    )


SPLIT_RULES = (
    Rule(
        "batch",
        "dp x micro_batch divides the global batch",
        ("dp", "micro_batch"),
        _batch,
        _explain_batch,
    ),
    Rule(
        "layers",
        "the stages share the layers evenly, end stages apart",
        ("pp", "interleave", *_ENDS),
        _layers,
        _explain_layers,
    ),
    Rule(
        "uneven-stages",
        "end stages differ from the others only where the stack allows it",
        ("pp", *_ENDS),
        _uneven,
        _explain_uneven,
    ),
    Rule(
        "interleave",
        "interleaving needs pp > 1, 1f1b and a stack that offers it",
        ("pp", "interleave", "schedule"),
        _interleave,
        _explain_interleave,
    ),
    Rule(
        "interleave-batches",
        "interleaving needs at least pp micro-batches",
        ("dp", "pp", "micro_batch", "interleave"),
        _interleave_batches,
        _explain_interleave_batches,
    ),
)
