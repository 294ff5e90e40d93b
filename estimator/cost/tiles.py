"""NeuSight's tile model for fp32 kernels: tiles, waves, and a small network per operator family.

Lee et al., "Forecasting GPU Performance for Deep Learning Training and Inference", ASPLOS'25.
Seconds are those of ``tile_law.py`` over a utilisation that a network reads off the shape (section
4.3):

    utilisation = sigmoid(gamma) (1 - sigmoid(alpha) / (1 + waves))

The product lies in (0, 1], where the paper's difference can fall to 0 and below, and waves take at
most half of it: samples of less than a wave hide under the launch floor. The networks see
shapes, waves and the generation of kernels, never a peak or a bandwidth: time falls with both by
construction. What the paper's samples hold beside the kernel (events, an idle queue) is kept apart:
``seconds`` is for kernels queued one after another, ``isolated_seconds`` for one timed alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from estimator.cluster import Device
from estimator.cost.kernels import light_seconds
from estimator.cost.network import Network, network_of
from estimator.cost.parameters import BROKEN, pack, unpack
from estimator.cost.tile_law import Bounds, Law, base_seconds, bounds
from estimator.lower.operators import as_run
from estimator.operators import FloatArray, NameArray, Operators

FAMILIES = ("linear", "bmm", "elementwise", "softmax", "layer_norm")
"""Kinds with a network; a product also knows tiles, lanes and watts."""
PRODUCTS = ("linear", "bmm")
SIZES = ("batch", "m", "n", "k")
LEAST_SHARE = 1e-3
"""Of utilisation, where the logarithm of a smaller one would mean nothing."""
FORM = "tiles"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The network of one kind, features to (gamma, alpha), and what it was fitted on."""

    network: Network
    least: FloatArray
    """(4,) least and (``most``) largest batch, m, n, k of the samples."""
    most: FloatArray
    shifts: Mapping[str, float]
    """Of gamma on measured devices; an unmeasured one has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What timing one kernel alone adds to its work, seconds."""

    overhead: float
    """That a long kernel's time holds beside its work."""
    floor: float
    """That the smallest kernels read: the host's time to launch them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileModel:
    """A ``KernelModel`` of fp32 products and vector kernels on any device of the catalogue."""

    law: Law
    families: Mapping[str, Family]
    launches: Mapping[str, Mapping[str, Launch]]
    """By measured device and family."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    name: str = "tiles"

    def covers(self, ops: Operators, device: Device) -> NDArray[np.bool_]:
        """Rows in fp32 of a family that was fitted, where the device has an fp32 peak."""
        known = np.isin(ops.kind, list(self.families)) & (ops.dtype == "fp32")
        return np.asarray(known & ("fp32" in device.peaks), dtype=bool)

    def seconds(self, ops: Operators, device: Device) -> FloatArray:
        """Seconds of each row times its count, in a queue that never runs dry.

        Raises:
            ValueError: a row is of another kind or dtype; the message names it.
        """
        return ops.count * self._work(ops, device)

    def isolated_seconds(self, ops: Operators, device: Device) -> FloatArray:
        """Seconds of each row timed alone between two events, as in samples of kernels."""
        timed = np.zeros(len(ops))
        work = self._work(ops, device)
        for family, rows in _families(ops).items():
            launch = self.launch(family, device)
            timed[rows] = np.maximum(launch.floor, launch.overhead + work[rows])
        return ops.count * timed

    def launch(self, family: str, device: Device) -> Launch:
        """As measured for the family on the device, else the median of the measured devices."""
        known = {name: each[family] for name, each in self.launches.items() if family in each}
        if device.name in known:
            return known[device.name]
        return Launch(
            overhead=float(np.median([launch.overhead for launch in known.values()])),
            floor=float(np.median([launch.floor for launch in known.values()])),
        )

    def utilisation(self, ops: Operators, device: Device) -> FloatArray:
        """Of forward rows, in (0, 1]: the share of the bounds' speed."""
        self._check(ops, device)
        shares = np.ones(len(ops))
        for family, rows in _families(ops).items():
            bound = bounds(ops.take(rows), device, product=family in PRODUCTS)
            shares[rows] = utilisation(self.families[family], bound, device)
        return shares

    def origin(self, ops: Operators, device: Device) -> NameArray:
        """learned, or extrapolated where a size of the row was not among the samples'."""
        self._check(ops, device)
        run, row = as_run(ops)
        outside = np.zeros(len(ops), dtype=bool)
        for family, rows in _families(run).items():
            fitted = self.families[family]
            sizes = np.stack([getattr(run, size)[rows] for size in SIZES], axis=1)
            if family == "elementwise":
                sizes = np.stack([np.prod(sizes, axis=1)], axis=1)
            beyond = ((sizes < fitted.least) | (sizes > fitted.most)).any(axis=1)
            np.logical_or.at(outside, row[rows], beyond)
        return np.where(outside, "extrapolated", "learned")

    def _work(self, ops: Operators, device: Device) -> FloatArray:
        self._check(ops, device)
        run, row = as_run(ops)
        each = np.zeros(len(run))
        for family, rows in _families(run).items():
            product = family in PRODUCTS
            bound = bounds(run.take(rows), device, product=product)
            share = utilisation(self.families[family], bound, device)
            each[rows] = base_seconds(bound, self.law, device, product=product) / share
        seconds = np.bincount(row, weights=each, minlength=len(ops))
        return np.maximum(seconds, light_seconds(ops, device))

    def _check(self, ops: Operators, device: Device) -> None:
        covered = self.covers(ops, device)
        if not covered.all():
            bad = int(np.argmin(covered))
            raise ValueError(
                f"row {bad + 1}: no tile model of {ops.dtype[bad]} {ops.kind[bad]} on "
                f"{device.name}; it has fp32 {', '.join(self.families)}"
            )

    def npz(self) -> bytes:
        """The bytes of one file of parameters."""
        arrays: dict[str, NDArray[Any]] = {}
        for kind, family in self.families.items():
            named = family.network.arrays() | {"least": family.least, "most": family.most}
            arrays |= {f"{kind}/{name}": array for name, array in named.items()}
        header = {
            "law": {
                "sharpness": self.law.sharpness,
                "norm_rate": self.law.norm_rate,
                "joules": dict(self.law.joules),
            },
            "families": {
                kind: {"layers": len(family.network.weights), "shifts": dict(family.shifts)}
                for kind, family in self.families.items()
            },
            "launches": {
                device: {
                    family: {"overhead": launch.overhead, "floor": launch.floor}
                    for family, launch in each.items()
                }
                for device, each in self.launches.items()
            },
            "provenance": dict(self.provenance),
        }
        return pack(FORM, header, arrays)


