"""A simulation for people: Chrome Trace Event JSON, and a picture of the pipeline in letters.

The JSON opens in Perfetto and chrome://tracing. Its fields are those of the Trace Event Format
(Google, "Trace Event Format", catapult project): a process per rank, a thread per stream, complete
events in microseconds, flow arrows where one rank waits for another, a counter of memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from estimator.simulate.graph import KINDS, PHASES
from estimator.simulate.simulation import Simulation

MICRO = 1e6
IDLE, UPDATE = ".", "U"
LETTERS = {"forward": "0123456789", "backward": "abcdefghij", "weight": "ABCDEFGHIJ"}
INSIDE = 1e-3
"""How far inside its slice an arrow begins, as a share of the slice."""


class Slice(msgspec.Struct, tag_field="ph", tag="X"):
    """A task that ran."""

    name: str
    cat: str
    pid: int
    tid: int
    ts: float
    dur: float
    args: dict[str, Any]


class ArrowStart(msgspec.Struct, tag_field="ph", tag="s"):
    """Where a flow leaves a slice."""

    name: str
    cat: str
    id: int
    pid: int
    tid: int
    ts: float


class ArrowEnd(msgspec.Struct, tag_field="ph", tag="f"):
    """Where it arrives; ``bp`` binds it to the slice around that moment."""

    name: str
    cat: str
    id: int
    pid: int
    tid: int
    ts: float
    bp: str = "e"


class Counter(msgspec.Struct, tag_field="ph", tag="C"):
    """A value over time."""

    name: str
    pid: int
    ts: float
    args: dict[str, float]


class Label(msgspec.Struct, tag_field="ph", tag="M"):
    """Name or place of a process or thread."""

    name: str
    pid: int
    args: dict[str, Any]
    tid: int = 0


Event = Slice | ArrowStart | ArrowEnd | Counter | Label


class Trace(msgspec.Struct):
    """The whole file."""

    traceEvents: list[Event]
    displayTimeUnit: str = "ms"


def trace_json(simulation: Simulation) -> bytes:
    """The simulation as Trace Event JSON."""
    events: list[Event] = [*_labels(simulation), *_slices(simulation)]
    events.extend(_arrows(simulation))
    events.extend(_memory(simulation))
    return msgspec.json.encode(Trace(traceEvents=events))


def _labels(simulation: Simulation) -> Iterator[Label]:
    tasks, built = simulation.tasks, simulation.built
    stage = np.zeros(built.ranks, dtype=np.int64)
    stage[tasks.rank] = built.stage
    alone = built.ranks == simulation.work.stages
    for rank in range(built.ranks):
        name = f"stage {rank}" if alone else f"rank {rank} (stage {stage[rank]})"
        yield Label(name="process_name", pid=rank, args={"name": name})
        yield Label(name="process_sort_index", pid=rank, args={"sort_index": rank})
    place = np.unique(tasks.rank.astype(np.int64) * len(tasks.resources) + tasks.resource)
    for rank, stream in zip(*np.divmod(place, len(tasks.resources)), strict=True):
        name = tasks.resources[stream]
        yield Label(name="thread_name", pid=int(rank), tid=int(stream), args={"name": name})


def _slices(simulation: Simulation) -> Iterator[Slice]:
    tasks, timing, built = simulation.tasks, simulation.timing, simulation.built
    shown = np.flatnonzero(timing.end > timing.start)
    waited = np.maximum(timing.end - timing.start - tasks.seconds, 0.0)
    columns = (
        tasks.name[shown],
        tasks.kind[shown],
        tasks.rank[shown],
        tasks.resource[shown],
        timing.start[shown] * MICRO,
        (timing.end - timing.start)[shown] * MICRO,
        tasks.micro_batch[shown],
        built.chunk[shown],
        tasks.phase[shown],
        waited[shown] * MICRO,
    )
    names, many_chunks = tasks.names, simulation.work.chunks > 1
    for name, kind, rank, stream, start, length, batch, chunk, phase, wait in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        args: dict[str, Any] = {"phase": PHASES[phase]}
        if batch >= 0:
            args["micro_batch"] = batch
            if many_chunks:
                args["chunk"] = chunk
        if wait > 1e-3:
            args["waited_us"] = wait
        label = names[name] if batch < 0 else f"{names[name]} {batch}"
        yield Slice(label, KINDS[kind], rank, stream, start, length, args)


def _arrows(simulation: Simulation) -> Iterator[ArrowStart | ArrowEnd]:
    """Edges and transfers between ranks."""
    tasks, timing = simulation.tasks, simulation.timing
    sources, targets = tasks.edges()
    pairs = np.flatnonzero(tasks.kind == KINDS.index("pp"))
    if len(pairs):
        order = pairs[np.argsort(tasks.collective[pairs], kind="stable")]
        sources = np.concatenate([sources, order[0::2]])
        targets = np.concatenate([targets, order[1::2]])
    lasting = timing.end > timing.start
    crosses = (tasks.rank[sources] != tasks.rank[targets]) & lasting[sources] & lasting[targets]
    sources, targets = sources[crosses], targets[crosses]
    leave = (timing.end - INSIDE * (timing.end - timing.start))[sources] * MICRO
    arrive = np.maximum(timing.start[targets] * MICRO, leave)
    ends = (
        tasks.phase[sources],
        tasks.rank[sources],
        tasks.resource[sources],
        leave,
        tasks.rank[targets],
        tasks.resource[targets],
        arrive,
    )
    columns = (column.tolist() for column in ends)
    for i, (phase, rank, stream, left, to, into, came) in enumerate(zip(*columns, strict=True)):
        yield ArrowStart(PHASES[phase], "send", i, rank, stream, left)
        yield ArrowEnd(PHASES[phase], "send", i, to, into, came)


def _memory(simulation: Simulation) -> Iterator[Counter]:
    for stage, memory in enumerate(simulation.memory):
        rank = simulation.first_rank(stage)
        last = np.concatenate([np.diff(memory.seconds) > 0, [True]])
        for moment, value in zip(
            memory.seconds[last].tolist(), memory.allocated[last].tolist(), strict=True
        ):
            yield Counter("allocated", rank, moment * MICRO, {"bytes": value})


def picture(simulation: Simulation, width: int = 100, most: int = 32) -> list[str]:
    """One line per rank: forwards as digits, backwards as letters (by micro-batch), idle as dots.

    Weight gradients that were put off are capitals.

    The optimizer is ``U``. Of many ranks the first ``most`` are drawn.
    """
    tasks, timing = simulation.tasks, simulation.timing
    middle = (np.arange(width) + 0.5) / width * timing.makespan
    lines = []
    for rank in range(min(simulation.built.ranks, most)):
        mine = np.flatnonzero((tasks.rank == rank) & (tasks.resource == 0) & (tasks.seconds > 0))
        end = timing.end[mine]
        at = np.minimum(np.searchsorted(end, middle, side="right"), len(mine) - 1)
        running = (end[at] - tasks.seconds[mine][at] <= middle) & (middle < end[at])
        letters = [_letter(simulation, int(task)) for task in mine[at]]
        lines.append("".join(a if on else IDLE for a, on in zip(letters, running, strict=True)))
    return lines


def _letter(simulation: Simulation, task: int) -> str:
    tasks = simulation.tasks
    phase, batch = PHASES[tasks.phase[task]], int(tasks.micro_batch[task])
    if phase == "step":
        return UPDATE
    return LETTERS[phase][batch % 10]
