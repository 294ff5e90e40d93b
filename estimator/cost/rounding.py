"""Fits that come out the same on every CPU.

Vector units add in other orders, and libraries differ in the last place of ``log`` and ``exp``.
Hundreds of steps of training, and splits of trees that nearly tie, turn that into other models.
Rounded far above such differences, and far below anything that was measured, the fits agree to the
bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from estimator.operators import FloatArray

if TYPE_CHECKING:
    import torch

TARGET_DECIMALS = 7
"""Of logarithms that a fit is to meet."""
GRADIENT_DECIMALS = 8
"""Adam divides by no less than 1e-8: a smaller gradient moves nothing."""
WEIGHT_DECIMALS = 6
DIGITS = 10
"""Significant ones of a coefficient."""


def targets(values: FloatArray) -> FloatArray:
    """Logarithms, rounded."""
    return np.round(values, TARGET_DECIMALS)


def significant(values: FloatArray) -> FloatArray:
    """Coefficients of any size, rounded."""
    with np.errstate(divide="ignore"):
        size = np.where(values == 0, 0.0, np.floor(np.log10(np.abs(values))))
    return np.asarray(np.round(values / 10.0**size, DIGITS) * 10.0**size, dtype=np.float64)


def step(optimizer: torch.optim.Optimizer) -> None:
    """One step of training in double precision, from rounded gradients to rounded weights."""
    import torch

    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    for weight in weights:
        weight.grad = torch.round(weight.grad, decimals=GRADIENT_DECIMALS)
    optimizer.step()
    with torch.no_grad():
        for weight in weights:
            weight.copy_(torch.round(weight, decimals=WEIGHT_DECIMALS))
