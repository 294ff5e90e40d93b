"""The stack that a calibration leaves behind: its numbers, their sources, and its interval."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from estimator.intervals import WIDEST
from estimator.lower.slots import FloatArray
from estimator.stack import Calibration, Stack
from search.scalars import scalars_of, with_value

ENOUGH = 9
"""Residuals that an 80 % quantile needs before it says more than the largest of them."""
DRAWS = 2000
COVERED = 0.8
MOST_RESIDUALS = 50
DIGITS = 4
"""Of fitted values."""


def rounded(value: float) -> float:
    """A fitted number with as many digits as it deserves."""
    return float(f"{value:.{DIGITS}g}")


def with_values(base: Stack, values: Mapping[str, float], cost: str) -> Stack:
    """A stack with these scalars, by name, in place of its own."""
    for name, value in values.items():
        base = with_value(base, name, value, cost)
    return base


def kept_residuals(crossed: FloatArray | None) -> tuple[float, ...]:
    """Residuals as a stack's file keeps them: sorted, quantiles of them where there are many."""
    if crossed is None:
        return ()
    kept = np.sort(crossed)
    if len(kept) > MOST_RESIDUALS:
        kept = np.quantile(kept, (np.arange(MOST_RESIDUALS) + 0.5) / MOST_RESIDUALS)
    return tuple(rounded(float(each)) for each in kept)


def conformal(residuals: Sequence[float], models: Sequence[str], least: float) -> float:
    """Half width (relative) that covers 80 % of runs like those that were left out.

    The quantile of the residuals' sizes is the one of split-conformal prediction, rank
    ``ceil(0.8 (n + 1))`` (Lei et al. 2018, arXiv 1604.04173). Runs of one model err alike, and the
    next model is a draw among models: where it is larger, the mean quantile of one run drawn of
    each model counts (after Dunn, Wasserman and Ramdas 2022, arXiv 1809.07441, subsampling). With
    fewer residuals than ``ENOUGH`` it is the largest, and not under ``least``.
    """
    sizes = [abs(each) for each in residuals]
    if len(sizes) < ENOUGH:
        return min(max([least, *(math.expm1(each) for each in sizes)]), WIDEST)
    own: dict[str, list[float]] = {}
    for size, model in zip(sizes, models, strict=True):
        own.setdefault(model, []).append(size)
    width = float(_covering(np.array([sizes]))[0])
    if len(own) > 1:
        chance = np.random.default_rng(0)
        drawn = np.stack([chance.choice(each, DRAWS) for each in own.values()], axis=1)
        width = max(width, float(_covering(drawn).mean()))
    return min(math.expm1(width), WIDEST)


def _covering(sizes: FloatArray) -> FloatArray:
    """The conformal quantile of each row of sizes (N, n), or the largest of too few; shape (N,)."""
    count = sizes.shape[1]
    rank = min(math.ceil(COVERED * (count + 1)), count)
    found: FloatArray = np.sort(sizes, axis=1)[:, rank - 1]
    return found


def stack_with(
    base: Stack,
    name: str,
    values: Mapping[str, float],
    calibration: Calibration,
    standard: Sequence[float],
    models: Sequence[str],
    today: datetime.date | None,
) -> Stack:
    """The fitted stack: each number that moved says so, the others keep their sources.

    ``standard`` are errors of runs left out, each over the factor of its class: the interval's;
    ``models`` names what each ran.
    """
    cost, named = calibration.cost, calibration.sources
    words = ", ".join(named[:4]) + (f" and {len(named) - 4} more" if len(named) > 4 else "")
    date = (today or datetime.date.today()).isoformat()
    fitted = (
        f"trainplan calibrate, {calibration.rows} runs of {words}, cost {cost}, from {base.name}, "
        f"{date}"
    )
    stack = with_values(base, values, cost)
    sources = dict(base.sources)
    for one in scalars_of(base, cost):
        if one.name in values:
            sources |= dict.fromkeys(one.fields, fitted)
    others = ", ".join(key for key in stack.in_situ if key != cost)
    if others:
        before = "" if base.calibration else f" ({base.sources.get('in_situ', 'no source')})"
        sources["in_situ"] = f"{cost}: {fitted}; {others}: as in {base.name}{before}"
    count, ran = len(calibration.residuals), len(set(models))
    how = "each predicted by a fit to others" if values else f"predicted by {base.name} as it is"
    sources["uncertainty"] = (
        f"{fitted}: 80 % of errors of {calibration.configurations} configurations "
        f"({ran} model{'s' * (ran > 1)}), {how}, each over the factor of its class "
        "(estimator/intervals.py)"
        if count >= ENOUGH
        else f"{fitted}: with {count} errors of runs left out, the largest of them or what was "
        "assumed before"
    )
    return replace(
        stack,
        name=name,
        uncertainty=rounded(conformal(standard, models, base.uncertainty)),
        sources=sources,
        calibration=calibration,
    )
