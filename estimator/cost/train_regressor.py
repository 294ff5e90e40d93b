"""Fitting one operator's efficiency: an affine line, a forest or boosted trees, by what they miss.

Each form is scored on samples that it has not seen: whole shapes left out in turn, and the largest
fifth left out at once. The one with the smaller sum of both is fitted on all samples. Trees need
scikit-learn, which is imported here only while fitting.

Suffixes: R rows, F features.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from estimator.cluster import Device
from estimator.cost import rounding
from estimator.cost.kernels import PRODUCTS
from estimator.cost.regressor import (
    FORMS,
    SIZES,
    Form,
    Regressor,
    affine_efficiency,
    affine_terms,
    features,
    floor_seconds,
    identity,
)
from estimator.cost.trees import Trees, heap
from estimator.lower.operators import flops, moved_bytes
from estimator.operators import FloatArray, Operators
from estimator.samples import Samples

FEWEST_SHAPES = 60
"""Distinct shapes under which only the affine form is fitted."""
FOLDS = 2
LARGEST = 0.2
SCORE_DECIMALS = 6
BOOSTED: dict[str, Any] = {
    "n_estimators": 40,
    "learning_rate": 0.2,
    "subsample": 0.9,
    "max_features": 0.7,
    "loss": "huber",
    "alpha": 0.8,
}
"""Few trees, so that prediction is quick; Huber's loss, so that rows far off do not decide."""
FOREST: dict[str, Any] = {"n_estimators": 24, "max_features": 0.5}
DEPTH, VECTOR_DEPTH = 7, 5
"""Of trees: kinds bound by memory have smoother efficiencies than products."""
FEWEST_IN_LEAF = 5

Rows = NDArray[np.bool_]


def fit_regressor(samples: Samples, device: Device, *, seed: int = 0) -> Regressor:
    """Fit the samples of one operator: one kind, phase, dtype and (but for products) name."""
    ops, seconds = samples.ops, samples.seconds
    known = features(ops, device)
    scores: dict[str, tuple[float, float]] = {
        form: (
            _score(form, samples, device, known, folds(known, seed), seed),
            _score(form, samples, device, known, [largest(ops)], seed),
        )
        for form in _possible(known)
    }
    best = min(_possible(known), key=lambda form: (sum(scores[form]), FORMS.index(form)))
    everything = np.ones(len(ops), dtype=bool)
    affine = fit_affine(ops, seconds, device)
    trees = None
    if best != "affine":
        trees = fit_trees(best, samples, device, known, everything, seed)
    kind = str(ops.kind[0])
    return Regressor(
        device=device.name,
        kind=kind,
        name=identity(kind, str(ops.name[0])),
        phase=str(ops.phase[0]),
        dtype=str(ops.dtype[0]),
        form=best,
        affine=affine,
        trees=trees,
        low=known[: len(SIZES)].min(axis=1),
        high=known[: len(SIZES)].max(axis=1),
        rows=len(ops),
        scores=scores,
    )


def _possible(known: FloatArray) -> tuple[Form, ...]:
    shapes = len(np.unique(known, axis=1).T)
    return FORMS if shapes >= FEWEST_SHAPES else ("affine",)


def _target(samples: Samples, device: Device) -> FloatArray:
    """Logarithm of the measured efficiency; arrays that stay in the cache may seem over 1."""
    reached = np.log(floor_seconds(samples.ops, device) / samples.seconds)
    return rounding.targets(np.minimum(reached, 0.0))


def folds(known: FloatArray, seed: int) -> list[Rows]:
    """Rows to leave out, fold by fold; equal shapes stay together."""
    _, shape = np.unique(known, axis=1, return_inverse=True)
    shape = np.ravel(shape)
    order = np.random.default_rng(seed).permutation(int(shape.max()) + 1)
    return [order[shape] % FOLDS == fold for fold in range(min(FOLDS, len(order)))]


def largest(ops: Operators) -> Rows:
    """The largest fifth by FLOPs, or by bytes for what is bound by memory."""
    size = np.where(np.isin(ops.kind, PRODUCTS), flops(ops), moved_bytes(ops))
    return np.asarray(size > np.quantile(size, 1 - LARGEST))


def _score(
    form: Form,
    samples: Samples,
    device: Device,
    known: FloatArray,
    left_out: list[Rows],
    seed: int,
) -> float:
    """Mean relative error over the rows left out; 0 where there is nothing to leave out."""
    errors = [
        np.abs(held_out(form, samples, device, known, out, seed) / samples.seconds[out] - 1)
        for out in left_out
        if out.any() and not out.all()
    ]
    return round(float(np.concatenate(errors).mean()), SCORE_DECIMALS) if errors else 0.0


def held_out(
    form: Form, samples: Samples, device: Device, known: FloatArray, out: Rows, seed: int
) -> FloatArray:
    """Seconds of the rows left out, predicted from the others."""
    ops = samples.ops.take(out)
    floor = floor_seconds(ops, device)
    if form == "affine":
        line = fit_affine(samples.ops.take(~out), samples.seconds[~out], device)
        return floor / affine_efficiency(line, ops, device)
    trees = fit_trees(form, samples, device, known, ~out, seed)
    return np.asarray(floor / np.exp(np.minimum(trees.predict(known[:, out]), 0.0)))


def fit_affine(ops: Operators, seconds: FloatArray, device: Device) -> FloatArray:
    """Non-negative weights of ``affine_terms`` with least relative errors, shape (3,)."""
    from scipy.optimize import nnls  # type: ignore[import-untyped]

    terms = affine_terms(ops, device) / seconds
    scale = np.maximum(terms.max(axis=1), np.finfo(float).tiny)
    found, _ = nnls((terms / scale[:, None]).T, np.ones(len(ops)))
    return rounding.significant(np.where(terms.any(axis=1), found / scale, 0.0))


def fit_trees(
    form: Form, samples: Samples, device: Device, known: FloatArray, rows: Rows, seed: int
) -> Trees:
    """A forest or boosted trees of scikit-learn on the chosen rows, as heaps.

    Raises:
        ValueError: scikit-learn is not installed.
    """
    try:
        from sklearn.ensemble import (  # type: ignore[import-untyped]
            GradientBoostingRegressor,
            RandomForestRegressor,
        )
    except ImportError as error:
        raise ValueError(
            "fitting trees needs scikit-learn; pip install 'trainplan[learn]'"
        ) from error
    shared = {
        "min_samples_leaf": FEWEST_IN_LEAF,
        "max_depth": DEPTH if samples.ops.kind[0] in PRODUCTS else VECTOR_DEPTH,
        "random_state": seed,
    }
    x, y = known[:, rows].T, _target(samples, device)[rows]
    if form == "forest":
        forest = RandomForestRegressor(**FOREST, **shared).fit(x, y)
        trees = [tree.tree_ for tree in forest.estimators_]
        return heap(trees, base=0.0, scale=1 / len(trees))
    boosted = GradientBoostingRegressor(**BOOSTED, **shared).fit(x, y)
    trees = [tree.tree_ for tree in boosted.estimators_[:, 0]]
    return heap(trees, base=float(boosted.init_.predict(x[:1])[0]), scale=BOOSTED["learning_rate"])
