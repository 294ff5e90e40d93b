"""Rules on how a step runs: sharding, recompute, sequence parallelism, rank order."""

from __future__ import annotations

import numpy as np

from estimator.plan import CHOICES, HOST_CHECKPOINTS, UNSET, Plan, Plans
from spaces.problem import BoolArray, Problem, Rule, divisors, offer
from spaces.stages import fullest_stage

NONE, SELECTIVE, FULL = (CHOICES["recompute"].index(w) for w in ("none", "selective", "full"))


def _listed(words: tuple[str, ...] | tuple[int, ...]) -> str:
    return ", ".join(str(word) for word in words)


def _sequence_parallel(problem: Problem, plans: Plans) -> BoolArray:
    legal: BoolArray = (plans.sequence_parallel == 0) | (plans.tp > 1)
    return legal


def _sequence_tp(problem: Problem, plans: Plans) -> BoolArray:
    divided = problem.workload.sequence % (plans.tp * plans.cp) == 0
    legal: BoolArray = (plans.sequence_parallel == 0) | divided
    return legal


def _explain_sequence_tp(problem: Problem, plan: Plan) -> str:
    return (
        f"sequence_parallel needs tp={plan.tp} x cp={plan.cp} to divide "
        f"sequence={problem.workload.sequence}; use sequence_parallel=false or another tp"
    )


def _zero(problem: Problem, plans: Plans) -> BoolArray:
    return np.isin(plans.zero, problem.stack.zero)


def _zero_pipeline(problem: Problem, plans: Plans) -> BoolArray:
    legal: BoolArray = (plans.pp == 1) | np.isin(plans.zero, problem.stack.pipeline_zero)
    return legal


def _zero_alone(problem: Problem, plans: Plans) -> BoolArray:
    legal: BoolArray = (plans.zero == 0) | (plans.dp * plans.cp > 1)
    return legal


def _shard_size(problem: Problem, plans: Plans) -> BoolArray:
    size = np.maximum(plans.shard_size, 1)
    legal: BoolArray = (plans.shard_size == UNSET) | (
        (plans.zero > 0) & (plans.dp * plans.cp % size == 0)
    )
    return legal


def _explain_shard_size(problem: Problem, plan: Plan) -> str:
    if plan.zero == 0:
        return f"shard_size={plan.shard_size} needs zero of at least 1; leave it out"
    return (
        f"shard_size={plan.shard_size} must divide dp x cp = {plan.dp * plan.cp}; "
        f"{offer(divisors(plan.dp * plan.cp))}"
    )


def _recompute(problem: Problem, plans: Plans) -> BoolArray:
    allowed = [CHOICES["recompute"].index(w) for w in ("none", *problem.stack.recompute)]
    return np.isin(plans.recompute, allowed)


def _recompute_layers(problem: Problem, plans: Plans) -> BoolArray:
    legal: BoolArray = (plans.recompute_layers == UNSET) | (
        (plans.recompute == FULL)
        & (plans.recompute_layers <= fullest_stage(problem.model.layers, plans))
    )
    return legal


def _explain_recompute_layers(problem: Problem, plan: Plan) -> str:
    if plan.recompute != "full":
        return f"recompute_layers={plan.recompute_layers} needs recompute=full; leave it out"
    most = int(fullest_stage(problem.model.layers, Plans.of([plan]))[0])
    return (
        f"recompute_layers={plan.recompute_layers} is more than the {most} layers of a stage; "
        f"use at most {most}"
    )


def _forward(problem: Problem, plans: Plans) -> BoolArray:
    if problem.workload.mode == "train":
        return np.ones(len(plans), dtype=bool)
    legal: BoolArray = (plans.recompute == NONE) & ((plans.zero == 0) | (plans.zero == 3))
    return legal


def _explain_forward(problem: Problem, plan: Plan) -> str:
    return (
        f"recompute={plan.recompute}, zero={plan.zero} shape the backward pass and mode is "
        "forward; use recompute=none and zero=0 or 3"
    )


