"""Fit a few physical numbers of a stack to measured runs, and say what that is worth.

Suffix N: distinct configurations.
"""

from __future__ import annotations

import datetime
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import mean, median
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from estimator.catalog.reading import short
from estimator.intervals import class_factor, collectives_of
from estimator.lower.slots import FloatArray
from estimator.mapping import Mapped
from estimator.pricers import check_cost_model
from estimator.runs import Run
from estimator.stack import Calibration, FittedScalar, Stack
from search.accuracy import Configuration, configurations, selected, unmapped_reasons
from search.calibrated_stack import kept_residuals, rounded, stack_with, with_values
from search.left_out import folds, left_out
from search.posterior import IDENTIFIED, Chosen, Evidence, choose, screen
from search.repricing import Repricing
from search.scalars import IN_SITU, Scalar, scalars_of, value_of
from search.validate import Scored, forced, mapped_rows, priced

LEAST_NOISE = 0.05
"""Of a published step time, whatever its source says (median of 17 publishers)."""
RANGE_OF_TWO = 1.128
"""Expected range of two draws, over their standard deviation."""
FEW = 3
"""Fewer distinct configurations than this move the overall factor only."""

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
    refused: Errors | None = None
    """Of runs left out of a fit that did not help, where that is why no number moved."""

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

    A fit that does not lower the median error of runs left out of it is refused: the numbers stay,
    and the interval is that of the stack as it is.

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
    found = _fitted(rows, base, cost, name, seed, today, interval_only)
    if interval_only or len(found.runs) < 2 or found.helps:
        return found
    held = _fitted(rows, base, cost, name, seed, today, True)
    return replace(held, refused=found.crossed)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Residuals:
    """Logarithms of predicted over measured time, (N,)."""

    before: FloatArray
    after: FloatArray
    crossed: FloatArray | None
    left_out: FloatArray | None

    def errors(self, at: NDArray[np.int64]) -> dict[str, Errors | None]:
        """Errors of some runs under each name."""
        return {
            f.name: None if (each := getattr(self, f.name)) is None else Errors.of(each[at])
            for f in fields(self)
        }


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
    screened = screen(predict, evidence, scalars)
    few = len(found) < FEW
    candidates = [] if interval_only else [scalars[0]] if few else screened.exercised
    chosen = choose(predict, evidence, candidates, screened.hopeless)
    before = predict({}) - evidence.log_seconds
    alone = few and not interval_only
    if IN_SITU in chosen.stuck or (alone and _beyond(scalars[0], float(np.median(before)))):
        raise ValueError(_nonsense(scalars, chosen, float(np.median(before)), base))
    values = {one: rounded(value) for one, value in chosen.solution.values.items()}
    parts, by_source = folds(len(found), seed), _by_source(found)
    residuals = _Residuals(
        before=before,
        after=predict(values) - evidence.log_seconds,
        crossed=before if interval_only else left_out(predict, evidence, chosen, parts),
        left_out=left_out(predict, evidence, chosen, list(by_source.values())),
    )
    used = {} if interval_only else {one.name: one in screened.exercised for one in scalars}
    fits = tuple(_scalar_fit(one, base, key, chosen, used) for one in scalars)
    calibration = _calibration(found, repricing, fits, residuals, by_source)
    factor = _factors(repricing)
    crossed = residuals.crossed
    standard = [] if crossed is None else (crossed / factor).tolist()
    models = [_mapped(one).model.name for one in found] if standard else []
    times = _parts(repricing, with_values(base, values, key))
    errors: dict[str, Any] = residuals.errors(np.arange(len(found)))
    return Calibrated(
        stack=stack_with(base, name, values, calibration, standard, models, today),
        base=base,
        cost=key,
        rows=calibration.rows,
        unmapped=unmapped_reasons(rows),
        scalars=fits,
        runs=tuple(
            FittedRun(
                configuration=one,
                before=float(residuals.before[n]),
                after=float(residuals.after[n]),
                crossed=None if crossed is None else float(crossed[n]),
                parts=times[n],
                factor=float(factor[n]),
            )
            for n, one in enumerate(found)
        ),
        folds=len(parts),
        sources=tuple(_source_errors(*item, residuals) for item in by_source.items()),
        **errors,
    )


def _source_errors(source: str, at: NDArray[np.int64], residuals: _Residuals) -> SourceErrors:
    errors: dict[str, Any] = residuals.errors(at)
    return SourceErrors(source=source, configurations=len(at), **errors)


def _calibration(
    found: Sequence[Configuration],
    repricing: Repricing,
    fits: Sequence[ScalarFit],
    residuals: _Residuals,
    by_source: Mapping[str, NDArray[np.int64]],
) -> Calibration:
    """What the fitted stack's file says of its fit."""
    crossed = residuals.crossed
    return Calibration(
        cost=repricing.cost_name,
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
        error_before=rounded(_typical(residuals.before, by_source)),
        error_after=None if crossed is None else rounded(_typical(crossed, by_source)),
        residuals=kept_residuals(crossed),
    )


def _beyond(in_situ: Scalar, error: float) -> bool:
    """Whether the factor that would undo an error lies at a bound or beyond."""
    low, high = in_situ.range
    return not low < -error < high


def _nonsense(scalars: Sequence[Scalar], chosen: Chosen, error: float, base: Stack) -> str:
    """What to say where the overall factor ends at its bound."""
    in_situ = scalars[0]
    bound = chosen.stuck.get(IN_SITU, in_situ.low if error > 0 else in_situ.high)
    others = [f"{name} at {at:.3g}" for name, at in chosen.stuck.items() if name != IN_SITU]
    after = f", after {' and '.join(others)}" if others else ""
    return (
        f"in_situ ends at its bound of {bound:g}{after}: these runs take {math.exp(-error):.2f} "
        f"times as long as {base.name} predicts; check {in_situ.suspects}; nothing is written"
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


def _scalar_fit(
    one: Scalar, base: Stack, cost: str, chosen: Chosen, used: Mapping[str, bool]
) -> ScalarFit:
    """What became of a scalar; ``used`` says which the runs exercise, nothing where none moves."""
    name, before = one.name, value_of(base, one.name, cost)
    state: State
    value, sd = before, one.sd
    if name in chosen.solution.values:
        value, sd = rounded(chosen.solution.values[name]), chosen.solution.sd[name]
        state = "identified" if sd < IDENTIFIED * one.sd else "shrunk"
    elif name in chosen.stuck:
        state = "at its bound"
    elif name in chosen.weak:
        state, sd = "at its prior", chosen.weak[name]
    elif name not in used:
        state = "held"
    else:
        state = "too few runs" if used[name] else "not exercised"
    return ScalarFit(
        name=name,
        before=before,
        value=value,
        prior=one.centre,
        prior_sd=one.sd,
        sd=sd,
        state=state,
        bound=chosen.stuck.get(name),
        suspects=one.suspects,
    )


def _factors(repricing: Repricing) -> FloatArray:
    """By how much intervals of each run's class are wider, (N,)."""
    factor = np.empty(len(repricing.runs))
    for members, one in zip(repricing.members, repricing.base, strict=True):
        factor[members] = class_factor(one.model)
    return factor


def _parts(repricing: Repricing, stack: Stack) -> list[dict[str, float]]:
    """Predicted seconds by part of each run."""
    answer: list[dict[str, float]] = [{} for _ in repricing.runs]
    for members, priced_ in zip(repricing.members, repricing.estimates(stack), strict=True):
        for n, i in enumerate(members):
            answer[i] = {part: float(value[n]) for part, value in priced_.time.items()}
    return answer
