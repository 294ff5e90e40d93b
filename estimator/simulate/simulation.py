"""``simulate``: one plan, task by task, with its parts measured and its idle time explained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from estimator.cluster import Cluster
from estimator.compose import Composition, composition
from estimator.cost import CostModel
from estimator.estimate import Estimate
from estimator.lower.memory import in_flight
from estimator.lower.slots import FloatArray, IntArray
from estimator.model import Transformer
from estimator.plan import Plan, Plans
from estimator.simulate.build import build
from estimator.simulate.contention import run_beside
from estimator.simulate.costs import StageWork, stage_work
from estimator.simulate.engine import Timing, critical_path, idle_seconds, naive_seconds
from estimator.simulate.graph import Tasks
from estimator.simulate.memory import StageMemory, memory_over_time
from estimator.simulate.operators import operator_passes
from estimator.simulate.parts import measured, step_parts
from estimator.simulate.ranks import Built
from estimator.simulate.rows import COMPUTE, DP, NAMES, RESOURCES
from estimator.simulate.steady import fewer, group_of, repetition
from estimator.stack import Stack
from estimator.workload import Workload

DETAILS = ("stages", "ops")
"""Tasks of a pass: one, or every operator."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulation:
    """A step of one plan, task by task."""

    estimate: Estimate
    """Its time parts are measured on the busiest rank: what its own tasks consist of, and its idle
    time by what the chain of tasks that ends it was doing. They add up to the makespan."""
    closed_form: Estimate
    naive_seconds: float
    """Step time without synchronisation: the fullest stream of any rank."""
    work: StageWork
    built: Built
    timing: Timing
    memory: list[StageMemory]
    """Bytes over time, one entry per stage."""

    @property
    def tasks(self) -> Tasks:
        """Every task; ``timing`` says when it ran."""
        return self.built.tasks

    @property
    def makespan(self) -> float:
        """Seconds of the step."""
        return self.timing.makespan

    @property
    def idle(self) -> dict[str, FloatArray]:
        """Seconds in which a stream of each rank does nothing, by stream that has tasks."""
        idle = idle_seconds(self.tasks, self.timing)
        used = np.unique(self.tasks.resource)
        return {RESOURCES[stream]: idle[:, stream] for stream in used.tolist()}

    @property
    def closed_form_bytes(self) -> FloatArray:
        """What the closed form says that each stage allocates at its peak, (S,)."""
        return self.work.allocated

    def first_rank(self, stage: int) -> int:
        """The first rank of a stage in the table."""
        return int(self.tasks.rank[self.built.stage == stage][0])

    def stage_of_rank(self, rank: int) -> int:
        """The stage that a rank of the table runs."""
        return int(self.built.stage[self.tasks.rank == rank][0])

    @property
    def critical_path(self) -> IntArray:
        """Tasks of one longest path, in order of time."""
        return critical_path(self.tasks, self.timing)


