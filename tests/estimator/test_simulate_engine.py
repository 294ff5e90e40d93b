"""The longest path through tasks: by hand, against brute force, and through the compiler."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.simulate import (
    Tasks,
    build_tasks,
    critical_path,
    idle_seconds,
    naive_seconds,
    run,
)
from estimator.simulate.contention import run_beside


def table(rows: list[tuple[int, int, float, int]], edges: list[tuple[int, int]]) -> Tasks:
    """Tasks from (rank, resource, seconds, collective) and pairs of edges."""
    rank, resource, seconds, collective = zip(*rows, strict=True)
    return build_tasks(
        rank=rank,
        resource=resource,
        seconds=seconds,
        collective=collective,
        sources=[a for a, _ in edges],
        targets=[b for _, b in edges],
        names=("task",),
        resources=("compute", "dp", "host"),
    )


def test_a_resource_runs_its_tasks_in_turn() -> None:
    timing = run(table([(0, 0, 1.0, -1), (0, 0, 2.0, -1), (0, 1, 5.0, -1)], []))
    assert timing.start.tolist() == [0, 1, 0]
    assert timing.end.tolist() == [1, 3, 5]
    assert timing.cause.tolist() == [-1, 0, -1]
    assert timing.makespan == 5


def test_a_late_rank_delays_all_members_of_a_collective() -> None:
    rows = [(0, 0, 1.0, -1), (1, 0, 4.0, -1), (0, 1, 2.0, 7), (1, 1, 2.0, 7), (0, 0, 1.0, -1)]
    tasks = table(rows, [(0, 2), (1, 3), (2, 4)])
    timing = run(tasks)
    assert timing.start.tolist() == [0, 0, 1, 4, 6]
    assert timing.end.tolist() == [1, 4, 6, 6, 7]
    assert timing.late[2] == timing.late[3] == 3
    assert critical_path(tasks, timing).tolist() == [1, 3, 4]
    assert idle_seconds(tasks, timing).tolist() == [[5, 5, 7], [3, 5, 7]]
    assert naive_seconds(tasks) == 4


def test_a_circle_is_named() -> None:
    rows = [(0, 0, 1.0, -1), (1, 0, 1.0, -1), (0, 0, 1.0, -1)]
    tasks = table(rows, [(2, 1), (1, 0)])
    with pytest.raises(ValueError, match="deadlock: rank 0 compute: task waits for rank 1 compute"):
        run(tasks)


def test_two_ranks_that_meet_in_another_order_deadlock() -> None:
    rows = [(0, 1, 1.0, 0), (0, 1, 1.0, 1), (1, 1, 1.0, 1), (1, 1, 1.0, 0)]
    with pytest.raises(ValueError, match=r"deadlock: rank . dp: task waits for .* waits for rank"):
        run(table(rows, []))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"seconds": [-1.0]}, "finite and not negative"),
        ({"seconds": [float("nan")]}, "finite and not negative"),
        ({"seconds": [1.0], "sources": [0], "targets": [1]}, "an edge leaves the 1 tasks"),
        ({"seconds": [1.0], "sources": [0], "targets": []}, "give pairs"),
    ],
)
def test_bad_tables_are_refused(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_tasks(rank=0, resource=0, **columns)


def test_nothing_takes_no_time() -> None:
    empty = build_tasks(rank=[], resource=[], seconds=[])
    assert run(empty).makespan == 0
    assert len(critical_path(empty, run(empty))) == 0
    assert naive_seconds(empty) == 0


@st.composite
def graphs(draw: st.DrawFn) -> Tasks:
    """Tasks on a few ranks and streams, edges forward in the table, collectives across ranks."""
    count = draw(st.integers(1, 24))
    seconds = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.25])
    rows: list[tuple[int, int, float, int]] = []
    group = 0
    while len(rows) < count:
        if draw(st.booleans()):
            rows += [(rank, 1, draw(seconds), group) for rank in range(draw(st.integers(1, 3)))]
            group += 1
        else:
            rows.append((draw(st.integers(0, 2)), draw(st.integers(0, 2)), draw(seconds), -1))
    pairs = st.tuples(st.integers(0, len(rows) - 1), st.integers(0, len(rows) - 1))
    numbers = [i if row[3] < 0 else -1 - row[3] for i, row in enumerate(rows)]
    edges = [
        (a, b) for a, b in draw(st.lists(pairs, max_size=30)) if a < b and numbers[a] != numbers[b]
    ]
    return table(rows, edges)


def slowly(tasks: Tasks) -> tuple[list[float], list[float]]:
    """Starts and ends by repeated passes over all tasks until nothing changes."""
    count = len(tasks)
    sources, targets = tasks.edges()
    before: list[set[int]] = [set() for _ in range(count)]
    for a, b in zip(sources.tolist(), targets.tolist(), strict=True):
        before[b].add(a)
    last: dict[tuple[int, int], int] = {}
    for i in range(count):
        place = int(tasks.rank[i]), int(tasks.resource[i])
        if place in last:
            before[i].add(last[place])
        last[place] = i
    start, end = [0.0] * count, [0.0] * count
    for _ in range(count + 1):
        for i in range(count):
            start[i] = max((end[j] for j in before[i]), default=0.0)
        for i in range(count):
            own = int(tasks.collective[i])
            group = [j for j in range(count) if own >= 0 and tasks.collective[j] == own] or [i]
            longest = max(float(tasks.seconds[j]) for j in group)
            end[i] = max(start[j] for j in group) + longest
    return start, end


@given(graphs())
def test_the_engine_agrees_with_brute_force(tasks: Tasks) -> None:
    timing = run(tasks)
    start, end = slowly(tasks)
    assert timing.start.tolist() == start
    assert timing.end.tolist() == end


@given(graphs())
def test_a_critical_path_is_whole(tasks: Tasks) -> None:
    timing = run(tasks)
    path = critical_path(tasks, timing)
    assert timing.start[path[0]] == 0
    assert timing.end[path[-1]] == timing.makespan
    assert timing.end[path[:-1]].tolist() == timing.start[path[1:]].tolist()
    assert naive_seconds(tasks) <= timing.makespan


@given(graphs(), st.data())
def test_longer_tasks_never_end_a_step_sooner(tasks: Tasks, data: st.DataObject) -> None:
    longer = tasks.seconds.copy()
    longer[data.draw(st.integers(0, len(tasks) - 1))] += 1
    more = build_tasks(
        rank=tasks.rank,
        resource=tasks.resource,
        seconds=longer,
        collective=tasks.collective,
        sources=tasks.edges()[0],
        targets=tasks.edges()[1],
        resources=tasks.resources,
    )
    assert (run(more).end >= run(tasks).end).all()


@pytest.fixture(scope="module")
def compiler() -> None:
    """The compiler, warm: what it takes to compile is no part of a test's time."""
    pytest.importorskip("numba")
    run(table([(0, 0, 1.0, 0)], []), compiled=True)


