"""SimuMax's operator efficiencies (github MooreThreads/SimuMax, Apache-2.0): training in bf16.

Each row is one kernel: a product, products of a group of experts, or fused causal attention,
forward and backward. Its time is microseconds, or FLOPs over ``efficiency`` of the peak, where
attention's are those of the full square (``simu_tools/efficency_test/test_fa_efficiency.py``: 2
forward and 5 backward per pair, head and column of query and value).

The two gradients of a product are products of their own here, by name: ``input_gradient``, and
``weight_gradient_`` with the dtype of the sum that the kernel reads, adds to and writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from estimator.operators import FloatArray, NameArray, operators
from estimator.sample_columns import Layout, named, sizes, words
from estimator.samples import Samples, pooled, samples

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

DEVICES: Mapping[str, str] = {"A100-PCIe-80GB": "a100-pcie-80gb", "B200-SXM": "b200-simumax"}
ATTENTION: Mapping[str, str] = {"a100-pcie-80gb": "flash2", "b200-simumax": "cudnn"}
"""The class of Transformer Engine's attention on each."""
PRODUCTS: Mapping[str, str] = {
    "TN": "forward",
    "NN": "input_gradient",
    "NT": "weight_gradient",
    "fwd": "forward",
    "bwd_grad_act": "input_gradient",
    "bwd_grad_w": "weight_gradient",
}
WEIGHT_GRADIENT = "weight_gradient"
GROUPED = "grouped_"
"""Before the name of products of a group of experts with equal rows."""
SQUARE_FLOPS: Mapping[str, float] = {"forward": 2.0, "backward": 5.0}
"""FLOP of each pair, head and column of query and value."""


def training_kernels(frame: pd.DataFrame, stem: str) -> Samples:
    """All rows of the table.

    Raises:
        ValueError: a GPU, an operator or a layout is unknown, or a shape lacks a size.
    """
    operator = words(frame, "op")
    known = ("matmul", "group_matmul", "sdp_fwd", "sdp_bwd")
    unknown = sorted(set(operator.tolist()) - set(known))
    if unknown:
        raise ValueError(f"unknown op {unknown[0]!r}; known are {', '.join(known)}")
    products = np.isin(operator, known[:2])
    parts = [
        reader(frame[chosen], stem)
        for reader, chosen in ((_products, products), (_attention, ~products))
        if chosen.any()
    ]
    return pooled(parts)


def _shape(frame: pd.DataFrame, key: str) -> NameArray:
    """A value of the column ``shape``, which holds ``key=value, key=value``."""
    found = frame["shape"].str.extract(rf"(?:^|, ){key}=([^,]+)")[0]
    if found.isna().any():
        row = int(np.argmax(found.isna().to_numpy()))
        raise ValueError(f"shape {frame['shape'].iloc[row]!r} has no {key}")
    return np.asarray(found, dtype=np.str_)


def _number(frame: pd.DataFrame, key: str) -> FloatArray:
    return np.asarray(_shape(frame, key).astype(np.float64))


def _products(frame: pd.DataFrame, stem: str) -> Samples:
    grouped = words(frame, "op") == "group_matmul"
    # A group's shape is that of its forward; a product's is its own.
    m, n, k = (sizes(frame, size) for size in "mnk")
    name = named(words(frame, "layout"), PRODUCTS, "layout")
    inputs, weights = grouped & (name == "input_gradient"), grouped & (name == WEIGHT_GRADIENT)
    rows = np.where(weights, n, m)
    columns = np.where(inputs | weights, k, n)
    inner = np.select([inputs, weights], [n, m], k)
    summed = np.char.add(f"{WEIGHT_GRADIENT}_", _sum_dtypes(frame, grouped))
    name = np.where(name == WEIGHT_GRADIENT, summed, name)
    name = np.where(grouped, np.char.add(GROUPED, name), name)
    return samples(
        operators(
            "linear", dtype="bf16", name=name, batch=sizes(frame, "b"), m=rows, n=columns, k=inner
        ),
        device=named(words(frame, "gpu"), DEVICES, "gpu"),
        seconds=sizes(frame, "time_us") * 1e-6,
        source=f"simumax/{stem}",
    )


def _sum_dtypes(frame: pd.DataFrame, grouped: NDArray[np.bool_]) -> NameArray:
    """The dtype of the sum that a weight gradient is added to, of each row."""
    dtypes = np.full(len(frame), "", dtype="U8")
    for chosen, key in ((grouped, "main_grad_dtype"), (~grouped, "out_dtype")):
        if chosen.any():
            dtypes[chosen] = _shape(frame[chosen], key)
    return dtypes


def _attention(frame: pd.DataFrame, stem: str) -> Samples:
    device = named(words(frame, "gpu"), DEVICES, "gpu")
    phase = np.where(words(frame, "op") == "sdp_fwd", "forward", "backward")
    batch, length, heads = (_number(frame, key) for key in ("batch", "seq_len", "head_num"))
    columns = _number(frame, "qk_head_dim") + _number(frame, "v_head_dim")
    square = batch * length**2 * heads * columns
    counted = square * np.array([SQUARE_FLOPS[one] for one in phase.tolist()])
    return samples(
        operators(
            "attention",
            dtype="bf16",
            name=[ATTENTION[one] for one in device.tolist()],
            phase=phase,
            batch=batch,
            m=length,
            n=length,
            # Queries and values may differ in width: half of both is as many FLOPs and bytes.
            k=columns / 2,
            heads=heads,
            kv_heads=_number(frame, "kv_head_num"),
            causal=1.0,
        ),
        device=device,
        seconds=counted / (sizes(frame, "efficiency") * sizes(frame, "tflops_peak") * 1e12),
        source=f"simumax/{stem}",
    )


TRAINING_LAYOUTS = (
    Layout(
        columns=frozenset({"gpu", "op", "layout", "shape", "efficiency", "tflops_peak"}),
        read=training_kernels,
    ),
)
