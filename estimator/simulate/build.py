"""From one plan to tasks: its schedule, its data-parallel traffic and its optimizer step.

Suffixes: T tasks, S stages, M mixes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from estimator.lower.slots import IntArray
from estimator.plan import Plan
from estimator.simulate.costs import StageWork
from estimator.simulate.graph import KINDS, NONE
from estimator.simulate.orders import BACKWARD, FORWARD, schedule_order
from estimator.simulate.passes import Passes, Templates, add_passes, whole_passes
from estimator.simulate.ranks import Built, check_disturbance, spread_out
from estimator.simulate.rows import (
    ALONE,
    COMPUTE,
    DP,
    HOST,
    NAMES,
    PAIR,
    REPLICAS,
    SEND,
    WORLD,
    Rows,
)


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
    slow = slow_ranks or {}
    check_disturbance(plan, noise, seed, slow)
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
    return spread_out(
        work,
        plan,
        rows,
        names,
        all_ranks=all_ranks,
        noise=noise,
        seed=seed,
        slow=slow,
    )


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
    """Reductions as their gradients are ready; the last one of each stage, -1 for none, (S,).

    Those of a micro-batch that is not the last (zero=2) end before its stage goes on: the hooks
    of FSDP and of DeepSpeed wait for them at the end of every backward.
    """
    stages, chunks, m = work.stages, work.chunks, work.micro_batches
    marks = passes.reduce_marks
    batch, n = np.arange(m)[None, :, None], marks.shape[-1]
    last_ones = batch == passes.final[:, None, :]
    sources, seconds, blocked = [], [], []
    if work.gradients.any():
        if work.overlap_grad:
            sources.append(marks[last_ones].reshape(-1))
            seconds.append(np.repeat(work.gradients / (chunks * n), chunks * n))
        else:
            sources.append(passes.last_of_stage)
            seconds.append(work.gradients)
        blocked.append(np.full(len(seconds[0]), NONE))
    if work.every_gradients.any() and m > 1:
        waits = np.full(marks.shape, NONE)
        waits[..., -1] = passes.following[passes.gradients_in]
        sources.append(marks[~last_ones].reshape(-1))
        blocked.append(waits[~last_ones].reshape(-1))
        seconds.append(np.repeat(work.every_gradients / (chunks * n), chunks * (m - 1) * n))
    reduced = np.full(stages, NONE)
    if not sources:
        return reduced
    source, each = np.concatenate(sources), np.concatenate(seconds)
    ready = np.argsort(source, kind="stable")
    stage = rows.column("stage")[source[ready]]
    made = rows.add(each[ready], stage=stage, name=NAMES.index("reduce gradients"), **dp)
    rows.edge(source[ready], made)
    waits = np.concatenate(blocked)[ready]
    rows.edge(made[waits >= 0], waits[waits >= 0])
    reduced[stage] = made
    return reduced
