"""How good predictions are: errors, choices, memory, and whether the intervals hold."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from estimator.runs import Run
from search.validate import Scored

NEAR = 0.05
"""Measured times closer than this are no choice: pairs below it are not ranked."""
MEASURED = {"iter_time_s", "tokens_per_s_per_gpu", "samples_per_s", "mem_gb_per_gpu", "mem_kind"}
LABELS = {
    "row_id",
    "role",
    "choice_group",
    "dup_of",
    "use_time",
    "use_mem",
    "oom",
    "notes",
    "source_ref",
}
CONFIGURATION = tuple(
    name for name in Run.model_fields if name not in MEASURED | LABELS | {"config_grade"}
)
"""Columns that say what ran; equal ones are one configuration, measured again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Rows that ran the same thing: counted once, by their median."""

    rows: tuple[Scored, ...]
    seconds: float
    noise: float | None
    """Slowest over fastest of its rows, minus 1; ``None`` for a single row."""

    @property
    def error(self) -> float:
        """Signed relative error against the median."""
        predicted = self.rows[0].predicted
        assert predicted is not None
        return predicted.step_seconds / self.seconds - 1

    @property
    def covered(self) -> bool:
        """Whether the measured time lies in the predicted interval."""
        predicted = self.rows[0].predicted
        assert predicted is not None
        return predicted.low_seconds <= self.seconds <= predicted.high_seconds


def configurations(rows: Iterable[Scored]) -> list[Configuration]:
    """Rows with a measured and a predicted time, equal configurations joined."""
    joined: dict[tuple[Any, ...], list[Scored]] = defaultdict(list)
    for row in rows:
        if row.error is not None:
            key = tuple(getattr(row.run, name) for name in CONFIGURATION)
            joined[key].append(row)
    found = []
    for members in joined.values():
        times = [row.seconds for row in members if row.seconds is not None]
        noise = max(times) / min(times) - 1 if len(times) > 1 else None
        found.append(Configuration(rows=tuple(members), seconds=median(times), noise=noise))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupErrors:
    """Errors of the rows with one value of a column; relative, on the step time."""

    by: str
    key: str
    rows: int
    """Rows with a measured time."""
    mapped: int
    configurations: int
    mape: float | None
    median: float | None
    p90: float | None
    bias: float | None
    noise: float | None
    """Median noise of configurations measured more than once."""
    coverage: float | None
    width: float | None
    """Median full width of the intervals, relative to the prediction."""


def group_errors(rows: Sequence[Scored], by: str) -> list[GroupErrors]:
    """Errors per value of a run's column (``framework`` and so on); ``all`` is one group."""
    groups: dict[str, list[Scored]] = defaultdict(list)
    for row in rows:
        if row.seconds is not None:
            key = "all" if by == "all" else group_key(row, by)
            groups[key].append(row)
    return [_errors(by, key, members) for key, members in sorted(groups.items())]


def group_key(row: Scored, by: str) -> str:
    """The value of a column, as the mapping understood it where it did."""
    if by == "source":
        return row.run.source_id or "unnamed"
    if by == "precision" and row.mapped is not None:
        return row.mapped.workload.precision
    if by == "gpu" and row.mapped is not None:
        return row.mapped.cluster.device.name
    if by == "stack":
        return row.mapped.stack.name if row.mapped is not None else "unmapped"
    value = getattr(row.run, by)
    return str(value) if value is not None else "unnamed"


GROUPINGS = ("all", "source", "stack", *(name for name in CONFIGURATION if name != "source_id"))
"""What rows may be grouped by."""


def selected(rows: Sequence[Scored], only: Iterable[str]) -> list[Scored]:
    """Rows of which each column named in ``only`` has one of the values given for it.

    ``only`` lists conditions ``column=value``; columns and values are those of
    :func:`group_errors`. ``ValueError`` for no such column, or where no row is left.
    """
    wanted: dict[str, list[str]] = defaultdict(list)
    for condition in only:
        column, equals, value = condition.partition("=")
        if not equals or column == "all" or column not in GROUPINGS:
            raise ValueError(
                f"cannot keep only {condition!r}; write column=value with one of the columns "
                f"{', '.join(name for name in GROUPINGS if name != 'all')}"
            )
        wanted[column].append(value)
    kept = list(rows)
    for column, values in wanted.items():
        found = Counter(group_key(row, column) for row in kept)
        kept = [row for row in kept if group_key(row, column) in values]
        if not kept:
            known = ", ".join(f"{key} ({count})" for key, count in found.most_common(12))
            raise ValueError(
                f"no row has {' or '.join(f'{column}={value}' for value in values)}; "
                f"the rows have {known or 'no values'}"
            )
    return kept


