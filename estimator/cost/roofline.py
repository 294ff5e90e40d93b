"""The default pricer: compute or memory roofline with one efficiency per kind of kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from estimator.cluster import Cluster, Device
from estimator.cost.collectives import ROUNDS, collective_seconds, measured_seconds
from estimator.lower.operators import ATTENTION_BACKWARD
from estimator.lower.slots import Columns, FloatArray
from estimator.operators import NameArray
from estimator.stack import Stack
from estimator.workload import CAST_PRECISIONS, Workload

ROW_SCALED = 0.95
"""Rate of fp8 GEMMs with scales by row over those with one per tensor: the middle of the 90 to
100 % that most shapes reach in PyTorch's CUTLASS kernel (pytorch issue 147971, H100)."""
SMALL_HEAD = 100
"""Head sizes below this run fused attention at the table's ``small_head`` share."""
LARGE_HEAD = 128
LARGE_HEAD_BACKWARD = 1.16
"""Factor on backward's time where queries are wider than ``LARGE_HEAD``: blocks of fewer keys fit
into a multiprocessor. SimuMax, 14 shapes of 192 and 128 columns: A100 1.12, B200 1.20."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKernel:
    """A fused attention kernel: ``peak x efficiency x s / (s + half_length)`` FLOP/s when full.

    Blocks of queries of one head (of keys in backward) run on one multiprocessor each, and the
    longest takes twice the mean of a causal mask. With fewer than two blocks per multiprocessor
    the longest decides: time grows by ``sqrt(1 + (wave / (heads x tokens))^2)``.
    """

    efficiency: float
    half_length: float
    small_head: float
    backward_over_forward: float
    """Time of backward over time of forward, both full."""
    wave: float
    """Heads x queries of two blocks on every multiprocessor, forward."""
    wave_backward: float

    def over_forward(self, backward: NDArray[np.bool_], columns: FloatArray) -> FloatArray:
        """Seconds per FLOP over forward's, of heads of so many columns."""
        large = np.where(columns > LARGE_HEAD, LARGE_HEAD_BACKWARD, 1.0)
        return np.where(backward, large * self.backward_over_forward / ATTENTION_BACKWARD, 1.0)

    def idle(self, rows: FloatArray, backward: NDArray[np.bool_]) -> FloatArray:
        """Factor on the time of kernels of so many heads x tokens, at least 1."""
        wave = np.where(backward, self.wave_backward, self.wave)
        factor: FloatArray = np.sqrt(1 + (wave / np.maximum(rows, 1.0)) ** 2)
        return factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Kernel efficiencies of one device, from ``data/roofline.yaml``.

    GEMM: ``max((2mnk + saturation_flops) / (peak x efficiency), bytes / bandwidth) + overhead``.
    """

    name: str
    origin: str
    gemm_efficiency: Mapping[str, float]
    """Share of the dense peak that a large GEMM reaches, by dtype."""
    saturation_flops: float
    grouped_rows: float
    """Rows of an expert at which a grouped GEMM takes twice as long as one GEMM of all rows."""
    grouped_rows_weight: float
    """The same of a weight gradient, whose inner size they are."""
    gemm_overhead: float
    gemm_bandwidth: float
    """Share of memory bandwidth that operands of a GEMM reach."""
    attention: Mapping[str, AttentionKernel]
    memory_bandwidth: float
    """Share of memory bandwidth that element-wise kernels reach."""
    memory_overhead: float

    def seconds(
        self, ops: Columns, workload: Workload, cluster: Cluster, stack: Stack
    ) -> FloatArray:
        """Seconds of each slot under each key, shape (O, U)."""
        seconds = np.zeros_like(ops.bytes)
        device = cluster.device
        for low_precision in (False, True):
            rows = np.array(
                [i for i in ops.rows("gemm") if ops.slots[i].low_precision is low_precision],
                dtype=int,
            )
            if len(rows):
                dtype = gemm_dtype(workload, low_precision=low_precision)
                starts = ops.starts[rows] * self.saturation_flops
                flops = ops.flops[rows] + starts
                one = self.gemm_seconds(flops, ops.bytes[rows], dtype, device)
                by_row = low_precision and workload.fp8_scaling == "row"
                share = ROW_SCALED if by_row else 1.0
                seconds[rows] = one * self._grouped(ops, rows) / share
        rows = ops.rows("attention")
        if len(rows):
            kernel = self.kernel(stack.attention_kernel, device)
            dtype = gemm_dtype(workload, low_precision=False)
            keys = ops.n[rows]
            backward = np.array([ops.slots[i].phase != "forward" for i in rows])
            factor = kernel.over_forward(backward[:, None], ops.k[rows])
            rate = self.attention_rate(kernel, keys, ops.k[rows], dtype, device)
            blocks = kernel.idle(ops.starts[rows] * ops.m[rows], backward[:, None])
            seconds[rows] = factor * blocks * ops.flops[rows] / rate
        rows = ops.rows("memory")
        seconds[rows] = self.memory_seconds(ops.bytes[rows], device)
        if device.host is not None:
            rows = ops.rows("host_copy")
            seconds[rows] = ops.bytes[rows] / device.host.bandwidth
            rows = ops.rows("host_memory")
            seconds[rows] = ops.bytes[rows] / device.host.memory_bandwidth
        for kind in ROUNDS:
            rows = ops.collectives(kind)
            if len(rows):
                seconds[rows] = collective_seconds(
                    kind,
                    *_ring(ops, rows),
                    cluster,
                    between=ops.between[rows],
                    above_leaf=ops.above_leaf[rows],
                )
        return seconds * ops.count

    def _grouped(self, ops: Columns, rows: NDArray[np.int64]) -> FloatArray:
        """Factor on GEMMs by the rows of an expert; 1 where a launch holds one product."""
        weight = np.array([ops.slots[i].phase == "backward_weight" for i in rows])[:, None]
        half = np.where(weight, self.grouped_rows_weight, self.grouped_rows)
        of_expert = np.maximum(np.where(weight, ops.k[rows], ops.m[rows]), 1.0)
        factor: FloatArray = 1 + np.where(ops.starts[rows] > 1, half / of_expert, 0.0)
        return factor

    def origins(
        self, ops: Columns, workload: Workload, cluster: Cluster, stack: Stack
    ) -> NameArray:
        """``origin`` for kernels, for collectives measured-fit or linear; shape (O, U)."""
        names = np.full(ops.count.shape, self.origin, dtype="U12")
        for kind in ROUNDS:
            rows = ops.collectives(kind)
            if len(rows):
                measured = measured_seconds(
                    kind, *_ring(ops, rows), cluster, between=ops.between[rows]
                )
                names[rows] = np.where(np.isnan(measured), "linear", "measured-fit")
        return names

    def kernel(self, name: str, device: Device) -> AttentionKernel:
        """Constants of a fused attention kernel; ``ValueError`` where it has none here."""
        if name not in self.attention:
            known = ", ".join(self.attention) or "none"
            raise ValueError(
                f"no constants for fused attention {name} on {device.name} (known there: {known}); "
                "use attention eager"
            )
        return self.attention[name]

    def gemm_seconds(
        self, flops: FloatArray, moved: FloatArray, dtype: str, device: Device
    ) -> FloatArray:
        """Seconds of GEMMs; ``flops`` includes ``saturation_flops`` for each of them."""
        rate = device.peaks[dtype] * self.gemm_efficiency[dtype]
        bandwidth = device.bandwidth * self.gemm_bandwidth
        return np.maximum(flops / rate, moved / bandwidth) + self.gemm_overhead

    def attention_rate(
        self,
        kernel: AttentionKernel,
        keys: FloatArray,
        head_dim: FloatArray,
        dtype: str,
        device: Device,
    ) -> FloatArray:
        """FLOP/s of fused attention forward; of backward's FLOPs too, but for its own ratio."""
        rate = device.peaks[dtype] * kernel.efficiency * keys / (keys + kernel.half_length)
        return rate * np.where(head_dim < SMALL_HEAD, kernel.small_head, 1.0)

    def memory_seconds(self, moved: FloatArray, device: Device) -> FloatArray:
        """Seconds of kernels that only move memory."""
        return moved / (device.bandwidth * self.memory_bandwidth) + self.memory_overhead


