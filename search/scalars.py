"""The numbers of a stack that runs can teach: each with a prior, bounds, and a physical meaning."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from estimator.stack import Stack

IN_SITU = "in_situ"
SMALL = ("launch", "exposed_dp", "step_seconds", "straggler_per_doubling")
"""They add something small, or are a floor: no slope until they are large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """One positive number with a log-normal prior; SI units."""

    name: str
    centre: float
    """The stack's own value, or a usual one where the stack's lies outside the bounds (as 0)."""
    sd: float
    """Standard deviation of its natural logarithm."""
    low: float
    high: float
    fields: tuple[str, ...]
    """The fields of the stack that it sets."""
    suspects: str
    """What to look at where a fit drives it to a bound."""

    @property
    def small(self) -> bool:
        """Whether the logarithm of a time has no slope in its own until it is large."""
        return self.name in SMALL

    def value(self, x: float) -> float:
        """The value that lies ``x`` in the logarithm from the centre."""
        return float(min(max(self.centre * math.exp(x), self.low), self.high))

    @property
    def range(self) -> tuple[float, float]:
        """Bounds in the logarithm, from the centre."""
        return math.log(self.low / self.centre), math.log(self.high / self.centre)

    def bound_of(self, value: float) -> float | None:
        """The bound that a value has reached (to 1 %), if any."""
        for bound in (self.low, self.high):
            if abs(math.log(value / bound)) < 0.01:
                return bound
        return None


def scalars_of(stack: Stack, cost: str) -> tuple[Scalar, ...]:
    """All scalars of a stack under a cost model, the overall factor first.

    Spreads: what published stacks differ by in robust fits of 607 training runs, widened where
    such a fit left the scalar at its prior.
    """
    usual = {"launch": 0.4e-3, "step_seconds": 8e-3}
    launch = _inside(stack.launch_forward, 0.0, math.inf, usual["launch"])
    step = _inside(stack.step_seconds, 0.0, math.inf, usual["step_seconds"])

    def scalar(
        name: str, sd: float, low: float, high: float, usual: float, suspects: str
    ) -> Scalar:
        centre = _inside(value_of(stack, name, cost), low, high, usual)
        fields = {"launch": ("launch_forward", "launch_backward"), "exposed_tp": ("hidden_tp",)}
        return Scalar(
            name=name,
            centre=centre,
            sd=sd,
            low=low,
            high=high,
            fields=fields.get(name, (name,)),
            suspects=suspects,
        )

    traffic = "the rows' zero_stage and dp, or the network of the cluster"
    return (
        scalar(IN_SITU, 0.15, 0.6, 2.0, 1.0, "the unit of the times, the GPU or the precision"),
        scalar("launch", 0.5, 0.1 * launch, 10 * launch, launch, "CUDA graphs, or a busy host"),
        scalar("step_seconds", 1.0, 0.02 * step, 50 * step, step, "evaluation or I/O in the times"),
        scalar("exposed_tp", 0.25, 0.05, 1.0, 0.59, "whether tensor-parallel overlap is on"),
        scalar("exposed_dp", 0.5, 0.005, 1.0, 0.1, traffic),
        scalar("interference_zero3", 0.4, 0.02, 1.0, 0.29, traffic),
        scalar(
            "gradient_accumulation_traffic",
            *(0.3, 0.05, 1.0, 0.62),
            suspects="the micro-batch, or fused gradient accumulation",
        ),
        scalar("straggler_per_doubling", 0.7, 0.0005, 0.2, 0.01, "the network of the cluster"),
    )


def _inside(value: float, low: float, high: float, usual: float) -> float:
    return value if low < value < high else usual


def value_of(stack: Stack, name: str, cost: str) -> float:
    """A scalar's value in a stack."""
    if name == IN_SITU:
        return stack.in_situ.get(cost, 1.0)
    if name == "launch":
        return stack.launch_forward
    if name == "exposed_tp":
        return 1 - stack.hidden_tp
    value: float = getattr(stack, name)
    return value


def with_value(stack: Stack, name: str, value: float, cost: str) -> Stack:
    """The stack with another value of a scalar; a launch keeps its ratio of backward to forward."""
    if name == IN_SITU:
        return replace(stack, in_situ={**stack.in_situ, cost: value})
    if name == "launch":
        before = stack.launch_forward
        ratio = stack.launch_backward / before if before else 1.1
        backward = float(f"{ratio * value:.6g}")
        return replace(stack, launch_forward=value, launch_backward=backward)
    if name == "exposed_tp":
        return replace(stack, hidden_tp=1 - value)
    changed: dict[str, Any] = {name: value}
    return replace(stack, **changed)
