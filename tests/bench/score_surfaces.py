"""Score surfaces of bf16 products and attention where they were not fitted, and time them.

Run as ``python tests/bench/score_surfaces.py TABLES`` (torch, pandas, pyarrow; five minutes), or
without ``TABLES`` for the speed of every shipped surface alone.
``TABLES`` holds ``aic_{gemm,context_attention,encoder_attention}_bf16.parquet``, of NVIDIA
aiconfigurator's systems data (Apache-2.0). A shape's collections count once, by their median.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from estimator.catalog import load_device
from estimator.cost.surface import ANY, SurfaceModel, shipped_surfaces
from estimator.cost.train_surface import fit_shared, fit_surfaces, grouped, trainable
from estimator.operators import operators
from estimator.samples import Samples, load_samples, medians, pooled
from search.kernels import held_shapes

FAMILIES = {
    "ampere": ["a100-sxm-80gb"],
    "hopper": ["h100-sxm", "h200"],
    "blackwell": ["b200", "gb200"],
}
LEAST_ROWS = {"linear": 64, "attention": 1024}
"""Rows, or queries, of what training runs: what is smaller is fitted but not scored."""
SHAPES = 100_000
ROUNDS = 3
KEY = ("linear", "bf16", "")


def score(label: str, model: SurfaceModel, table: Samples) -> None:
    """Print mean, median, 90th percentile and bias of each device's rows, in per cent."""
    for name in np.unique(table.device).tolist():
        mine = table.take(table.device == name)
        device = load_device(name)
        mine = mine.take(model.covers(mine.ops, device))
        if len(mine):
            error = 100 * (model.seconds(mine.ops, device) / mine.seconds - 1)
            p50, p90 = np.quantile(np.abs(error), [0.5, 0.9])
            spread = f"median {p50:.1f}  p90 {p90:.1f}  bias {np.median(error):+.1f}"
            print(f"{label:30} {name:14} mean {np.abs(error).mean():.1f}  {spread}  n {len(mine)}")


def training(table: Samples, kind: str) -> NDArray[np.bool_]:
    """Rows that training runs."""
    return np.asarray(table.ops.m >= LEAST_ROWS[kind])


def main(folder: Path) -> None:
    """All scores."""
    products = medians(load_samples(folder / "aic_gemm_bf16.parquet"))
    names = ("context", "encoder")
    attention = medians(
        pooled([load_samples(folder / f"aic_{name}_attention_bf16.parquet") for name in names])
    )
    for kind, table in (("linear", products), ("attention", attention)):
        held = held_shapes(table, 0)
        model = fit_surfaces(table.take(~held))
        score(f"{kind}, shapes held out", model, table.take(held & training(table, kind)))
    for family, devices in FAMILIES.items():
        held = np.isin(products.device, devices)
        tables = grouped(trainable(products.take(~held), ()))[KEY]
        model = SurfaceModel(surfaces=(fit_shared(tables, KEY, seed=0),))
        rows = held & training(products, "linear")
        score(f"linear, {family} held out", model, products.take(rows))


def speed() -> None:
    """Distinct shapes a second of every shipped surface: the best of ``ROUNDS`` calls."""
    draw = np.random.default_rng(0)
    m, n, k = draw.integers(64, 32768, (3, SHAPES))
    heads = draw.integers(1, 65, SHAPES)
    for surface in shipped_surfaces().surfaces:
        if surface.device == ANY:
            continue
        device, model = load_device(surface.device), SurfaceModel(surfaces=(surface,))
        named = {"dtype": surface.dtype, "name": surface.name}
        if surface.kind == "linear":
            ops = operators("linear", **named, m=m, n=n, k=k)
        else:
            shapes = {"m": m, "n": m, "k": 128, "heads": heads, "kv_heads": heads, "causal": 1}
            ops = operators(surface.kind, **named, **shapes)
        spent = []
        for _ in range(ROUNDS):
            start = time.process_time()
            model.seconds(ops, device)
            spent.append(time.process_time() - start)
        label = " ".join(filter(None, (surface.kind, surface.dtype, surface.name)))
        print(f"{surface.device:14} {label:24} {SHAPES / min(spent):9,.0f} shapes/s")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    print(f"{SHAPES:,} distinct shapes at a time, seconds of CPU time of one core")
    speed()
