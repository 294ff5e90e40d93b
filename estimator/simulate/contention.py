"""Traffic beside computation: what the one takes from the other while both run on a rank."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from estimator.lower.slots import FloatArray, IntArray
from estimator.simulate.engine import Timing, run, sweep, wire
from estimator.simulate.graph import IdArray, Tasks

ROUNDS = 24
"""Sweeps until what hides and what it hides behind agree; two suffice where neither waits."""
AGREED = 1e-12
"""Share of the makespan to which they agree."""
SLOWEST = 1e-3


def run_beside(
    tasks: Tasks,
    *,
    traffic: int,
    compute: int,
    share: float = 1.0,
    slowdown: float = 0.0,
    guess: FloatArray | None = None,
    compiled: bool | None = None,
) -> Timing:
    """Timing in which two resources of a rank disturb each other.

    Args:
        tasks: any table.
        traffic: resource that communicates.
        compute: resource that it runs beside.
        share: of its bandwidth that traffic keeps while compute runs, above 0.
        slowdown: of compute while traffic runs; 0.1 is 10 % slower.
        guess: seconds of the tasks of ``traffic``, to begin with; a good one saves sweeps.
        compiled: as in :func:`run`.

    Raises:
        ValueError: the slowdown is negative or not finite.
    """
    if not 0 <= slowdown < np.inf:
        raise ValueError(f"slowdown={slowdown} must be from 0 (none)")
    moved = np.flatnonzero((tasks.resource == traffic) & (tasks.seconds > 0))
    if not len(moved) or (share >= 1 and slowdown <= 0):
        return run(tasks, compiled=compiled)
    wired = wire(tasks, compiled=compiled)
    working = np.flatnonzero((tasks.resource == compute) & (tasks.seconds > 0))
    sides = [
        _Side(tasks, mine, others, rate)
        for mine, others, rate in (
            (moved, working, max(share, SLOWEST)),
            (working, moved, 1 / (1 + slowdown)),
        )
        if rate < 1
    ]
    seconds = tasks.seconds
    if guess is not None and len(guess) == len(moved):
        seconds = seconds.copy()
        seconds[moved] = guess
    timing = sweep(wired, seconds)
    for _ in range(ROUNDS):
        changed = seconds.copy()
        for side in sides:
            changed[side.mine] = side.stretched(timing)
        if np.abs(changed - seconds).max() <= AGREED * timing.makespan:
            break
        seconds = changed
        timing = sweep(wired, seconds)
    return timing


class _Side:
    """Tasks that run at a rate while others of their rank do, with what they wait for."""

    def __init__(self, tasks: Tasks, mine: IntArray, others: IntArray, rate: float) -> None:
        self.base, self.mine, self.rate = tasks.seconds, mine, rate
        number = np.full(len(tasks), -1, dtype=np.int64)
        number[mine] = np.arange(len(mine))
        into = np.flatnonzero(number[tasks.targets] >= 0)
        self.waiting = number[tasks.targets[into]]
        self.before = np.searchsorted(tasks.offsets, into, side="right") - 1
        self.groups = [
            (at, others[beside])
            for at, beside in zip(
                _by_rank(tasks.rank[mine], tasks), _by_rank(tasks.rank[others], tasks), strict=True
            )
            if len(at)
        ]

    def stretched(self, timing: Timing) -> FloatArray:
        """Seconds of ``mine``, rank by rank in the order of the table."""
        ready = np.zeros(len(self.mine))
        np.maximum.at(ready, self.waiting, timing.end[self.before])
        stretched = self.base[self.mine]
        for at, beside in self.groups:
            edges, work = _progress(timing.start[beside], timing.end[beside], self.rate)
            latest, all_work = float(edges[-1]), float(work[-1])
            clock = 0.0
            begins, base = ready[at].tolist(), stretched[at].tolist()
            for i, (begin, seconds) in enumerate(zip(begins, base, strict=True)):
                begin = max(clock, begin)
                done = _between(begin, edges, work) + seconds
                if done <= all_work:
                    clock = _between(done, work, edges)
                else:
                    clock = max(begin, latest) + done - all_work
                base[i] = clock - begin
            stretched[at] = base
        return stretched


def _between(x: float, xs: FloatArray, ys: FloatArray) -> float:
    """``np.interp`` of one number, several times as fast."""
    at = bisect_right(xs, x)
    if at == len(xs):
        return float(ys[-1])
    low, high = float(xs[at - 1]), float(xs[at])
    below = float(ys[at - 1])
    return below + (x - low) * (float(ys[at]) - below) / (high - low)


def _by_rank(ranks: IdArray, tasks: Tasks) -> list[IntArray]:
    """Places of each rank's entries, in order."""
    counts = np.bincount(ranks, minlength=int(tasks.rank.max()) + 1)
    return np.split(np.argsort(ranks, kind="stable"), np.cumsum(counts)[:-1])


def _progress(start: FloatArray, end: FloatArray, rate: float) -> tuple[FloatArray, FloatArray]:
    """Seconds of work done by each moment at full rate outside the intervals, ``rate`` inside."""
    edges = np.concatenate([[0.0], np.stack([start, end], axis=1).reshape(-1)])
    edges = np.maximum.accumulate(edges)
    spans = np.diff(edges)
    rates = np.where(np.arange(len(spans)) % 2 == 1, rate, 1.0)
    return edges, np.concatenate([[0.0], np.cumsum(spans * rates)])
