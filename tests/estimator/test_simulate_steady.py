"""Steps of many micro-batches, from fewer: the same answer wherever the pipeline repeats itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator import Plan, Plans, Workload
from estimator.compose import composition
from estimator.estimate import TIME_PARTS
from estimator.simulate import simulate, simulated_estimates
from estimator.simulate.build import build
from estimator.simulate.engine import run
from estimator.simulate.steady import fewer, repetition
from tests.estimator.problems import CLUSTER, MODEL, STACK
from tests.estimator.test_simulate_gaps import ANY, draw
from tests.estimator.test_simulate_orders import pure

MANY = Workload(global_batch=4096, sequence=1024)
COST = st.floats(0.05, 8.0)


def test_estimates_are_those_of_whole_simulations() -> None:
    random = np.random.default_rng(5)
    plans = Plans.of([draw(random) for _ in range(40)])
    composed = composition(MODEL, MANY, CLUSTER, plans, stack=ANY)
    for plan, found in zip(plans, simulated_estimates(composed), strict=True):
        whole = simulate(MODEL, MANY, CLUSTER, plan, stack=ANY).estimate
        assert found.step_seconds == pytest.approx(whole.step_seconds, rel=1e-9)
        for part in TIME_PARTS:
            most = 1e-9 * whole.step_seconds
            assert found.time[part] == pytest.approx(whole.time[part], abs=most), (part, plan)
        for part, seconds in whole.hidden.items():
            assert found.hidden[part] == pytest.approx(seconds, abs=1e-9 * whole.step_seconds)
        assert found.mfu == pytest.approx(whole.mfu, rel=1e-9)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(COST, COST, COST), min_size=2, max_size=6),
    st.sampled_from([("1f1b", 1), ("1f1b", 2), ("1f1b", 3), ("zb-h1", 1), ("zb-h2", 1)]),
    st.integers(1, 60),
    st.sampled_from([0.0, 0.3]),
)
def test_what_repeats_goes_on(
    costs: list[tuple[float, float, float]], how: tuple[str, int], groups: int, crossing: float
) -> None:
    """Any stages: either the passes repeat, and then more of them take what they say, or not."""
    (schedule, v), p = how, len(costs)
    f, b, w = (list(side) for side in zip(*costs, strict=True))
    m = groups * p if v > 1 else groups + p
    plan = Plan(pp=p, interleave=v, schedule=schedule)  # type: ignore[arg-type]
    work = pure(f, [x + y for x, y in zip(b, w, strict=True)], m, v, w if v == 1 else None)
    if schedule == "1f1b":
        work = replace(work, weight=np.zeros_like(work.weight))
    work = replace(work, crossing=crossing)
    few = fewer(work, plan)
    if few == m:
        return
    short = replace(work, micro_batches=few)
    built = build(short, plan)
    timing = run(built.tasks)
    more = repetition(short, plan, built, timing, m - few)
    if more is not None:
        whole = run(build(work, plan).tasks).makespan
        assert timing.makespan + more.seconds == pytest.approx(whole, rel=1e-9)


def test_few_micro_batches_stand_for_many() -> None:
    plan = Plan(dp=2, tp=8, pp=4, micro_batch=1)
    workload = replace(MANY, global_batch=1024)
    work = simulate(MODEL, workload, CLUSTER, plan, stack=STACK).work
    assert work.micro_batches == 512
    assert fewer(work, plan) == 13
    for other in (
        replace(plan, schedule="gpipe"),
        replace(plan, interleave=2, dp=1, cp=2, micro_batch=2, pp=4),
    ):
        whole = simulate(MODEL, workload, CLUSTER, other, stack=STACK).work
        few = fewer(whole, other)
        assert few == (32 if other.interleave > 1 else whole.micro_batches)
