"""Simulated plans beside the closed form: same busy seconds, same answer where order is settled."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator import Plan, Transformer, Workload, estimate
from estimator.catalog import load_model
from estimator.estimate import TIME_PARTS
from estimator.simulate import Simulation, engine, ranks, simulate
from estimator.simulate.graph import KINDS
from estimator.simulate.orders import BACKWARD, FORWARD
from estimator.simulate.rows import NAMES
from tests.estimator.problems import CLUSTER, MODEL, STACK, WORKLOAD, plans

TOGETHER = {"overlap_grad": False, "overlap_param": False, "overlap_p2p": False}
"""Nothing outside layers hides."""


def run_one(plan: Plan, model: Transformer = MODEL, workload: Workload = WORKLOAD) -> Simulation:
    return simulate(model, workload, CLUSTER, plan, stack=STACK)


@given(plans())
def test_parts_add_up_to_the_makespan(plan: Plan) -> None:
    value = run_one(plan)
    step = value.estimate
    assert set(step.time) == set(TIME_PARTS)
    assert sum(step.time.values()) == pytest.approx(value.makespan, rel=1e-9)
    assert step.step_seconds == pytest.approx(value.makespan, rel=1e-9)
    assert all(seconds >= -1e-12 for seconds in (*step.time.values(), *step.hidden.values()))
    assert step.low_seconds < step.step_seconds < step.high_seconds
    assert step.tokens_per_second == pytest.approx(WORKLOAD.tokens / step.step_seconds)
    assert value.closed_form == estimate(MODEL, WORKLOAD, CLUSTER, plan, stack=STACK)
    assert value.naive_seconds <= value.makespan * (1 + 1e-9)


@given(plans())
def test_busy_seconds_are_those_of_the_closed_form(plan: Plan) -> None:
    """By part on the stage that both call critical; order decides only what is idle."""
    value = run_one(plan)
    step, closed = value.estimate, value.closed_form
    for part in ("compute", "tp", "cp", "ep", "pp", "optimizer", "host"):
        if part == "pp" and value.work.crossing:
            assert step.time[part] >= closed.time[part], "the closed form hides all transfers"
            continue
        assert step.time[part] == pytest.approx(closed.time[part], rel=1e-9, abs=1e-12), part
        if part in step.hidden:
            assert step.hidden[part] == closed.hidden[part]
    work, tasks = value.work, value.tasks
    of_kind = tasks.kind == KINDS.index("dp")
    busy = np.bincount(value.built.stage[of_kind], tasks.seconds[of_kind], minlength=plan.pp)
    traffic = work.gradients + work.weights + (work.micro_batches - 1) * work.every_gradients
    assert busy.tolist() == pytest.approx(traffic.tolist(), rel=1e-9), "not counting what hides"


@given(plans())
def test_every_stage_is_as_busy_as_its_class(plan: Plan) -> None:
    value = run_one(plan)
    tasks, m = value.tasks, value.work.micro_batches
    passes = np.isin(tasks.phase, (FORWARD, BACKWARD)) & (tasks.kind == KINDS.index("compute"))
    busy = np.bincount(value.built.stage[passes], weights=tasks.seconds[passes])
    expected = [
        m * stage["micro_batch_seconds"]
        for stage in value.closed_form.stages
        for _ in range(stage["count"])
    ]
    assert busy.tolist() == pytest.approx(expected, rel=1e-9)


@given(plans())
def test_one_stage_without_overlap_is_the_closed_form(plan: Plan) -> None:
    alone = replace(plan, dp=plan.dp * plan.pp, pp=1, interleave=1, **TOGETHER)  # type: ignore[arg-type]
    if WORKLOAD.global_batch % (alone.dp * alone.micro_batch):
        alone = replace(alone, micro_batch=1)
    value = run_one(alone)
    for part in TIME_PARTS:
        assert value.estimate.time[part] == pytest.approx(
            value.closed_form.time[part], rel=1e-9, abs=1e-12
        )


@given(plans())
def test_1f1b_and_gpipe_without_overlap_differ_by_the_last_exchange_only(plan: Plan) -> None:
    """Their pipeline is exact for any stages; gradients of end stages wait for each other."""
    for schedule in ("1f1b", "gpipe"):
        settled = replace(plan, interleave=1, schedule=schedule, **TOGETHER)  # type: ignore[arg-type]
        value = run_one(settled)
        work = value.work
        spread = float(np.ptp(work.gradients) + np.ptp(work.weights) + np.ptp(work.optimizer))
        gap = value.makespan - value.closed_form.step_seconds
        assert abs(gap) <= spread + work.tied + 1e-9 * value.makespan


@settings(max_examples=30)
@given(plans())
def test_peak_memory_is_that_of_the_closed_form(plan: Plan) -> None:
    for schedule in ("1f1b", "gpipe"):
        if schedule == "gpipe" and plan.interleave > 1:
            continue
        value = run_one(replace(plan, schedule=schedule))  # type: ignore[arg-type]
        peaks = [memory.peak for memory in value.memory]
        assert max(peaks) == pytest.approx(value.closed_form.allocated_bytes, rel=1e-9)
        assert peaks[0] == pytest.approx(value.closed_form.stages[0]["allocated_bytes"], rel=1e-9)
        for memory in value.memory:
            assert (np.diff(memory.seconds) >= 0).all()
            assert memory.allocated[-1] == pytest.approx(memory.allocated[0], rel=1e-9)


SMALL = Workload(global_batch=32, sequence=1024)


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from([(2, 2, 2, 1), (4, 1, 2, 1), (2, 1, 4, 2), (1, 2, 4, 1), (8, 1, 1, 1)]),
    st.integers(0, 1),
    st.sampled_from(["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"]),
    st.sampled_from([True, False]),
)
def test_one_rank_stands_for_the_equal_ones(
    degrees: tuple[int, int, int, int], zero: int, order: str, overlap: bool
) -> None:
    dp, tp, pp, v = degrees
    plan = Plan(
        dp=dp,
        tp=tp,
        pp=pp,
        interleave=v,
        zero=zero,
        order=order,  # type: ignore[arg-type]
        overlap_p2p=overlap,
    )
    few, all_of_them = (
        simulate(MODEL, SMALL, CLUSTER, plan, stack=STACK, all_ranks=every)
        for every in (False, True)
    )
    assert all_of_them.built.ranks == plan.world
    assert len(all_of_them.tasks) == dp * tp * len(few.tasks)
    assert all_of_them.makespan == pytest.approx(few.makespan, rel=1e-12)
    for part in TIME_PARTS:
        assert all_of_them.estimate.time[part] == pytest.approx(
            few.estimate.time[part], rel=1e-9, abs=1e-12
        )
    stages = {all_of_them.stage_of_rank(rank) for rank in range(plan.world)}
    assert stages == set(range(pp))


def test_a_slow_rank_costs_the_same_whether_or_not_all_ranks_run() -> None:
    plan = Plan(dp=4, tp=2, pp=2)
    slow = {9: 1.5}  # of the second stage
    few, all_of_them = (
        simulate(MODEL, SMALL, CLUSTER, plan, stack=STACK, all_ranks=every, slow_ranks=slow)
        for every in (False, True)
    )
    even = simulate(MODEL, SMALL, CLUSTER, plan, stack=STACK)
    assert few.makespan == pytest.approx(all_of_them.makespan, rel=1e-12)
    assert 1.3 * even.makespan < few.makespan < 1.5 * even.makespan
    assert few.idle["compute"][0] > 2 * even.idle["compute"][0], "the others wait for it"


def test_noise_is_drawn_with_its_seed() -> None:
    plan = Plan(dp=4, tp=2, pp=2)
    even, one, same, other = (
        simulate(MODEL, SMALL, CLUSTER, plan, stack=STACK, noise=noise, seed=seed).makespan
        for noise, seed in ((0.0, 0), (0.05, 1), (0.05, 1), (0.05, 2))
    )
    assert one == same != other
    assert even < one, "ranks wait for the slower of each pair"
    assert one < 1.2 * even


@pytest.mark.parametrize(
    ("disturbance", "message"),
    [
        ({"noise": -0.1}, "noise=-0.1 must be from 0"),
        ({"slow_ranks": {64: 1.2}}, "slow rank 64 must be a rank of the world, 0 to 63"),
        ({"slow_ranks": {0: 0.0}}, "factor 0.0 of slow rank 0 must be above 0"),
        ({"cost": "amped"}, "cost=amped prices whole plans, not their layers; use analytic"),
        ({"cost": "magic"}, "unknown cost model 'magic'"),
    ],
)
def test_bad_disturbances_are_refused(disturbance: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulate(MODEL, WORKLOAD, CLUSTER, Plan(dp=64), stack=STACK, **disturbance)  # type: ignore[arg-type]


def test_gradients_hide_behind_the_last_backward() -> None:
    plan = Plan(dp=64, overlap_param=False)
    hidden, exposed = (run_one(replace(plan, overlap_grad=overlap)) for overlap in (True, False))
    assert hidden.makespan < exposed.makespan
    assert hidden.estimate.hidden["dp"] > 0
    reduces = hidden.tasks.name == NAMES.index("reduce gradients")
    assert reduces.sum() == hidden.work.buckets == 10
    last_backward = hidden.tasks.name == NAMES.index("backward")
    start, end = hidden.timing.start[reduces], hidden.timing.end[last_backward]
    assert (start[:5] < end.max()).all(), "buckets leave while backward runs"
    assert start[-1] >= end.max()


def test_a_tied_embedding_joins_the_ends() -> None:
    model = load_model("gpt2-xl")
    plan = Plan(dp=16, pp=4, micro_batch=1)
    value = simulate(model, Workload(global_batch=256, sequence=1024), CLUSTER, plan, stack=STACK)
    assert value.work.tied > 0
    tied = np.flatnonzero(value.tasks.name == NAMES.index("reduce tied embedding"))
    assert value.built.stage[tied].tolist() == [0, 3]
    assert value.timing.end[tied[0]] == value.timing.end[tied[1]]


def test_forward_only_has_no_step() -> None:
    workload = Workload(global_batch=64, sequence=1024, mode="forward")
    for plan in (Plan(dp=64), Plan(dp=8, tp=2, pp=4), Plan(dp=8, tp=2, pp=4, interleave=2)):
        value = simulate(MODEL, workload, CLUSTER, plan, stack=STACK)
        ops = simulate(MODEL, workload, CLUSTER, plan, stack=STACK, detail="ops")
        compute = value.closed_form.time["compute"]
        for one in (value, ops):
            assert one.estimate.time["compute"] == pytest.approx(compute, rel=1e-9)
        for part in ("dp", "optimizer"):
            assert value.estimate.time[part] == value.closed_form.time[part] == 0
        if plan.interleave == 1:
            assert value.makespan == pytest.approx(value.closed_form.step_seconds, rel=1e-9)


def test_gradients_that_leave_after_every_micro_batch() -> None:
    workload = Workload(global_batch=256, sequence=4096)
    plan = Plan(dp=64, zero=2, micro_batch=1, overlap_grad=False, overlap_param=False)
    value = simulate(MODEL, workload, CLUSTER, plan, stack=STACK)
    assert value.work.every_gradients.any()
    assert value.makespan == pytest.approx(value.closed_form.step_seconds, rel=1e-9)
    beside = simulate(MODEL, workload, CLUSTER, replace(plan, overlap_grad=True), stack=STACK)
    assert beside.makespan < value.makespan


def test_a_faster_rank_waits_for_its_equals() -> None:
    plan = Plan(dp=4, tp=2, pp=2)
    even, few, everyone = (
        simulate(MODEL, SMALL, CLUSTER, plan, stack=STACK, slow_ranks=slow, all_ranks=all_ranks)
        for slow, all_ranks in (({}, False), ({3: 0.5}, False), ({3: 0.5}, True))
    )
    assert few.makespan == even.makespan
    assert everyone.makespan == pytest.approx(even.makespan, rel=1e-12)
    alone = Plan(pp=2)
    usual, faster = (
        simulate(MODEL, SMALL, CLUSTER, alone, stack=STACK, slow_ranks=slow)
        for slow in ({}, {1: 0.5})
    )
    assert faster.makespan < usual.makespan


def test_too_many_tasks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "MOST_TASKS", 1000)
    plan = Plan(dp=16, tp=2, pp=2)
    assert simulate(MODEL, SMALL, CLUSTER, plan, stack=STACK).makespan > 0
    with pytest.raises(ValueError, match="tasks of all ranks exceed 1,000; simulate one rank per"):
        simulate(MODEL, SMALL, CLUSTER, plan, stack=STACK, all_ranks=True)


def test_the_answer_does_not_need_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(dp=8, tp=2, pp=4, interleave=2)
    here = run_one(plan).makespan
    monkeypatch.setitem(sys.modules, "numba", None)
    engine._numba.cache_clear()
    try:
        value = run_one(plan)
        assert value.makespan == here
        with pytest.raises(ValueError, match="compiled=True needs numba; install the extra fast"):
            engine.run(value.tasks, compiled=True)
    finally:
        engine._numba.cache_clear()
