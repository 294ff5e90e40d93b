"""Zero-bubble schedules: their orders, their closed forms, what they keep, and whole plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator import Plan, Plans, Workload, estimate
from estimator.lower.memory import in_flight
from estimator.schedule import pipeline_seconds
from estimator.simulate import Simulation, simulate
from estimator.simulate.build import build
from estimator.simulate.engine import run
from estimator.simulate.orders import schedule_order
from tests.estimator.problems import CLUSTER, MODEL, STACK
from tests.estimator.test_simulate_orders import pure

LAG = {"zb-h1": 1, "zb-h2": 2}
BOTH = st.sampled_from(sorted(LAG))
COST = st.floats(0.05, 8.0)


def by_hand(schedule: str, p: int, s: int, m: int) -> list[tuple[str, int]]:
    """Task by task, as the figures of the paper draw them (arXiv 2401.10241, figure 2)."""
    lag = LAG[schedule]
    ahead = min(lag * (p - 1 - s) + 1, m)
    tasks = [("F", i) for i in range(ahead)]
    put_off = []
    for i in range(m):
        tasks.append(("B", i))
        put_off.append(i)
        if len(put_off) > lag * s:
            tasks.append(("W", put_off.pop(0)))
        if ahead + i < m:
            tasks.append(("F", ahead + i))
    return tasks + [("W", i) for i in put_off]


@given(st.integers(2, 9), st.integers(1, 30), BOTH)
def test_orders(p: int, m: int, schedule: str) -> None:
    order = schedule_order(schedule, p, 1, m)
    assert not order.chunk.any()
    for s in range(p):
        got = [
            ("FBW"[a], b)
            for a, b in zip(order.phase[s].tolist(), order.micro_batch[s].tolist(), strict=True)
        ]
        assert got == by_hand(schedule, p, s, m)


def measured(schedule: str, f: list[float], b: list[float], w: list[float], m: int) -> float:
    """Makespan; of ZB-H2 the longest time of one stage from its first to its last task."""
    whole = [x + y for x, y in zip(b, w, strict=True)]
    built = build(pure(f, whole, m, weight=w), Plan(pp=len(f), schedule=schedule))  # type: ignore[arg-type]
    timing = run(built.tasks)
    if schedule == "zb-h1":
        return timing.makespan
    computes = built.tasks.phase < 3
    return max(
        float(timing.end[computes & (built.stage == s)].max())
        - float(timing.start[computes & (built.stage == s)].min())
        for s in range(len(f))
    )


def closed(schedule: str, count: list[int], costs: list[list[float]], m: int) -> float:
    f, b, w = (np.array(values)[:, None] for values in costs)
    plans = Plans.of([Plan(pp=sum(count), schedule=schedule)])  # type: ignore[arg-type]
    counts = np.array(count)[:, None]
    return float(pipeline_seconds(f, b + w, counts, plans, np.array([m]), w)[0])


def faults(stages: range, micro_batches: range) -> list[str]:
    """Where balanced stages differ from the paper's formula or from ours, in the domain."""
    found = []
    for f, b, w in ((1.0, 1.0, 1.0), (1.0, 1.2, 0.8), (1.0, 1.5, 0.5), (1.0, 2.0, 1.0)):
        for schedule, lag in LAG.items():
            for p in stages:
                for m in micro_batches:
                    if m < lag * p - (lag - 1):
                        continue
                    exact = m * (f + b + w) + (p - 1) * (f + b - lag * w)
                    count = [1, 0, p - 2, 1]
                    costs = [[x, 0.0, x * (p > 2), x] for x in (f, b, w)]
                    for got in (
                        measured(schedule, [f] * p, [b] * p, [w] * p, m),
                        closed(schedule, count, costs, m),
                    ):
                        if abs(got - exact) > 1e-9 * exact:
                            found.append(f"{schedule} p={p} m={m} {f, b, w}: {got} for {exact}")
    return found


def test_bubbles_are_those_of_the_paper() -> None:
    assert faults(range(2, 9), range(2, 33, 5)) == []


@pytest.mark.slow
def test_all_bubbles_are_those_of_the_paper() -> None:
    assert faults(range(2, 17), range(2, 65)) == []


@given(
    st.lists(st.tuples(COST, COST, COST), min_size=4, max_size=4),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(1, 20),
    BOTH,
)
def test_the_closed_form_is_a_lower_bound(
    classes: list[tuple[float, float, float]], heavier: int, lighter: int, m: int, schedule: str
) -> None:
    count = [1, heavier, lighter, 1]
    costs = [
        [x * (n > 0) for n, x in zip(count, c, strict=True)] for c in zip(*classes, strict=True)
    ]
    spread = [[x for n, x in zip(count, c, strict=True) for _ in range(n)] for c in costs]
    least = closed(schedule, count, costs, m)
    assert least <= measured(schedule, *spread, m) * (1 + 1e-9)


