"""The most likely scalars of a stack: robust least squares on log times, with priors.

Suffixes: N runs, F free scalars.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from estimator.lower.slots import FloatArray
from search.scalars import IN_SITU, Scalar

HUBER = 0.10
"""Errors (of the logarithm) beyond this count linearly: a row that is that far off tells of
something else than the scalars."""
IDENTIFIED = 0.6
"""A scalar is identified where the runs shrink the spread of its prior to below this share."""
STEP = 1e-3
"""Of a finite difference, in the logarithm of a scalar."""
MOST_STEPS = 12
CLOSE = 0.01
"""A step is the last where it moves no scalar by more (in spreads of its prior)."""
TINY = 1e-3
FAR = 0.25
"""Spreads of its prior over which a scalar's effect is taken to be linear."""
RAISED = 1.5
"""Spreads of its prior by which a small scalar is raised in a second start; twice as far, it is
seen whether the runs would tell of it."""
NOTHING = 1e-4
"""A scalar by which no prediction moves more (relative, per e-fold) is not exercised."""

Predict = Callable[[Mapping[str, float]], FloatArray]
"""Values of scalars by name (others as in the base) -> logarithms of predicted seconds, (N,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was measured."""

    log_seconds: FloatArray
    sd: FloatArray
    """Noise of each run's logarithm."""
    weight: FloatArray
    """How much each run counts."""

    def only(self, rows: NDArray[np.bool_]) -> Evidence:
        """The evidence without the other rows: they weigh nothing."""
        return Evidence(log_seconds=self.log_seconds, sd=self.sd, weight=self.weight * rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Values of free scalars, and how sure they are."""

    values: dict[str, float]
    sd: dict[str, float]
    """Posterior standard deviations of the logarithms."""
    precision: FloatArray
    """Posterior precision of the logarithms, (F, F)."""
    slope: FloatArray
    """Change of each log time per change of each logarithm, (N, F), at or near the values."""
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A fit of those scalars that the evidence identifies."""

    free: list[Scalar]
    solution: Solution
    weak: dict[str, float] = field(default_factory=dict)
    """Scalars that stay where they were, with their posterior deviations."""
    stuck: dict[str, float] = field(default_factory=dict)
    """Scalars that a fit drove to a bound, with that bound; they stay where they were."""


def jacobian(predict: Predict, free: Sequence[Scalar], values: Mapping[str, float]) -> FloatArray:
    """Change of each log time per change of each scalar's logarithm, (N, F)."""
    here = predict(values)
    columns = []
    for one in free:
        if one.name == IN_SITU:  # a factor of the whole step
            columns.append(np.ones_like(here))
            continue
        step = STEP if values[one.name] * np.exp(STEP) <= one.high else -STEP
        there = predict({**values, one.name: values[one.name] * np.exp(step)})
        columns.append((there - here) / step)
    return np.stack(columns, axis=1) if columns else np.zeros((len(here), 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """Scalars by what the runs could tell of each at best, before anything is fitted."""

    exercised: list[Scalar]
    """They change some prediction, at their centres or with the small ones raised."""
    hopeless: dict[str, float]
    """Of these, the ones that would stay at their prior even if all others were known and the model
    exact; with the deviation that they would have."""


def screen(predict: Predict, evidence: Evidence, scalars: Sequence[Scalar]) -> Screened:
    """What the runs could tell of each scalar; the overall factor is never hopeless."""
    points = (_centres(scalars), _raised(scalars, 2 * RAISED))
    slopes = [abs(jacobian(predict, scalars, at)) for at in points]
    told = np.max([(evidence.weight / evidence.sd**2) @ slope**2 for slope in slopes], axis=0)
    most = np.max([slope.max(axis=0) for slope in slopes], axis=0)
    exercised = []
    hopeless: dict[str, float] = {}
    for one, largest, information in zip(scalars, most, told, strict=True):
        sd = (information + one.sd**-2) ** -0.5
        if largest > NOTHING or one.name == IN_SITU:
            exercised.append(one)
            if sd >= IDENTIFIED * one.sd and one.name != IN_SITU:
                hopeless[one.name] = float(sd)
    return Screened(exercised=exercised, hopeless=hopeless)


def _centres(scalars: Sequence[Scalar]) -> dict[str, float]:
    return {one.name: one.centre for one in scalars}


def _raised(scalars: Sequence[Scalar], spreads: float = RAISED) -> dict[str, float]:
    """The small ones as large as they need to be to be felt."""
    return {one.name: one.value(spreads * one.sd * one.small) for one in scalars}


def solve(
    predict: Predict,
    evidence: Evidence,
    free: Sequence[Scalar],
    start: Mapping[str, float],
    slope: FloatArray | None = None,
) -> Solution:
    """Scalars of the highest posterior: pseudo-Huber errors of runs, quadratic priors.

    Logarithms of times are nearly linear in those of the scalars. So each step solves the robust
    problem of the linear model whole, and few steps price the runs again. ``slope`` is the
    Jacobian at ``start``, where it is known; it is taken again once a scalar has moved by ``FAR``.
    """
    x = np.array([np.log(start[one.name] / one.centre) for one in free])
    spread = np.array([one.sd for one in free])
    scale = np.sqrt(evidence.weight) / evidence.sd
    ranges = [one.range for one in free]

    def values(x: FloatArray) -> dict[str, float]:
        return {one.name: one.value(float(xi)) for one, xi in zip(free, x, strict=True)}

    def errors(x: FloatArray) -> FloatArray:
        return predict(values(x)) - evidence.log_seconds

    def loss(error: FloatArray, x: FloatArray) -> float:
        bent, _ = pseudo_huber(error)
        return float(((scale * bent) ** 2).sum() + ((x / spread) ** 2).sum())

    error, sloped_at = errors(x), x
    for _ in range(MOST_STEPS):
        if slope is None or abs((x - sloped_at) / spread).max() > FAR:
            slope, sloped_at = jacobian(predict, free, values(x)), x
        aim, jac, cost = _linear(error, slope, x, scale, spread, ranges)
        step = aim - x
        while loss(errors(x + step), x + step) > loss(error, x) and abs(step / spread).max() > TINY:
            step = step / 2
        x = x + step
        error = errors(x)
        if abs(step / spread).max() < CLOSE:
            break
    # Runs scatter by more than their noise, since the model is not exact: they tell less then.
    scatter = cost / max(int((evidence.weight > 0).sum()) - len(free), 1)
    precision = jac.T @ jac / max(scatter, 1.0) + np.diag(1 / spread**2)
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    assert slope is not None
    return Solution(
        values=values(x),
        sd={one.name: float(each) for one, each in zip(free, sd, strict=True)},
        precision=precision,
        slope=slope,
        loss=loss(error, x),
    )


def _linear(
    error: FloatArray,
    slope: FloatArray,
    x: FloatArray,
    scale: FloatArray,
    spread: FloatArray,
    ranges: Sequence[tuple[float, float]],
) -> tuple[FloatArray, FloatArray, float]:
    """The best scalars if errors were linear in them; there, the runs' Jacobian and their loss."""
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    def residuals(y: FloatArray) -> FloatArray:
        bent, _ = pseudo_huber(error + slope @ (y - x))
        return np.concatenate([scale * bent, y / spread])

    def slopes(y: FloatArray) -> FloatArray:
        _, bend = pseudo_huber(error + slope @ (y - x))
        return np.concatenate([(scale * bend)[:, None] * slope, np.diag(1 / spread)])

    low, high = np.array(ranges).T
    found = least_squares(
        residuals,
        np.clip(x, low + 1e-9, high - 1e-9),
        jac=slopes,
        bounds=(low, high),
        x_scale=spread,
        xtol=1e-8,
        ftol=1e-12,
        max_nfev=300,
    )
    runs = len(error)
    return found.x, found.jac[:runs], float((found.fun[:runs] ** 2).sum())


def pseudo_huber(error: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The residual whose square is the pseudo-Huber loss of an error, and its derivative.

    ``loss = 2 d^2 (sqrt(1 + (e / d)^2) - 1)`` with ``d`` = ``HUBER``: ``e^2`` for small errors,
    ``2 d |e|`` for large ones (Charbonnier et al. 1997).
    """
    root = np.sqrt(1 + (error / HUBER) ** 2)
    bend = np.sqrt(2 / (1 + root))
    return error * bend, 1 / (bend * root)


def choose(
    predict: Predict,
    evidence: Evidence,
    candidates: Sequence[Scalar],
    hopeless: Mapping[str, float],
) -> Chosen:
    """Fit all but the hopeless; give up those at a bound, then those left at their prior; again.

    The overall factor always moves. At its bound it ends the search: ``stuck`` holds it then.
    Without candidates nothing moves.
    """
    free = [one for one in candidates if one.name not in hopeless]
    starts = [_centres(free), _raised(free)] if any(one.small for one in free) else [_centres(free)]
    weak = {one.name: hopeless[one.name] for one in candidates if one.name in hopeless}
    stuck: dict[str, float] = {}
    if not free:
        return Chosen(free=free, solution=_nothing(evidence))
    while True:
        solution = min((solve(predict, evidence, free, start) for start in starts), key=_loss)
        at_bound = {
            one.name: bound
            for one in free
            if (bound := one.bound_of(solution.values[one.name])) is not None
        }
        stuck |= at_bound
        vague = {} if at_bound else _unidentified(solution, free)
        weak |= vague
        if IN_SITU in at_bound or not (at_bound or vague):
            return Chosen(free=free, solution=solution, weak=weak, stuck=stuck)
        free = [one for one in free if one.name not in at_bound and one.name not in vague]
        starts = [solution.values]


def _nothing(evidence: Evidence) -> Solution:
    """The solution in which no scalar is free."""
    none = np.zeros((len(evidence.log_seconds), 0))
    return Solution(values={}, sd={}, precision=none.T @ none, slope=none, loss=0.0)


def _loss(solution: Solution) -> float:
    return solution.loss


def _unidentified(solution: Solution, free: Sequence[Scalar]) -> dict[str, float]:
    """Scalars to give up, the vaguest first, each with its deviation while it was free."""
    left = list(range(len(free)))
    given_up: dict[str, float] = {}
    while True:
        sd = np.sqrt(np.diag(np.linalg.inv(solution.precision[np.ix_(left, left)])))
        ratio = {i: s / free[i].sd for i, s in zip(left, sd, strict=True)}
        worst = max((i for i in left if free[i].name != IN_SITU), key=ratio.__getitem__, default=-1)
        if worst < 0 or ratio[worst] < IDENTIFIED:
            return given_up
        given_up[free[worst].name] = float(ratio[worst] * free[worst].sd)
        left.remove(worst)
