"""What a plan costs: parts in seconds and bytes; totals are derived from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from estimator.plan import Plan, Plans

FloatArray = NDArray[np.float64]

TIME_PARTS = ("compute", "tp", "cp", "ep", "pp", "bubble", "dp", "optimizer", "host")
"""Exposed seconds on the critical stage."""
HIDDEN_PARTS = ("tp", "cp", "ep", "pp", "dp")
"""Seconds of communication that run beside compute."""
PHASES = ("forward", "backward", "recompute")
"""What ``compute`` consists of."""
MEMORY_PARTS = (
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "logits",
    "buffers",
    "reserved",
    "context",
)
"""Bytes on the fullest stage; the last two lie outside what the framework allocates."""
ALLOCATED_PARTS = MEMORY_PARTS[:-2]
STAGES = ("first", "heavier middle", "lighter middle", "last")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCosts:
    """Per stage class, arrays of shape (P, 4) in the order of ``STAGES``; ``count`` may be 0."""

    count: NDArray[np.int64]
    layers: NDArray[np.int64]
    seconds: FloatArray
    """Per micro-batch: forward, backward, recompute and exposed communication."""
    allocated_bytes: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimates:
    """Costs of P plans. Every array has shape (P,); seconds per step, bytes per device."""

    plans: Plans
    time: Mapping[str, FloatArray]
    hidden: Mapping[str, FloatArray]
    compute_phases: Mapping[str, FloatArray]
    memory: Mapping[str, FloatArray]
    stages: StageCosts
    uncertainty: FloatArray
    """Half width of the interval of ``step_seconds``, relative."""
    memory_uncertainty: float
    """Half width of the interval of ``peak_bytes``, relative."""
    origin: Callable[[int], Mapping[str, str]]
    """Of one plan, by its index: for each time part where most of its seconds are from.

    Kernels are analytic, learned, measured or extrapolated; collectives ``measured-fit`` or
    ``linear``; a part that takes no time is of ``none``. Computed when asked: only few plans are.
    """
    capacity_bytes: float
    tokens_per_step: int
    model_flops: float
    """Useful FLOPs of a step over all devices: no recompute, causal attention counted once."""
    peak_flops: float
    """Peak of all devices together in the workload's precision, FLOP/s."""

    def __len__(self) -> int:
        return len(self.plans)

    @property
    def step_seconds(self) -> FloatArray:
        """Seconds per step: the sum of the time parts."""
        return _sum(self.time, TIME_PARTS)

    @property
    def low_seconds(self) -> FloatArray:
        """Lower end of the interval."""
        return self.step_seconds * (1 - self.uncertainty)

    @property
    def high_seconds(self) -> FloatArray:
        """Upper end of the interval."""
        return self.step_seconds * (1 + self.uncertainty)

    @property
    def allocated_bytes(self) -> FloatArray:
        """Bytes that the framework's allocator hands out at the peak."""
        return _sum(self.memory, ALLOCATED_PARTS)

    @property
    def peak_bytes(self) -> FloatArray:
        """Bytes of device memory at the peak, reserved and context included."""
        return _sum(self.memory, MEMORY_PARTS)

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Whether the peak stays within the device's usable memory."""
        return self.peak_bytes <= self.capacity_bytes

    @property
    def tokens_per_second(self) -> FloatArray:
        """Tokens per second of the whole cluster."""
        return self.tokens_per_step / self.step_seconds

    @property
    def mfu(self) -> FloatArray:
        """Model FLOP utilisation: ``model_flops`` over what the peak could do in a step."""
        return self.model_flops / (self.step_seconds * self.peak_flops)

    def __getitem__(self, index: int) -> Estimate:
        """One plan's costs as numbers."""
        return Estimate(
            plan=self.plans[index],
            time={part: float(value[index]) for part, value in self.time.items()},
            hidden={part: float(value[index]) for part, value in self.hidden.items()},
            compute_phases={p: float(value[index]) for p, value in self.compute_phases.items()},
            memory={part: float(value[index]) for part, value in self.memory.items()},
            stages=_stage_rows(self.stages, index),
            step_seconds=float(self.step_seconds[index]),
            low_seconds=float(self.low_seconds[index]),
            high_seconds=float(self.high_seconds[index]),
            allocated_bytes=float(self.allocated_bytes[index]),
            peak_bytes=float(self.peak_bytes[index]),
            low_bytes=float(self.peak_bytes[index]) * (1 - self.memory_uncertainty),
            high_bytes=float(self.peak_bytes[index]) * (1 + self.memory_uncertainty),
            capacity_bytes=self.capacity_bytes,
            fits=bool(self.fits[index]),
            tokens_per_second=float(self.tokens_per_second[index]),
            mfu=float(self.mfu[index]),
            origin=self.origin(index),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One row of :class:`Estimates`, as numbers."""

    plan: Plan
    time: Mapping[str, float]
    hidden: Mapping[str, float]
    compute_phases: Mapping[str, float]
    memory: Mapping[str, float]
    stages: list[dict[str, Any]]
    step_seconds: float
    low_seconds: float
    high_seconds: float
    allocated_bytes: float
    peak_bytes: float
    low_bytes: float
    high_bytes: float
    """Ends of the interval of ``peak_bytes``."""
    capacity_bytes: float
    fits: bool
    tokens_per_second: float
    mfu: float
    origin: Mapping[str, str]
    """Per time part; the words are those of :attr:`Estimates.origin`."""


def _sum(parts: Mapping[str, FloatArray], names: tuple[str, ...]) -> FloatArray:
    total: FloatArray = np.sum([parts[name] for name in names], axis=0)
    return total


def _stage_rows(stages: StageCosts, index: int) -> list[dict[str, Any]]:
    return [
        {
            "stage": name,
            "count": int(stages.count[index, s]),
            "layers": int(stages.layers[index, s]),
            "micro_batch_seconds": float(stages.seconds[index, s]),
            "allocated_bytes": float(stages.allocated_bytes[index, s]),
        }
        for s, name in enumerate(STAGES)
        if stages.count[index, s]
    ]