def _errors(by: str, key: str, rows: Sequence[Scored]) -> GroupErrors:
    found = configurations(rows)
    errors = np.array([one.error for one in found])
    size = np.abs(errors)
    noises = [one.noise for one in found if one.noise is not None]
    widths = [2 * _half_width(one) for one in found]
    some = len(found) > 0
    return GroupErrors(
        by=by,
        key=key,
        rows=len(rows),
        mapped=sum(row.mapped is not None for row in rows),
        configurations=len(found),
        mape=float(size.mean()) if some else None,
        median=float(np.median(size)) if some else None,
        p90=float(np.quantile(size, 0.9)) if some else None,
        bias=float(errors.mean()) if some else None,
        noise=median(noises) if noises else None,
        coverage=float(np.mean([one.covered for one in found])) if some else None,
        width=median(widths) if some else None,
    )


def _half_width(one: Configuration) -> float:
    predicted = one.rows[0].predicted
    assert predicted is not None
    return predicted.high_seconds / predicted.step_seconds - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How well plans of one problem were ranked; regret is time lost to the best, relative."""

    choice_group: str
    plans: int
    pairs: int
    """Pairs whose measured times differ by more than 5 %."""
    concordance: float | None
    """Of these, the share that is ranked as measured."""
    regret: float
    regret_random: float
    regret_rule_of_thumb: float


def choices(rows: Sequence[Scored]) -> list[Choice]:
    """Ranking within each choice group, framework by framework, of at least two plans."""
    groups: dict[tuple[str, str], list[Scored]] = defaultdict(list)
    for row in rows:
        if row.run.choice_group and row.error is not None:
            groups[row.run.choice_group, row.run.framework or ""].append(row)
    found = []
    for (group, _), members in sorted(groups.items()):
        distinct = _distinct_plans(members)
        if len(distinct) > 1:
            found.append(_choice(group, distinct))
    return found


def _distinct_plans(rows: Sequence[Scored]) -> list[Configuration]:
    """Configurations of different plans: what the framework's version changes is no choice."""
    by_plan: dict[str, Configuration] = {}
    for one in configurations(rows):
        mapped = one.rows[0].mapped
        assert mapped is not None
        by_plan.setdefault(str(mapped.plan), one)
    return list(by_plan.values())


def _choice(group: str, plans: Sequence[Configuration]) -> Choice:
    measured_ = np.array([one.seconds for one in plans])
    predicted = np.array([_seconds(one) for one in plans])
    upper = np.triu_indices(len(plans), 1)
    gap = (measured_[:, None] / measured_[None, :])[upper]
    apart = np.abs(np.log(gap)) > math.log(1 + NEAR)
    order = (predicted[:, None] - predicted[None, :])[upper]
    agree = np.sign(order) == np.sign(np.log(gap))
    best = measured_.min()
    return Choice(
        choice_group=group,
        plans=len(plans),
        pairs=int(apart.sum()),
        concordance=float(agree[apart].mean()) if apart.any() else None,
        regret=float(measured_[predicted.argmin()] / best - 1),
        regret_random=float(measured_.mean() / best - 1),
        regret_rule_of_thumb=float(measured_[_rule_of_thumb(plans)] / best - 1),
    )


def _seconds(one: Configuration) -> float:
    predicted = one.rows[0].predicted
    assert predicted is not None
    return predicted.step_seconds


