"""Operator-level models: one regressor for each operator, phase, dtype and device that was sampled.

After Zhang et al., "Efficient Fine-Grained GPU Performance Modeling for Distributed Deep Learning
of LLM" (arXiv 2509.22832), with efficiency over a roofline floor where they learn raw time. Use it
on samples of one's own:

    model = RegressionModel.fit(load_samples("mine.csv"))
    model.seconds(ops, load_device("a100-sxm-80gb"))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from estimator.cluster import Device
from estimator.cost.parameters import BROKEN, pack, unpack
from estimator.cost.regressor import FORMS, SIZES, Regressor, identity
from estimator.cost.train_regressor import fit_regressor
from estimator.cost.trees import Trees
from estimator.operators import FloatArray, NameArray, Operators
from estimator.samples import Samples, check_light, provenance

FORM = "regression"
HALF = ("fp16", "bf16")
PARTS = ("feature", "threshold", "value")
"""Arrays of ``Trees``, in a file one after the other."""
SCALARS = ("device", "kind", "name", "phase", "dtype", "form", "rows")

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegressionModel:
    """Regressors of many operators; a ``KernelModel``."""

    regressors: tuple[Regressor, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Where the samples are from, which rows were left out, and how it was fitted."""
    name: str = "regression"

    @classmethod
    def fit(
        cls, samples: Samples, *, hold_out: Sequence[str] = (), seed: int = 0
    ) -> RegressionModel:
        """A model of anybody's samples; see :func:`fit_regression`."""
        return fit_regression(samples, hold_out=hold_out, seed=seed)

    def covers(self, ops: Operators, device: Device) -> NDArray[np.bool_]:
        """Rows that some regressor is for, shape (N,)."""
        found = np.zeros(len(ops), dtype=bool)
        for _, rows in self._routes(ops, device):
            found[rows] = True
        return found

    def seconds(self, ops: Operators, device: Device) -> FloatArray:
        """Seconds of each row times its count, shape (N,); at least ``light_seconds`` each.

        Raises:
            ValueError: a row is not covered.
        """
        found = np.full(len(ops), np.nan)
        for regressor, rows in self._routes(ops, device):
            found[rows] = regressor.seconds(ops.take(rows), device)
        self._all_covered(ops, device, np.isfinite(found))
        return found * ops.count

    def origin(self, ops: Operators, device: Device) -> NameArray:
        """learned, or extrapolated where a size is outside the samples', shape (N,).

        Raises:
            ValueError: a row is not covered.
        """
        found = np.full(len(ops), "", dtype="U12")
        for regressor, rows in self._routes(ops, device):
            outside = regressor.outside(ops.take(rows), device)
            found[rows] = np.where(outside, "extrapolated", "learned")
        self._all_covered(ops, device, found != "")
        return found

    def _routes(self, ops: Operators, device: Device) -> Iterator[tuple[Regressor, Indices]]:
        """Each regressor of the device with the rows it is for."""
        mine = [r for r in self.regressors if r.device == device.name]
        for kind in dict.fromkeys(r.kind for r in mine):
            rows = np.flatnonzero(ops.kind == kind)
            if not len(rows):
                continue
            phase, dtype, name = ops.phase[rows], ops.dtype[rows], ops.name[rows]
            for regressor in mine:
                if regressor.kind != kind:
                    continue
                # fp16 and bf16 run the same kernels at the same rate.
                dtypes = HALF if regressor.dtype in HALF else (regressor.dtype,)
                matched = (phase == regressor.phase) & np.isin(dtype, dtypes)
                if identity(kind, "named"):
                    matched &= name == regressor.name
                if matched.any():
                    yield regressor, rows[matched]

    def _all_covered(self, ops: Operators, device: Device, covered: NDArray[np.bool_]) -> None:
        if covered.all():
            return
        row = int(np.argmin(covered))
        words = (ops.dtype[row], ops.kind[row], ops.name[row], ops.phase[row])
        what = " ".join(str(word) for word in words if word)
        raise ValueError(
            f"row {row + 1}: no regressor of {what} on {device.name}; "
            "fit one from samples, or price it with another model"
        )

    def npz(self) -> bytes:
        """The bytes of one .npz file: a JSON header of all scalars, and flat arrays; no pickle."""
        trees = [r.trees for r in self.regressors if r.trees is not None]
        arrays = {
            part: np.concatenate([getattr(t, part).ravel() for t in trees] or [np.zeros(0)])
            for part in PARTS
        }
        header = {
            "provenance": dict(self.provenance),
            "regressors": [_header(regressor) for regressor in self.regressors],
        }
        return pack(FORM, header, arrays)


