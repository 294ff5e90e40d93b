"""Rules on the degrees: what the model's shapes, the sequence and the cluster allow."""

from __future__ import annotations

from estimator.plan import Plan, Plans
from spaces.problem import BoolArray, Problem, Rule, divisors, offer


def _world(problem: Problem, plans: Plans) -> BoolArray:
    legal: BoolArray = plans.world == problem.cluster.gpus
    return legal


def _explain_world(problem: Problem, plan: Plan) -> str:
    gpus, model_ranks = problem.cluster.gpus, plan.tp * plan.cp * plan.pp
    remedy = (
        f"try dp={gpus // model_ranks}"
        if gpus % model_ranks == 0
        else f"tp x cp x pp = {model_ranks} must divide {gpus}"
    )
    return (
        f"dp={plan.dp} x tp={plan.tp} x cp={plan.cp} x pp={plan.pp} = {plan.world} must equal the "
        f"{gpus} GPUs of {problem.cluster.name}; {remedy}"
    )


def _heads(problem: Problem, plans: Plans) -> BoolArray:
    legal: BoolArray = problem.model.heads % plans.tp == 0
    return legal


def _explain_heads(problem: Problem, plan: Plan) -> str:
    model = problem.model
    return (
        f"tp={plan.tp} must divide the {model.heads} attention heads of {model.name}; "
        f"{offer(divisors(model.heads, problem.stack.max_tp))}"
    )


def _kv_heads(problem: Problem, plans: Plans) -> BoolArray:
    kv_heads = problem.model.kv_heads
    legal: BoolArray = (kv_heads % plans.tp == 0) | (plans.tp % kv_heads == 0)
    return legal


def _explain_kv_heads(problem: Problem, plan: Plan) -> str:
    model = problem.model
    return (
        f"tp={plan.tp} must divide the {model.kv_heads} key/value heads of {model.name} or be a "
        f"multiple of them; {offer(divisors(model.kv_heads))}"
    )


def _ffn(problem: Problem, plans: Plans) -> BoolArray:
    legal: BoolArray = problem.model.ffn % plans.tp == 0
    return legal


def _explain_ffn(problem: Problem, plan: Plan) -> str:
    model = problem.model
    both = [t for t in divisors(model.heads, problem.stack.max_tp) if model.ffn % t == 0]
    return f"tp={plan.tp} must divide the ffn width {model.ffn} of {model.name}; {offer(both)}"


def _limit(field: str) -> Rule:
    """A rule that keeps ``field`` within the stack's largest degree."""

    def legal(problem: Problem, plans: Plans) -> BoolArray:
        mask: BoolArray = getattr(plans, field) <= getattr(problem.stack, f"max_{field}")
        return mask

    def explain(problem: Problem, plan: Plan) -> str:
        limit = getattr(problem.stack, f"max_{field}")
        return (
            f"{field}={getattr(plan, field)} is beyond {field}={limit}, the most that stack "
            f"{problem.stack.name} runs; use at most {limit}"
        )

    return Rule(
        f"{field}-limit", f"{field} stays within the stack's limit", (field,), legal, explain
    )


def _pp_layers(problem: Problem, plans: Plans) -> BoolArray:
    legal: BoolArray = plans.pp <= problem.model.layers
    return legal


def _explain_pp_layers(problem: Problem, plan: Plan) -> str:
    model = problem.model
    return (
        f"pp={plan.pp} is more stages than the {model.layers} layers of {model.name}; "
        f"use at most {model.layers}"
    )


def _sequence_cp(problem: Problem, plans: Plans) -> BoolArray:
    legal: BoolArray = (plans.cp == 1) | (problem.workload.sequence % (2 * plans.cp) == 0)
    return legal


def _explain_sequence_cp(problem: Problem, plan: Plan) -> str:
    sequence = problem.workload.sequence
    fine = [1, *(d for d in divisors(sequence, problem.stack.max_cp) if d > 1)]
    return (
        f"sequence={sequence} must be a multiple of 2 x cp={2 * plan.cp} (causal attention is "
        f"balanced in halves); {offer([d for d in fine if d == 1 or sequence % (2 * d) == 0])}"
    )


MESH_RULES = (
    Rule(
        "world",
        "the degrees multiply to the number of GPUs",
        ("dp", "tp", "cp", "pp"),
        _world,
        _explain_world,
    ),
    Rule("heads", "tp divides the attention heads", ("tp",), _heads, _explain_heads),
    Rule(
        "kv-heads",
        "tp divides the key/value heads or is a multiple of them",
        ("tp",),
        _kv_heads,
        _explain_kv_heads,
    ),
    Rule("ffn", "tp divides the width of the MLP", ("tp",), _ffn, _explain_ffn),
    _limit("tp"),
    _limit("cp"),
    _limit("pp"),
    Rule(
        "pp-layers",
        "there are no more stages than layers",
        ("pp",),
        _pp_layers,
        _explain_pp_layers,
    ),
    Rule(
        "sequence-cp",
        "2 x cp divides the sequence when cp > 1",
        ("cp",),
        _sequence_cp,
        _explain_sequence_cp,
    ),
)
"""Rules that the mesh (dp, tp, cp, pp) alone decides."""
