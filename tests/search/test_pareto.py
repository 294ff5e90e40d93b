"""Ranking, fronts and ties against definitions written out in full."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from estimator import Plans
from search.pareto import best, closest, front, rank, ties

COSTS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 4)), min_size=1)


def columns(costs: list[tuple[int, int, int]]) -> tuple[Plans, np.ndarray, np.ndarray]:
    table = np.array(costs)
    plans = Plans.build(tp=table[:, 2], micro_batch=np.arange(len(costs)) + 1)
    return plans, table[:, 0].astype(float), table[:, 1].astype(float)


@given(COSTS)
def test_rank_is_by_time_then_memory_then_plan(costs: list[tuple[int, int, int]]) -> None:
    plans, seconds, peak = columns(costs)
    keys = [(seconds[i], peak[i], plans.tp[i], plans.micro_batch[i]) for i in range(len(plans))]
    assert [keys[i] for i in rank(plans, seconds, peak)] == sorted(keys)


@given(COSTS, st.integers(1, 12))
def test_best_is_the_head_of_the_ranking(costs: list[tuple[int, int, int]], count: int) -> None:
    plans, seconds, peak = columns(costs)
    assert list(best(plans, seconds, peak, count)) == list(rank(plans, seconds, peak)[:count])


@given(COSTS)
def test_front_holds_one_of_each_undominated_cost(costs: list[tuple[int, int, int]]) -> None:
    plans, seconds, peak = columns(costs)
    pairs = set(zip(seconds.tolist(), peak.tolist(), strict=True))
    undominated = sorted(
        (s, p)
        for s, p in pairs
        if not any(a <= s and b <= p and (a, b) != (s, p) for a, b in pairs)
    )
    found = front(plans, seconds, peak)
    assert [(seconds[i], peak[i]) for i in found] == undominated
    for i in found:
        equal = (seconds == seconds[i]) & (peak == peak[i])
        alike = [(plans.tp[j], plans.micro_batch[j]) for j in np.flatnonzero(equal)]
        assert (plans.tp[i], plans.micro_batch[i]) == min(alike)


@given(COSTS, st.integers(1, 12))
def test_closest_takes_the_leanest_plan_of_each_mesh(
    costs: list[tuple[int, int, int]], count: int
) -> None:
    plans, _, peak = columns(costs)
    least = {tp: peak[plans.tp == tp].min() for tp in set(plans.tp.tolist())}
    found = closest(plans, peak, count)
    assert [peak[i] for i in found] == sorted(least.values())[:count]
    assert len({int(plans.tp[i]) for i in found}) == len(found)


def test_ties_are_with_the_leader_of_the_group_not_with_the_neighbour() -> None:
    seconds = np.array([1.0, 1.05, 1.12, 1.3, 1.31])
    assert ties(seconds, 0.1).tolist() == [1, 1, 2, 3, 3]
    assert ties(seconds[:0], 0.1).tolist() == []
