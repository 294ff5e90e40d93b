"""Simulated schedules against brute force and against their closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator import Plan, Plans
from estimator.layer import PARTS
from estimator.schedule import micro_batch_group, pipeline_seconds
from estimator.simulate.build import build
from estimator.simulate.costs import StageWork
from estimator.simulate.engine import run
from estimator.simulate.orders import BACKWARD, schedule_order
from tests.estimator.pipeline_reference import (
    Task,
    makespan,
    order_1f1b,
    order_gpipe,
    order_interleaved,
)
from tests.estimator.test_schedule import stages


def pure(
    forward: list[float],
    backward: list[float],
    m: int,
    v: int = 1,
    weight: list[float] | None = None,
) -> StageWork:
    """Work of nothing but passes, a stage's seconds spread over its chunks."""

    def passes(seconds: list[float]) -> np.ndarray:
        parts = np.zeros((len(seconds), v, 2 * PARTS))
        parts[:, :, 0] = np.array(seconds)[:, None] / v
        return parts

    none = np.zeros(len(forward))
    return StageWork(
        forward=passes(forward),
        backward=passes(backward),
        weight=passes(weight or [0.0] * len(forward)),
        gradients=none,
        every_gradients=none,
        weights=none,
        tied=0.0,
        optimizer=none,
        host=0.0,
        crossing=0.0,
        micro_batches=m,
        overlap_grad=False,
        overlap_param=False,
        buckets=1,
        hiding=1.0,
        shares=np.full((len(forward), v), 1 / v),
        states=none,
        kept=none,
        passing=none,
        allocated=none,
    )


def simulated(plan: Plan, forward: list[float], backward: list[float], m: int) -> float:
    work = pure(forward, backward, m, plan.interleave)
    return run(build(work, plan).tasks).makespan


def reference(schedule: str, p: int, m: int, v: int) -> list[list[Task]]:
    if schedule == "gpipe":
        return [order_gpipe(p, m, s) for s in range(p)]
    if v == 1:
        return [order_1f1b(p, m, s) for s in range(p)]
    group = min(int(micro_batch_group(np.array([p]), np.array([m]))[0]), m)
    return [order_interleaved(p, m, v, s, group) for s in range(p)]


@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 4), st.sampled_from(["gpipe", "1f1b"]))
def test_orders_are_those_of_the_papers(p: int, m: int, v: int, schedule: str) -> None:
    v = 1 if schedule == "gpipe" or p == 1 else v
    order = schedule_order(schedule, p, v, m)
    for s, expected in enumerate(reference(schedule, p, m, v)):
        got = [
            ("B" if phase == BACKWARD else "F", batch, chunk)
            for phase, batch, chunk in zip(
                order.phase[s].tolist(),
                order.micro_batch[s].tolist(),
                order.chunk[s].tolist(),
                strict=True,
            )
        ]
        assert got == expected


COST = st.floats(0.05, 8.0)


@given(
    st.lists(st.tuples(COST, COST), min_size=1, max_size=8),
    st.integers(1, 24),
    st.integers(1, 4),
    st.sampled_from(["gpipe", "1f1b"]),
)
def test_the_simulator_agrees_with_brute_force(
    costs: list[tuple[float, float]], m: int, v: int, schedule: str
) -> None:
    """Any stages, any chunks, any micro-batches, fewer than stages included."""
    p = len(costs)
    v = 1 if schedule == "gpipe" or p == 1 else v
    f, b = [list(side) for side in zip(*costs, strict=True)]
    plan = Plan(pp=p, interleave=v, schedule=schedule)  # type: ignore[arg-type]
    exact = makespan(reference(schedule, p, m, v), f, b, v)
    assert simulated(plan, f, b, m) == pytest.approx(exact, rel=1e-12)


def closed(plan: Plan, count: list[int], f: list[float], b: list[float], m: int) -> float:
    columns = [np.array(values)[:, None] for values in (f, b)]
    counts = np.array(count)[:, None]
    return float(pipeline_seconds(*columns, counts, Plans.of([plan]), np.array([m]))[0])


@given(stages(), st.integers(1, 24), st.sampled_from(["gpipe", "1f1b"]))
def test_closed_forms_are_exact_for_any_stages(
    costs: tuple[list[int], list[float], list[float]], m: int, schedule: str
) -> None:
    count, f, b = costs
    plan = Plan(pp=sum(count), schedule=schedule)  # type: ignore[arg-type]
    spread = [[x for n, x in zip(count, side, strict=True) for _ in range(n)] for side in (f, b)]
    assert simulated(plan, *spread, m) == pytest.approx(closed(plan, count, f, b, m), rel=1e-9)


@given(stages(least=2), st.integers(0, 20), st.integers(2, 4))
def test_the_interleaved_closed_form_is_a_lower_bound(
    costs: tuple[list[int], list[float], list[float]], more: int, v: int
) -> None:
    count, f, b = costs
    p = sum(count)
    plan = Plan(pp=p, interleave=v)
    spread = [[x for n, x in zip(count, side, strict=True) for _ in range(n)] for side in (f, b)]
    exact = simulated(plan, *spread, p + more)
    assert closed(plan, count, f, b, p + more) <= exact * (1 + 1e-9)


def bubble_faults(stages: range, micro_batches: range, chunks: range) -> list[str]:
    """Where a balanced pipeline's simulated seconds differ from the closed form of its bubble."""
    f, b = 1.0, 2.25
    faults = []
    for p in stages:
        for m in micro_batches:
            for v in chunks:
                if v > 1 and (p == 1 or m < p):
                    continue
                for schedule in ("gpipe", "1f1b") if v == 1 else ("1f1b",):
                    plan = Plan(pp=p, interleave=v, schedule=schedule)  # type: ignore[arg-type]
                    got = simulated(plan, [f] * p, [b] * p, m)
                    exact = m * (f + b) + (p - 1) * (f + b) / v
                    if abs(got - exact) > 1e-9 * exact:
                        faults.append(f"{schedule} p={p} m={m} v={v}: {got} for {exact}")
    return faults


def test_bubbles_are_those_of_the_closed_forms() -> None:
    assert bubble_faults(range(1, 9), range(1, 17, 3), range(1, 4)) == []


@pytest.mark.slow
def test_all_bubbles_are_those_of_the_closed_forms() -> None:
    assert bubble_faults(range(1, 17), range(1, 65), range(1, 5)) == []


@settings(max_examples=20)
@given(st.integers(2, 6), st.integers(1, 12), st.integers(1, 3), st.floats(0.01, 0.5))
def test_transfers_delay_a_pipeline_and_nothing_else(
    p: int, m: int, v: int, crossing: float
) -> None:
    from dataclasses import replace

    work = pure([1.0] * p, [2.0] * p, m, v)
    plan = Plan(pp=p, interleave=v)
    plain = run(build(work, plan).tasks).makespan
    delayed = run(build(replace(work, crossing=crossing), plan).tasks).makespan
    first_down_and_last_up = 2 * (p - 1) * crossing
    assert delayed >= plain + first_down_and_last_up - 1e-9
    assert delayed <= plain + 2 * crossing * (p + m) * v + 1e-9
