"""Laws of a space that hold for every problem."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from estimator.plan import NAMES, UNSET, Plans
from spaces import RULES, Constraints, Problem, TransformerSpace, check
from spaces.rules import SPACE_ONLY, broken_rule
from tests.spaces.problems import every_point, problems

CONSTRAINTS = st.sampled_from(
    [
        Constraints(),
        Constraints.parse(fix=["tp=2"]),
        Constraints.parse(fix=["dp=2"], forbid=["recompute=full"]),
        Constraints.parse(most=["pp=2", "mbs=2"]),
        Constraints.parse(forbid=["tp=1,cp=2"], fix=["sp=true"]),
        Constraints.parse(fix=["recompute_layers=2"]),
        Constraints.parse(fix=["first_stage_layers=1"]),
        Constraints.parse(fix=["schedule=gpipe"], most=["recompute_layers=1"]),
    ]
)


def build(problem: Problem, constraints: Constraints | None = None) -> TransformerSpace:
    return TransformerSpace.build(
        problem.model, problem.workload, problem.cluster, problem.stack, constraints
    )


def try_build(problem: Problem, constraints: Constraints) -> TransformerSpace:
    try:
        return build(problem, constraints)
    except ValueError as error:
        assume("leave no value" not in str(error))
        raise


def rows(plans: Plans) -> list[tuple[int, ...]]:
    return list(zip(*(getattr(plans, name).tolist() for name in NAMES), strict=True))


@settings(max_examples=60, deadline=None)
@given(problems(), CONSTRAINTS)
def test_every_raw_point_is_legal_or_charged_to_the_first_rule_it_breaks(
    problem: Problem, constraints: Constraints
) -> None:
    space = try_build(problem, constraints)
    assert space.legal == space.considered - sum(space.left_out.values())

    plans = space.plans(every_point(space))
    first = np.full(len(plans), -1)
    for number, rule in enumerate(RULES):
        first[(first == -1) & ~np.broadcast_to(rule.legal(problem, plans), first.shape)] = number
    broken = Counter(RULES[number].code for number in first[first >= 0])
    charged = {k: v for k, v in space.left_out.items() if k not in SPACE_ONLY}
    assert charged == dict(broken)
    runnable = set(np.flatnonzero(first == -1).tolist())
    assert set(space.points.tolist()) <= runnable
    assert len(runnable) - space.legal == sum(space.left_out.get(code, 0) for code in SPACE_ONLY)


@settings(max_examples=40, deadline=None)
@given(problems(), st.integers(1, 50), st.integers(1, 5000))
def test_blocks_do_not_depend_on_their_size(problem: Problem, one: int, other: int) -> None:
    space = build(problem)
    small = [row for block in space.blocks(one) for row in rows(block)]
    large = [row for block in space.blocks(other) for row in rows(block)]
    assert small == large
    assert len(small) == space.legal
    assert len(set(small)) == space.legal, "no plan twice"


@settings(max_examples=40, deadline=None)
@given(problems(), CONSTRAINTS)
def test_every_plan_of_a_space_passes_the_check_and_the_constraints(
    problem: Problem, constraints: Constraints
) -> None:
    space = try_build(problem, constraints)
    for plan in space.sample(20):
        check(problem.model, problem.workload, problem.cluster, problem.stack, plan)
        for name, value in constraints.fix.items():
            assert getattr(plan, name) == value
        for name, most in constraints.most.items():
            assert (getattr(plan, name) or 0) <= most
        for name, values in constraints.forbid.items():
            assert getattr(plan, name) not in values


@settings(max_examples=40, deadline=None)
@given(problems(), st.randoms(use_true_random=False))
def test_a_plan_that_the_check_rejects_is_not_in_the_space(
    problem: Problem, random: object
) -> None:
    space = build(problem)
    points = random.sample(range(space.considered), min(20, space.considered))  # type: ignore[attr-defined]
    legal = space.contains(np.array(points))
    for point, inside in zip(points, legal, strict=True):
        plan = space.plans(np.array([point]))[0]
        rule = broken_rule(problem, plan)
        if rule is not None:
            assert not inside
            with pytest.raises(ValueError) as error:
                check(problem.model, problem.workload, problem.cluster, problem.stack, plan)
            assert "\n" not in str(error.value)
            assert str(error.value) == rule.explain(problem, plan)


@settings(max_examples=40, deadline=None)
@given(problems())
def test_stages_hold_all_layers(problem: Problem) -> None:
    space = build(problem)
    for block in space.blocks():
        first, last, pp = block.first_stage_layers, block.last_stage_layers, block.pp
        given_first, given_last = first != UNSET, last != UNSET
        left = problem.model.layers - first * given_first - last * given_last
        stages = pp - given_first - given_last
        assert np.all(left % np.maximum(stages, 1) == 0)
        assert np.all((stages > 0) | (left == 0))
        assert np.all(block.world == problem.cluster.gpus)


@settings(max_examples=40, deadline=None)
@given(problems(), CONSTRAINTS, st.integers(0, 2**32 - 1))
def test_points_and_plans_are_two_names_of_one_thing(
    problem: Problem, constraints: Constraints, seed: int
) -> None:
    space = try_build(problem, constraints)
    if not space.legal:
        with pytest.raises(ValueError, match="no legal plan"):
            space.nearest(0)
        return
    assert np.array_equal(space.encode(space.plans(space.points)), space.points)
    assert space.contains(space.points).all()
    for point in np.random.default_rng(seed).integers(space.considered, size=5):
        near = space.nearest(int(point))
        assert space.contains(np.array([near])).all()
        if space.contains(np.array([point])).all():
            assert near == point


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
@settings(max_examples=15, deadline=None)
@given(problem=problems(), seed=st.integers(0, 2**32 - 1))
def test_a_rule_reads_only_the_fields_it_names(rule: object, problem: Problem, seed: int) -> None:
    space = build(problem)
    draw = np.random.default_rng(seed)
    plans = space.plans(draw.integers(space.considered, size=50))
    others = space.plans(draw.integers(space.considered, size=50))
    mixed = replace(
        others,
        **{name: getattr(plans, name) for name in rule.fields},  # type: ignore[attr-defined]
    )
    legal = rule.legal  # type: ignore[attr-defined]
    assert np.array_equal(
        np.broadcast_to(legal(problem, plans), 50), np.broadcast_to(legal(problem, mixed), 50)
    )


def test_a_sample_is_seeded_and_holds_no_plan_twice() -> None:
    from tests.spaces.problems import problem

    space = build(problem(16, model="llama-3.1-8b"))
    one, again, other = space.sample(50, seed=1), space.sample(50, seed=1), space.sample(50, seed=2)
    assert rows(one) == rows(again) != rows(other)
    assert len(set(rows(one))) == 50
    assert len(space.sample(10**6)) == space.legal
