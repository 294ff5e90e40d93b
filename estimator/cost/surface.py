"""Surfaces of efficiency, fitted on tables of measured products and attention in bf16 to fp4.

Seconds are a roofline floor over an efficiency: ``floor * exp(network + trees)``. A small network
takes the smooth part of log(seconds / floor), trees the jumps between kernels that it leaves. One
surface is fitted per device, kind, dtype and name. Those of products for ``ANY`` device, of the
tables of several, price a device that has no table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from estimator.cluster import Device
from estimator.cost.kernels import light_seconds
from estimator.cost.network import Network, network_of
from estimator.cost.oblivious import ObliviousTrees
from estimator.cost.parameters import BROKEN, pack, unpack
from estimator.cost.surface_features import features, floor_seconds, watts_per_flops
from estimator.lower.operators import as_run
from estimator.operators import FloatArray, NameArray, Operators

ANY = "any"
"""Device of a surface that is for those without one of their own."""
TRAINING_PARTS = ("ampere", "hopper", "blackwell")
"""Architectures that such a surface may price: products before Ampere (no asynchronous copies), of
AMD, and on boards whose power holds their clock down (Ada) run other kernels at other rates."""
FORM = "surfaces"
SIZES = ("m", "n", "k")
SCALARS = ("kind", "dtype", "name", "device", "backward_over_forward", "rows")
LISTS = ("least", "most", "power")
TREE_PARTS = ("edges", "feature", "cut", "leaves")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """Efficiency of one kind of kernel in one dtype on one device, or on ``ANY``."""

    kind: str
    dtype: str
    name: str
    """Kernel of attention (flash2, cudnn); empty for products."""
    device: str
    reference: Mapping[str, float]
    """Peak, bandwidth, L2 and multiprocessors of the fitted device: its efficiencies hold beside
    them, so that a faster memory in a what-if only moves the floor. Empty for ``ANY``."""
    power: FloatArray
    """(K, 2) of each architecture that a surface for ``ANY`` was fitted on: watts per TFLOP/s of
    peak, ascending, and the share of the peak that its largest products sustain."""
    network: Network | None
    """``None`` where trees alone were fitted, as for ``ANY``."""
    trees: ObliviousTrees
    least: FloatArray
    """(3,) least and (``most``) largest m, n and k of the samples."""
    most: FloatArray
    backward_over_forward: float
    """Seconds of attention's backward over its forward; products run their two gradients."""
    rows: int

    def seconds(self, ops: Operators, device: Device) -> FloatArray:
        """Seconds of one forward run of each row, shape (N,)."""
        fitted = _reference_device(self, device)
        columns = features(ops, fitted)
        excess = self.trees.predict(columns)
        if self.network is not None:
            excess += self.network.outputs(columns)[:, 0]
        return floor_seconds(ops, device, self.sustained(device)) * np.exp(np.maximum(excess, -3.0))

    def sustained(self, device: Device) -> float:
        """Share of the peak that the floor is at: 1 without ``power``.

        Power holds the clock of large products down, so that boards of fewer watts for their peak
        reach less of it. Between the fitted architectures by the logarithm; beyond, as the nearest.
        """
        if not len(self.power):
            return 1.0
        watts, shares = np.log(self.power).T
        mine = np.log(watts_per_flops(device, self.dtype))
        return float(np.exp(np.interp(mine, watts, shares)))

    def outside(self, ops: Operators) -> NDArray[np.bool_]:
        """Rows with a size beyond the samples', shape (N,)."""
        sizes = np.stack([getattr(ops, size) for size in SIZES], axis=1)
        return np.asarray(((sizes < self.least) | (sizes > self.most)).any(axis=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceModel:
    """A ``KernelModel`` of products and attention; every row goes to its own surface."""

    surfaces: tuple[Surface, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    name: str = "surfaces"

    def covers(self, ops: Operators, device: Device) -> NDArray[np.bool_]:
        """Rows with a surface of this device, or of any where it is a training part, (N,)."""
        found = np.zeros(len(ops), dtype=bool)
        for surface in self._for(device):
            found |= _is_for(surface, ops)
        return found & _has_peak(ops, device)

    def seconds(self, ops: Operators, device: Device) -> FloatArray:
        """Seconds of each row times its count, shape (N,); at least ``light_seconds`` each.

        Raises:
            ValueError: a row is not covered.
        """
        self._check(ops, device)
        run, row = as_run(ops)
        each = np.zeros(len(run))
        for surface, rows in self._routes(run, device):
            part = run.take(rows)
            backward = (part.kind == "attention") & (part.phase == "backward")
            factor = np.where(backward, surface.backward_over_forward, 1.0)
            if backward.any():
                part = replace(part, phase=np.full(len(part), "forward"))
            each[rows] = factor * surface.seconds(part, device)
        seconds = np.bincount(row, weights=each, minlength=len(ops))
        return np.asarray(np.maximum(seconds, light_seconds(ops, device)) * ops.count)

    def origin(self, ops: Operators, device: Device) -> NameArray:
        """learned, or extrapolated on a device or at a size without samples, shape (N,)."""
        self._check(ops, device)
        run, row = as_run(ops)
        outside = np.zeros(len(ops), dtype=bool)
        for surface, rows in self._routes(run, device):
            beyond = surface.outside(run.take(rows)) | (surface.device == ANY)
            np.logical_or.at(outside, row[rows], beyond)
        return np.where(outside, "extrapolated", "learned")

    def _for(self, device: Device) -> list[Surface]:
        """Surfaces of the device, then those of any."""
        mine = [surface for surface in self.surfaces if surface.device == device.name]
        if device.architecture not in TRAINING_PARTS:
            return mine
        return mine + [surface for surface in self.surfaces if surface.device == ANY]

    def _routes(self, run: Operators, device: Device) -> list[tuple[Surface, NDArray[np.int64]]]:
        """Each surface with its rows of kernels that run."""
        free = np.ones(len(run), dtype=bool)
        routes = []
        for surface in self._for(device):
            rows = np.flatnonzero(free & _is_for(surface, run))
            if len(rows):
                free[rows] = False
                routes.append((surface, rows))
        return routes

    def _check(self, ops: Operators, device: Device) -> None:
        covered = self.covers(ops, device)
        if not covered.all():
            row = int(np.argmin(covered))
            raise ValueError(
                f"row {row + 1}: no surface of {ops.dtype[row]} {ops.kind[row]} "
                f"{ops.name[row]} on {device.name}; price it with another model"
            )

    def npz(self) -> bytes:
        """The bytes of one .npz file: a JSON header of all scalars, and arrays; no pickle."""
        arrays: dict[str, NDArray[Any]] = {}
        headers = []
        for index, surface in enumerate(self.surfaces):
            arrays |= {f"{index}/{part}": getattr(surface.trees, part) for part in TREE_PARTS}
            header = {part: getattr(surface, part) for part in SCALARS}
            header |= {"reference": dict(surface.reference), "layers": 0}
            header |= {part: getattr(surface, part).tolist() for part in LISTS}
            if surface.network is not None:
                named = surface.network.arrays()
                arrays |= {f"{index}/{name}": array for name, array in named.items()}
                header["layers"] = len(surface.network.weights)
            headers.append(header)
        header = {"provenance": dict(self.provenance), "surfaces": headers}
        return pack(FORM, header, arrays)


def _is_for(surface: Surface, ops: Operators) -> NDArray[np.bool_]:
    # fp16 runs the same kernels on the same units as bf16.
    dtypes = ("bf16", "fp16") if surface.dtype == "bf16" else (surface.dtype,)
    found = np.isin(ops.dtype, dtypes)
    found &= ops.kind == surface.kind
    if surface.kind == "attention":
        found &= ops.name == surface.name
    return np.asarray(found)


def _has_peak(ops: Operators, device: Device) -> NDArray[np.bool_]:
    peaks = [
        dtype for dtype in np.unique(ops.dtype) if dtype.removesuffix("_block") in device.peaks
    ]
    return np.isin(ops.dtype, peaks)


def _reference_device(surface: Surface, device: Device) -> Device:
    """The device that a surface was fitted on; for ``ANY``, the one that is priced."""
    if surface.device == ANY:
        return device
    fitted = surface.reference
    peak = fitted["peak"]
    return Device(
        name=surface.device,
        architecture=device.architecture,
        peaks=dict.fromkeys((surface.dtype.removesuffix("_block"), "bf16", "fp16"), peak),
        memory_bytes=device.memory_bytes,
        bandwidth=fitted["bandwidth"],
        sms=int(fitted["sms"]),
        l2_bytes=fitted["l2_bytes"],
        tdp_watts=device.tdp_watts,
    )


def load_surfaces(path: str | Path, device: str | None = None) -> SurfaceModel:
    """Read what :meth:`SurfaceModel.npz` wrote: all, or what one device needs.

    Raises:
        ValueError: the file is not one of these.
    """
    header, arrays = unpack(path, FORM)
    try:
        surfaces = tuple(
            _surface(arrays, index, one)
            for index, one in enumerate(header["surfaces"])
            if device is None or one["device"] in (device, ANY)
        )
        return SurfaceModel(surfaces=surfaces, provenance=header["provenance"])
    except BROKEN as error:
        raise ValueError(f"{path} is not a file of {FORM}: {error}") from error


def _surface(file: Mapping[str, NDArray[Any]], index: int, one: Mapping[str, Any]) -> Surface:
    layers = int(one["layers"])
    return Surface(
        **{part: one[part] for part in SCALARS},
        reference=one["reference"],
        network=network_of(file, layers, f"{index}/") if layers else None,
        trees=ObliviousTrees(**{part: file[f"{index}/{part}"] for part in TREE_PARTS}),
        least=np.array(one["least"]),
        most=np.array(one["most"]),
        power=np.array(one["power"]).reshape(-1, 2),
    )


@cache
def shipped_surfaces(device: str | None = None) -> SurfaceModel:
    """The parameters that ship with the package: all, or what one device needs."""
    with resources.as_file(resources.files("estimator.cost") / "data" / "surfaces.npz") as path:
        return load_surfaces(path, device)
