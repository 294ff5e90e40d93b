"""Seconds of each time part of a simulated step, on the rank that does most.

What its own tasks consist of, and its idle time by what the chain of tasks that ends it did.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from estimator.estimate import TIME_PARTS, Estimate
from estimator.layer import PARTS, PASS_PARTS
from estimator.lower.slots import FloatArray
from estimator.plan import Plan
from estimator.simulate.costs import StageWork
from estimator.simulate.engine import Timing
from estimator.simulate.graph import KINDS
from estimator.simulate.ranks import Built
from estimator.simulate.rows import COMPUTE, SEND
from estimator.simulate.steady import STEP, Repeated

BUBBLE = TIME_PARTS.index("bubble")
TRANSFERS = range(SEND, SEND + 4)


def step_parts(
    plan: Plan, work: StageWork, built: Built, timing: Timing, repeated: Repeated | None = None
) -> FloatArray:
    """Seconds of each time part, (9,); ``repeated`` passes of the same rank among them."""
    rank = _busiest(built)
    if plan.schedule == "zb-h2":
        parts = _parts_of_a_period(work, built, timing, rank)
    else:
        parts = _parts(built, timing, rank, 0.0, timing.makespan)
    if repeated is not None:
        own = repeated.micro_batches * _passes_of(work, built, rank)
        own[BUBBLE] += repeated.seconds - float(own.sum())
        parts += own
    return parts


def measured(
    closed: Estimate, work: StageWork, built: Built, parts: FloatArray, detail: str
) -> Estimate:
    """The closed form's estimate with its time parts replaced by measured ones."""
    rank = _busiest(built)
    step = float(parts.sum())
    ratio = step / closed.step_seconds
    time = dict(zip(TIME_PARTS, parts.tolist(), strict=True))
    hidden = dict(closed.hidden)
    mine = built.tasks.rank == rank
    traffic = np.bincount(
        built.tasks.kind[mine], weights=built.tasks.seconds[mine], minlength=len(KINDS)
    )
    # A pass that is one task says as much of what it hides as the closed form does.
    inside = closed.time["dp"] + closed.hidden["dp"] - _closed_traffic(work)
    for part in ("dp",) if detail == "stages" else ("tp", "cp", "ep", "pp", "dp"):
        busy = float(traffic[KINDS.index(part)]) + (inside if detail == "stages" else 0.0)
        hidden[part] = max(busy - time[part], 0.0)
    return replace(
        closed,
        time=time,
        hidden=hidden,
        step_seconds=step,
        low_seconds=closed.low_seconds * ratio,
        high_seconds=closed.high_seconds * ratio,
        tokens_per_second=closed.tokens_per_second / ratio,
        mfu=closed.mfu / ratio,
    )


def _passes_of(work: StageWork, built: Built, rank: int) -> FloatArray:
    """Seconds of one micro-batch's passes on a rank, by time part, (9,)."""
    stage = int(built.stage[built.tasks.rank == rank][0])
    parts: FloatArray = np.zeros(len(TIME_PARTS))
    own = work.passes[:, stage, :, :PARTS].sum(axis=(0, 1))
    parts[[TIME_PARTS.index(part) for part in PASS_PARTS]] = own
    return parts


def _closed_traffic(work: StageWork) -> float:
    """Data-parallel seconds outside the layers, as the closed form counts them."""
    others = (work.micro_batches - 1) * float(work.every_gradients.max())
    return float((work.gradients + work.weights).max()) + others


def _parts_of_a_period(work: StageWork, built: Built, timing: Timing, rank: int) -> FloatArray:
    """Seconds of each time part on one rank where updates wait for no other rank, (9,).

    Each rank's next step then follows its last one, so that the period of steps is the longest
    time that a rank takes from its first pass, or what that waits for, to its last task. What the
    rank itself does not need of that is bubble.
    """
    tasks = built.tasks
    first, last = np.full(built.ranks, np.inf), np.zeros(built.ranks)
    # Receives and launches are posted long before the first pass runs.
    passes = (tasks.phase < STEP) & (tasks.resource == COMPUTE)
    np.minimum.at(first, tasks.rank[passes], timing.start[passes])
    np.maximum.at(last, tasks.rank, timing.end)
    # What the first stage waits for, its weights, every stage waits for in its turn.
    first -= first.min() - work.host
    parts = _parts(built, timing, rank, float(first[rank]), float(last[rank]))
    parts[BUBBLE] += float((last - first).max() - (last - first)[rank])
    parts[TIME_PARTS.index("host")] += work.host
    return parts


def _busiest(built: Built) -> int:
    """The rank with the most seconds of passes; the first of equal ones."""
    tasks = built.tasks
    passes = tasks.phase < STEP
    busy = np.bincount(
        tasks.rank[passes & (tasks.resource == COMPUTE)],
        weights=tasks.seconds[passes & (tasks.resource == COMPUTE)],
        minlength=built.ranks,
    )
    return int(np.flatnonzero(busy >= busy.max() * (1 - 1e-12))[0])


def _parts(built: Built, timing: Timing, rank: int, begin: float, end: float) -> FloatArray:
    """Seconds of each time part on one rank, (9,); they add up to what lies between the moments."""
    tasks = built.tasks
    mine = np.flatnonzero((tasks.rank == rank) & (tasks.resource == COMPUTE))
    own = timing.end[mine] - tasks.seconds[mine]
    parts: FloatArray = tasks.seconds[mine] @ built.shares[built.mix[mine]]
    # A gap ends when a task starts; what it waits for is the chain of causes back to its begin.
    gap_from = np.concatenate([[begin], timing.end[mine]])
    gap_to = np.concatenate([own, [end]])
    final = np.flatnonzero(timing.end == end)[0]
    wakers = [*timing.cause[timing.late[mine]].tolist(), int(final)]
    for since, until, waker in zip(gap_from, gap_to, wakers, strict=True):
        if until > since:
            _explain(parts, built, timing, rank, since, until, waker)
    return parts


def _explain(
    parts: FloatArray,
    built: Built,
    timing: Timing,
    rank: int,
    begin: float,
    until: float,
    task: int,
) -> None:
    """Add an idle interval to the parts, by what the chain that ends in ``task`` did then.

    Other ranks' passes are bubble; what the step or the fabric does is its own part.
    """
    kinds = built.tasks.kind
    clock = until
    while clock > begin and task >= 0:
        task = int(timing.late[task])
        since = max(float(timing.start[task]), begin)
        name = KINDS[kinds[task]]
        own = built.tasks.rank[task] == rank and name != "compute"
        own = own or built.tasks.phase[task] == STEP or built.tasks.resource[task] in TRANSFERS
        part = TIME_PARTS.index(name) if own else BUBBLE
        parts[part] += max(clock - since, 0.0)
        clock = min(clock, since)
        task = int(timing.cause[task])
    parts[BUBBLE] += max(clock - begin, 0.0)
