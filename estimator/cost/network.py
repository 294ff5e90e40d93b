"""A small network in numpy: ReLU layers over centred and scaled features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from estimator.operators import FloatArray

Matrix = NDArray[np.float32]

BLOCK = 2048
"""Rows that go through at a time: their activations stay in the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Layers from F features to outputs; the last is linear."""

    weights: tuple[Matrix, ...]
    biases: tuple[Matrix, ...]
    centre: FloatArray
    """(F,) means of the fitted features, and ``scale`` their deviations."""
    scale: FloatArray

    low: FloatArray
    """(F,) least and (``high``) largest feature fitted: beyond them they count as there."""
    high: FloatArray

    def inputs(self, features: FloatArray) -> Matrix:
        """What the first layer sees of features (N, F)."""
        clipped = np.clip(features, self.low, self.high)
        return np.asarray((clipped - self.centre) / self.scale, dtype=np.float32)

    def outputs(self, features: FloatArray) -> Matrix:
        """Outputs of N rows, shape (N, outputs), of features (N, F)."""
        parts = [np.zeros((0, self.biases[-1].shape[0]), dtype=np.float32)]
        for start in range(0, len(features), BLOCK):
            rows = features[start : start + BLOCK]
            hidden = self.inputs(rows)
            for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
                hidden = hidden @ weight
                hidden += bias
                np.maximum(hidden, 0, out=hidden)
            parts.append(hidden @ self.weights[-1] + self.biases[-1])
        return np.concatenate(parts)

    def exact_outputs(self, features: FloatArray) -> FloatArray:
        """The same in double precision, which does not show the order of a CPU's sums."""
        hidden = self.inputs(features).astype(np.float64)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = np.maximum(hidden @ weight.astype(np.float64) + bias, 0.0)
        return np.asarray(hidden @ self.weights[-1].astype(np.float64) + self.biases[-1])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All of it by name, for a file of parameters."""
        named = {f"weight{i}": weight for i, weight in enumerate(self.weights)}
        named |= {f"bias{i}": bias for i, bias in enumerate(self.biases)}
        return named | {part: getattr(self, part) for part in PARTS}


PARTS = ("centre", "scale", "low", "high")


def network_of(arrays: Mapping[str, NDArray[Any]], layers: int, prefix: str) -> Network:
    """What :meth:`Network.arrays` gave, from names with a prefix."""
    return Network(
        weights=tuple(arrays[f"{prefix}weight{i}"] for i in range(layers)),
        biases=tuple(arrays[f"{prefix}bias{i}"] for i in range(layers)),
        **{part: arrays[prefix + part] for part in PARTS},
    )
