"""Kinds of layers of a model, and how many of each fall onto every class of stages.

Suffixes: N kinds, C the four stage classes, P plans.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from estimator.lower.slots import FloatArray
from estimator.lower.stages import StageClasses
from estimator.model import LayerKind, Transformer


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Layers that cost the same."""

    mlp: LayerKind
    windowed: bool
    share: float
    """Of the layers behind the dense prefix."""


def layer_kinds(model: Transformer) -> tuple[Kind, ...]:
    """The kinds that occur in a model, with their shares; windows are spread evenly over both."""
    prefix = model.experts.first_dense if model.experts is not None else 0
    moe = model.moe_layers / (model.layers - prefix)
    window = model.windowed_layers / model.layers
    mlps: tuple[tuple[LayerKind, float], ...] = (("dense", 1 - moe), ("moe", moe))
    return tuple(
        Kind(mlp=mlp, windowed=windowed, share=of_mlp * of_window)
        for mlp, of_mlp in mlps
        for windowed, of_window in ((False, 1 - window), (True, window))
        if of_window > 0 and (of_mlp > 0 or (mlp == "dense" and prefix > 0))
    )


def layers_by_kind(
    model: Transformer, kinds: tuple[Kind, ...], classes: StageClasses
) -> FloatArray:
    """Layers of each kind on a stage of each class, shape (N, 4, P); averages where uneven.

    The dense prefix fills the first stages; multi-token prediction adds its layers to the last.
    """
    layers = classes.layers.astype(float)
    if len(kinds) == 1:
        by_kind = layers[None]
    else:
        prefix = np.zeros_like(layers)
        left = np.full(layers.shape[1], float(model.experts.first_dense if model.experts else 0))
        for c in range(len(layers)):
            room = layers[c] * classes.count[c]
            taken = np.minimum(left, room)
            prefix[c] = taken / np.maximum(classes.count[c], 1)
            left = left - taken
        window = model.windowed_layers / model.layers
        body = layers - prefix
        by_kind = np.stack(
            [
                kind.share * body
                + (prefix * (window if kind.windowed else 1 - window) if kind.mlp == "dense" else 0)
                for kind in kinds
            ]
        )
    if model.mtp_layers:
        last = np.where(classes.count[3] > 0, 3, 0)
        by_kind = by_kind.copy()
        by_kind[len(kinds) - 1, last, np.arange(layers.shape[1])] += model.mtp_layers
    return by_kind
