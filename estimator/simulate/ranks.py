"""From one pipeline's tasks to those of its ranks: copies, who runs together, noise, slow ranks.

Suffixes: T tasks, M mixes.
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
from estimator.simulate.rows import (
    ALONE,
    LAYER_GROUP,
    PAIR,
    REPLICAS,
    RESOURCES,
    WORLD,
    Rows,
)

MOST_NOISE = 2.0
MOST_TASKS = 50_000_000
"""About 10 GiB of columns."""


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


def check_disturbance(plan: Plan, noise: float, seed: int, slow: Mapping[int, float]) -> None:
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


def spread_out(
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
    equal = plan.tp * plan.cp * plan.dp
    copies = equal if all_ranks else 1
    if rows.count * copies > MOST_TASKS:
        raise ValueError(
            f"{rows.count * copies:,} tasks of all ranks exceed {MOST_TASKS:,}; simulate one rank "
            "per stage, or fewer ranks"
        )
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
        if all_ranks or equal == 1:
            factor[place] = times
        else:  # a faster rank waits for its equals
            factor[stage_of(plan, place)] = max(factor[stage_of(plan, place)], times)
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
