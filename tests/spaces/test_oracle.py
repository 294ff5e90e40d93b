"""The rules against a plain restatement for one plan at a time, and stage splits by hand."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator import Plan, Plans, Transformer
from estimator.plan import CHOICES, FLAGS
from spaces import Problem, TransformerSpace
from spaces.rules import broken_rule
from spaces.stages import end_stages, fullest_stage
from tests.spaces.problems import problem, problems


def stage_sizes(layers: int, plan: Plan) -> list[int] | None:
    """Layers of every stage in order, or ``None`` where they do not come out even."""
    sizes: list[int | None] = [None] * plan.pp
    if plan.first_stage_layers is not None:
        sizes[0] = plan.first_stage_layers
    if plan.last_stage_layers is not None:
        if sizes[-1] is not None:
            return None
        sizes[-1] = plan.last_stage_layers
    open_stages = sizes.count(None)
    left = layers - sum(size for size in sizes if size is not None)
    if open_stages == 0:
        return None if left else [size for size in sizes if size is not None]
    if left <= 0 or left % open_stages:
        return None
    return [left // open_stages if size is None else size for size in sizes]


def chunks_come_out(plan: Plan, sizes: list[int]) -> bool:
    ends = {0} if plan.first_stage_layers is not None else set()
    ends |= {plan.pp - 1} if plan.last_stage_layers is not None else set()
    inner = [size for stage, size in enumerate(sizes) if stage not in ends]
    for stage, size in enumerate(sizes):
        one_short = stage in ends and bool(inner) and size == inner[0] - 1
        if size % plan.interleave and not one_short:
            return False
    return True


def experts_come_out(model: Transformer, plan: Plan) -> bool:
    """Whether experts can be shared as asked, on the ranks of one stage."""
    if model.experts is None:
        return plan.ep == 1 and plan.etp in (None, 1, plan.tp)
    etp = plan.tp if plan.etp is None else plan.etp
    ranks = plan.dp * plan.tp * plan.cp
    return (
        model.experts.count % plan.ep == 0
        and ranks % (plan.ep * etp) == 0
        and model.experts.ffn % etp == 0
        and (plan.tp == 1 or plan.sequence_parallel)
    )


def runnable(given: Problem, plan: Plan) -> bool:
    """Whether a plan can run, in the words of the documentation and one plan at a time."""
    model, job, stack = given.model, given.workload, given.stack
    if plan.dp * plan.tp * plan.cp * plan.pp != given.cluster.gpus:
        return False
    if model.heads % plan.tp or model.ffn % plan.tp:
        return False
    if model.kv_heads % plan.tp and plan.tp % model.kv_heads:
        return False
    if plan.tp > stack.max_tp or plan.cp > stack.max_cp or plan.pp > stack.max_pp:
        return False
    if plan.pp > model.layers or (plan.cp > 1 and job.sequence % (2 * plan.cp)):
        return False
    if not experts_come_out(model, plan):
        return False
    if job.global_batch % (plan.dp * plan.micro_batch):
        return False
    sizes = stage_sizes(model.layers, plan)
    if sizes is None or not chunks_come_out(plan, sizes):
        return False
    given_ends = (plan.first_stage_layers, plan.last_stage_layers) != (None, None)
    inner = sizes[1:-1] or [s for s, end in zip(sizes, _ends(plan), strict=True) if end is None]
    if given_ends and not stack.uneven_stages and len(set(sizes)) > 1 and inner:
        return False
    if given_ends and not stack.uneven_stages and not inner:
        return False
    if plan.interleave > 1:
        count = job.global_batch // (plan.dp * plan.micro_batch)
        if plan.pp == 1 or plan.schedule != "1f1b" or not stack.interleaving or count < plan.pp:
            return False
    if plan.sequence_parallel and (plan.tp == 1 or job.sequence % (plan.tp * plan.cp)):
        return False
    if plan.zero not in stack.zero or (plan.pp > 1 and plan.zero not in stack.pipeline_zero):
        return False
    ranks = plan.dp * plan.cp
    if plan.zero and ranks == 1:
        return False
    if plan.shard_size is not None and (plan.zero == 0 or ranks % plan.shard_size):
        return False
    if plan.recompute not in ("none", *stack.recompute):
        return False
    if plan.recompute_layers is not None and (
        plan.recompute != "full" or plan.recompute_layers > max(sizes)
    ):
        return False
    if job.mode == "forward" and (plan.recompute != "none" or plan.zero in (1, 2)):
        return False
    hosted = given.cluster.device.host is not None and job.mode == "train"
    if plan.offload in ("checkpoints", "both") and (
        plan.recompute != "full" or plan.recompute_layers is not None
    ):
        return False
    return (plan.offload == "none" or hosted) and plan.order in stack.rank_orders


def _ends(plan: Plan) -> list[int | None]:
    if plan.pp == 1:
        return [plan.first_stage_layers or plan.last_stage_layers]
    return [plan.first_stage_layers, *[None] * (plan.pp - 2), plan.last_stage_layers]


@st.composite
def plans(draw: st.DrawFn, given_problem: Problem) -> Plan:
    """A plan of the right size that breaks a rule or two at most: a legal one, then changed."""
    space = TransformerSpace.build(
        given_problem.model, given_problem.workload, given_problem.cluster, given_problem.stack
    )
    point = draw(st.integers(0, space.considered - 1))
    if space.legal and draw(st.booleans()):
        point = int(space.points[point % space.legal])
    values = space.plans(np.array([point]))[0].to_dict()
    for name in draw(st.sets(st.sampled_from([field.name for field in fields(Plan)]), max_size=2)):
        if name in CHOICES:
            values[name] = draw(st.sampled_from(CHOICES[name]))
        elif name in FLAGS:
            values[name] = draw(st.booleans())
        elif name in ("first_stage_layers", "last_stage_layers", "recompute_layers", "etp"):
            values[name] = draw(st.one_of(st.none(), st.integers(1, 8)))
        elif name == "zero":
            values[name] = draw(st.integers(0, 3))
        else:
            values[name] = draw(st.integers(1, 6))
    return Plan(**values)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_rules_say_what_a_plain_restatement_says(data: st.DataObject) -> None:
    given_problem = data.draw(problems())
    plan = data.draw(plans(given_problem))
    rule = broken_rule(given_problem, plan)
    assert (rule is None) == runnable(given_problem, plan), rule and rule.explain(
        given_problem, plan
    )


@settings(max_examples=60, deadline=None)
@given(problems())
def test_a_space_holds_every_runnable_point_but_duplicates(given_problem: Problem) -> None:
    space = TransformerSpace.build(
        given_problem.model, given_problem.workload, given_problem.cluster, given_problem.stack
    )
    draw = np.random.default_rng(0)
    points = draw.integers(space.considered, size=60)
    for point, inside in zip(points, space.contains(points), strict=True):
        plan = space.plans(np.array([point]))[0]
        if inside:
            assert runnable(given_problem, plan)


@pytest.mark.parametrize(
    ("layers", "pp", "interleave", "ends"),
    [
        (80, 8, 1, (-1, -1)),
        (80, 8, 5, (-1, -1)),
        (126, 16, 1, (7, 7)),  # Llama 3 405B: (126 + 2) / 16, the ends one short
        (126, 16, 8, (7, 7)),
        (127, 8, 4, (-1, 15)),
        (95, 4, 1, (-1, 23)),
        (94, 4, 1, (23, 23)),
        (93, 4, 1, (-1, -1)),  # three layers short: no split of Megatron's
        (7, 1, 4, (-1, -1)),  # one stage has no ends
        (6, 2, 4, (-1, -1)),
    ],
)
def test_end_stages_by_hand(layers: int, pp: int, interleave: int, ends: tuple[int, int]) -> None:
    first, last = end_stages(layers, np.array([pp]), np.array([interleave]), True)
    assert (int(first[0]), int(last[0])) == ends
    first, last = end_stages(layers, np.array([pp]), np.array([interleave]), False)
    assert (int(first[0]), int(last[0])) == (-1, -1)


def test_the_fullest_stage_is_the_largest_of_all() -> None:
    given_plans = Plans.of(
        [
            Plan(dp=16, pp=4),
            Plan(dp=16, pp=4, first_stage_layers=17, last_stage_layers=21),
            Plan(dp=16, pp=4, first_stage_layers=32),
            Plan(dp=32, pp=2, last_stage_layers=30),
        ]
    )
    assert fullest_stage(80, given_plans).tolist() == [20, 21, 32, 50]


def test_the_space_of_405b_holds_the_plan_of_its_paper() -> None:
    given_problem = problem(16384, model="llama-3.1-405b", batch=2048)
    space = TransformerSpace.build(
        given_problem.model, given_problem.workload, given_problem.cluster, given_problem.stack
    )
    published = Plan.parse(
        "dp=128,tp=8,pp=16,first_stage_layers=7,last_stage_layers=7,sp=true,zero=1,interleave=8"
    )
    assert space.contains(space.encode(Plans.of([published]))).all()
    assert space.considered < 2_000_000
