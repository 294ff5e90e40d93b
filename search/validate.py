"""Measured runs and what is predicted for them, row by row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from estimator.assumptions import UnmappedError
from estimator.compose import check_cost_model, estimate
from estimator.estimate import Estimate
from estimator.lower.transformer import model_flops
from estimator.mapping import Mapped, map_run
from estimator.plan import Plans
from estimator.runs import Run
from estimator.stack import Stack

SLOWEST_MFU = 0.001
"""Below this share of the peak a time is taken for a mistake of units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One row: what was measured and what was predicted, or why it was not."""

    run: Run
    seconds: float | None
    """Measured, where the row may be scored on time."""
    bytes: float | None
    """Measured, where the row may be scored on memory."""
    mapped: Mapped | None = None
    predicted: Estimate | None = None
    reason: str | None = None

    @property
    def error(self) -> float | None:
        """Signed relative error of the predicted time."""
        if self.predicted is None or self.seconds is None:
            return None
        return self.predicted.step_seconds / self.seconds - 1

    @property
    def predicted_bytes(self) -> float | None:
        """Predicted bytes of the kind and rank that the row measured."""
        if self.predicted is None or self.mapped is None:
            return None
        stages = self.predicted.stages
        at = {"first": stages[0], "last": stages[-1]}.get(self.run.memory_rank)
        allocated = self.predicted.allocated_bytes if at is None else at["allocated_bytes"]
        if self.run.memory_kind == "allocated":
            return float(allocated)
        reserved = allocated * self.mapped.stack.reserved_ratio
        if self.run.memory_kind == "reserved":
            return float(reserved)
        return float(reserved + self.mapped.stack.context_bytes)


def score(
    runs: Iterable[Run],
    *,
    role: str | None = None,
    stack: Stack | None = None,
    cost: str = "analytic",
) -> list[Scored]:
    """Map and price runs of a role (all without one); rows of one problem are priced together.

    Rows that their file marks as unusable or of grade C are scored on nothing. Raises
    ``ValueError`` for an unknown cost model.
    """
    check_cost_model(cost)
    chosen = [run for run in runs if role is None or run.role == role]
    rows: list[Scored | None] = [None] * len(chosen)
    together: dict[tuple[Any, ...], list[tuple[int, Mapped]]] = defaultdict(list)
    for i, run in enumerate(chosen):
        seconds, memory = measured(run)
        try:
            mapped = map_run(run, stack=stack)
            implausible(mapped, run, seconds)
        except UnmappedError as error:
            rows[i] = Scored(run=run, seconds=seconds, bytes=memory, reason=str(error))
        else:
            together[_problem_key(mapped)].append((i, mapped))
    for members in together.values():
        one = members[0][1]
        plans = Plans.of(mapped.plan for _, mapped in members)
        try:
            answers = estimate(
                one.model, one.workload, one.cluster, plans, stack=one.stack, cost=cost
            )
        except ValueError as error:
            for i, _ in members:
                run = chosen[i]
                seconds, memory = measured(run)
                rows[i] = Scored(run=run, seconds=seconds, bytes=memory, reason=str(error))
            continue
        for k, (i, mapped) in enumerate(members):
            seconds, memory = measured(chosen[i])
            rows[i] = Scored(
                run=chosen[i], seconds=seconds, bytes=memory, mapped=mapped, predicted=answers[k]
            )
    return [row for row in rows if row is not None]


def measured(run: Run) -> tuple[float | None, float | None]:
    """Seconds and bytes of a row that its file lets us score; a blank mark says yes."""
    graded = (run.config_grade or "A") in ("A", "B")
    seconds = run.seconds if graded and (run.use_time or "yes") == "yes" else None
    memory = run.peak_bytes if (run.use_mem or "yes") == "yes" else None
    return seconds, memory


def implausible(mapped: Mapped, run: Run, seconds: float | None) -> None:
    """Raise ``UnmappedError`` for a time that physics rules out: most likely a wrong unit."""
    if seconds is None:
        return
    workload = mapped.workload
    peak = mapped.cluster.gpus * max(mapped.cluster.device.peaks.values())
    fastest = model_flops(mapped.model, workload) / peak
    if seconds < fastest:
        raise UnmappedError(
            f"a step of {seconds:.3g} s is {fastest / seconds:,.1f}x faster than the peak allows; "
            "check the unit of the time, the batch and the number of GPUs"
        )
    if seconds * SLOWEST_MFU > fastest:
        raise UnmappedError(
            f"a step of {seconds:.3g} s is {seconds / fastest:,.0f}x slower than the peak allows; "
            "is the time in milliseconds?"
        )


def _problem_key(mapped: Mapped) -> tuple[Any, ...]:
    cluster = mapped.cluster
    network = cluster.scale_out.bandwidth if cluster.scale_out else None
    place = (
        cluster.name,
        cluster.device.name,
        cluster.gpus_per_node,
        cluster.scale_up_domain,
        network,
    )
    return mapped.model, mapped.workload, place, mapped.stack.name