def simulate(
    model: Transformer,
    workload: Workload,
    cluster: Cluster,
    plan: Plan,
    *,
    stack: Stack,
    cost: str | CostModel = "analytic",
    detail: str = "stages",
    all_ranks: bool = False,
    noise: float = 0.0,
    seed: int = 0,
    slow_ranks: Mapping[int, float] | None = None,
    slowdown: float = 0.0,
) -> Simulation:
    """Run one step of a legal plan on its critical path, with the closed form's own seconds.

    Args:
        model: what is trained.
        workload: batch, sequence, precision.
        cluster: where.
        plan: a legal plan.
        stack: the framework's habits.
        cost: name of a cost model that prices layers, or one itself.
        detail: ``stages`` makes each pass of a stage one task, ``ops`` each operator.
        all_ranks: every rank of the world rather than one per stage.
        noise: standard deviation of the logarithm of a factor on every computation.
        seed: of that noise.
        slow_ranks: factors on the computation of single ranks of the world.
        slowdown: of compute while gradients or weights are exchanged beside it; 0.1 is 10 %.

    Raises:
        ValueError: the cost model prices whole plans only, or a disturbance makes no sense.
    """
    plans = Plans.of([plan])
    composed = composition(model, workload, cluster, plans, stack=stack, cost=cost)
    work = stage_work(composed, held(composed))
    if detail not in DETAILS:
        raise ValueError(f"detail={detail} must be one of {', '.join(DETAILS)}")
    templates, names = (
        operator_passes(composed, plan, work.shares) if detail == "ops" else (None, NAMES)
    )
    built = build(
        work,
        plan,
        all_ranks=all_ranks,
        noise=noise,
        seed=seed,
        slow_ranks=slow_ranks,
        templates=templates,
        names=names,
    )
    timing = run_beside(
        built.tasks, traffic=DP, compute=COMPUTE, share=work.hiding, slowdown=slowdown
    )
    closed = composed.estimates()[0]
    return Simulation(
        estimate=measured(closed, work, built, step_parts(plan, work, built, timing), detail),
        closed_form=closed,
        naive_seconds=naive_seconds(built.tasks),
        work=work,
        built=built,
        timing=timing,
        memory=memory_over_time(work, built, timing),
    )


def simulated_estimates(composed: Composition) -> list[Estimate]:
    """What :func:`simulate` says of a step of each plan, composed together.

    Fewer micro-batches are run where the pipeline repeats itself; see
    :mod:`estimator.simulate.steady`.
    """
    closed = composed.estimates()
    return [_estimate(_one(composed, row), closed[row]) for row in range(len(composed.plans))]


def _estimate(composed: Composition, closed: Estimate) -> Estimate:
    """One plan's."""
    plan = composed.plans[0]
    work = stage_work(composed, held(composed))
    few = fewer(work, plan)
    short, guess = replace(work, micro_batches=few), None
    if few >= 2 * plan.pp and not work.every_gradients.any():
        # What data-parallel traffic comes to beside compute shows in a short step already.
        first, begun = _run(replace(work, micro_batches=plan.pp), plan)
        traffic = (first.tasks.resource == DP) & (first.tasks.seconds > 0)
        guess = (begun.end - begun.start)[traffic]
    built, timing = _run(short, plan, guess)
    left_out = work.micro_batches - few
    repeated = repetition(short, plan, built, timing, left_out) if left_out else None
    if left_out and repeated is None:
        short, (built, timing) = work, _run(work, plan, guess)
    if repeated is None or not work.crossing:
        parts = step_parts(plan, short, built, timing, repeated)
        return measured(closed, short, built, parts, "stages")
    # Transfers wait as well: one group more says which idle time is theirs.
    parts, group = step_parts(plan, short, built, timing), group_of(plan)
    more = replace(work, micro_batches=few + group)
    parts += left_out / group * (step_parts(plan, more, *_run(more, plan, guess)) - parts)
    return measured(closed, short, built, parts, "stages")


def _one(composed: Composition, row: int) -> Composition:
    """The composition of one plan alone."""
    only = np.array([row])
    memory = composed.memory
    return replace(
        composed,
        plans=composed.plans[only],
        key_P=composed.key_P[only],
        step_P=composed.step_P[only],
        memory=replace(
            memory,
            parts={part: value[only] for part, value in memory.parts.items()},
            allocated_CP=memory.allocated_CP[:, only],
            states_CP=memory.states_CP[:, only],
            kept_CP=memory.kept_CP[:, only],
        ),
    )


def _run(work: StageWork, plan: Plan, guess: FloatArray | None = None) -> tuple[Built, Timing]:
    built = build(work, plan)
    timing = run_beside(built.tasks, traffic=DP, compute=COMPUTE, share=work.hiding, guess=guess)
    return built, timing


def held(composed: Composition) -> FloatArray:
    """Micro-batches that each stage class holds at once, (4, P)."""
    plans = composed.plans
    position = composed.shards.classes.position[:, composed.step_P]
    micro_batches = composed.workload.global_batch // (plans.dp * plans.micro_batch)
    return in_flight(plans, position, micro_batches)
