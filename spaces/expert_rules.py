"""Rules on how experts are shared: world = edp x etp x ep x pp, on the ranks of the other axes."""

from __future__ import annotations

import numpy as np

from estimator.plan import UNSET, IntArray, Plan, Plans
from spaces.problem import BoolArray, Problem, Rule, divisors, offer


def expert_tp(plans: Plans) -> IntArray:
    """Tensor parallel degree of experts, that of the other layers where unset; (P,)."""
    degree: IntArray = np.where(plans.etp == UNSET, plans.tp, plans.etp)
    return degree


def _dense(problem: Problem, plans: Plans) -> BoolArray:
    if problem.model.experts is not None:
        return np.ones(len(plans), dtype=bool)
    legal: BoolArray = (plans.ep == 1) & (
        (plans.etp == UNSET) | (plans.etp == 1) | (plans.etp == plans.tp)
    )
    return legal


def _explain_dense(problem: Problem, plan: Plan) -> str:
    return (
        f"ep={plan.ep}, etp={plan.etp} need experts and {problem.model.name} has none; "
        "use ep=1 and leave etp out"
    )


def _experts(problem: Problem, plans: Plans) -> BoolArray:
    count = problem.model.experts.count if problem.model.experts is not None else 1
    legal: BoolArray = (plans.ep == 1) | (count % plans.ep == 0)
    return legal


def _explain_experts(problem: Problem, plan: Plan) -> str:
    count = problem.model.experts.count if problem.model.experts is not None else 1
    return (
        f"ep={plan.ep} must divide the {count} experts of {problem.model.name}; "
        f"{offer(divisors(count))}"
    )


def _expert_ranks(problem: Problem, plans: Plans) -> BoolArray:
    if problem.model.experts is None:
        return np.ones(len(plans), dtype=bool)
    legal: BoolArray = (plans.dp * plans.tp * plans.cp) % (plans.ep * expert_tp(plans)) == 0
    return legal


def _explain_expert_ranks(problem: Problem, plan: Plan) -> str:
    etp = plan.tp if plan.etp is None else plan.etp
    ranks = plan.dp * plan.tp * plan.cp
    return (
        f"ep={plan.ep} x etp={etp} must divide the dp x tp x cp = {ranks} ranks of a stage; "
        f"for ep, {offer(divisors(ranks // etp) if ranks % etp == 0 else [1])}"
    )


def _expert_ffn(problem: Problem, plans: Plans) -> BoolArray:
    if problem.model.experts is None:
        return np.ones(len(plans), dtype=bool)
    legal: BoolArray = problem.model.experts.ffn % expert_tp(plans) == 0
    return legal


def _explain_expert_ffn(problem: Problem, plan: Plan) -> str:
    etp = plan.tp if plan.etp is None else plan.etp
    width = problem.model.experts.ffn if problem.model.experts is not None else 0
    return f"etp={etp} must divide the width {width} of an expert; {offer(divisors(width))}"


def _expert_sequence(problem: Problem, plans: Plans) -> BoolArray:
    if problem.model.experts is None:
        return np.ones(len(plans), dtype=bool)
    legal: BoolArray = (plans.tp == 1) | (plans.sequence_parallel == 1)
    return legal


def _explain_expert_sequence(problem: Problem, plan: Plan) -> str:
    return (
        f"experts with tp={plan.tp} need sequence_parallel=true (each rank routes its own part of "
        "the tokens); use it, or tp=1"
    )


EXPERT_RULES = (
    Rule(
        "dense",
        "a dense model has no expert parallelism",
        ("tp", "ep", "etp"),
        _dense,
        _explain_dense,
    ),
    Rule("experts", "ep divides the experts", ("ep",), _experts, _explain_experts),
    Rule(
        "expert-ranks",
        "ep x etp divides the ranks of a stage",
        ("dp", "tp", "cp", "ep", "etp"),
        _expert_ranks,
        _explain_expert_ranks,
    ),
    Rule(
        "expert-ffn",
        "etp divides the width of an expert",
        ("tp", "etp"),
        _expert_ffn,
        _explain_expert_ffn,
    ),
)
"""Rules that the mesh with ep and etp decides."""

EXPERT_SEQUENCE_RULE = Rule(
    "expert-sequence",
    "experts with tp > 1 need sequence parallelism",
    ("tp", "sequence_parallel"),
    _expert_sequence,
    _explain_expert_sequence,
)
