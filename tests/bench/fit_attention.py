"""Fit the attention constants of ``estimator/cost/data/roofline.yaml``, and print their errors.

Run as ``python tests/bench/fit_attention.py TABLES`` (pandas with pyarrow). ``TABLES`` holds

- ``kernels/bf16/aic_context_attention_bf16.parquet``: causal attention, forward, of NVIDIA
  aiconfigurator's systems data (Apache-2.0), one row a shape.
- ``kernels/bf16/simumax_op_efficiency.csv``: operator efficiencies of SimuMax's system configs,
  the only table with backward.

Nothing is fitted on a training run.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from fit_roofline import SYSTEMS, Column, column, report

# Tables whose kernel is of one class: FlashAttention 2, or what cuDNN and FlashAttention 3 reach.
ATTENTION = {
    "ampere flash2": (["a100_sxm"], ["flash_attention", "vllm_flash_attn"]),
    "hopper cudnn": (["h100_sxm", "h200_sxm"], ["fa3", "vllm_flash_attn_fa3"]),
    "blackwell cudnn": (["b200_sxm"], ["torch_flow", "vllm_flashinfer_trtllmprefill"]),
}


def fit_attention(tables: Path) -> None:
    """Causal forward attention by device and kernel, heads of 128; the factor of heads of 64."""
    rows = pd.read_parquet(tables / "kernels/bf16/aic_context_attention_bf16.parquet")
    rows = rows.astype({"system": str, "kernel_source": str, "isl": float, "table": str})
    rows = rows[
        rows["system"].isin(SYSTEMS)
        & (rows["window_size"] == 0)
        & (rows["isl"] >= 1024)
        # A training rank has enough work to fill the device: eight heads of 8,192 tokens.
        & (rows["batch_size"] * rows["num_heads"] * rows["isl"] >= 2**16)
    ]
    rows = rows.assign(
        seconds=rows["latency_ms"] * 1e-3,
        peak=rows["system"].map({name: peak for name, (peak, _) in SYSTEMS.items()}),
        flops=2.0 * rows["batch_size"] * rows["num_heads"] * rows["head_dim"] * rows["isl"] ** 2,
    )

    def predict(x: Column, q: pd.DataFrame) -> Column:
        ramp = column(q, "isl") / (column(q, "isl") + x[1])
        return np.asarray(column(q, "flops") / (column(q, "peak") * x[0] * ramp), np.float64)

    for name, (systems, sources) in ATTENTION.items():
        group = rows[rows["system"].isin(systems) & rows["kernel_source"].isin(sources)]
        large, small = group[group["head_dim"] == 128], group[group["head_dim"] == 64]
        heads = ["num_heads", "num_key_value_heads"]
        constants = report(f"{name}: a_eff, s0", predict, large, [0.6, 1000], heads)
        for (system, table), part in large.groupby(["system", "table"]):
            bias = np.median(predict(constants, part) / column(part, "seconds")) - 1
            print(f"  {system} {table} {len(part)} rows, bias {bias:+.3f}")
        if not small.empty:
            ratio = predict(constants, small) / column(small, "seconds")
            print(f"  heads of 64 run at {np.median(ratio):.3f} of that rate")


def fit_backward(tables: Path) -> None:
    """Time of attention backward over forward, from SimuMax's shares of peak."""
    rows = pd.read_csv(tables / "kernels/bf16/simumax_op_efficiency.csv")
    key = ["gpu", "shape"]
    forward = rows[rows["op"] == "sdp_fwd"].groupby(key)["efficiency"].median()
    backward = rows[rows["op"] == "sdp_bwd"].groupby(key)["efficiency"].median()
    # SimuMax counts 2.5 times the forward FLOPs for backward.
    ratio = (2.5 * forward / backward).rename("ratio").reset_index()
    ratio["rate"] = forward.to_numpy() / 2
    heads = ratio["shape"].str.extract(r"head_num=(\d+)")[0].astype(int)
    tokens = ratio["shape"].str.extract(r"seq_len=(\d+)")[0].astype(int)
    # Enough work to fill the device, in the one sequence that these shapes hold.
    ratio = ratio[(heads * tokens >= 2**17) & ratio["shape"].str.contains("qk_head_dim=128")]
    for gpu, group in ratio.groupby("gpu"):
        print(
            f"{gpu} attention backward over forward {group['ratio'].median():.2f} "
            f"({group['ratio'].min():.2f} to {group['ratio'].max():.2f}, {len(group)} shapes), "
            f"causal forward at {group['rate'].median():.3f} of peak"
        )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("fit_attention.py needs one argument, the folder with the tables")
    fit_attention(Path(sys.argv[1]))
    fit_backward(Path(sys.argv[1]))
