"""Traffic beside computation: what the one takes from the other while both run on a rank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from estimator.lower.slots import FloatArray, IntArray
from estimator.simulate.engine import Timing, run
from estimator.simulate.graph import Tasks

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
    compiled: bool | None = None,
) -> Timing:
    """Timing in which two resources of a rank disturb each other.

    Args:
        tasks: any table.
        traffic: resource that communicates.
        compute: resource that it runs beside.
        share: of its bandwidth that traffic keeps while compute runs, above 0.
        slowdown: of compute while traffic runs; 0.1 is 10 % slower.
        compiled: as in :func:`run`.

    Raises:
        ValueError: the slowdown is negative or not finite.
    """
    if not 0 <= slowdown < np.inf:
        raise ValueError(f"slowdown={slowdown} must be from 0 (none)")
    timing = run(tasks, compiled=compiled)
    moved = np.flatnonzero((tasks.resource == traffic) & (tasks.seconds > 0))
    if not len(moved) or (share >= 1 and slowdown <= 0):
        return timing
    working = np.flatnonzero((tasks.resource == compute) & (tasks.seconds > 0))
    sources, targets = tasks.edges()
    seconds = tasks.seconds
    for _ in range(ROUNDS):
        changed = seconds.copy()
        for mine, others, rate in (
            (moved, working, max(share, SLOWEST)),
            (working, moved, 1 / (1 + slowdown)),
        ):
            if rate < 1:
                changed[mine] = _stretched(tasks, timing, sources, targets, mine, others, rate)
        if np.abs(changed - seconds).max() <= AGREED * timing.makespan:
            break
        seconds = changed
        timing = run(replace(tasks, seconds=seconds), compiled=compiled)
    return timing


def _stretched(
    tasks: Tasks,
    timing: Timing,
    sources: IntArray,
    targets: IntArray,
    mine: IntArray,
    others: IntArray,
    rate: float,
) -> FloatArray:
    """Seconds of tasks that run at ``rate`` while others of their rank do, in order of ``mine``."""
    inside = np.isin(targets, mine)
    ready = np.zeros(len(tasks))
    np.maximum.at(ready, targets[inside], timing.end[sources[inside]])
    stretched = tasks.seconds[mine].copy()
    for rank in np.unique(tasks.rank[mine]):
        at = np.flatnonzero(tasks.rank[mine] == rank)
        beside = others[tasks.rank[others] == rank]
        edges, work = _progress(timing.start[beside], timing.end[beside], rate)
        clock = 0.0
        for i, task in zip(at.tolist(), mine[at].tolist(), strict=True):
            begin = max(clock, float(ready[task]))
            done = float(np.interp(begin, edges, work)) + float(tasks.seconds[task])
            if done <= work[-1]:
                clock = float(np.interp(done, work, edges))
            else:
                clock = max(begin, float(edges[-1])) + done - float(work[-1])
            stretched[i] = clock - begin
    return stretched


def _progress(start: FloatArray, end: FloatArray, rate: float) -> tuple[FloatArray, FloatArray]:
    """Seconds of work done by each moment at full rate outside the intervals, ``rate`` inside."""
    edges = np.concatenate([[0.0], np.stack([start, end], axis=1).reshape(-1)])
    edges = np.maximum.accumulate(edges)
    spans = np.diff(edges)
    rates = np.where(np.arange(len(spans)) % 2 == 1, rate, 1.0)
    return edges, np.concatenate([[0.0], np.cumsum(spans * rates)])