@given(st.integers(1, 9), st.integers(1, 30), BOTH)
def test_in_flight_counts_the_order(p: int, m: int, schedule: str) -> None:
    """A micro-batch is held from its forward to its weights' gradient; no stage holds more."""
    plans = Plans.of([Plan(pp=p, schedule=schedule)])  # type: ignore[arg-type]
    held = in_flight(plans, np.arange(p)[:, None], np.array([m]))[:, 0]
    for s in range(p):
        steps = np.cumsum([{"F": 1, "B": 0, "W": -1}[k] for k, _ in by_hand(schedule, p, s, m)])
        assert steps.max() <= held[s]
        if m >= LAG[schedule] * p:
            assert steps.max() == held[s]


WORK = Workload(global_batch=128, sequence=4096)
PLAN = Plan(dp=4, tp=4, pp=4, micro_batch=1, zero=1, sequence_parallel=True)


def one(schedule: str, **more: object) -> Simulation:
    plan = replace(PLAN, schedule=schedule)  # type: ignore[arg-type]
    return simulate(MODEL, WORK, CLUSTER, plan, stack=STACK, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("detail", ["stages", "ops"])
@pytest.mark.parametrize("schedule", sorted(LAG))
def test_a_plan_has_the_same_work_and_less_bubble(schedule: str, detail: str) -> None:
    value, plain = (one(s, detail=detail) for s in (schedule, "1f1b"))
    step, usual = value.estimate, plain.estimate
    assert sum(step.time.values()) == pytest.approx(step.step_seconds, rel=1e-9)
    assert step.time["compute"] == pytest.approx(usual.time["compute"], rel=1e-9)
    assert step.time["bubble"] < 0.75 * usual.time["bubble"]
    assert step.time["tp"] > usual.time["tp"], "fewer GEMMs to hide reductions behind"
    assert step.step_seconds <= value.makespan * (1 + 1e-12)
    assert value.closed_form.step_seconds == pytest.approx(step.step_seconds, rel=0.05)


@pytest.mark.parametrize("detail", ["stages", "ops"])
def test_less_bubble_is_less_time_where_nothing_hid_behind_weights(detail: str) -> None:
    alone = replace(PLAN, dp=16, tp=1, sequence_parallel=False)
    work = replace(WORK, global_batch=512)

    def seconds(schedule: str) -> float:
        plan = replace(alone, schedule=schedule)  # type: ignore[arg-type]
        value = simulate(MODEL, work, CLUSTER, plan, stack=STACK, detail=detail)
        return value.estimate.step_seconds

    usual, first, second = (seconds(schedule) for schedule in ("1f1b", "zb-h1", "zb-h2"))
    assert second < first < usual


def test_schedules_rank_by_time_and_by_memory() -> None:
    plain = replace(PLAN, dp=16, tp=1, sequence_parallel=False)
    plans = [replace(plain, schedule=s) for s in ("gpipe", "1f1b", "zb-h1", "zb-h2")]  # type: ignore[arg-type]
    table = estimate(MODEL, WORK, CLUSTER, Plans.of(plans), stack=STACK)
    gpipe, usual, first, second = table.step_seconds.tolist()
    assert second < first < usual <= gpipe * (1 + 1e-9)
    held = table.peak_bytes.tolist()
    assert held[1] <= held[2] < held[3] < held[0]


@settings(max_examples=20)
@given(st.sampled_from([2, 4]), st.sampled_from([8, 16, 64]), BOTH)
def test_memory_over_time_reaches_the_closed_form(pp: int, batch: int, schedule: str) -> None:
    plan = replace(PLAN, pp=pp, dp=16 // pp, schedule=schedule, micro_batch=1)  # type: ignore[arg-type]
    work = replace(WORK, global_batch=batch * plan.dp)
    value = simulate(MODEL, work, CLUSTER, plan, stack=STACK)
    for memory, stage in ((value.memory[0], 0), (value.memory[-1], -1)):
        limit = value.closed_form.stages[stage]["allocated_bytes"]
        assert memory.peak <= limit * (1 + 1e-9)
        assert memory.peak == pytest.approx(limit, rel=0.15)


@pytest.mark.parametrize("detail", ["stages", "ops"])
def test_one_stage_alone_has_nothing_to_put_off(detail: str) -> None:
    alone = replace(PLAN, pp=1, dp=16)
    one_stage = [
        simulate(
            MODEL,
            WORK,
            CLUSTER,
            replace(alone, schedule=schedule),  # type: ignore[arg-type]
            stack=STACK,
            detail=detail,
        )
        for schedule in ("1f1b", "zb-h1", "zb-h2")
    ]
    plain = one_stage[0]
    for value in one_stage:
        assert value.closed_form.step_seconds == plain.closed_form.step_seconds
        assert value.estimate.step_seconds == pytest.approx(plain.makespan, rel=1e-12)


def test_chunks_are_for_1f1b() -> None:
    from spaces import check

    with pytest.raises(ValueError, match="interleave=2 needs schedule=1f1b, not zb-h1"):
        check(MODEL, WORK, CLUSTER, STACK, replace(PLAN, dp=4, interleave=2, schedule="zb-h1"))
    check(MODEL, WORK, CLUSTER, STACK, replace(PLAN, schedule="zb-h2"))
