"""Fit a few physical numbers of a stack to measured runs, and say what that is worth.

Suffix N: distinct configurations.
"""

from __future__ import annotations

import datetime
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from estimator.catalog.reading import short
from estimator.compose import check_cost_model
from estimator.intervals import class_factor, collectives_of
from estimator.lower.slots import FloatArray
from estimator.mapping import Mapped
from estimator.runs import Run
from estimator.stack import Calibration, FittedScalar, Stack
from search.accuracy import Configuration, configurations, selected, unmapped_reasons
from search.calibrated_stack import kept_residuals, rounded, stack_with, with_values
from search.posterior import (
    IDENTIFIED,
    Chosen,
    Evidence,
    Predict,
    Solution,
    choose,
    exercised,
    solve,
)
from search.repricing import Repricing
from search.scalars import IN_SITU, Scalar, scalars_of, value_of
from search.validate import Scored, forced, mapped_rows, priced

LEAST_NOISE = 0.05
"""Of a published step time, whatever its source says (median of 17 publishers)."""
RANGE_OF_TWO = 1.128
"""Expected range of two draws, over their standard deviation."""
FEW = 3
"""Fewer distinct configurations than this move the overall factor only."""
LEAVE_ONE_OUT = 12
"""Up to so many configurations each is left out alone; more are left out in ``FOLDS`` parts."""
FOLDS = 5
State = Literal[
    "identified",
    "shrunk",
    "at its prior",
    "not exercised",
    "too few runs",
    "at its bound",
    "held",
]
"""``shrunk``: the overall factor, which always moves, where the runs tell little of it; ``held``
where only the interval was asked for."""
UNMOVED = Chosen(
    solution=Solution(values={}, sd={}, precision=np.zeros((0, 0)), loss=0.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarFit:
    """What became of one scalar; SI units, deviations of the logarithm."""

    name: str
    before: float
    value: float
    prior: float
    prior_sd: float
    sd: float
    state: State
    bound: float | None = None
    suspects: str = ""

    @property
    def spreads(self) -> float:
        """How many spreads of its prior a fitted value lies from the prior's centre."""
        moved = self.value != self.before
        return abs(math.log(self.value / self.prior)) / self.prior_sd if moved else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Relative errors of step times, without sign."""

    median: float
    mean: float

    @classmethod
    def of(cls, residuals: FloatArray) -> Errors:
        """Errors of logarithms of predicted over measured time."""
        size = np.abs(np.expm1(residuals))
        return cls(median=float(np.median(size)), mean=float(size.mean()))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceErrors:
    """Errors of one source's configurations."""

    source: str
    configurations: int
    before: Errors
    after: Errors
    crossed: Errors | None
    left_out: Errors | None
    """With the stack fitted to the other sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedRun:
    """One configuration: logarithms of predicted over measured time, and its predicted parts."""

    configuration: Configuration
    before: float
    after: float
    crossed: float | None
    parts: Mapping[str, float]
    """Seconds by part, as fitted."""
    factor: float
    """By which intervals of its class of runs are wider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """A stack fitted to runs. ``crossed`` errors are of runs that were left out of the fit."""

    stack: Stack
    base: Stack
    cost: str
    rows: int
    unmapped: Mapping[str, int]
    """Reasons why rows could not be used, and how many each."""
    scalars: tuple[ScalarFit, ...]
    runs: tuple[FittedRun, ...]
    folds: int
    before: Errors
    after: Errors
    crossed: Errors | None
    left_out: Errors | None
    """Each source predicted by a fit to the others, where there are several."""
    sources: tuple[SourceErrors, ...]

    @property
    def helps(self) -> bool:
        """Whether the error falls on runs that were left out."""
        return self.stack.calibration is not None and self.stack.calibration.helps


def calibrate(
    runs: Iterable[Run],
    *,
    stack: Stack | None = None,
    cost: str = "analytic",
    role: str | None = None,
    only: Iterable[str] = (),
    name: str | None = None,
    seed: int = 0,
    today: datetime.date | None = None,
    interval_only: bool = False,
) -> Calibrated:
    """Fit a stack to measured runs, by robust least squares on log times with priors.

    Args:
        runs: what was measured, as ``trainplan validate`` reads it.
        stack: where to start, for all runs; by default the stack of their framework.
        cost: the cost model to fit under.
        role: only runs of this role.
        only: conditions ``column=value`` on runs, as :func:`search.accuracy.selected` has them.
        name: of the fitted stack; by default the first one's with ``-calibrated``.
        seed: of the parts that are left out in turn.
        today: the date in the sources of the fitted numbers.
        interval_only: move no number, measure how far off the stack is as it stands.

    Raises:
        ValueError: one line, where no run can be used, they are of several stacks, or the overall
            factor ends at its bound, which is a mistake in the runs and no fit.
    """
    check_cost_model(cost)
    if name is not None and not re.fullmatch(r"[\x21-\x7e]{1,80}", name):
        raise ValueError(
            f"name {short(name)} must be one word of up to 80 plain letters, digits and signs"
        )
    rows = forced(selected(mapped_rows(runs, role=role), only), stack)
    rows = [row for row in rows if row.seconds is not None]
    base = _one_stack(rows)
    rows = priced(rows, cost)
    _check_usable(rows, any(row.predicted is not None for row in rows))
    name = name or f"{base.name}-calibrated"
    return _fitted(rows, base, cost, name, seed, today, interval_only)


def _check_usable(rows: Sequence[Scored], usable: bool) -> None:
    """``ValueError`` with the first reason where no row is of use."""
    if not rows:
        raise ValueError(
            "no row has a step time to fit; give iter_time_s (seconds), tokens_per_s_per_gpu or "
            "samples_per_s"
        )
    if not usable:
        reason, count = next(iter(unmapped_reasons(rows).items()))
        raise ValueError(f"no row can be used; {count} of {len(rows)}: {reason}")


def _one_stack(rows: Sequence[Scored]) -> Stack:
    """The stack of all mapped rows; ``ValueError`` lists them where there are several."""
    found = [row.mapped.stack for row in rows if row.mapped is not None]
    _check_usable(rows, bool(found))
    counts = Counter(one.name for one in found)
    if len(counts) > 1:
        listed = ", ".join(f"{name} ({count} rows)" for name, count in counts.most_common())
        raise ValueError(
            f"the rows are of {len(counts)} stacks: {listed}; choose one with --only stack=NAME, "
            "or start all from one with --stack NAME"
        )
    return found[0]


def _fitted(
    rows: Sequence[Scored],
    base: Stack,
    cost: str,
    name: str,
    seed: int,
    today: datetime.date | None,
    interval_only: bool,
) -> Calibrated:
    found = configurations(rows)
    repricing = Repricing([_mapped(one) for one in found], cost)
    key = repricing.cost_name
    evidence = evidence_of(found)

    def predict(values: Mapping[str, float]) -> FloatArray:
        return np.log(repricing.seconds(with_values(base, values, key)))

    scalars = scalars_of(base, key)
    used = exercised(predict, scalars)
    candidates = [] if interval_only else used if len(found) >= FEW else used[:1]
    chosen = choose(predict, evidence, candidates) if candidates else UNMOVED
    before = predict({}) - evidence.log_seconds
    if IN_SITU in chosen.stuck:
        raise ValueError(_nonsense(scalars, chosen, float(np.median(before)), base))
    values = {one: rounded(value) for one, value in chosen.solution.values.items()}
    after = predict(values) - evidence.log_seconds
    free = [one for one in candidates if one.name in values]
    parts = folds(len(found), seed)
    crossed = before if interval_only else _left_out(predict, evidence, free, values, parts)
    by_source = _by_source(found)
    left_out = None
    if len(by_source) > 1 and not interval_only:
        left_out = _left_out(predict, evidence, free, values, list(by_source.values()))
    fits = tuple(_scalar_fit(one, base, key, chosen, values, used, candidates) for one in scalars)
    errors_after = None if crossed is None else Errors.of(crossed)
    calibration = Calibration(
        cost=key,
        collectives=_all(c for m in repricing.runs for c in collectives_of(m.cluster)),
        devices=_all(m.cluster.device.name for m in repricing.runs),
        precisions=_all(m.workload.precision for m in repricing.runs),
        sources=_all(by_source),
        rows=sum(len(one.rows) for one in found),
        configurations=len(found),
        scalars={
            one.name: FittedScalar(
                value=rounded(one.value),
                prior=rounded(one.prior),
                sd=rounded(one.sd),
                identified=one.state == "identified",
            )
            for one in fits
        },
        error_before=rounded(_typical(before, by_source)),
        error_after=None if crossed is None else rounded(_typical(crossed, by_source)),
        residuals=kept_residuals(crossed),
    )
    factor = _factors(repricing)
    times = _parts(repricing, with_values(base, values, key))
    return Calibrated(
        stack=stack_with(
            base,
            name,
            values,
            fits,
            key,
            calibration,
            () if crossed is None else (crossed / factor).tolist(),
            today,
        ),
        base=base,
        cost=key,
        rows=calibration.rows,
        unmapped=unmapped_reasons(rows),
        scalars=fits,
        runs=tuple(
            FittedRun(
                configuration=one,
                before=float(before[n]),
                after=float(after[n]),
                crossed=None if crossed is None else float(crossed[n]),
                parts=times[n],
                factor=float(factor[n]),
            )
            for n, one in enumerate(found)
        ),
        folds=len(parts),
        before=Errors.of(before),
        after=Errors.of(after),
        crossed=errors_after,
        left_out=None if left_out is None else Errors.of(left_out),
        sources=tuple(
            SourceErrors(
                source=source,
                configurations=len(at),
                before=Errors.of(before[at]),
                after=Errors.of(after[at]),
                crossed=None if crossed is None else Errors.of(crossed[at]),
                left_out=None if left_out is None else Errors.of(left_out[at]),
            )
            for source, at in by_source.items()
        ),
    )


def _nonsense(scalars: Sequence[Scalar], chosen: Chosen, error: float, base: Stack) -> str:
    """What to say where the overall factor ends at its bound."""
    others = [f"{name} at {bound:.3g}" for name, bound in chosen.stuck.items() if name != IN_SITU]
    after = f", after {' and '.join(others)}" if others else ""
    return (
        f"in_situ ends at its bound of {chosen.stuck[IN_SITU]:g}{after}: these runs take "
        f"{math.exp(-error):.2f} times as long as {base.name} predicts; check "
        f"{scalars[0].suspects}; nothing is written"
    )


def _mapped(one: Configuration) -> Mapped:
    mapped = one.rows[0].mapped
    assert mapped is not None
    return mapped


def _source(one: Configuration) -> str:
    return one.rows[0].run.source_id or "unnamed"


def _by_source(found: Sequence[Configuration]) -> dict[str, NDArray[np.int64]]:
    """Positions of each source's configurations."""
    at: dict[str, list[int]] = defaultdict(list)
    for n, one in enumerate(found):
        at[_source(one)].append(n)
    return {source: np.array(at[source]) for source in sorted(at)}


def _typical(residuals: FloatArray, by_source: Mapping[str, NDArray[np.int64]]) -> float:
    """Median error, averaged over sources, so that none decides by its size."""
    return mean(Errors.of(residuals[at]).median for at in by_source.values())


def _all(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(words)))


def evidence_of(found: Sequence[Configuration]) -> Evidence:
    """Noise by source, and weights by which a source counts as the root of its size."""
    sd, weight = np.empty(len(found)), np.empty(len(found))
    for at in _by_source(found).values():
        noises = [noise for n in at if (noise := found[n].noise) is not None]
        noise = math.log1p(median(noises)) / RANGE_OF_TWO if noises else 0.0
        sd[at] = max(LEAST_NOISE, noise)
        weight[at] = len(at) ** -0.5
    return Evidence(
        log_seconds=np.log([one.seconds for one in found]),
        sd=sd,
        weight=weight * (len(found) / weight.sum()),
    )


def folds(count: int, seed: int) -> list[NDArray[np.int64]]:
    """Positions to leave out in turn: each alone where there are few, else five random parts."""
    if count < 2:
        return []
    if count <= LEAVE_ONE_OUT:
        return [np.array([n]) for n in range(count)]
    order = np.random.default_rng(seed).permutation(count)
    return [np.sort(order[start::FOLDS]) for start in range(FOLDS)]


def _left_out(
    predict: Predict,
    evidence: Evidence,
    free: Sequence[Scalar],
    start: Mapping[str, float],
    parts: Sequence[NDArray[np.int64]],
) -> FloatArray | None:
    """Residuals of each part under a fit to the others; ``None`` where there is no other."""
    if len(parts) < 2:
        return None
    answer = np.empty(len(evidence.log_seconds))
    for at in parts:
        others = np.ones(len(answer), dtype=bool)
        others[at] = False
        fitted = solve(predict, evidence.only(others), free, start)
        answer[at] = (predict(fitted.values) - evidence.log_seconds)[at]
    return answer


def _scalar_fit(
    one: Scalar,
    base: Stack,
    cost: str,
    chosen: Chosen,
    values: Mapping[str, float],
    used: Sequence[Scalar],
    candidates: Sequence[Scalar],
) -> ScalarFit:
    before = value_of(base, one.name, cost)
    state: State = "identified"
    sd = chosen.solution.sd.get(one.name, one.sd)
    if one not in used:
        state = "not exercised"
    elif not candidates:
        state = "held"
    elif one not in candidates:
        state = "too few runs"
    elif one.name in chosen.stuck:
        state = "at its bound"
    elif one.name in chosen.weak:
        state, sd = "at its prior", chosen.weak[one.name]
    elif sd >= IDENTIFIED * one.sd:
        state = "shrunk"
    return ScalarFit(
        name=one.name,
        before=before,
        value=values.get(one.name, before),
        prior=one.centre,
        prior_sd=one.sd,
        sd=sd,
        state=state,
        bound=chosen.stuck.get(one.name),
        suspects=one.suspects,
    )


def _factors(repricing: Repricing) -> FloatArray:
    """By how much intervals of each run's class are wider, (N,)."""
    factor = np.empty(len(repricing.runs))
    for members, one in zip(repricing.members, repricing.base, strict=True):
        factor[members] = class_factor(one.model, one.pricer)
    return factor


def _parts(repricing: Repricing, stack: Stack) -> list[dict[str, float]]:
    """Predicted seconds by part of each run."""
    answer: list[dict[str, float]] = [{} for _ in repricing.runs]
    for members, priced_ in zip(repricing.members, repricing.estimates(stack), strict=True):
        for n, i in enumerate(members):
            answer[i] = {part: float(value[n]) for part, value in priced_.time.items()}
    return answer
