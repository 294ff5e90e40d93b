"""Fit the GEMM and memory constants of ``estimator/cost/data/roofline.yaml`` and their errors.

Run as ``python tests/bench/fit_roofline.py TABLES`` (pandas with pyarrow). ``TABLES`` holds:

- ``kernels/bf16/aic_{gemm_bf16,gemm_lowprec}.parquet``: the GEMM tables of NVIDIA
  aiconfigurator's systems data (Apache-2.0), one row a shape.
- ``kernels/oplevel/{gelu,layernorm,res_add,linear1,linear3,linear4}.parquet``: fp16 operators,
  from the sample tables of estimate-train-time (MIT).
- ``kernels/bf16/simumax_op_efficiency.csv``: the GEMM table of A100 PCIe in SimuMax (Apache-2.0).
- ``kernels/neusight/train/{linear,bmm,vec}.parquet``, ``kernels/neusight/amd/train/vec.parquet``:
  fp32 kernels of NeuSight (MIT).

Nothing is fitted on a training run. Losses are soft L1 on log time, so the bulk of the rows
decides. Seconds, bytes and FLOP throughout.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import least_squares  # type: ignore[import-untyped]

Column = NDArray[np.float64]
Predict = Callable[[Column, pd.DataFrame], Column]

# bf16 dense FLOP/s and bytes/s by data sheet; fp8 is twice the first.
SYSTEMS = {
    "a100_sxm": (312e12, 2.039e12),
    "h100_sxm": (989.4e12, 3.35e12),
    "h200_sxm": (989.4e12, 4.8e12),
    "b200_sxm": (2250e12, 8.0e12),
}
# fp32 FLOP/s and bytes/s of NeuSight's parts.
FP32 = {
    "Tesla P4": (5.5e12, 0.192e12),
    "Tesla P100-PCIE-16GB": (9.3e12, 0.732e12),
    "Tesla T4": (8.1e12, 0.32e12),
    "Tesla V100-PCIE-32GB": (14.0e12, 0.9e12),
    "NVIDIA A100-PCIE-40GB": (19.5e12, 1.555e12),
}
# Bytes/s of NeuSight's AMD parts, whose GEMMs it holds out.
AMD = {"AMD Instinct MI100": 1.2288e12, "AMD Instinct MI210": 1.6384e12}
# Bytes/s of the parts of the fp16 operator tables, and their dense fp16 FLOP/s.
FP16 = {"A100-SXM4-80GB": (312e12, 2.039e12), "GH200-120GB": (989.4e12, 4.0e12)}


def column(table: pd.DataFrame, name: str) -> Column:
    """One column as float64."""
    return table[name].to_numpy(np.float64)


def fit(predict: Predict, table: pd.DataFrame, start: list[float]) -> Column:
    """Positive constants that minimise the soft-L1 log error of ``predict`` on ``seconds``."""
    observed = np.log(column(table, "seconds"))

    def residual(log_constants: Column) -> Column:
        return np.log(predict(np.exp(log_constants), table)) - observed

    found = least_squares(residual, np.log(start), loss="soft_l1", f_scale=0.05, x_scale="jac")
    return np.asarray(np.exp(found.x), np.float64)


def errors(predict: Predict, constants: Column, table: pd.DataFrame) -> str:
    """Median and 90th percentile of the absolute relative error, percent, and the row count."""
    error = np.abs(predict(constants, table) / column(table, "seconds") - 1) * 100
    return f"{np.median(error):.1f}/{np.quantile(error, 0.9):.1f} % of {len(error)}"


def report(
    name: str, predict: Predict, table: pd.DataFrame, start: list[float], by: list[str]
) -> Column:
    """Fit on everything and print it, beside the error on fifths of the ``by`` groups held out."""
    constants = fit(predict, table, start)
    group = table.groupby(by).ngroup().to_numpy()
    # Shuffled, or a fold would be one end of the grid.
    fold = np.random.default_rng(0).permutation(group.max() + 1)[group] % 5
    held = table.assign(seconds=column(table, "seconds"))
    ratio = np.concatenate(
        [
            predict(fit(predict, table[fold != f], start), table[fold == f])
            / column(held[fold == f], "seconds")
            for f in range(5)
            if (fold == f).any() and (fold != f).any()
        ]
    )
    out = np.abs(ratio - 1) * 100
    shown = " ".join(f"{value:.4g}" for value in constants)
    print(
        f"{name}: {shown} | in {errors(predict, constants, table)}"
        f" | out by {'x'.join(by)} {np.median(out):.1f}/{np.quantile(out, 0.9):.1f} %"
    )
    return constants


# --- GEMM ---------------------------------------------------------------------------------------


def read_gemm(tables: Path) -> pd.DataFrame:
    """GEMM rows, one a shape: the median over the independent collections of one device.

    Shapes that one of them lacks are left out: the others would decide them alone, and the
    slowest did.
    """
    folder = tables / "kernels/bf16"
    parts = [pd.read_parquet(folder / f"aic_gemm_{part}.parquet") for part in ("bf16", "lowprec")]
    rows = pd.concat(parts)
    rows = rows[rows["system"].isin(SYSTEMS) & rows["dtype"].isin(["bfloat16", "fp8"])]
    rows = rows.astype({"system": str, "dtype": str, "m": float, "n": float, "k": float})
    key = ["system", "dtype", "m", "n", "k"]
    shapes = rows.groupby(key)["latency_ms"].agg(["median", "count"]).reset_index()
    every = shapes.groupby(["system", "dtype"])["count"].transform("max")
    rows = shapes[shapes["count"] == every].rename(columns={"median": "latency_ms"})
    return rows.assign(
        seconds=rows["latency_ms"] * 1e-3,
        peak=rows["system"].map({name: peak for name, (peak, _) in SYSTEMS.items()})
        * np.where(rows["dtype"] == "fp8", 2, 1),
        bandwidth=rows["system"].map({name: width for name, (_, width) in SYSTEMS.items()}),
        flops=2 * rows["m"] * rows["n"] * rows["k"],
        # fp8 GEMMs read one byte and write bf16.
        bytes=np.where(rows["dtype"] == "fp8", 1, 2) * rows["k"] * (rows["m"] + rows["n"])
        + 2 * rows["m"] * rows["n"],
    )


def gemm(
    efficiency: float, saturation: float, share: float, overhead: float, rows: pd.DataFrame
) -> Column:
    """Seconds of the GEMM roofline; ``share`` is of the memory bandwidth."""
    compute = (column(rows, "flops") + saturation) / (column(rows, "peak") * efficiency)
    memory = column(rows, "bytes") / (share * column(rows, "bandwidth"))
    return np.asarray(np.maximum(compute, memory) + overhead, np.float64)


def fit_gemm(tables: Path) -> None:
    """Each constant on the rows that show it.

    ``saturation`` and ``overhead`` are both a constant time where compute binds, so the overhead
    comes from the smallest GEMMs and the share of bandwidth from decode shapes whose weights do
    not fit a cache; training shapes then decide efficiency and saturation.
    """
    rows = read_gemm(tables)
    training = (rows["m"] >= 1024) & (rows["n"] >= 512) & (rows["k"] >= 512)
    # Token counts of training are multiples of a tile; the tables also hold m + 1.
    training &= np.log2(rows["m"]) % 1 == 0
    streams = (rows["m"] <= 64) & (rows["n"] * rows["k"] >= 2**27)
    tiny = (rows["m"] <= 64) & (rows["n"] <= 64) & (rows["k"] <= 64)
    groups = {
        **{name: [name] for name in SYSTEMS},
        "hopper (h100 and h200)": ["h100_sxm", "h200_sxm"],
    }
    for name, systems in groups.items():
        here = rows["system"].isin(systems)
        bf16, fp8 = here & (rows["dtype"] == "bfloat16"), here & (rows["dtype"] == "fp8")
        overhead = float(rows[bf16 & tiny]["seconds"].median())
        flow = rows[bf16 & streams]
        share = float((flow["bytes"] / (flow["seconds"] - overhead) / flow["bandwidth"]).median())
        print(f"{name} gemm overhead {overhead * 1e6:.2f} us, share of bandwidth {share:.3f}")

        def half(
            x: Column, q: pd.DataFrame, share: float = share, overhead: float = overhead
        ) -> Column:
            return gemm(x[0], x[1], share, overhead, q)

        _, saturation = report(
            f"{name} bf16: e, F0", half, rows[bf16 & training], [0.7, 1e9], ["n", "k"]
        )

        # The fp8 rows time the cast of the activations with the GEMM; a cost model prices casts
        # on their own, so their bytes per element and launch are fitted apart from e.
        def eighth(
            x: Column,
            q: pd.DataFrame,
            saturation: float = saturation,
            share: float = share,
            overhead: float = overhead,
        ) -> Column:
            cast = column(q, "m") * column(q, "k") * x[1] / column(q, "bandwidth") + x[2]
            alone = gemm(x[0], saturation, share, overhead, q)
            return np.asarray(alone + cast, np.float64)

        if fp8.any():
            report(
                f"{name} fp8: e, cast bytes, cast launch",
                eighth,
                rows[fp8 & training],
                [0.7, 8, 5e-6],
                ["n", "k"],
            )


def fit_simumax(tables: Path) -> None:
    """bf16 GEMM of A100 PCIe 80 GB, at the saturation, bandwidth and overhead of A100 SXM."""
    rows = pd.read_csv(tables / "kernels/bf16/simumax_op_efficiency.csv")
    rows = rows[rows["gpu"].str.startswith("A100") & (rows["op"] == "matmul")]
    # Weight gradients are read and written in fp32.
    out = np.where(rows["out_dtype"] == "fp32", 8, 2)
    rows = rows.assign(
        seconds=rows["time_us"] * 1e-6,
        peak=312e12,
        bandwidth=1.935e12,
        bytes=2 * (rows["m"] * rows["k"] + rows["k"] * rows["n"]) + out * rows["m"] * rows["n"],
    )
    parts = {"all": rows, **{str(dtype): part for dtype, part in rows.groupby("out_dtype")}}
    for name, part in parts.items():
        report(
            f"A100 PCIe 80 GB, {name} out: e",
            lambda x, q: gemm(x[0], 2.3e9, 0.76, 2.9e-6, q),
            part,
            [0.7],
            ["n"],
        )


def fit_neusight(tables: Path) -> None:
    """fp32 GEMM and element-wise kernels of the parts in ``FP32`` and ``AMD``."""
    folder = tables / "kernels/neusight"
    linear = pd.read_parquet(folder / "train/linear.parquet")
    batched = pd.read_parquet(folder / "train/bmm.parquet")
    vector = pd.read_parquet(folder / "train/vec.parquet")
    for device, (peak, bandwidth) in FP32.items():
        for name, table, least in (("linear", linear, 1024), ("batched", batched, 512)):
            rows = table[
                (table["device"] == device)
                & (table["M"] >= least)
                & (table["N"] >= least / 2)
                & (table["K"] >= 512)
            ].astype({"B": float, "M": float, "N": float, "K": float})
            # N is what a batched product sums over.
            k, n = ("K", "N") if name == "linear" else ("N", "K")
            rows = rows.assign(
                seconds=rows["latency_ms"] * 1e-3,
                peak=peak,
                bandwidth=bandwidth,
                flops=2 * rows["B"] * rows["M"] * rows["N"] * rows["K"],
                bytes=4
                * rows["B"]
                * (rows["M"] * rows[k] + rows[k] * rows[n] + rows["M"] * rows[n]),
            )
            rows = rows if name == "linear" else rows[rows["flops"] > 4e9]
            report(
                f"{device} fp32 {name}: e, F0",
                lambda x, q: gemm(x[0], x[1], 0.8, 0.0, q),
                rows,
                [0.8, 1e9],
                ["N"],
            )
        fit_vectors(vector, device, bandwidth)
    vector = pd.read_parquet(folder / "amd/train/vec.parquet")
    for device, bandwidth in AMD.items():
        fit_vectors(vector, device, bandwidth)


def fit_vectors(table: pd.DataFrame, device: str, bandwidth: float) -> None:
    """fp32 element-wise kernels of one part, from 32 MiB."""
    passes = {"add": 3, "div": 3, "mul": 3, "gelu": 2, "ln": 2}
    rows = table[(table["device"] == device) & table["op"].isin(passes)]
    size = 4.0 * rows["B"] * rows["H"] * rows["op"].astype(str).map(passes).astype(float)
    rows = rows.assign(seconds=rows["latency_ms"] * 1e-3, bytes=size, bandwidth=bandwidth)
    rows = rows[rows["bytes"] >= 2**25]
    report(f"{device} element-wise: share, overhead", streamed, rows, [0.7, 1e-5], ["H"])


# --- memory-bound kernels -------------------------------------------------------------------------


def streamed(x: Column, rows: pd.DataFrame) -> Column:
    """Seconds of a memory-bound kernel: bytes over a share of the bandwidth, plus a launch."""
    return np.asarray(column(rows, "bytes") / (x[0] * column(rows, "bandwidth")) + x[1], np.float64)


def fit_memory(tables: Path) -> None:
    """Element-wise kernels and fp16 GEMMs of the operator tables, forward."""
    folder = tables / "kernels/oplevel"
    passes = {"gelu": 2, "res_add": 3, "layernorm": 2}
    read = {op: pd.read_parquet(folder / f"{op}.parquet") for op in passes}
    # gelu runs on the 4 x hidden columns of a tensor-parallel rank, the others on hidden.
    width = {op: 4 / rows["mp"] if op == "gelu" else 1.0 for op, rows in read.items()}
    rows = pd.concat(
        [
            rows.assign(
                bytes=2.0 * passes[op] * rows["b"] * rows["l"] * rows["dim"] * width[op],
                bandwidth=rows["device"].map({name: w for name, (_, w) in FP16.items()}),
                seconds=rows["F_dur(us)"] * 1e-6,
            )
            for op, rows in read.items()
        ]
    )
    for device, group in rows.groupby("device"):
        fitted = [
            report(f"{device} {op}: share, overhead", streamed, one, [0.7, 3e-6], ["dim"])
            for op, one in group.groupby("op")
        ]
        # A layer runs all three, whatever the number of rows each table has.
        share = np.exp(np.mean(np.log([constants[0] for constants in fitted])))
        together = np.array([share, np.median([constants[1] for constants in fitted])])
        one = group.groupby("op").sample(300, random_state=0)
        shown = f"{together[0]:.3f} {together[1]:.2e}"
        print(f"{device} element-wise {shown} | in {errors(streamed, together, one)}")
    for op, out in (("linear1", 3.0), ("linear3", 4.0), ("linear4", 4.0)):
        linear = pd.read_parquet(folder / f"{op}.parquet")
        linear = linear[linear["mp"] <= 8]
        flops = 2 * linear["b"] * linear["l"] * linear["dim"] ** 2 * out / linear["mp"]
        peak = linear["device"].map({name: p for name, (p, _) in FP16.items()})
        share = flops / (linear["F_dur(us)"] * 1e-6) / peak
        print(op, "fp16 share of peak", share.groupby(linear["device"]).median().round(3).to_dict())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("fit_roofline.py needs one argument, the folder with the tables")
    source = Path(sys.argv[1])
    for stage in (fit_gemm, fit_simumax, fit_neusight, fit_memory):
        print(f"\n== {stage.__name__}")
        stage(source)
