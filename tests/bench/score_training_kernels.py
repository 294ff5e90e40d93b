"""Score prices of training's backward kernels and of grouped products, op by op.

Run as ``python tests/bench/score_training_kernels.py TABLES`` (pandas, pyarrow; one minute).
``TABLES`` holds ``simumax_op_efficiency.csv`` (github MooreThreads/SimuMax, Apache-2.0) and
``aic_moe_bf16.parquet`` (NVIDIA aiconfigurator, Apache-2.0). Products and attention are priced as
plans price them: a weight gradient as a product and the traffic of the sum that it is added to, a
group of experts as one launch that starts anew for each.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from estimator.catalog import load_device
from estimator.cluster import Device
from estimator.cost.analytic_kernels import AnalyticKernels
from estimator.cost.best import learned_kernels
from estimator.cost.roofline import roofline
from estimator.lower.operators import flops, moved_bytes
from estimator.operators import FloatArray, Operators
from estimator.sample_serving import EXPERTS
from estimator.sample_training import WEIGHT_GRADIENT
from estimator.samples import Samples, load_samples

PRICED_AS = {
    "a100-pcie-80gb": ("a100-pcie-80gb", "a100-sxm-80gb"),
    "b200-simumax": ("b200-simumax", "b200"),
}
"""The device itself, and a sibling that other tables were fitted on."""
SUM_BYTES = {"weight_gradient_fp32": 8.0, "weight_gradient_bf16": 4.0}
"""Read and written of each element of a sum."""
LEAST_ROWS = 64
"""Rows of an expert in training."""


def analytic(ops: Operators, device: Device) -> FloatArray:
    """Seconds as ``Roofline`` prices the slots of plans."""
    constants, products = roofline(device), ops.kind == "linear"
    work = flops(ops) + ops.batch * constants.saturation_flops
    seconds = constants.gemm_seconds(work, moved_bytes(ops), "bf16", device)
    weight = np.char.find(ops.name, WEIGHT_GRADIENT) >= 0
    half = np.where(weight, constants.grouped_rows_weight, constants.grouped_rows)
    seconds *= 1 + np.where(ops.batch > 1, half / np.where(weight, ops.k, ops.m), 0.0)
    if not products.all():
        kernel = str(ops.name[~products][0])
        model = AnalyticKernels(attention_kernel=kernel)
        seconds[~products] = model.seconds(ops.take(~products), device)
    return seconds


def learned(ops: Operators, device: Device) -> FloatArray:
    """Seconds as ``Composite`` prices the slots of plans."""
    model, seconds = learned_kernels(device), analytic(ops, device)
    known = model.covers(ops, device) & (ops.batch == 1)
    if known.any():
        seconds[known] = model.seconds(ops.take(known), device)
    return seconds


def sums(ops: Operators, device: Device) -> FloatArray:
    """Seconds of reading and writing what weight gradients are added to."""
    size = np.array([SUM_BYTES.get(n.removeprefix("grouped_"), 0.0) for n in ops.name.tolist()])
    moved = size * ops.batch * ops.m * ops.n
    return moved / (device.bandwidth * roofline(device).memory_bandwidth)


def score(label: str, measured: FloatArray, priced: FloatArray) -> None:
    """Print one line of signed and absolute errors, in per cent."""
    error = 100 * (priced / measured - 1)
    p10, p90 = np.quantile(error, [0.1, 0.9])
    print(
        f"{label:62} n {len(error):5}  signed median {np.median(error):+6.1f}  "
        f"10-90 % {p10:+6.1f} to {p90:+6.1f}  mean abs {np.abs(error).mean():5.1f}"
    )


def score_group(label: str, rows: Samples, device: Device) -> None:
    """Both cost models on one kind of row; learned where it has a model of its own."""
    prices = {"analytic": analytic(rows.ops, device), "learned": learned(rows.ops, device)}
    if np.array_equal(prices["analytic"], prices["learned"]):
        prices.pop("learned")
    added = sums(rows.ops, device)
    for name, seconds in prices.items():
        score(f"{label} {name}", rows.seconds, seconds + added)
        if added.any():
            score(f"{label} {name}, without its sum", rows.seconds, seconds)


def by_operator(rows: Samples) -> dict[str, Samples]:
    """Rows of each name and phase; attention with wider queries than values apart."""
    names = np.char.add(rows.ops.name, np.where(rows.ops.phase == "backward", " backward", ""))
    wide = (rows.ops.kind == "attention") & (rows.ops.k != 128)
    names = np.char.add(names, np.where(wide, " 192/128", ""))
    return {name: rows.take(names == name) for name in dict.fromkeys(names.tolist())}


def main(folder: Path) -> None:
    """SimuMax's kernels by device and op, then serving's experts."""
    kernels = load_samples(folder / "simumax_op_efficiency.csv")
    for measured, places in PRICED_AS.items():
        mine = kernels.take(kernels.device == measured)
        for place in places:
            for operator, rows in by_operator(mine).items():
                score_group(f"{measured} as {place}: {operator}", rows, load_device(place))
    experts = load_samples(folder / "aic_moe_bf16.parquet")
    experts = experts.take((experts.ops.m >= LEAST_ROWS) & (experts.ops.name == EXPERTS))
    for name in np.unique(experts.device).tolist():
        for library in np.unique(experts.library[experts.device == name]).tolist():
            rows = experts.take((experts.device == name) & (experts.library == library))
            score_group(f"{name} experts of {library}", rows, load_device(name))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
