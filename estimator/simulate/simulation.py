"""``simulate``: one plan, task by task, with its parts measured and its idle time explained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from estimator.cluster import Cluster
from estimator.compose import composition
from estimator.cost import CostModel
from estimator.estimate import TIME_PARTS, Estimate
from estimator.lower.memory import in_flight
from estimator.lower.slots import FloatArray, IntArray
from estimator.model import Transformer
from estimator.plan import Plan, Plans
from estimator.simulate.build import build
from estimator.simulate.contention import run_beside
from estimator.simulate.costs import StageWork, stage_work
from estimator.simulate.engine import Timing, critical_path, idle_seconds, naive_seconds
from estimator.simulate.graph import KINDS, PHASES, Tasks
from estimator.simulate.memory import StageMemory, memory_over_time
from estimator.simulate.operators import operator_passes
from estimator.simulate.ranks import Built
from estimator.simulate.rows import COMPUTE, DP, NAMES, RESOURCES, SEND
from estimator.stack import Stack
from estimator.workload import Workload

BUBBLE, STEP = TIME_PARTS.index("bubble"), PHASES.index("step")
TRANSFERS = range(SEND, SEND + 4)
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
    position = composed.shards.classes.position[:, composed.step_P]
    micro_batches = workload.global_batch // (plans.dp * plans.micro_batch)
    work = stage_work(composed, in_flight(plans, position, micro_batches))
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
        estimate=_measured(closed, work, built, timing, detail),
        closed_form=closed,
        naive_seconds=naive_seconds(built.tasks),
        work=work,
        built=built,
        timing=timing,
        memory=memory_over_time(work, built, timing),
    )


def _measured(
    closed: Estimate, work: StageWork, built: Built, timing: Timing, detail: str
) -> Estimate:
    """The closed form's estimate with its time parts replaced by measured ones."""
    rank = _busiest(built)
    if closed.plan.schedule == "zb-h2":
        parts = _parts_of_a_period(work, built, timing, rank)
    else:
        parts = _parts(built, timing, rank, 0.0, timing.makespan)
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
        own = float(traffic[KINDS.index(part)]) + (inside if detail == "stages" else 0.0)
        hidden[part] = max(own - time[part], 0.0)
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
