"""A small network in numpy: ReLU layers over centred and scaled features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from estimator.operators import FloatArray

Matrix = NDArray[np.float32]

BLOCK = 8192
"""Rows that go through at a time: their activations stay in the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Layers from F features to outputs; the last is linear."""

    weights: tuple[Matrix, ...]
    biases: tuple[Matrix, ...]
    centre: FloatArray
    """(F,) means of the fitted features, and ``scale`` their deviations."""
    scale: FloatArray

    def outputs(self, features: FloatArray) -> Matrix:
        """Outputs of N rows, shape (N, outputs), of features (N, F)."""
        parts = [np.zeros((0, self.biases[-1].shape[0]), dtype=np.float32)]
        for start in range(0, len(features), BLOCK):
            rows = features[start : start + BLOCK]
            hidden = ((rows - self.centre) / self.scale).astype(np.float32)
            for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
                hidden = np.maximum(hidden @ weight + bias, 0)
            parts.append(hidden @ self.weights[-1] + self.biases[-1])
        return np.concatenate(parts)