def _rule_of_thumb(plans: Sequence[Configuration]) -> int:
    """Tensor parallel up to the node, then the fewest stages, then the largest micro-batch.

    Takeaways 1 to 3 of Narayanan et al. (arXiv 2104.04473, section 3).
    """

    def rank(i: int) -> tuple[int, int, int, int]:
        mapped = plans[i].rows[0].mapped
        assert mapped is not None
        plan, node = mapped.plan, mapped.cluster.gpus_per_node
        beyond = max(plan.tp - node, 0)
        return beyond, -plan.tp, plan.pp, -plan.micro_batch

    return min(range(len(plans)), key=rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryErrors:
    """Errors of peak memory of one kind, counted where the run's file allows."""

    kind: str
    rank: str
    rows: int
    mapped: int
    mape: float | None
    median: float | None
    worst: float | None
    bias: float | None


def memory_errors(rows: Sequence[Scored]) -> list[MemoryErrors]:
    """Errors by what was counted (allocated, reserved, on the device) and on which rank."""
    groups: dict[tuple[str, str], list[Scored]] = defaultdict(list)
    for row in rows:
        if row.bytes is not None and not row.run.oom:
            groups[row.run.memory_kind, row.run.memory_rank].append(row)
    found = []
    for (kind, rank), members in sorted(groups.items()):
        errors = np.array(
            [
                row.predicted_bytes / row.bytes - 1
                for row in members
                if row.predicted_bytes is not None and row.bytes is not None
            ]
        )
        some = len(errors) > 0
        found.append(
            MemoryErrors(
                kind=kind,
                rank=rank,
                rows=len(members),
                mapped=len(errors),
                mape=float(np.abs(errors).mean()) if some else None,
                median=float(np.median(np.abs(errors))) if some else None,
                worst=float(errors[np.abs(errors).argmax()]) if some else None,
                bias=float(errors.mean()) if some else None,
            )
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """Runs that ran out of memory or did not, against what was predicted; counts of rows."""

    assumed: int
    """Rows left out since what they recomputed, which decides, is not said."""

    caught: int
    missed: int
    false_alarms: int
    fitting: int

    @property
    def precision(self) -> float | None:
        """Of the rows predicted not to fit, those that did not."""
        said = self.caught + self.false_alarms
        return self.caught / said if said else None

    @property
    def recall(self) -> float | None:
        """Of the rows that ran out of memory, those predicted not to fit."""
        true = self.caught + self.missed
        return self.caught / true if true else None


def out_of_memory(rows: Sequence[Scored]) -> OutOfMemory:
    """Every mapped row that ran, or is said not to have, and says what it recomputed."""
    assumed = 0
    counts = {(True, True): 0, (True, False): 0, (False, True): 0, (False, False): 0}
    for row in rows:
        ran = row.run.seconds is not None or row.run.peak_bytes is not None
        if row.predicted is None or not (row.run.oom or ran):
            continue
        if row.mapped is not None and "recompute" in row.mapped.assumed:
            assumed += 1
        else:
            counts[bool(row.run.oom), not row.predicted.fits] += 1
    return OutOfMemory(
        assumed=assumed,
        caught=counts[True, True],
        missed=counts[True, False],
        false_alarms=counts[False, True],
        fitting=counts[False, False],
    )


def unmapped_reasons(rows: Sequence[Scored]) -> Mapping[str, int]:
    """Reasons and how many rows each, most frequent first."""
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        if row.reason is not None:
            counts[row.reason] += 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def assumptions(rows: Sequence[Scored]) -> Mapping[str, int]:
    """Fields that were assumed and for how many rows, most frequent first."""
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        for name in row.mapped.assumed if row.mapped else ():
            counts[name] += 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Everything that is said about a file of runs."""

    rows: Sequence[Scored]
    overall: GroupErrors
    groups: Sequence[GroupErrors]
    choices: Sequence[Choice]
    memory: Sequence[MemoryErrors]
    oom: OutOfMemory


def validation(rows: Sequence[Scored], by: Sequence[str] = ("source",)) -> Validation:
    """Errors of scored rows overall and by columns.

    Raises ``ValueError`` for a column that rows cannot be grouped by, or where no row has a time
    or a memory that was measured.
    """
    for name in by:
        if name not in GROUPINGS:
            raise ValueError(f"cannot group by {name!r}; use {', '.join(GROUPINGS)}")
    if not any(row.seconds is not None or row.bytes is not None or row.run.oom for row in rows):
        raise ValueError(
            "no row has a measured time or memory to score; give iter_time_s (seconds), "
            "tokens_per_s_per_gpu or mem_gb_per_gpu"
        )
    return Validation(
        rows=rows,
        overall=(group_errors(rows, "all") or [_errors("all", "all", [])])[0],
        groups=[group for name in by if name != "all" for group in group_errors(rows, name)],
        choices=choices(rows),
        memory=memory_errors(rows),
        oom=out_of_memory(rows),
    )