def utilisation(family: Family, bound: Bounds, device: Device) -> FloatArray:
    """The law at the head of this file, shape (N,), in (0, 1]."""
    outputs = family.network.outputs(bound.features).astype(np.float64)
    shift = family.shifts.get(device.name, 0.0)
    share = _sigmoid(outputs[:, 0] + shift) * (1 - _sigmoid(outputs[:, 1]) / (1 + bound.waves))
    return np.asarray(np.clip(share, LEAST_SHARE, 1.0), dtype=np.float64)


def _sigmoid(values: FloatArray) -> FloatArray:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * values)), dtype=np.float64)


def _families(ops: Operators) -> dict[str, NDArray[np.int64]]:
    kinds = np.unique(ops.kind).tolist()
    return {kind: np.flatnonzero(ops.kind == kind) for kind in kinds}


def load_tiles(path: str | Path) -> TileModel:
    """Read what :meth:`TileModel.npz` wrote.

    Raises:
        ValueError: the file is not one of these.
    """
    header, arrays = unpack(path, FORM)
    try:
        families = {
            kind: Family(
                network=network_of(arrays, int(one["layers"]), f"{kind}/"),
                least=arrays[f"{kind}/least"],
                most=arrays[f"{kind}/most"],
                shifts=one["shifts"],
            )
            for kind, one in header["families"].items()
        }
        launches = {
            device: {kind: Launch(**parts) for kind, parts in each.items()}
            for device, each in header["launches"].items()
        }
        return TileModel(
            law=Law(**header["law"]),
            families=families,
            launches=launches,
            provenance=header["provenance"],
        )
    except BROKEN as error:
        raise ValueError(f"{path} is not a file of {FORM}: {error}") from error


@cache
def shipped_tiles() -> TileModel:
    """The parameters that ship with the package."""
    with resources.as_file(resources.files("estimator.cost") / "data" / "tiles.npz") as path:
        return load_tiles(path)
