"""Which plans can run: all rules in the order they are applied, and the check of one plan."""

from __future__ import annotations

from estimator.cluster import Cluster
from estimator.model import Transformer
from estimator.plan import Plan, Plans
from estimator.stack import Stack
from estimator.workload import Workload
from spaces.expert_rules import EXPERT_RULES, EXPERT_SEQUENCE_RULE
from spaces.mesh_rules import MESH_RULES
from spaces.problem import Problem, Rule, check_problem, check_size
from spaces.run_rules import RUN_RULES
from spaces.split_rules import SPLIT_RULES

RULES: tuple[Rule, ...] = (
    *MESH_RULES,
    *EXPERT_RULES,
    *SPLIT_RULES,
    *RUN_RULES,
    EXPERT_SEQUENCE_RULE,
)
"""A plan that breaks several rules is charged to the first of them."""

SPACE_ONLY = {
    "duplicate": "another plan of the space runs exactly the same way",
    "redundant": "selective recompute saves nothing where flash attention keeps no scores",
    "constraint": "outside what --fix, --max and --forbid ask for",
}
"""Reasons why a space leaves out plans that could run."""


def rule_text(code: str) -> str:
    """The sentence behind a rule's code."""
    return {rule.code: rule.text for rule in RULES}.get(code) or SPACE_ONLY[code]


def broken_rule(problem: Problem, plan: Plan) -> Rule | None:
    """The first rule that ``plan`` breaks; ``None`` for a legal plan."""
    lifted = Plans.of([plan])
    return next((rule for rule in RULES if not rule.legal(problem, lifted).all()), None)


def check(
    model: Transformer, workload: Workload, cluster: Cluster, stack: Stack, plan: Plan
) -> None:
    """Raise ``ValueError`` with rule, value and remedy in one line where ``plan`` cannot run."""
    check_problem(model, workload, cluster, stack)
    for name, value in plan.to_dict().items():
        check_size(name, value)
    problem = Problem(model, workload, cluster, stack)
    rule = broken_rule(problem, plan)
    if rule is not None:
        raise ValueError(rule.explain(problem, plan))
