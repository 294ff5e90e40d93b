"""A recommendation against pricing every plan at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator import Plans
from search.misses import difference, gpus_needed, smallest_change
from search.objective import limited_by, score
from search.pareto import rank
from search.strategies import Exhaustive
from search.study import Recommendation, recommend
from spaces import Constraints, TransformerSpace
from tests.search.fakes import PRICING, problem, small, space

SMALL = small()


def search(of: TransformerSpace, **options: object) -> Recommendation:
    p = of.problem
    arguments = {"space": of, "pricing": PRICING, **options}
    return recommend(p.model, p.workload, p.cluster, stack=p.stack, **arguments)  # type: ignore[arg-type]


def everything(of: TransformerSpace) -> Plans:
    return next(of.blocks(of.legal))


def test_the_ranking_is_that_of_all_plans_priced_at_once() -> None:
    plans = everything(SMALL)
    scores = score(SMALL.problem, plans, PRICING)
    order = [
        i for i in rank(plans, scores.seconds, scores.peak_bytes) if scores.excess_bytes[i] <= 0
    ]
    result = search(SMALL, top=7)
    assert [row.estimate.plan for row in result.ranked] == [plans[int(i)] for i in order[:7]]
    assert [row.rank for row in result.ranked] == list(range(1, 8))
    assert result.fitting == len(order)
    assert result.evaluated == result.legal == len(plans)
    assert result.legal == result.considered - sum(result.left_out.values())
    assert 0 < result.fitting < result.legal, "the case must hold both kinds"


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 400), st.integers(1, 30))
def test_the_answer_does_not_depend_on_the_block_size(block: int, top: int) -> None:
    one = search(SMALL, strategy=Exhaustive(SMALL, block), top=top)
    other = search(SMALL, top=top)
    assert one == other


def test_everything_ranked_fits_and_everything_missed_does_not() -> None:
    result = search(SMALL)
    assert all(row.estimate.fits for row in (*result.ranked, *result.front))
    assert all(miss.excess_bytes > 0 for miss in result.nearest_misses)
    excess = [miss.excess_bytes for miss in result.nearest_misses]
    assert excess == sorted(excess)


def test_the_front_trades_time_for_memory_and_starts_with_the_best() -> None:
    rows = search(SMALL).front
    assert len(rows) > 1
    seconds = [row.estimate.step_seconds for row in rows]
    peak = [row.estimate.peak_bytes for row in rows]
    assert seconds == sorted(seconds)
    assert peak == sorted(peak, reverse=True)
    assert rows[0].estimate.plan == search(SMALL).ranked[0].estimate.plan


def test_a_miss_names_a_single_change_that_fits() -> None:
    misses = search(SMALL).nearest_misses
    assert misses
    wide = space(SMALL.problem)
    for miss in misses:
        assert miss.change == smallest_change(wide, miss.plan, PRICING)
        assert miss.change
        changed = dict(item.split("=") for item in miss.change.split(","))
        axes = set(changed) - {"dp", "first_stage_layers", "last_stage_layers", "recompute_layers"}
        assert len(axes - {"recompute"}) + ("recompute" in axes) <= 1
        text = {**dict(i.split("=") for i in str(miss.plan).split(",")), **changed}
        after = type(miss.plan).parse(",".join(f"{k}={v}" for k, v in text.items()))
        peak = PRICING.peak_bytes(SMALL.problem, Plans.of([after]))[0]
        assert peak <= SMALL.problem.cluster.device.memory_bytes
        assert difference(miss.plan, after) == miss.change


def test_where_nothing_fits_the_gpus_that_would_are_named() -> None:
    asked = Constraints.parse(fix=["tp=1", "zero=0", "cp=1"], most=["pp=1"])
    given_problem = problem()
    result = search(space(given_problem, asked))
    assert result.ranked == () and result.fitting == 0
    assert result.nearest_misses[0].change is not None, "a wider choice would fit"
    assert gpus_needed(given_problem, asked, PRICING) is None
    sharded = Constraints.parse(fix=["tp=1", "zero=1", "cp=1", "pp=1"])
    assert gpus_needed(problem(2), sharded, PRICING) == 4, "states are shared by more replicas"


def test_more_gpus_are_counted_by_doubling() -> None:
    from estimator import Plans as Columns
    from search.objective import Pricing

    def lean(*_: object, stack: object) -> np.ndarray:
        plans = next(p for p in _ if isinstance(p, Columns))
        return 79e9 * 30 / plans.world

    pricing = Pricing(PRICING.estimate, lean)
    assert gpus_needed(problem(8), Constraints(), pricing) == 32


def test_an_empty_space_is_bad_input_with_a_reason() -> None:
    with pytest.raises(
        ValueError, match="zero=2 is not offered by stack megatron; use one of 0, 1"
    ):
        search(space(problem(), Constraints.parse(fix=["zero=2"])))
    with pytest.raises(ValueError, match="top=0 must be at least 1"):
        search(SMALL, top=0)


def test_what_limits_is_the_largest_noticeable_part_besides_compute() -> None:
    for row in search(SMALL, top=50).ranked:
        value = row.estimate
        others = {part: s for part, s in value.time.items() if part != "compute"}
        largest = max(others.values())
        if row.limited_by == "compute":
            assert largest < 0.05 * value.step_seconds
        else:
            assert others[row.limited_by] == largest >= 0.05 * value.step_seconds
        assert row.limited_by == limited_by(value)


def test_progress_is_told_of_every_block() -> None:
    seen: list[tuple[int, float]] = []
    search(SMALL, strategy=Exhaustive(SMALL, 100), progress=lambda n, s: seen.append((n, s)))
    assert [n for n, _ in seen][-1] == SMALL.legal
    assert [s for _, s in seen] == sorted((s for _, s in seen), reverse=True)


def test_a_plan_fits_up_to_the_last_byte() -> None:
    from search.objective import Pricing

    plans = next(SMALL.blocks(3))
    capacity = SMALL.problem.cluster.device.memory_bytes

    def near(*_: object, stack: object) -> np.ndarray:
        return capacity + np.array([-1.0, 0.0, 1.0])

    scores = score(SMALL.problem, plans, Pricing(PRICING.estimate, near))
    assert scores.excess_bytes.tolist() == [-1, 0, 1]
    assert np.isfinite(scores.seconds).tolist() == [True, True, False]


def test_the_smallest_change_is_the_fewest_steps_along_one_axis() -> None:
    wide = space(problem())
    capacity = wide.problem.cluster.device.memory_bytes
    plans = wide.sample(300)
    peak = PRICING.peak_bytes(wide.problem, plans)
    compared = 0
    for plan in plans[np.flatnonzero(peak > capacity)[:8]]:
        here = wide.grid.coordinates(wide.encode(Plans.of([plan])))
        found = []
        for name, values in wide.grid.axes.items():
            for position in range(len(values)):
                steps = abs(position - int(np.ravel(here[name])[0]))
                point = np.ravel(wide.grid.points({**here, name: position}))
                if steps and wide.contains(point).all():
                    after = wide.plans(point)
                    need = float(PRICING.peak_bytes(wide.problem, after)[0])
                    if need <= capacity:
                        found.append((steps, -need, difference(plan, after[0])))
        change = smallest_change(wide, plan, PRICING)
        if not found:
            assert change is None
            continue
        least = min(found)[:2]
        assert change in {text for steps, need, text in found if (steps, need) == least}
        compared += 1
    assert compared > 2


@pytest.mark.parametrize("block", [97, 4096])
def test_with_the_real_estimator_too_blocks_leave_no_trace(block: int) -> None:
    asked = Constraints.parse(most=["mbs=2", "cp=2"])
    of = space(problem(16, 32), asked)
    one = search(of, pricing=None, strategy=Exhaustive(of, block), top=200)
    other = search(of, pricing=None, top=200)
    assert one == other
    seconds = [row.estimate.step_seconds for row in one.ranked]
    assert seconds == sorted(seconds)
    assert len({str(row.estimate.plan) for row in one.ranked}) == len(seconds) == 200
