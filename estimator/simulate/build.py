"""From one plan to tasks: its schedule, its data-parallel traffic and its optimizer step.

Suffixes: T tasks, S stages, M mixes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from estimator.estimate import TIME_PARTS
from estimator.layer import PARTS, PASS_PARTS
from estimator.lower.slots import FloatArray, IntArray
from estimator.plan import Plan
from estimator.simulate.costs import StageWork
from estimator.simulate.graph import KINDS, NONE, IdArray, Tasks, build_tasks, repeat_tasks
from estimator.simulate.orders import BACKWARD, FORWARD, schedule_order
from estimator.simulate.passes import Passes, Templates, add_passes, whole_passes
from estimator.simulate.rows import (
    ALONE,
    COMPUTE,
    DP,
    HOST,
    LAYER_GROUP,
    NAMES,
    PAIR,
    REPLICAS,
    RESOURCES,
    SEND,
    WORLD,
    Rows,
)

MOST_NOISE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Built:
    """Tasks of a plan, with what the simulation says of each; columns of shape (T,)."""

    tasks: Tasks
    stage: IdArray
    chunk: IdArray
    mix: IdArray
    """Row of ``shares``."""
    shares: FloatArray
    """What a task's seconds consist of, (M, 9) in the order of ``TIME_PARTS``."""
    ranks: int
    """Ranks in the table: one per stage, or all."""


def build(
    work: StageWork,
    plan: Plan,
    *,
    all_ranks: bool = False,
    noise: float = 0.0,
    seed: int = 0,
    slow_ranks: Mapping[int, float] | None = None,
    templates: Templates | None = None,
    names: Sequence[str] = NAMES,
) -> Built:
    """Tasks of one step.

    Args:
        work: seconds of the plan's stages.
        plan: its schedule and degrees.
        all_ranks: every rank of the world; otherwise one rank stands for the equal ones of a
            stage.
        noise: standard deviation of the logarithm of a factor on every computation, mean 1.
        seed: of that noise.
        slow_ranks: factors on all computation of ranks of the world; where one rank stands for a
            stage, it is the slowest.
        templates: tasks of a pass; ``None`` makes each pass one task.
        names: of tasks, ``NAMES`` and those of the templates.

    Raises:
        ValueError: noise is negative, or a slow rank lies outside the world.
    """
    _check(plan, noise, seed, slow_ranks or {})
    rows = Rows()
    host = rows.add(
        np.full(work.stages, work.host),
        stage=np.arange(work.stages),
        resource=HOST,
        kind=KINDS.index("host"),
        name=NAMES.index("step overhead"),
    )
    order = schedule_order(plan.schedule, work.stages, work.chunks, work.micro_batches)
    passes = add_passes(work, order, templates or whole_passes(work), rows)
    rows.edge(host, passes.first_of_stage)
    _pipeline(work, passes, rows)
    _step(work, passes, rows, host, together=plan.schedule != "zb-h2")
    return _table(
        work,
        plan,
        rows,
        names,
        all_ranks=all_ranks,
        noise=noise,
        seed=seed,
        slow=slow_ranks or {},
    )


def _check(plan: Plan, noise: float, seed: int, slow: Mapping[int, float]) -> None:
    """``ValueError`` for a disturbance that makes no sense."""
    if not 0 <= noise <= MOST_NOISE:
        raise ValueError(f"noise={noise} must be from 0 (none) to {MOST_NOISE:g}")
    if seed < 0:
        raise ValueError(f"seed={seed} must not be negative")
    for rank, factor in slow.items():
        if not 0 <= rank < plan.world:
            raise ValueError(f"slow rank {rank} must be a rank of the world, 0 to {plan.world - 1}")
        if not 0 < factor < np.inf:
            raise ValueError(f"factor {factor} of slow rank {rank} must be above 0 and finite")