def _offload(problem: Problem, plans: Plans) -> BoolArray:
    known = problem.cluster.device.host is not None and problem.workload.mode == "train"
    whole = (plans.recompute == FULL) & (plans.recompute_layers == UNSET)
    movable = whole | ~np.isin(plans.offload, HOST_CHECKPOINTS)
    legal: BoolArray = (plans.offload == CHOICES["offload"].index("none")) | (known & movable)
    return legal


def _explain_offload(problem: Problem, plan: Plan) -> str:
    if problem.workload.mode == "forward":
        return (
            f"offload={plan.offload} moves what only training has and mode is forward; use "
            "offload=none"
        )
    if problem.cluster.device.host is not None:
        return (
            f"offload={plan.offload} moves the inputs of layers that run again; use "
            "recompute=full without recompute_layers, or offload=none"
        )
    return (
        f"offload={plan.offload} needs to know the host of {problem.cluster.device.name}; give "
        "host: bandwidth and memory_bandwidth in a device file, or use offload=none"
    )


def _order(problem: Problem, plans: Plans) -> BoolArray:
    return np.isin(plans.order, [CHOICES["order"].index(w) for w in problem.stack.rank_orders])


RUN_RULES = (
    Rule(
        "sequence-parallel",
        "sequence parallelism needs tp > 1",
        ("tp", "sequence_parallel"),
        _sequence_parallel,
        lambda problem, plan: "sequence_parallel=true needs tp > 1; use sequence_parallel=false",
    ),
    Rule(
        "sequence-tp",
        "tp x cp divides the sequence under sequence parallelism",
        ("tp", "cp", "sequence_parallel"),
        _sequence_tp,
        _explain_sequence_tp,
    ),
    Rule(
        "zero",
        "the stack offers this zero",
        ("zero",),
        _zero,
        lambda problem, plan: (
            f"zero={plan.zero} is not offered by stack {problem.stack.name}; "
            f"use one of {_listed(problem.stack.zero)}"
        ),
    ),
    Rule(
        "zero-pipeline",
        "the stack combines this zero with a pipeline",
        ("pp", "zero"),
        _zero_pipeline,
        lambda problem, plan: (
            f"zero={plan.zero} does not combine with pp={plan.pp} in stack {problem.stack.name}; "
            f"use pp=1 or one of zero={_listed(problem.stack.pipeline_zero)}"
        ),
    ),
    Rule(
        "zero-alone",
        "sharding needs ranks to shard over: dp x cp > 1",
        ("dp", "cp", "zero"),
        _zero_alone,
        lambda problem, plan: (
            f"zero={plan.zero} shards over dp x cp and that is 1 here; use zero=0"
        ),
    ),
    Rule(
        "shard-size",
        "shard_size divides dp x cp and needs zero",
        ("dp", "cp", "zero", "shard_size"),
        _shard_size,
        _explain_shard_size,
    ),
    Rule(
        "recompute",
        "the stack offers this recompute",
        ("recompute",),
        _recompute,
        lambda problem, plan: (
            f"recompute={plan.recompute} is not offered by stack {problem.stack.name}; "
            f"use one of {_listed(problem.stack.recompute)}"
        ),
    ),
    Rule(
        "recompute-layers",
        "recompute_layers needs recompute=full and stays within a stage",
        ("pp", "first_stage_layers", "last_stage_layers", "recompute", "recompute_layers"),
        _recompute_layers,
        _explain_recompute_layers,
    ),
    Rule(
        "forward",
        "a forward-only job has nothing to recompute, no gradients and no optimizer to shard",
        ("recompute", "zero"),
        _forward,
        _explain_forward,
    ),
    Rule(
        "offload",
        "what is offloaded exists, and its host is known",
        ("offload", "recompute", "recompute_layers"),
        _offload,
        _explain_offload,
    ),
    Rule(
        "order",
        "the stack offers this rank order",
        ("order",),
        _order,
        lambda problem, plan: (
            f"order={plan.order} is not offered by stack {problem.stack.name}; "
            f"use one of {_listed(problem.stack.rank_orders)}"
        ),
    ),
)
