"""One operator's time on one device: efficiency over a roofline floor, from samples.

The floor is the larger of the FLOPs at the peak and the bytes at the memory's bandwidth; what is
learned is the share of it that the kernel reaches, in (0, 1]. So no shape, however far from the
samples, is priced under the floor (Zhang et al., arXiv 2509.22832, learn raw time instead).

Suffixes: R rows, F features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from estimator.cluster import Device
from estimator.cost.kernels import light_seconds, product_seconds
from estimator.cost.trees import Trees
from estimator.lower.operators import flops, moved_bytes
from estimator.operators import FloatArray, Operators

Form = Literal["affine", "forest", "boosting"]
FORMS: tuple[Form, ...] = ("affine", "forest", "boosting")
"""The simplest first."""

SIZES = ("batch", "m", "n", "k", "flops", "bytes", "causal", "grouping")
"""Features that say how large and of what make: what must lie in the fitted range."""
ALIGNED = ("aligned_m", "aligned_n", "aligned_k")
"""The largest power of two that divides a size, up to ``MOST_ALIGNED``."""
WAVES = ("wave_128x256", "wave_256x128", "wave_128x128")
"""How full the last wave of tiles over the SMs leaves the device."""
FEATURES = (*SIZES, *ALIGNED, *WAVES)
MOST_ALIGNED = 128
TILES = ((128, 256), (256, 128), (128, 128))
LEAST_EFFICIENCY = 1e-9
SAME = 1e-9
"""How far outside the fitted range, in logarithms, is rounding."""


def floor_seconds(ops: Operators, device: Device) -> FloatArray:
    """Roofline of one run, shape (R,): all bytes at the memory's bandwidth, or FLOPs at peak.

    Raises:
        ValueError: a product's dtype has no peak on this device.
    """
    return np.maximum(product_seconds(ops, device), moved_bytes(ops) / device.bandwidth)


def features(ops: Operators, device: Device) -> FloatArray:
    """What a regressor sees, shape (F, R), in the order of ``FEATURES``; sizes as logarithms."""
    batch = ops.batch * ops.heads
    found = np.empty((len(FEATURES), len(ops)))
    sizes = (batch, ops.m, ops.n, ops.k, np.maximum(flops(ops), 1.0), moved_bytes(ops))
    for row, size in enumerate(sizes):
        np.log(size, out=found[row])
    found[6] = ops.causal
    found[7] = np.log(ops.heads / ops.kv_heads)
    for row, size in enumerate((ops.m, ops.n, ops.k), start=len(SIZES)):
        found[row] = _alignment(size)
    width = np.where(ops.kind == "attention", 1.0, ops.n)
    for row, (high, wide) in enumerate(TILES, start=len(SIZES) + len(ALIGNED)):
        waves = batch * np.ceil(ops.m / high) * np.ceil(width / wide) / device.sms
        found[row] = waves / np.ceil(waves)
    return found


def _alignment(size: FloatArray) -> FloatArray:
    whole = np.asarray(np.minimum(size, 2.0**62), dtype=np.int64)
    return np.asarray(np.minimum(whole & -whole, MOST_ALIGNED), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Regressor:
    """Learned efficiency of the operators that share kind, name, phase, dtype and device.

    ``name`` is empty for matrix products, whose shapes say all: their names are labels.
    """

    device: str
    kind: str
    name: str
    phase: str
    dtype: str
    form: Form
    affine: FloatArray
    """Weights of ``affine_terms``: seconds, over the peak, over the bandwidth; shape (3,)."""
    trees: Trees | None
    """Logarithm of the efficiency, from all ``FEATURES``; ``None`` for the affine form."""
    low: FloatArray
    """The least of each of ``SIZES`` among the samples, shape (len(SIZES),)."""
    high: FloatArray
    rows: int
    """How many samples it was fitted on."""
    scores: Mapping[str, tuple[float, float]]
    """By form: mean relative error on shapes left out, and on the largest fifth left out."""

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """What it is for: device, kind, name, phase, dtype."""
        return self.device, self.kind, self.name, self.phase, self.dtype

    def efficiency(self, ops: Operators, device: Device) -> FloatArray:
        """Share of the floor's rate that each row reaches, in (0, 1], shape (R,)."""
        return self._priced(ops, device, features(ops, device))[0]

    def seconds(self, ops: Operators, device: Device) -> FloatArray:
        """Seconds of one run of each row, shape (R,); never under ``light_seconds``."""
        efficiency, floor = self._priced(ops, device, features(ops, device))
        return np.maximum(floor / efficiency, light_seconds(ops, device))

    def outside(self, ops: Operators, device: Device) -> NDArray[np.bool_]:
        """Rows with a size that no sample reached, shape (R,)."""
        sizes = features(ops, device)[: len(SIZES)]
        below = sizes < self.low[:, None] - SAME
        return np.asarray((below | (sizes > self.high[:, None] + SAME)).any(axis=0))

    def _priced(
        self, ops: Operators, device: Device, found: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        floor = floor_seconds(ops, device)
        if self.trees is None:
            return affine_efficiency(self.affine, ops, device), floor
        return np.exp(np.minimum(self.trees.predict(found), 0.0)), floor


def affine_terms(ops: Operators, device: Device) -> FloatArray:
    """One, seconds of the FLOPs at the peak, seconds of the bytes at the bandwidth; shape (3, R).

    FLOPs that are bound by memory have no term: they go with the bytes.
    """
    return np.stack(
        [np.ones(len(ops)), product_seconds(ops, device), moved_bytes(ops) / device.bandwidth]
    )


def affine_efficiency(affine: FloatArray, ops: Operators, device: Device) -> FloatArray:
    """Efficiency of a line of ``affine_terms`` over the floor, shape (R,); at most 1."""
    floor = floor_seconds(ops, device)
    efficiency = floor / np.maximum(affine @ affine_terms(ops, device), floor)
    return np.asarray(np.clip(efficiency, LEAST_EFFICIENCY, 1.0), dtype=np.float64)


def identity(kind: str, name: str) -> str:
    """The name that tells operators of a kind apart: none for matrix products."""
    return "" if kind in ("linear", "bmm") else name
