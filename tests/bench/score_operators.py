"""Errors of operator-level regressors on rows left out, beside the published form's on raw time.

Run as ``python tests/bench/score_operators.py FOLDER [--seed N]`` (pandas with pyarrow,
scikit-learn). ``FOLDER`` holds the sample tables of estimate-train-time (MIT), one Parquet
file an operator. Two splits: a random fifth of the rows, and each operator's largest fifth by FLOPs
(by bytes where memory binds). Forms are chosen and fitted on the other rows alone.

The published form (arXiv 2509.22832) learns raw time from raw sizes, for each operator the better
of a forest and boosted trees on the rows left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from estimator.catalog import load_device
from estimator.cost.regression import RegressionModel, fit_regression
from estimator.cost.train_regressor import largest
from estimator.operators import FloatArray
from estimator.samples import Samples, load_samples, pooled

EIGHT = ("linear1", "linear2", "linear3", "linear4", "baddbmm", "bmm", "flash2", "gelu")
"""Operators whose forward pass the anchors were computed on."""
NO_READER = ("optimizer",)
"""Tables whose unit of time nobody states."""
Rows = NDArray[np.bool_]


def read(folder: Path) -> Samples:
    """All tables of a folder that have a reader."""
    files = [f for f in sorted(folder.glob("*.parquet")) if f.stem not in NO_READER]
    return pooled([load_samples(file) for file in files])


def groups(samples: Samples) -> list[tuple[str, str, str, Rows]]:
    """Device, operator and phase, with their rows."""
    ops = samples.ops
    keys = sorted(
        set(zip(samples.device.tolist(), ops.name.tolist(), ops.phase.tolist(), strict=True))
    )
    return [
        (d, n, p, (samples.device == d) & (ops.name == n) & (ops.phase == p)) for d, n, p in keys
    ]


def left_out(samples: Samples, split: str, seed: int) -> Rows:
    """Rows that a split leaves out."""
    if split == "random":
        return np.random.default_rng(seed).random(len(samples)) < 0.2
    out = np.zeros(len(samples), dtype=bool)
    for *_, rows in groups(samples):
        out[rows] = largest(samples.ops.take(rows))
    return out


def predicted(model: RegressionModel, samples: Samples) -> FloatArray:
    """Seconds of each sample on its own device."""
    seconds = np.empty(len(samples))
    for device in np.unique(samples.device).tolist():
        rows = samples.device == device
        seconds[rows] = model.seconds(samples.ops.take(rows), load_device(device))
    return seconds


def published(samples: Samples, out: Rows, seed: int) -> FloatArray:
    """Seconds of the rows left out by the better of a forest and boosting on raw time."""
    from sklearn.ensemble import (  # type: ignore[import-untyped]
        HistGradientBoostingRegressor,
        RandomForestRegressor,
    )

    ops = samples.ops
    sizes = np.stack([ops.batch, ops.heads, ops.m, ops.n, ops.k], axis=1)
    answers = [
        form.fit(sizes[~out], samples.seconds[~out] * 1e6).predict(sizes[out]) / 1e6
        for form in (
            RandomForestRegressor(30, random_state=seed),
            HistGradientBoostingRegressor(max_iter=300, random_state=seed),
        )
    ]
    truth = samples.seconds[out]
    return np.asarray(min(answers, key=lambda answer: float(np.abs(answer / truth - 1).mean())))


def errors(seconds: FloatArray, truth: FloatArray) -> str:
    """Mean, median, 90th percentile and bias, percent."""
    error = 100 * (seconds / truth - 1)
    size = np.abs(error)
    return (
        f"{size.mean():7.2f} {np.median(size):7.2f} {np.quantile(size, 0.9):7.2f} "
        f"{error.mean():+7.2f}"
    )


def score(samples: Samples, split: str, seed: int) -> None:
    """Print one split's table and the means over its forward operators."""
    out = left_out(samples, split, seed)
    model = fit_regression(samples.take(~out), seed=seed)
    seconds = np.full(len(samples), np.nan)
    seconds[out] = predicted(model, samples.take(out))
    print(f"\n{split} fifth left out: mean, median, p90, bias (%); published form's mean")
    means: dict[tuple[str, str], tuple[float, float]] = {}
    for device, name, phase, rows in groups(samples):
        mine = out & rows
        truth = samples.seconds[mine]
        if not len(truth):
            continue
        theirs = published(samples.take(rows), out[rows], seed)
        raw = float(100 * np.abs(theirs / truth - 1).mean())
        print(
            f"{device:14} {name:31} {phase:8} {mine.sum():5d} "
            f"{errors(seconds[mine], truth)} {raw:8.2f}"
        )
        if phase == "forward":
            means[device, name] = (float(100 * np.abs(seconds[mine] / truth - 1).mean()), raw)
    for device in np.unique(samples.device).tolist():
        every = np.array([m for (d, _), m in means.items() if d == device]).mean(axis=0)
        eight = np.array([means[device, name] for name in EIGHT if (device, name) in means])
        print(
            f"{device} forward, mean of the eight anchor operators: {eight.mean(axis=0)[0]:.2f} % "
            f"(published form {eight.mean(axis=0)[1]:.2f} %); of all operators: {every[0]:.2f} % "
            f"({every[1]:.2f} %)"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Score both splits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    samples = read(chosen.folder)
    print(f"{len(samples)} rows; left out by rule: {dict(samples.excluded)}")
    for split in ("random", "largest"):
        score(samples, split, chosen.seed)


if __name__ == "__main__":
    main()
