"""Runs predicted by a fit to the others: what a fit is worth where it was not fitted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from estimator.lower.slots import FloatArray
from search.posterior import Chosen, Evidence, Predict, solve

LEAVE_ONE_OUT = 12
"""Up to so many runs each is left out alone; more are left out in ``FOLDS`` parts."""
FOLDS = 5


def folds(count: int, seed: int) -> list[NDArray[np.int64]]:
    """Positions to leave out in turn: each alone where there are few, else five random parts."""
    if count < 2:
        return []
    if count <= LEAVE_ONE_OUT:
        return [np.array([n]) for n in range(count)]
    order = np.random.default_rng(seed).permutation(count)
    return [np.sort(order[start::FOLDS]) for start in range(FOLDS)]


def left_out(
    predict: Predict, evidence: Evidence, chosen: Chosen, parts: Sequence[NDArray[np.int64]]
) -> FloatArray | None:
    """Logarithms of predicted over measured time of each part, the scalars fitted to the others.

    The same scalars move as in the fit to all, whose values are where each starts. ``None`` where
    there are not two parts.
    """
    if len(parts) < 2 or not chosen.free:
        return None
    whole = chosen.solution
    answer = np.empty(len(evidence.log_seconds))
    for at in parts:
        others = np.ones(len(answer), dtype=bool)
        others[at] = False
        fitted = solve(predict, evidence.only(others), chosen.free, whole.values, whole.slope)
        answer[at] = (predict(fitted.values) - evidence.log_seconds)[at]
    return answer
