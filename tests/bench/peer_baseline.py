"""The simplest peer: one efficiency per framework, GPU and precision, and a count of FLOPs.

time = FLOPs / (GPUs x dense peak x efficiency). FLOPs are a model's matrix products with the full
square of attention scores, backward twice forward (once for frozen weights); recompute, casts and
communication are whatever the efficiency absorbs. An efficiency is the median over the role-fit
rows of its group; a group without rows takes that of its GPU and precision, then of its precision,
then of everything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from estimator.conventions import convention_of
from estimator.lower.transformer import model_flops
from estimator.mapping import Mapped
from estimator.runs import Run

LEVELS = ("framework, GPU and precision", "GPU and precision", "precision", "all")
"""What an efficiency is the median of, from the row's own group outwards."""

Group = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Useful FLOP/s per GPU of a run, and what they are a share of."""

    groups: tuple[Group, ...]
    """The run's group at each of ``LEVELS``."""
    achieved: float
    peak: float
    """FLOP/s of one GPU, dense, in the run's precision."""


def full_flops(mapped: Mapped) -> float:
    """FLOPs of a step over all devices: the estimator's useful FLOPs, scores not halved.

    For full training this is 6 FLOPs per matrix parameter and token (the embedding counted once,
    as the logits) and 12 x layers x attention width x sequence per token.
    """
    model, workload = mapped.model, mapped.workload
    upper_half = 6.0 * model.layers * workload.sequence * model.attention_width
    return model_flops(model, workload) + upper_half * workload.tokens


def rate(run: Run, mapped: Mapped, achieved: float) -> Rate:
    """A run's rate; ``achieved`` is in FLOP/s per GPU."""
    device, precision = mapped.cluster.device, mapped.workload.precision
    groups = (
        (framework(run, device.name), device.name, precision),
        (device.name, precision),
        (precision,),
        (),
    )
    return Rate(groups=groups, achieved=achieved, peak=device.peaks[precision])


def framework(run: Run, device: str) -> str:
    """As written; MLPerf submissions list containers there and count as one."""
    convention = convention_of(run.framework or "", run.source_id, device)
    if convention is not None and convention.name == "mlperf":
        return "MLPerf"
    return run.framework or "Megatron-LM"


class Baseline:
    """Efficiencies of groups of runs."""

    def __init__(self, rates: Iterable[Rate]) -> None:
        """Take the median efficiency of each group at each level."""
        shares: dict[Group, list[float]] = defaultdict(list)
        for one in rates:
            for group in one.groups:
                shares[group].append(one.achieved / one.peak)
        self.efficiency = {group: median(values) for group, values in shares.items()}

    def level(self, one: Rate) -> int:
        """Index into ``LEVELS`` of the first group that has runs."""
        return next(i for i, group in enumerate(one.groups) if group in self.efficiency)

    def over_measured(self, one: Rate) -> float:
        """Predicted over measured time."""
        efficiency = self.efficiency[one.groups[self.level(one)]]
        return one.achieved / (one.peak * efficiency)
