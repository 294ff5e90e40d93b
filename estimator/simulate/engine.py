"""The longest path through tasks: when each starts and ends, and which one it waited for.

One sweep in the order of readiness, linear in tasks and edges. Every task starts when its resource
is free and what it waits for has ended; members of a collective end together, one transfer after
the last of them is ready, so that a late rank delays all (arXiv 2404.12674, algorithm 1, makes
ranks meet at the end of a collective in the same way).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from estimator.lower.slots import FloatArray, IntArray
from estimator.simulate.graph import NONE, IdArray, Tasks, next_on_resource

COMPILE_FROM = 200_000
"""Tasks from which loading the compiler pays, where it is installed; once loaded it always runs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timing:
    """When tasks run, arrays of shape (T,) in seconds from the start."""

    start: FloatArray
    """Ready and on its resource; a member of a collective then waits for the others."""
    end: FloatArray
    cause: IdArray
    """The task whose end let this one start; -1 at time zero."""
    late: IdArray
    """The member that a collective waited for; a task itself outside collectives."""

    @property
    def makespan(self) -> float:
        """Seconds from the first start to the last end."""
        return float(self.end.max()) if len(self.end) else 0.0


def run(tasks: Tasks, *, compiled: bool | None = None) -> Timing:
    """Start and end of every task.

    Args:
        tasks: any table.
        compiled: run the sweep through numba (extra ``fast``); ``None`` does so for large tables
            where numba is installed. The result is the same.

    Raises:
        ValueError: tasks wait for each other in a circle, which is named.
    """
    return sweep(wire(tasks, compiled=compiled), tasks.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wired:
    """A table ready to be swept any number of times, with any seconds; columns of lists or arrays.

    Per task the next on its resource, its edges, how many it waits for, its collective and the
    next member of that; per collective the first member and how many there are.
    """

    tasks: Tasks
    compiler: Callable[..., int] | None
    following: Any
    offsets: Any
    targets: Any
    waiting: Any
    collective: Any
    first: Any
    peer: Any
    missing: Any


def wire(tasks: Tasks, *, compiled: bool | None = None) -> Wired:
    """What a sweep needs to know of a table besides its seconds; see :func:`run`."""
    count = len(tasks)
    following = next_on_resource(tasks)
    waiting = np.bincount(tasks.targets, minlength=count)
    waiting += np.bincount(following[following >= 0], minlength=count)
    collective, first, peer, missing = _members(tasks)
    if compiled is None:
        loaded = _numba.cache_info().currsize > 0
        compiled = (loaded or count >= COMPILE_FROM) and _numba() is not None
    columns: dict[str, Any] = {
        "following": following,
        "offsets": tasks.offsets,
        "targets": tasks.targets,
        "waiting": waiting.astype(np.int32),
        "collective": collective,
        "first": first,
        "peer": peer,
        "missing": missing,
    }
    if not compiled:
        columns = {name: column.tolist() for name, column in columns.items()}
    elif _numba() is None:
        raise ValueError("compiled=True needs numba; install the extra fast")
    return Wired(tasks=tasks, compiler=_numba() if compiled else None, **columns)


def sweep(wired: Wired, seconds: FloatArray) -> Timing:
    """Start and end of every task of a table when they take so long; see :func:`run`."""
    count, groups = len(seconds), len(wired.missing)
    start, end = np.zeros(count), np.full(count, -1.0)
    cause, late = np.full(count, NONE, dtype=np.int32), np.arange(count, dtype=np.int32)
    filled: list[Any] = [start, end, cause, late]
    scratch: list[Any] = [
        np.zeros(groups),
        np.zeros(groups),
        np.full(groups, NONE, dtype=np.int32),
        np.zeros(count, dtype=np.int32),
    ]
    columns: list[Any] = [seconds, *filled, *scratch]
    if wired.compiler is None:
        columns = [column.tolist() for column in columns]
    done = (wired.compiler or _sweep)(
        columns[0],
        wired.following,
        wired.offsets,
        wired.targets,
        wired.waiting.copy(),
        wired.collective,
        wired.first,
        wired.peer,
        wired.missing.copy(),
        *columns[1:],
    )
    if wired.compiler is None:
        start, end = np.array(columns[1]), np.array(columns[2])
        cause, late = (np.array(column, dtype=np.int32) for column in columns[3:5])
    if done < count:
        raise ValueError(_circle(wired.tasks, next_on_resource(wired.tasks), end >= 0))
    return Timing(start=start, end=end, cause=cause, late=late)


def _members(tasks: Tasks) -> tuple[IdArray, IdArray, IdArray, IdArray]:
    """Collectives numbered from 0: of tasks, the first of each, the next one, and how many."""
    count = len(tasks)
    peer = np.full(count, NONE, dtype=np.int32)
    inside = np.flatnonzero(tasks.collective >= 0)
    numbered = np.full(count, NONE, dtype=np.int32)
    if not len(inside):
        none = np.zeros(0, dtype=np.int32)
        return numbered, none, peer, none
    number = tasks.collective[inside].astype(np.int64)
    if int(number.max()) < 8 * count:
        number = (np.cumsum(np.bincount(number) > 0) - 1)[number]
    else:
        _, number = np.unique(number, return_inverse=True)
    numbered[inside] = number
    order = np.argsort(number, kind="stable")
    sizes = np.bincount(number)
    members = inside[order]
    same = number[order[1:]] == number[order[:-1]]
    peer[members[:-1][same]] = members[1:][same]
    heads = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    return numbered, members[heads].astype(np.int32), peer, sizes.astype(np.int32)


def _sweep(
    seconds: Any,
    following: Any,
    offsets: Any,
    targets: Any,
    waiting: Any,
    collective: Any,
    first: Any,
    peer: Any,
    missing: Any,
    start: Any,
    end: Any,
    cause: Any,
    late: Any,
    latest: Any,
    longest: Any,
    last: Any,
    queue: Any,
) -> int:
    """Fill ``start``, ``end``, ``cause`` and ``late``; returns how many tasks ended.

    Works on lists as on arrays, so that one text serves Python and the compiler. ``latest``,
    ``longest`` and ``last`` hold, per collective, when its last member was ready, its longest
    member's seconds, and that last member.
    """
    count: int = len(seconds)
    ready = 0
    for task in range(count):
        if waiting[task] == 0:
            queue[ready] = task
            ready += 1
    ended: int = 0
    head = 0
    while head < ready:
        task = queue[head]
        head += 1
        group = collective[task]
        if group >= 0:
            if last[group] < 0 or start[task] > latest[group]:
                latest[group] = start[task]
                last[group] = task
            if seconds[task] > longest[group]:
                longest[group] = seconds[task]
            missing[group] -= 1
            if missing[group] > 0:
                continue
            finish = latest[group] + longest[group]
            cause_of_all = last[group]
            member = first[group]
        else:
            finish = start[task] + seconds[task]
            cause_of_all = task
            member = task
        while member >= 0:
            ended += 1
            end[member] = finish
            late[member] = cause_of_all
            after = following[member]
            if after >= 0:
                if finish > start[after] or cause[after] < 0:
                    start[after] = finish
                    cause[after] = member
                waiting[after] -= 1
                if waiting[after] == 0:
                    queue[ready] = after
                    ready += 1
            for edge in range(offsets[member], offsets[member + 1]):
                after = targets[edge]
                if finish > start[after] or cause[after] < 0:
                    start[after] = finish
                    cause[after] = member
                waiting[after] -= 1
                if waiting[after] == 0:
                    queue[ready] = after
                    ready += 1
            member = peer[member]
    return ended


@cache
def _numba() -> Callable[..., int] | None:
    """The sweep, compiled; ``None`` where numba is not installed."""
    try:
        from numba import njit
    except ImportError:
        return None
    compiled: Callable[..., int] = njit(cache=True)(_sweep)
    return compiled


def _circle(tasks: Tasks, following: IdArray, ended: NDArray[np.bool_]) -> str:
    """Which tasks wait for each other, in one line."""
    waits: dict[int, list[int]] = {}
    members: dict[int, list[int]] = {}
    sources, targets = tasks.edges()
    chained = np.flatnonzero(following >= 0)
    for source, target in zip(
        [*sources.tolist(), *chained.tolist()],
        [*targets.tolist(), *following[chained].tolist()],
        strict=True,
    ):
        if not ended[source]:
            waits.setdefault(target, []).append(source)
    for task, group in enumerate(tasks.collective.tolist()):
        if group >= 0:
            members.setdefault(group, []).append(task)

    def blocker(task: int) -> int:
        """What keeps a task from ending: one before it, or a member of its collective."""
        if task in waits:
            return waits[task][0]
        return next(one for one in members[int(tasks.collective[task])] if one in waits)

    path = [int(np.flatnonzero(~ended)[0])]
    while (step := blocker(path[-1])) not in path:
        path.append(step)
    ring = path[path.index(step) :]
    shown = [tasks.label(task) for task in ring[:6]]
    more = f" (by way of {len(ring) - 6} more)" if len(ring) > 6 else ""
    return f"deadlock: {' waits for '.join([*shown, shown[0]])}{more}"


def critical_path(tasks: Tasks, timing: Timing) -> IntArray:
    """Tasks of one longest path, in order of time; their own seconds add up to the makespan."""
    if not len(tasks):
        return np.zeros(0, dtype=np.int64)
    path = []
    task = int(timing.end.argmax())
    while task >= 0:
        task = int(timing.late[task])
        path.append(task)
        task = int(timing.cause[task])
    return np.array(path[::-1], dtype=np.int64)


def naive_seconds(tasks: Tasks) -> float:
    """What a model without synchronisation says: the fullest stream of any rank."""
    place = tasks.rank.astype(np.int64) * len(tasks.resources) + tasks.resource
    return float(np.bincount(place, weights=tasks.seconds).max()) if len(tasks) else 0.0


def idle_seconds(tasks: Tasks, timing: Timing) -> FloatArray:
    """Seconds of the makespan in which each rank's resources do nothing, shape (ranks, resources).

    A collective's wait for late members is idle time; a resource without tasks is idle throughout.
    """
    ranks, kinds = int(tasks.rank.max()) + 1, len(tasks.resources)
    place = tasks.rank.astype(np.int64) * kinds + tasks.resource
    busy = np.bincount(place, weights=tasks.seconds, minlength=ranks * kinds)
    idle: FloatArray = np.asarray(timing.makespan - busy, dtype=np.float64).reshape(ranks, kinds)
    return idle
