"""The best available price of every operator: measured, fitted here, fitted elsewhere, analytic.

``--cost learned``. Products and attention go to the first kernel model that covers them, in that
order; bytes, links, experts' products and whatever no model knows stay with the analytic roofline.
One table of the lowering has few distinct shapes, which are priced once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from estimator.cluster import Cluster, Device
from estimator.cost.best import BestKernels, learned_kernels
from estimator.cost.kernels import KernelModel
from estimator.cost.roofline import Roofline, gemm_dtype, roofline
from estimator.lower.operators import flops
from estimator.lower.slots import Columns, FloatArray
from estimator.operators import NameArray, Operators, operators
from estimator.stack import Stack
from estimator.workload import CAST_PRECISIONS, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Composite:
    """A ``CostModel``: kernel models in order of preference over the analytic roofline."""

    kernels: BestKernels
    analytic: Roofline
    origin: str
    """learned where products in half precision were fitted on this device, else the analytic's."""
    name: str = "learned"

    def seconds(
        self, ops: Columns, workload: Workload, cluster: Cluster, stack: Stack
    ) -> FloatArray:
        """Seconds of each slot under each key, shape (O, U), its count included."""
        seconds = self.analytic.seconds(ops, workload, cluster, stack)
        for rows, priced, found in self._priced(ops, workload, cluster.device, stack):
            cells = seconds[rows]
            cells[found] = priced[found]
            seconds[rows] = cells
        return seconds

    def origins(
        self, ops: Columns, workload: Workload, cluster: Cluster, stack: Stack
    ) -> NameArray:
        """Where each price is from, shape (O, U); see ``CostModel``."""
        names = self.analytic.origins(ops, workload, cluster, stack)
        device = cluster.device
        for rows, work in self._work(ops, workload, device, stack):
            unique, index = _distinct(work)
            known = self.kernels.covers(unique, device)
            chosen = np.full(len(unique), "", dtype="U12")
            chosen[known] = self.kernels.origin(unique.take(known), device)
            cells = chosen[index].reshape(len(rows), -1)
            names[rows] = np.where((cells == "") | _groups(ops, rows), names[rows], cells)
        return names

    def _priced(
        self, ops: Columns, workload: Workload, device: Device, stack: Stack
    ) -> list[tuple[NDArray[np.int64], FloatArray, NDArray[np.bool_]]]:
        """Slots, their seconds, and where some model knew them; (rows, U) each."""
        priced = []
        for rows, work in self._work(ops, workload, device, stack):
            unique, index = _distinct(work)
            known = self.kernels.covers(unique, device)
            priced_once = np.full(len(unique), np.nan)
            priced_once[known] = self.kernels.seconds(unique.take(known), device)
            each = priced_once[index].reshape(len(rows), -1)
            found = np.isfinite(each) & (ops.flops[rows] > 0) & ~_groups(ops, rows)
            priced.append((rows, each * ops.count[rows], found))
        return priced

    def _work(
        self, ops: Columns, workload: Workload, device: Device, stack: Stack
    ) -> list[tuple[NDArray[np.int64], Operators]]:
        """Slots with their cells as operators, row after row, by kind and dtype."""
        work = []
        gemms = ops.rows("gemm")
        for low_precision in (False, True):
            chosen = [i for i in gemms.tolist() if ops.slots[i].low_precision is low_precision]
            # The tables of fp8 and fp4 hold the casts, which the lowering has as kernels apart.
            if chosen and not (low_precision and workload.precision in CAST_PRECISIONS):
                rows = np.array(chosen, dtype=np.int64)
                work.append((rows, _products(ops, rows, workload, low_precision=low_precision)))
        rows = ops.rows("attention")
        if len(rows):
            work.append((rows, _attention(ops, rows, workload, device, stack)))
        return work


def composite(device: Device, first: Sequence[KernelModel] = ()) -> Composite:
    """The composite of a device.

    Args:
        device: What is priced.
        first: Models that come before the shipped ones, as of a user's own samples.
    """
    kernels, analytic = learned_kernels(device, first), roofline(device)
    half = [dtype for dtype in ("bf16", "fp16") if dtype in device.peaks]
    probe = operators("linear", dtype=half or "fp32", m=4096, n=4096, k=4096)
    probe = probe.take(kernels.covers(probe, device))
    known = set(kernels.origin(probe, device).tolist())
    return Composite(
        kernels=kernels,
        analytic=analytic,
        origin="learned" if "learned" in known else analytic.origin,
    )


def _groups(ops: Columns, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Cells of experts' products in one launch, (rows, U), which stay with the analytic.

    No model knows them: as many products one by one are as slow as each alone on the device. On
    serving's tables their logarithms scatter by 0.58 to 0.83 so, by 0.38 to 0.78 with the roofline.
    """
    gemm = np.array([ops.slots[i].kind == "gemm" for i in rows.tolist()])
    return np.asarray(gemm[:, None] & (ops.starts[rows] > 1), dtype=np.bool_)


def _products(
    ops: Columns, rows: NDArray[np.int64], workload: Workload, *, low_precision: bool
) -> Operators:
    m, n, k = (np.maximum(getattr(ops, size)[rows], 1.0) for size in ("m", "n", "k"))
    starts = np.maximum(ops.starts[rows], 1.0)
    batch = np.maximum(ops.flops[rows] / (2 * m * n * k * starts), 1e-9)
    return operators(
        np.where(batch.ravel() > 1.5, "bmm", "linear"),
        dtype=gemm_dtype(workload, low_precision=low_precision),
        batch=batch.ravel(),
        m=m.ravel(),
        n=n.ravel(),
        k=k.ravel(),
    )


def _attention(
    ops: Columns, rows: NDArray[np.int64], workload: Workload, device: Device, stack: Stack
) -> Operators:
    """Causal attention of as many heads as the lowering's FLOPs are, which know of windows."""
    m, n, k = (np.maximum(getattr(ops, size)[rows], 1.0).ravel() for size in ("m", "n", "k"))
    backward = np.array([ops.slots[i].phase != "forward" for i in rows.tolist()])
    phase = np.repeat(np.where(backward, "backward", "forward"), ops.count.shape[1])
    # Before Hopper, cuDNN's fused attention is of the class of FlashAttention 2: its table counts.
    older = device.architecture in ("ampere", "ada") and stack.attention_kernel == "cudnn"
    one_head = operators(
        "attention",
        dtype=gemm_dtype(workload, low_precision=False),
        name="flash2" if older else stack.attention_kernel,
        phase=phase,
        m=m,
        n=n,
        k=k,
        causal=1.0,
    )
    heads = np.maximum(ops.flops[rows].ravel() / flops(one_head), 1e-9)
    return replace(one_head, heads=heads, kv_heads=heads)


def _distinct(ops: Operators) -> tuple[Operators, NDArray[np.int64]]:
    """Distinct shapes, and which of them each row is."""
    sizes = np.stack([ops.batch, ops.m, ops.n, ops.k, ops.heads, ops.phase == "backward"])
    _, first, index = np.unique(sizes, axis=1, return_index=True, return_inverse=True)
    return ops.take(first), index.ravel()
