"""Measured runs and what is predicted for them, row by row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from estimator.assumptions import UnmappedError
from estimator.compose import estimate
from estimator.estimate import Estimate
from estimator.lower.transformer import model_flops
from estimator.mapping import Mapped, map_run
from estimator.plan import Plans
from estimator.pricers import check_cost_model
from estimator.runs import Run, RunsFile
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
    return priced(forced(mapped_rows(runs, role=role), stack), cost)


def check_role(file: RunsFile, role: str | None) -> None:
    """``ValueError`` where no row of a file has the role that was asked for."""
    if role is not None and not any(run.role == role for run in file.runs):
        roles = sorted({run.role for run in file.runs if run.role})
        raise ValueError(f"no row has role {role!r}; the file has {', '.join(roles) or 'no roles'}")


def mapped_rows(runs: Iterable[Run], *, role: str | None = None) -> list[Scored]:
    """Runs of a role in the estimator's nouns, or why not; nothing is predicted yet."""
    rows = []
    for run in runs:
        if role is not None and run.role != role:
            continue
        seconds, memory = measured(run)
        row = Scored(run=run, seconds=seconds, bytes=memory)
        try:
            mapped = map_run(run)
            implausible(mapped, run, seconds)
        except UnmappedError as error:
            rows.append(replace(row, reason=str(error)))
        else:
            rows.append(replace(row, mapped=mapped))
    return rows


def forced(rows: Sequence[Scored], stack: Stack | None) -> list[Scored]:
    """The rows with ``stack``, where one is given, in place of their framework's."""
    if stack is None:
        return list(rows)
    return [
        replace(row, mapped=replace(row.mapped, stack=stack)) if row.mapped is not None else row
        for row in rows
    ]


def priced(rows: Sequence[Scored], cost: str = "analytic") -> list[Scored]:
    """The rows with predictions for those that are mapped; rows of one problem together."""
    answered = list(rows)
    at = [i for i, row in enumerate(rows) if row.mapped is not None]
    nouns = [row.mapped for row in rows if row.mapped is not None]
    for members in problems(nouns):
        one = nouns[members[0]]
        plans = Plans.of(nouns[k].plan for k in members)
        try:
            answers = estimate(
                one.model, one.workload, one.cluster, plans, stack=one.stack, cost=cost
            )
        except ValueError as error:
            for k in members:
                answered[at[k]] = replace(rows[at[k]], mapped=None, reason=str(error))
            continue
        for n, k in enumerate(members):
            answered[at[k]] = replace(rows[at[k]], predicted=answers[n])
    return answered


def problems(mapped: Iterable[Mapped]) -> list[list[int]]:
    """Positions of runs that differ in nothing but the plan, problem by problem."""
    together: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for i, one in enumerate(mapped):
        together[_problem_key(one)].append(i)
    return list(together.values())


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
    out = cluster.scale_out
    network = (out.bandwidth, out.nic_bandwidth) if out else None
    place = (
        cluster.name,
        cluster.device.name,
        cluster.gpus_per_node,
        cluster.scale_up_domain,
        network,
    )
    return mapped.model, mapped.workload, place, mapped.stack.name