def load_regression(path: str | Path) -> RegressionModel:
    """Read what :meth:`RegressionModel.npz` wrote.

    Raises:
        ValueError: the file is not one of these.
    """
    header, file = unpack(path, FORM)
    try:
        arrays = {name: file[name] for name in PARTS}
        taken = dict.fromkeys(PARTS, 0)
        regressors = tuple(_regressor(one, arrays, taken) for one in header["regressors"])
        return RegressionModel(regressors=regressors, provenance=header["provenance"])
    except BROKEN as error:
        raise ValueError(f"{path} is not a file of {FORM}: {error}") from error


@cache
def shipped_regression() -> RegressionModel:
    """The parameters that ship with the package: operators in fp16 on A100 and GH200."""
    with resources.as_file(resources.files("estimator.cost") / "data" / "regression.npz") as path:
        return load_regression(path)


def fit_regression(
    samples: Samples, *, hold_out: Sequence[str] = (), seed: int = 0
) -> RegressionModel:
    """Fit a regressor for each device, kind, phase, dtype and (but for matrix products) name.

    Args:
        samples: Measured operators; equal shapes may occur more than once.
        hold_out: Devices whose samples are left out.
        seed: Decides folds and trees: equal samples and seed give an equal model.

    Raises:
        ValueError: no samples are left, a device is unknown, or a time is impossible.
    """
    from estimator.catalog import load_device

    rows: dict[tuple[str, ...], list[int]] = {}
    labels = (samples.device, samples.ops.kind, samples.ops.name, samples.ops.phase)
    columns = (label.tolist() for label in (*labels, samples.ops.dtype))
    for row, (device, kind, name, phase, dtype) in enumerate(zip(*columns, strict=True)):
        if device not in hold_out:
            key = device, kind, identity(kind, name), phase, dtype
            rows.setdefault(key, []).append(row)
    if not rows:
        raise ValueError("no samples to fit: the set is empty, or all its devices are held out")
    devices = {name: load_device(name) for name in dict.fromkeys(key[0] for key in rows)}
    check_light(samples.take(np.isin(samples.device, list(devices))))
    regressors = tuple(
        fit_regressor(samples.take(np.array(rows[key])), devices[key[0]], seed=seed)
        for key in sorted(rows)
    )
    return RegressionModel(
        regressors=regressors,
        provenance=provenance(samples, hold_out, seed),
    )


def _header(regressor: Regressor) -> dict[str, Any]:
    trees = regressor.trees
    return {
        **{name: getattr(regressor, name) for name in SCALARS},
        **{name: getattr(regressor, name).tolist() for name in ("affine", "low", "high")},
        "scores": {form: list(scores) for form, scores in regressor.scores.items()},
        "trees": None if trees is None else [trees.base, len(trees.value), trees.depth],
    }


def _regressor(
    header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], taken: dict[str, int]
) -> Regressor:
    """One regressor; ``taken`` counts what earlier ones used of each array."""
    if header["form"] not in FORMS or len(header["low"]) != len(SIZES):
        raise ValueError(f"unknown form {header['form']!r} or number of sizes")
    trees = None
    if header["trees"] is not None:
        base, count, depth = header["trees"]
        cut: dict[str, Any] = {}
        for part in PARTS:
            width = (1 << depth) - (part != "value")
            start, taken[part] = taken[part], taken[part] + count * width
            cut[part] = arrays[part][start : taken[part]].reshape(count, width)
        trees = Trees(base=base, **cut)
    return Regressor(
        **{name: header[name] for name in SCALARS},
        affine=np.array(header["affine"], dtype=np.float64),
        low=np.array(header["low"], dtype=np.float64),
        high=np.array(header["high"], dtype=np.float64),
        trees=trees,
        scores={form: (scores[0], scores[1]) for form, scores in header["scores"].items()},
    )