def _ring(ops: Columns, rows: NDArray[np.int64]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Bytes, ranks, and ranks inside a scale-up domain of collectives; each at least one rank."""
    return ops.bytes[rows], np.maximum(ops.group[rows], 1), np.maximum(ops.inside[rows], 1)


def gemm_dtype(workload: Workload, *, low_precision: bool) -> str:
    """The dtype that a GEMM runs in: fp8 and fp4 only where weights are cast, bf16 elsewhere."""
    if workload.precision in CAST_PRECISIONS and not low_precision:
        return "bf16"
    return workload.precision


@cache
def _table() -> dict[str, Any]:
    import yaml  # only where a price is asked for: importing the estimator stays light

    text = resources.files("estimator.cost").joinpath("data", "roofline.yaml").read_text("utf-8")
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def roofline(device: Device) -> Roofline:
    """The constants of a device: its own where it was measured, else its architecture's."""
    table = _table()
    base = table["architectures"][device.architecture]
    own = (table.get("devices") or {}).get(device.name, {})
    gemm = {**base["gemm"], **own.get("gemm", {})}
    memory = {**base["memory"], **own.get("memory", {})}
    attention = {**base["attention"], **own.get("attention", {})}
    constants = tuple(AttentionKernel.__dataclass_fields__)
    return Roofline(
        name="analytic",
        origin="analytic" if device.name in table["measured"] else "extrapolated",
        gemm_efficiency=gemm["efficiency"],
        saturation_flops=gemm["saturation_flops"],
        grouped_rows=gemm["grouped_rows"],
        grouped_rows_weight=gemm["grouped_rows_weight"],
        gemm_overhead=gemm["overhead_seconds"],
        gemm_bandwidth=memory["gemm_efficiency"],
        attention={
            name: AttentionKernel(**{key: block[key] for key in constants})
            for name, block in attention.items()
        },
        memory_bandwidth=memory["efficiency"],
        memory_overhead=memory["overhead_seconds"],
    )