def _pipeline(work: StageWork, passes: Passes, rows: Rows) -> None:
    """What each pass reads: the neighbour's output, or at the turn the stage's own forward."""
    first, last = passes.first, passes.last
    rows.edge(last[FORWARD][-1, :, -1], first[BACKWARD][-1, :, -1])
    pairs = (
        (FORWARD, last[FORWARD][:-1], first[FORWARD][1:]),
        (FORWARD, last[FORWARD][-1, :, :-1], first[FORWARD][0, :, 1:]),
        (BACKWARD, last[BACKWARD][1:], first[BACKWARD][:-1]),
        (BACKWARD, last[BACKWARD][0, :, 1:], first[BACKWARD][-1, :, :-1]),
    )
    for phase in (FORWARD, BACKWARD):
        sources = np.concatenate([a.reshape(-1) for p, a, _ in pairs if p == phase])
        targets = np.concatenate([b.reshape(-1) for p, _, b in pairs if p == phase])
        if not work.crossing:
            rows.edge(sources, targets)
            continue
        by_source = np.argsort(sources)
        sources, targets = sources[by_source], targets[by_source]
        made = {name: rows.column(name) for name in ("stage", "micro_batch", "chunk")}
        pair = np.arange(len(sources)) + rows.count
        sides = []
        for side, (ends, name) in enumerate(((sources, "send"), (targets, "receive"))):
            sides.append(
                rows.add(
                    np.full(len(ends), work.crossing),
                    stage=made["stage"][ends],
                    resource=SEND + 2 * phase + side,
                    kind=KINDS.index("pp"),
                    name=NAMES.index(name),
                    micro_batch=made["micro_batch"][ends],
                    chunk=made["chunk"][ends],
                    phase=phase,
                    scope=PAIR,
                    pair=pair,
                )
            )
        rows.edge(sources, sides[0])
        rows.edge(sides[1], targets)


def _step(work: StageWork, passes: Passes, rows: Rows, host: IntArray, *, together: bool) -> None:
    """Weights before the passes that read them, gradients after, and the update.

    ``together`` makes updates wait for the norm of all gradients; ZB-H2 validates it later.
    """
    stages, chunks = work.stages, work.chunks
    every_stage = np.arange(stages)
    dp = {"resource": DP, "kind": KINDS.index("dp"), "scope": REPLICAS}
    if work.overlap_param and work.weights.any():
        readers = passes.gather_marks
        n = readers.shape[-1]
        gathers = rows.add(
            np.repeat(work.weights / (chunks * n), chunks * n),
            stage=np.repeat(every_stage, chunks * n),
            name=NAMES.index("gather weights"),
            **dp,
        )
        rows.edge(gathers, readers.reshape(-1))
        rows.edge(host, gathers[:: chunks * n])
    reduced = _gradients(work, passes, rows, dp)
    if work.tied:
        ends = rows.add(
            np.full(2, work.tied),
            stage=np.array([0, stages - 1]),
            name=NAMES.index("reduce tied embedding"),
            **{**dp, "scope": PAIR},
            pair=rows.count,
        )
        rows.edge(passes.last_of_stage[[0, -1]], ends)
        reduced[[0, -1]] = ends
    if not work.optimizer.any():
        return
    norm = rows.add(
        np.zeros(stages),
        stage=every_stage,
        resource=COMPUTE,
        kind=KINDS.index("dp"),
        name=NAMES.index("gradient norm"),
        scope=WORLD if together else ALONE,
    )
    waits = reduced >= 0
    rows.edge(reduced[waits], norm[waits])
    update = rows.add(
        work.optimizer,
        stage=every_stage,
        resource=COMPUTE,
        kind=KINDS.index("optimizer"),
        name=NAMES.index("optimizer"),
    )
    if not work.overlap_param and work.weights.any():
        gathers = rows.add(
            work.weights, stage=every_stage, name=NAMES.index("gather weights"), **dp
        )
        rows.edge(update, gathers)


def _gradients(work: StageWork, passes: Passes, rows: Rows, dp: dict[str, int]) -> IntArray:
    """Reductions as their gradients are ready; the last one of each stage, -1 for none, (S,)."""
    stages, chunks, m = work.stages, work.chunks, work.micro_batches
    sources, seconds, blocked = [], [], []
    if work.gradients.any():
        n = passes.reduce_marks.shape[-1]
        if work.overlap_grad:
            sources.append(passes.reduce_marks.reshape(-1))
            seconds.append(np.repeat(work.gradients / (chunks * n), chunks * n))
            blocked.append(np.full(stages * chunks * n, NONE))
        else:
            sources.append(passes.last_of_stage)
            seconds.append(work.gradients)
            blocked.append(np.full(stages, NONE))
    if work.every_gradients.any() and m > 1:
        batch = np.arange(m)[None, :, None]
        others = batch != passes.final[:, None, :]
        sources.append(passes.last[passes.gradients_in][others])
        blocked.append(passes.following[passes.gradients_in][others])
        seconds.append(np.repeat(work.every_gradients / chunks, chunks * (m - 1)))
    reduced = np.full(stages, NONE)
    if not sources:
        return reduced
    source, each = np.concatenate(sources), np.concatenate(seconds)
    ready = np.argsort(source, kind="stable")
    stage = rows.column("stage")[source[ready]]
    made = rows.add(each[ready], stage=stage, name=NAMES.index("reduce gradients"), **dp)
    rows.edge(source[ready], made)
    if not work.overlap_grad:
        waits = np.concatenate(blocked)[ready]
        rows.edge(made[waits >= 0], waits[waits >= 0])
    reduced[stage] = made
    return reduced