@pytest.mark.usefixtures("compiler")
@given(graphs())
def test_the_compiled_sweep_gives_the_same(tasks: Tasks) -> None:
    plain, fast = run(tasks, compiled=False), run(tasks, compiled=True)
    for column in ("start", "end", "cause", "late"):
        assert getattr(plain, column).tolist() == getattr(fast, column).tolist()


@pytest.mark.usefixtures("compiler")
def test_the_compiled_sweep_names_circles() -> None:
    tasks = table([(0, 0, 1.0, -1), (0, 0, 1.0, -1)], [(1, 0)])
    with pytest.raises(ValueError, match="deadlock"):
        run(tasks, compiled=True)


def test_traffic_beside_compute_is_slower() -> None:
    # 4 s of compute beside 3 s of traffic at half speed: 2 s of it are done, 1 s remains.
    tasks = table([(0, 0, 4.0, -1), (0, 1, 3.0, -1)], [])
    timing = run_beside(tasks, traffic=1, compute=0, share=0.5)
    assert timing.end.tolist() == pytest.approx([4.0, 5.0])
    assert run_beside(tasks, traffic=1, compute=0).end.tolist() == [4.0, 3.0]


def test_compute_beside_traffic_is_slower() -> None:
    # At 1 / 1.5 of its speed for 3 s compute has 2 s left.
    tasks = table([(0, 0, 4.0, -1), (0, 1, 3.0, -1)], [])
    timing = run_beside(tasks, traffic=1, compute=0, slowdown=0.5)
    assert timing.end.tolist() == pytest.approx([5.0, 3.0])


@given(st.lists(st.floats(0.1, 3), min_size=1, max_size=6), st.floats(0.05, 1), st.floats(0, 4))
def test_what_hides_is_the_share_of_what_it_hides_behind(
    traffic: list[float], share: float, compute: float
) -> None:
    rows = [(0, 0, compute, -1), *((0, 1, seconds, -1) for seconds in traffic)]
    end = run_beside(table(rows, []), traffic=1, compute=0, share=share).makespan
    whole = sum(traffic)
    longer = whole + compute * (1 - share)
    assert end == pytest.approx(max(min(whole / share, longer), compute))


def test_arrays_are_as_long_as_the_table() -> None:
    tasks = table([(0, 0, 1.0, -1)] * 3, [])
    timing = run(tasks)
    assert {len(column) for column in (timing.start, timing.end, timing.cause, timing.late)} == {3}
    assert tasks.offsets.shape == (4,)
    assert np.array_equal(tasks.edges()[0], [])
