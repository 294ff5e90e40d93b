"""Closed forms of schedules against brute force over every task."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.lower.memory import in_flight
from estimator.plan import Plan, Plans
from estimator.schedule import micro_batch_group, pipeline_seconds
from tests.estimator.pipeline_reference import (
    Task,
    makespan,
    order_1f1b,
    order_gpipe,
    order_interleaved,
)

COST = st.floats(0.05, 8.0)


@st.composite
def stages(draw: st.DrawFn, least: int = 1) -> tuple[list[int], list[float], list[float]]:
    """Counts and costs of the four classes of up to nine stages."""
    p = draw(st.integers(least, 9))
    heavier = draw(st.integers(0, max(p - 2, 0)))
    count = [1, heavier, max(p - 2, 0) - heavier, int(p > 1)]
    return (
        count,
        [draw(COST) if n else 0.0 for n in count],
        [draw(COST) if n else 0.0 for n in count],
    )


def closed_form(plan: Plan, count: list[int], f: list[float], b: list[float], m: int) -> float:
    columns = [np.array(values, dtype=float)[:, None] for values in (f, b)]
    counts = np.array(count)[:, None]
    return float(pipeline_seconds(*columns, counts, Plans.of([plan]), np.array([m]))[0])


def spread(count: list[int], values: list[float]) -> list[float]:
    return [value for n, value in zip(count, values, strict=True) for _ in range(n)]


@given(stages(), st.integers(1, 24))
def test_gpipe_is_exact(costs: tuple[list[int], list[float], list[float]], m: int) -> None:
    count, f, b = costs
    p = sum(count)
    exact = makespan([order_gpipe(p, m, s) for s in range(p)], spread(count, f), spread(count, b))
    assert closed_form(Plan(pp=p, schedule="gpipe"), count, f, b, m) == pytest.approx(exact, 1e-9)


@given(stages(), st.integers(1, 24))
def test_1f1b_is_exact(costs: tuple[list[int], list[float], list[float]], m: int) -> None:
    count, f, b = costs
    p = sum(count)
    exact = makespan([order_1f1b(p, m, s) for s in range(p)], spread(count, f), spread(count, b))
    assert closed_form(Plan(pp=p), count, f, b, m) == pytest.approx(exact, 1e-9)


def interleaved_orders(p: int, m: int, v: int) -> list[list[Task]]:
    group = int(micro_batch_group(np.array([p]), np.array([m]))[0])
    return [order_interleaved(p, m, v, s, group) for s in range(p)]


@given(st.integers(2, 8), st.integers(2, 5), st.integers(0, 30), COST, COST)
def test_interleaved_is_exact_when_balanced(p: int, v: int, more: int, f: float, b: float) -> None:
    m = p + more
    exact = makespan(interleaved_orders(p, m, v), [f] * p, [b] * p, v)
    count = [1, 0, p - 2, 1]
    inner = float(p > 2)
    got = closed_form(
        Plan(pp=p, interleave=v), count, [f, 0, f * inner, f], [b, 0, b * inner, b], m
    )
    assert got == pytest.approx(exact, 1e-9)
    assert got == pytest.approx(m * (f + b) + (p - 1) / v * (f + b), 1e-9)


@given(
    st.integers(2, 7),
    st.integers(2, 4),
    st.integers(0, 30),
    st.floats(0, 0.3),
    st.floats(0, 0.8),
    st.floats(0.5, 3),
)
def test_interleaved_with_heavier_ends(
    p: int, v: int, more: int, first: float, last: float, ratio: float
) -> None:
    """Ends as an embedding and logits make them: never above the truth, within 3 % below it."""
    m = p + more
    f = [1 + first, 0, float(p > 2), 1 + last]
    b = [ratio * value for value in f]
    count = [1, 0, p - 2, 1]
    exact = makespan(interleaved_orders(p, m, v), spread(count, f), spread(count, b), v)
    got = closed_form(Plan(pp=p, interleave=v), count, f, b, m)
    assert 0.97 * exact <= got <= exact * (1 + 1e-9)


@given(st.integers(1, 64), st.integers(1, 500))
def test_micro_batch_group(p: int, m: int) -> None:
    group = int(micro_batch_group(np.array([p]), np.array([m]))[0])
    assert group >= p
    if m >= p:
        assert group <= m
        assert m % group == 0 or m % group >= p


@given(st.integers(1, 9), st.integers(1, 30), st.integers(1, 4), st.sampled_from(["gpipe", "1f1b"]))
def test_in_flight_counts_the_schedule(p: int, m: int, v: int, schedule: str) -> None:
    """Most forwards ahead of their backwards on any stage, counted in the order itself."""
    if schedule == "gpipe":
        v, orders = 1, [order_gpipe(p, m, s) for s in range(p)]
    elif v == 1 or p == 1 or m < p:
        v, orders = 1, [order_1f1b(p, m, s) for s in range(p)]
    else:
        orders = interleaved_orders(p, m, v)
    plans = Plans.of([Plan(pp=p, interleave=v, schedule=schedule)])  # type: ignore[arg-type]
    position = np.arange(p)[:, None]
    held = in_flight(plans, position, np.array([m]))[:, 0]
    for s, order in enumerate(orders):
        steps = np.cumsum([1 if kind == "F" else -1 for kind, _, _ in order])
        assert held[s] == pytest.approx(steps.max() / v)
