"""Tasks of many ranks as columns, and what waits for what.

Suffixes: T tasks, E edges. A resource is a host thread or a stream of one rank; it runs its tasks
one after the other, in the order of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from estimator.lower.slots import FloatArray, IntArray

IdArray = NDArray[np.int32]

KINDS = ("compute", "tp", "cp", "ep", "pp", "dp", "optimizer", "host")
"""What a task spends its seconds on."""
PHASES = ("forward", "backward", "weight", "step")
"""When: ``weight`` is the part of a backward that only its own weights wait for."""
NONE = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tasks:
    """T tasks as columns of shape (T,), and E edges from a task to one that waits for its end."""

    rank: IdArray
    resource: IdArray
    """Index of ``resources``."""
    seconds: FloatArray
    kind: IdArray
    """Index of ``KINDS``."""
    collective: IdArray
    """Tasks with one number start when the last of them is ready and end together; -1 is none."""
    name: IdArray
    """Index of ``names``."""
    micro_batch: IdArray
    phase: IdArray
    """Index of ``PHASES``."""
    offsets: IntArray
    """Shape (T + 1,): the edges of task t are ``targets[offsets[t]:offsets[t + 1]]``."""
    targets: IdArray
    """Shape (E,): tasks that wait."""
    names: tuple[str, ...]
    resources: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.seconds)

    def label(self, task: int) -> str:
        """A task as people read it."""
        batch = int(self.micro_batch[task])
        where = f"rank {self.rank[task]} {self.resources[self.resource[task]]}"
        return f"{where}: {self.names[self.name[task]]}" + (f" {batch}" if batch >= 0 else "")

    def edges(self) -> tuple[IntArray, IntArray]:
        """Sources and targets of all edges, each of shape (E,)."""
        sources = np.repeat(np.arange(len(self)), np.diff(self.offsets))
        return sources, self.targets.astype(np.int64)


COLUMNS = tuple(f.name for f in fields(Tasks) if f.name not in ("names", "resources"))


def build_tasks(
    *,
    rank: ArrayLike,
    resource: ArrayLike,
    seconds: ArrayLike,
    kind: ArrayLike = 0,
    collective: ArrayLike = NONE,
    name: ArrayLike = 0,
    micro_batch: ArrayLike = NONE,
    phase: ArrayLike = 0,
    sources: ArrayLike = (),
    targets: ArrayLike = (),
    names: Sequence[str] = ("task",),
    resources: Sequence[str] = ("compute",),
) -> Tasks:
    """A checked table; columns broadcast to the shape of ``seconds``, edges are pairs.

    Raises:
        ValueError: seconds are negative or not finite, or an edge leaves the table.
    """
    durations = np.asarray(seconds, dtype=np.float64)
    count = len(durations)
    if not (np.isfinite(durations) & (durations >= 0)).all():
        worst = durations[~(np.isfinite(durations) & (durations >= 0))][0]
        raise ValueError(f"seconds of a task must be finite and not negative, got {worst}")
    start = np.asarray(sources, dtype=np.int64)
    end = np.asarray(targets, dtype=np.int64)
    if start.shape != end.shape:
        raise ValueError(f"{len(start)} sources of edges and {len(end)} targets; give pairs")
    for ends in (start, end):
        if len(ends) and not 0 <= int(ends.min()) <= int(ends.max()) < count:
            raise ValueError(f"an edge leaves the {count} tasks of the table")
    by_source = np.argsort(start, kind="stable")
    offsets = np.concatenate(([0], np.cumsum(np.bincount(start, minlength=count)[:count])))

    def column(values: ArrayLike) -> IdArray:
        return np.ascontiguousarray(np.broadcast_to(np.asarray(values, dtype=np.int32), count))

    return Tasks(
        rank=column(rank),
        resource=column(resource),
        seconds=durations,
        kind=column(kind),
        collective=column(collective),
        name=column(name),
        micro_batch=column(micro_batch),
        phase=column(phase),
        offsets=offsets.astype(np.int64),
        targets=end[by_source].astype(np.int32),
        names=tuple(names),
        resources=tuple(resources),
    )


def repeat_tasks(one: Tasks, *, rank: IdArray, seconds: FloatArray, collective: IdArray) -> Tasks:
    """Copies of a table, each with its own ranks, seconds and collectives, (copies, T) each."""
    copies, count, edges = len(rank), len(one), len(one.targets)
    copy = np.arange(copies)[:, None]
    starts = (one.offsets[None, :-1] + copy * edges).reshape(-1)
    return Tasks(
        rank=rank.reshape(-1),
        resource=np.tile(one.resource, copies),
        seconds=seconds.reshape(-1),
        kind=np.tile(one.kind, copies),
        collective=collective.reshape(-1),
        name=np.tile(one.name, copies),
        micro_batch=np.tile(one.micro_batch, copies),
        phase=np.tile(one.phase, copies),
        offsets=np.append(starts, copies * edges),
        targets=(one.targets + (copy * count).astype(np.int32)).reshape(-1),
        names=one.names,
        resources=one.resources,
    )


def next_on_resource(tasks: Tasks) -> IdArray:
    """The task that follows each one on its rank's resource, -1 after the last; shape (T,)."""
    following = np.full(len(tasks), NONE, dtype=np.int32)
    place = tasks.rank.astype(np.int64) * len(tasks.resources) + tasks.resource
    order = np.argsort(place, kind="stable")
    same = place[order[1:]] == place[order[:-1]]
    following[order[:-1][same]] = order[1:][same]
    return following
