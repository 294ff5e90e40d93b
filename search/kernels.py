"""Fit models of kernels, and say how wrong they are where they were not fitted.

Three splits: *shapes* holds out every fifth shape (of a product, every fifth pair of n and k at all
m); *largest* the fifth with most work, which only extrapolation reaches; *device* a whole
architecture, priced by what was fitted on the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from estimator.catalog import load_device
from estimator.cost.kernels import PRODUCTS, KernelModel
from estimator.lower.operators import flops, moved_bytes
from estimator.samples import Samples, medians

FORMS = ("regression", "surfaces", "tiles")
HELD_OUT = 0.2


class Fitted(KernelModel, Protocol):
    """A kernel model that can be written to a file."""

    def npz(self) -> bytes:
        """One .npz file with all parameters, without pickle."""
        ...


Fit = Callable[[Samples], Fitted]
Rows = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Relative errors of held-out rows of one operator on one device; ``bias`` is the median."""

    split: str
    device: str
    kind: str
    name: str
    phase: str
    dtype: str
    rows: int
    mean: float
    median: float
    p90: float
    bias: float


def fitter(form: str, *, hold_out: tuple[str, ...] = (), seed: int = 0) -> Fit:
    """The fit of a form, ``samples -> model``; ``ValueError`` lists the known ones."""
    if form == "surfaces":
        from estimator.cost.train_surface import fit_surfaces

        return partial(fit_surfaces, hold_out=hold_out, seed=seed)
    if form == "regression":
        from estimator.cost.regression import fit_regression

        return partial(fit_regression, hold_out=hold_out, seed=seed)
    if form == "tiles":
        from estimator.cost.train_tiles import fit_tiles

        return partial(fit_tiles, hold_out=hold_out, seed=seed)
    raise ValueError(f"unknown form {form!r} of kernel models; use one of {', '.join(FORMS)}")


def of_devices(samples: Samples, names: Sequence[str]) -> Rows:
    """Rows of some devices, shape (N,)."""
    return np.isin(samples.device, list(names))


def evaluate(samples: Samples, fit: Fit, *, seed: int = 0) -> list[Score]:
    """Scores of every split that the samples allow, by operator and device.

    Collections that measured the same shape on a device count as one row, their median.
    """
    table = medians(samples)
    scores = []
    for split, held in _splits(table, seed):
        if held.all() or not held.any():
            continue
        model = fit(table.take(~held))
        scores += _scored(split, table.take(held), model)
    return scores


def _splits(table: Samples, seed: int) -> Iterator[tuple[str, Rows]]:
    yield "shapes", held_shapes(table, seed)
    yield "largest", _largest(table)
    families = np.array([load_device(name).architecture for name in table.device.tolist()])
    for family in np.unique(families).tolist():
        yield "device", families == family


def held_shapes(table: Samples, seed: int) -> Rows:
    """Rows of every fifth shape, the same ones on all devices."""
    ops = table.ops
    product = np.isin(ops.kind, ("linear", "bmm"))
    free = np.where(product, 0.0, ops.m)
    batch = np.where(product, 0.0, ops.batch)
    shapes = np.stack([free, batch, ops.n, ops.k, ops.heads, ops.kv_heads], axis=1)
    unique, group = np.unique(shapes, axis=0, return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(unique))
    chosen = order[: round(HELD_OUT * len(unique))]
    return np.isin(group.ravel(), chosen)


def _largest(table: Samples) -> Rows:
    """The fifth of each operator's rows with most FLOPs, or bytes where memory binds."""
    ops = table.ops
    work = np.where(np.isin(ops.kind, PRODUCTS), flops(ops), moved_bytes(ops))
    held = np.zeros(len(table), dtype=bool)
    for rows in _operators(table).values():
        held[rows] = work[rows] > np.quantile(work[rows], 1 - HELD_OUT)
    return held


def _operators(table: Samples) -> dict[tuple[str, ...], NDArray[np.int64]]:
    """Rows of each operator: device, kind, name, phase, dtype."""
    ops = table.ops
    labels = np.stack([table.device, ops.kind, ops.name, ops.phase, ops.dtype], axis=1)
    unique, group = np.unique(labels, axis=0, return_inverse=True)
    return {
        tuple(label.tolist()): np.flatnonzero(group.ravel() == index)
        for index, label in enumerate(unique)
    }


def _scored(split: str, held: Samples, model: KernelModel) -> list[Score]:
    scores = []
    for (name, kind, operator, phase, dtype), rows in _operators(held).items():
        part, device = held.take(rows), load_device(name)
        covered = model.covers(part.ops, device)
        if not covered.any():
            continue
        part = part.take(covered)
        error = model.seconds(part.ops, device) / part.ops.count / part.seconds - 1
        size = np.abs(error)
        scores.append(
            Score(
                split=split,
                device=name,
                kind=kind,
                name=operator,
                phase=phase,
                dtype=dtype,
                rows=len(part),
                mean=float(size.mean()),
                median=float(np.median(size)),
                p90=float(np.quantile(size, 0.9)),
                bias=float(np.median(error)),
            )
        )
    return scores
