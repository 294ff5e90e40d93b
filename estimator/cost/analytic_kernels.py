"""The default pricer's constants for operators as rows: the model that every device has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from estimator.cluster import Device
from estimator.cost.kernels import PRODUCTS, light_seconds
from estimator.cost.roofline import Roofline, roofline
from estimator.lower.operators import GEMM_BACKWARD, flops, moved_bytes, query_rows
from estimator.operators import FloatArray, NameArray, Operators


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyticKernels:
    """A ``KernelModel`` over ``cost/data/roofline.yaml``. All arrays have shape (N,).

    Products by their FLOPs and a start-up, or by their bytes where those take longer; fused
    attention by its ramp over the keys; all else by its bytes. Each kernel launch has its overhead:
    the backward of a GEMM two.
    """

    attention_kernel: str = "flash2"
    """The fused kernel that rows of kind attention run: PyTorch's own is FlashAttention 2."""

    @property
    def name(self) -> str:
        """The name that ``--cost`` gives it."""
        return "analytic"

    def covers(self, ops: Operators, device: Device) -> NDArray[np.bool_]:
        """All but products in a dtype that the device lacks, and attention without a kernel."""
        constants = roofline(device)
        known = [d for d in device.peaks if d in constants.gemm_efficiency]
        peak = np.isin(peak_dtypes(ops), known)
        kernel = self._kernel(constants) in constants.attention
        attention = ops.kind == "attention"
        products = np.isin(ops.kind, PRODUCTS)
        return np.asarray((~products | peak) & (~attention | kernel), dtype=np.bool_)

    def seconds(self, ops: Operators, device: Device) -> FloatArray:
        """Seconds of each row times its count: at least ``light_seconds``.

        Raises:
            ValueError: a product's dtype has no peak on this device, or it has no fused attention.
        """
        least = light_seconds(ops, device)
        constants = roofline(device)
        work, moved = flops(ops), moved_bytes(ops)
        seconds = constants.memory_seconds(moved, device)
        dtypes = peak_dtypes(ops)
        gemms = np.where(ops.phase == "backward", GEMM_BACKWARD, 1.0)
        for dtype in np.unique(dtypes[np.isin(ops.kind, PRODUCTS)]).tolist():
            if dtype not in constants.gemm_efficiency:
                raise ValueError(
                    f"no GEMM efficiency in {dtype} on {device.name} "
                    f"(known there: {', '.join(constants.gemm_efficiency)})"
                )
            rows = np.isin(ops.kind, ("linear", "bmm")) & (dtypes == dtype)
            starts, later = gemms[rows] * constants.saturation_flops, gemms[rows] - 1
            seconds[rows] = (
                constants.gemm_seconds(work[rows] + starts, moved[rows], dtype, device)
                + later * constants.gemm_overhead
            )
            rows = (ops.kind == "attention") & (dtypes == dtype)
            if rows.any():
                seconds[rows] = self._attention(ops.take(rows), work[rows], constants, device)
        return np.maximum(seconds, least) * ops.count

    def origin(self, ops: Operators, device: Device) -> NameArray:
        """analytic, or extrapolated on devices that were not measured."""
        return np.full(len(ops), roofline(device).origin)

    def _kernel(self, constants: Roofline) -> str:
        """The kernel asked for, or the one that the device has."""
        if self.attention_kernel in constants.attention or not constants.attention:
            return self.attention_kernel
        return next(iter(constants.attention))

    def _attention(
        self, ops: Operators, work: FloatArray, constants: Roofline, device: Device
    ) -> FloatArray:
        kernel = constants.kernel(self._kernel(constants), device)
        dtype = str(peak_dtypes(ops)[0])
        rate = constants.attention_rate(kernel, ops.n, ops.k, dtype, device)
        backward = ops.phase == "backward"
        factor = kernel.over_forward(backward, ops.k)
        blocks = kernel.idle(query_rows(ops), backward)
        return factor * blocks * work / rate


def peak_dtypes(ops: Operators) -> NameArray:
    """The dtype whose peak a row runs at: block-scaled fp8 that of fp8."""
    return np.char.replace(ops.dtype, "fp8_block", "fp8")