def _table(
    work: StageWork,
    plan: Plan,
    rows: Rows,
    names: Sequence[str],
    *,
    all_ranks: bool,
    noise: float,
    seed: int,
    slow: Mapping[int, float],
) -> Built:
    """The tasks of one rank per stage, or of every rank, with noise and slow ranks."""
    copies = plan.tp * plan.cp * plan.dp if all_ranks else 1
    copy = np.arange(copies)[:, None]
    stage = rows.column("stage").astype(np.int32)
    one = build_tasks(
        rank=stage,
        **{
            name: rows.column(name)
            for name in ("seconds", "resource", "kind", "name", "micro_batch", "phase")
        },
        sources=np.concatenate(rows.sources),
        targets=np.concatenate(rows.targets),
        names=names,
        resources=RESOURCES,
    )
    rank = (world_rank(plan, stage, copy) if all_ranks else stage[None]).astype(np.int32)
    factor = np.ones(work.stages * copies)
    for place, times in slow.items():
        at = place if all_ranks else stage_of(plan, place)
        factor[at] = max(factor[at], times) if factor[at] != 1 else times
    computes = np.isin(one.kind, [KINDS.index("compute"), KINDS.index("optimizer")])
    seconds = np.where(computes, one.seconds * factor[rank], one.seconds)
    if noise:
        drawn = np.random.default_rng(seed).normal(-(noise**2) / 2, noise, size=seconds.shape)
        seconds = np.where(computes, seconds * np.exp(drawn), seconds)
    tasks = repeat_tasks(
        one,
        rank=rank,
        seconds=seconds,
        collective=_collectives(plan, rows.column("scope"), rows.column("pair"), copy),
    )
    return Built(
        tasks=tasks,
        stage=np.tile(stage, copies),
        chunk=np.tile(rows.column("chunk").astype(np.int32), copies),
        mix=np.tile(rows.column("mix").astype(np.int32), copies),
        shares=_shares(work),
        ranks=work.stages * copies,
    )


def _collectives(plan: Plan, scope: IntArray, pair: IntArray, copy: IntArray) -> IdArray:
    """A number for each group of tasks that run together, -1 for a task alone; (copies, T)."""
    copies, inner = len(copy), plan.tp * plan.cp
    number = np.cumsum(scope != ALONE) - 1
    paired = scope == PAIR
    _, number[paired] = np.unique(pair[paired], return_inverse=True)
    number[paired] += len(scope)
    number[scope == WORLD] = 2 * len(scope)
    members = {
        LAYER_GROUP: (copy // inner, inner > 1 and copies > 1),
        REPLICAS: (copy % plan.tp, plan.dp * plan.cp > 1 and copies > 1),
        PAIR: (copy, True),
        WORLD: (0 * copy, True),
    }
    collective = np.full((copies, len(scope)), NONE, dtype=np.int32)
    for one, (group, several) in members.items():
        if several:
            where = np.flatnonzero(scope == one)
            collective[:, where] = number[where] * copies + group
    return collective


def world_rank(plan: Plan, stage: IdArray, copy: IntArray) -> IntArray:
    """Rank in the world of a stage of the ``copy``-th pipeline (tp innermost, then cp, then dp)."""
    inner = plan.tp * plan.cp
    if plan.order == "tp-cp-ep-pp-dp":
        return copy % inner + inner * (stage + plan.pp * (copy // inner))
    return stage * inner * plan.dp + copy


def stage_of(plan: Plan, rank: int) -> int:
    """Stage of a rank of the world."""
    inner = plan.tp * plan.cp
    if plan.order == "tp-cp-ep-pp-dp":
        return rank // inner % plan.pp
    return rank // (inner * plan.dp)


def _shares(work: StageWork) -> FloatArray:
    """Rows: one per kind of task, then passes by phase, stage and chunk."""
    own = np.zeros((len(KINDS), len(TIME_PARTS)))
    for row, kind in enumerate(KINDS):
        own[row, TIME_PARTS.index(kind)] = 1.0
    exposed = work.passes[..., :PARTS].reshape(-1, PARTS)
    total = exposed.sum(axis=1, keepdims=True)
    mixed = np.zeros((len(exposed), len(TIME_PARTS)))
    mixed[:, [TIME_PARTS.index(part) for part in PASS_PARTS]] = exposed / np.where(total, total, 1)
    return np.concatenate([own, mixed])
