"""Prices of the same runs under other habits of their stack, without lowering them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from estimator.compose import Composition, composition
from estimator.cost import CostModel
from estimator.estimate import Estimates
from estimator.layer import layer_seconds
from estimator.lower.keys import Keys, layer_keys
from estimator.lower.slots import FloatArray
from estimator.mapping import Mapped
from estimator.plan import Plans
from estimator.stack import Stack
from search.validate import problems

LAYER_FIELDS = (
    "launch_forward",
    "launch_backward",
    "hidden_tp",
    "interference_zero3",
    "gradient_accumulation_traffic",
)
"""What the seconds of a layer depend on. The last is read in lowering: bytes of a kernel that only
moves memory are in proportion to it, so its seconds are linear in it."""
REMEMBERED = 6
"""Sets of layers kept: the last point's, and those beside it."""


class Repricing:
    """Runs of one stack, lowered and priced once.

    Stacks may differ from the runs' own in ``LAYER_FIELDS`` and in what is used after the layers:
    ``in_situ``, ``step_seconds``, ``exposed_dp`` and ``straggler_per_doubling``.
    """

    def __init__(self, runs: Sequence[Mapped], cost: str | CostModel) -> None:
        """Lower and price the runs; ``ValueError`` where the cost model cannot."""
        self.runs = runs
        self.cost = cost
        self.members = [np.array(members) for members in problems(runs)]
        self.doublings = np.log2([one.cluster.nodes for one in runs])
        self.base = [self._compose(members) for members in self.members]
        self.keys: list[Keys] = [layer_keys(one.plans, one.stack)[0] for one in self.base]
        self._half_and_whole: list[tuple[Composition, Composition]] = []
        self._layers: dict[tuple[float, ...], list[Composition]] = {}
        self._bare: dict[tuple[float, ...], FloatArray] = {}

    @property
    def cost_name(self) -> str:
        """The name under which the cost model has its in-situ factor."""
        return self.base[0].pricer.name

    def seconds(self, stack: Stack) -> FloatArray:
        """Predicted step times in the order of the runs."""
        key = (*self._layer_key(stack), stack.exposed_dp)
        if key not in self._bare:
            self._bare[key] = self._bare_seconds(stack)
        scale = stack.in_situ[self.cost_name] * (1 + stack.straggler_per_doubling * self.doublings)
        seconds: FloatArray = scale * (self._bare[key] + stack.step_seconds)
        return seconds

    def estimates(self, stack: Stack) -> list[Estimates]:
        """Estimates problem by problem, in the order of ``members``."""
        return [replace(one, stack=stack).estimates() for one in self._with_layers(stack)]

    def _bare_seconds(self, stack: Stack) -> FloatArray:
        """Step times without what :meth:`seconds` applies at the end."""
        bare = replace(
            stack, in_situ={self.cost_name: 1.0}, straggler_per_doubling=0.0, step_seconds=0.0
        )
        answer = np.empty(len(self.runs))
        for members, one in zip(self.members, self.estimates(bare), strict=True):
            answer[members] = one.step_seconds
        return answer

    def _layer_key(self, stack: Stack) -> tuple[float, ...]:
        return tuple(getattr(stack, name) for name in LAYER_FIELDS)

    def _compose(self, members: NDArray[np.int64], share: float | None = None) -> Composition:
        one = self.runs[members[0]]
        stack = one.stack
        if share is not None:
            stack = replace(stack, gradient_accumulation_traffic=share)
        plans = Plans.of(self.runs[i].plan for i in members)
        return composition(one.model, one.workload, one.cluster, plans, stack=stack, cost=self.cost)

    def _with_layers(self, stack: Stack) -> list[Composition]:
        key = self._layer_key(stack)
        if key not in self._layers:
            while len(self._layers) >= REMEMBERED:
                self._layers.pop(next(iter(self._layers)))
            self._layers[key] = [
                replace(
                    one,
                    layers=layer_seconds(one.ops, one.ops_seconds, one.workload, stack, keys),
                )
                for one, keys in zip(self._lowered(stack), self.keys, strict=True)
            ]
        return self._layers[key]

    def _lowered(self, stack: Stack) -> list[Composition]:
        """The operators' seconds at the stack's gradient-accumulation traffic."""
        share = stack.gradient_accumulation_traffic
        if share == self.base[0].stack.gradient_accumulation_traffic:
            return self.base
        if not self._half_and_whole:
            self._half_and_whole = [
                (self._compose(members, 0.5), self._compose(members, 1.0))
                for members in self.members
            ]
        return [
            replace(
                whole,
                ops_seconds=whole.ops_seconds
                + (share - 1.0) / 0.5 * (whole.ops_seconds - half.ops_seconds),
            )
            for half, whole in self._half_and_whole
        ]
