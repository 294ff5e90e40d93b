"""Several kernel models as one: every row goes to the first that covers it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from estimator.cluster import Device
from estimator.cost.analytic_kernels import AnalyticKernels
from estimator.cost.kernels import KernelModel
from estimator.cost.regression import shipped_regression
from estimator.cost.roofline import roofline
from estimator.cost.surface import ANY, shipped_surfaces
from estimator.cost.tiles import shipped_tiles
from estimator.operators import FloatArray, NameArray, Operators


@dataclass(frozen=True, slots=True, kw_only=True)
class BestKernels:
    """A ``KernelModel`` of others, in order of preference. All arrays have shape (N,)."""

    models: tuple[KernelModel, ...]
    name: str = "learned"

    def covers(self, ops: Operators, device: Device) -> NDArray[np.bool_]:
        """Rows that any of them covers."""
        found = np.zeros(len(ops), dtype=bool)
        for model in self.models:
            found |= model.covers(ops, device)
        return found

    def seconds(self, ops: Operators, device: Device) -> FloatArray:
        """Seconds of each row times its count, by the first model that covers it.

        Raises:
            ValueError: no model covers a row.
        """
        seconds = np.zeros(len(ops))
        for model, rows in self._routes(ops, device):
            seconds[rows] = model.seconds(ops.take(rows), device)
        return seconds

    def origin(self, ops: Operators, device: Device) -> NameArray:
        """What the first model that covers a row says of it.

        Raises:
            ValueError: no model covers a row.
        """
        names = np.full(len(ops), "", dtype="U12")
        for model, rows in self._routes(ops, device):
            names[rows] = model.origin(ops.take(rows), device)
        return names

    def _routes(
        self, ops: Operators, device: Device
    ) -> Iterator[tuple[KernelModel, NDArray[np.int64]]]:
        free = np.ones(len(ops), dtype=bool)
        for model in self.models:
            rows = np.flatnonzero(free & model.covers(ops, device))
            if len(rows):
                free[rows] = False
                yield model, rows
        if free.any():
            row = int(np.argmax(free))
            words = (ops.dtype[row], ops.kind[row], ops.name[row])
            raise ValueError(
                f"row {row + 1}: no kernel model of {' '.join(filter(None, map(str, words)))} "
                f"on {device.name}"
            )


def learned_kernels(device: Device, first: Sequence[KernelModel] = ()) -> BestKernels:
    """The models of ``--cost learned`` without the analytic: measured or fitted here, then others'.

    Args:
        device: What is priced: only its own and device-free parameters are read.
        first: Models that come before the shipped ones, as of a user's own samples.
    """
    surfaces = shipped_surfaces(device.name)
    own = tuple(surface for surface in surfaces.surfaces if surface.device != ANY)
    models: list[KernelModel] = [*first, replace(surfaces, surfaces=own)]
    if device.name in REGRESSION_DEVICES:
        models.append(shipped_regression())
    models.append(shipped_tiles())
    # A roofline fitted on tables of this device is nearer than surfaces of others.
    if roofline(device).origin == "extrapolated":
        models.append(surfaces)
    return BestKernels(models=tuple(models))


REGRESSION_DEVICES = ("a100-sxm-80gb", "gh200-96gb")
"""Devices of the shipped regressors, so that no other reads their file."""


def all_kernels(device: Device, first: Sequence[KernelModel] = ()) -> BestKernels:
    """The models of ``--cost learned`` for any operator: the analytic last."""
    return BestKernels(models=(*learned_kernels(device, first).models, AnalyticKernels()))
