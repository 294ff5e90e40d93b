"""What every model of single kernels offers, and the speed of light that none may pass."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from estimator.cluster import Device
from estimator.lower.operators import flops, moved_bytes
from estimator.operators import FloatArray, NameArray, Operators

PRODUCTS = ("linear", "bmm", "attention")
"""Kinds that run at the peak of their dtype; all others are bound by memory."""


class KernelModel(Protocol):
    """Anything that prices operators on a device. All arrays have shape (N,)."""

    @property
    def name(self) -> str:
        """tiles, regression, ..."""
        ...

    def covers(self, ops: Operators, device: Device) -> NDArray[np.bool_]:
        """Rows that it has parameters for (their kind, dtype and phase, on this device)."""
        ...

    def seconds(self, ops: Operators, device: Device) -> FloatArray:
        """Seconds of each row times its count: at least ``light_seconds``.

        Raises:
            ValueError: a row is not covered.
        """
        ...

    def origin(self, ops: Operators, device: Device) -> NameArray:
        """measured, learned, or extrapolated where a row lies outside what was fitted."""
        ...


def light_seconds(ops: Operators, device: Device) -> FloatArray:
    """Least seconds of one run: FLOPs at the peak, or the bytes that L2 cannot have kept.

    Raises:
        ValueError: a product's dtype has no peak on this device.
    """
    beyond = np.maximum(moved_bytes(ops) - device.l2_bytes, 0.0)
    return np.maximum(product_seconds(ops, device), beyond / device.bandwidth)


def product_seconds(ops: Operators, device: Device) -> FloatArray:
    """FLOPs of products at the peak of their dtype; 0 for the kinds bound by memory."""
    products = np.isin(ops.kind, PRODUCTS)
    rates = np.ones(len(ops))
    for dtype in np.unique(ops.dtype[products]).tolist():
        peak = dtype.removesuffix("_block")
        if peak not in device.peaks:
            raise ValueError(
                f"{device.name} has no {dtype} peak (it has {', '.join(device.peaks)})"
            )
        rates[ops.dtype == dtype] = device.peaks[peak]
    return np.where(products, flops(ops) / rates, 0.0)
