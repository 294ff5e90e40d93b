"""What a plan is checked against, and what a rule is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from estimator.cluster import Cluster
from estimator.model import Transformer
from estimator.plan import IntArray, Plan, Plans
from estimator.stack import Stack
from estimator.workload import Workload

BoolArray = NDArray[np.bool_]
LARGEST = 2**31 - 1
"""No count of a plan or workload comes near; products of two still fit a column."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The four givens of a search: what is trained, how much, where, and with which framework."""

    model: Transformer
    workload: Workload
    cluster: Cluster
    stack: Stack

    def micro_batches(self, plans: Plans) -> IntArray:
        """Micro-batches that each replica runs per step, shape (P,)."""
        count: IntArray = self.workload.global_batch // (plans.dp * plans.micro_batch)
        return count


@dataclass(frozen=True, slots=True)
class Rule:
    """One named reason why a plan cannot run (or need not be looked at)."""

    code: str
    text: str
    """The rule in one sentence."""
    fields: tuple[str, ...]
    """Plan fields that ``legal`` reads: once they are known, the rule can be applied."""
    legal: Callable[[Problem, Plans], BoolArray]
    """Which of P plans keep the rule, shape (P,) or broadcastable to it."""
    explain: Callable[[Problem, Plan], str]
    """For a plan that breaks it: the rule, the value and a remedy in one line."""


def check_problem(model: Transformer, workload: Workload, cluster: Cluster, stack: Stack) -> None:
    """Raise ``ValueError`` (one line) where no plan at all could run the workload."""
    if workload.sequence > model.max_positions:
        raise ValueError(
            f"sequence={workload.sequence} is longer than the {model.max_positions} positions of "
            f"{model.name}; use at most {model.max_positions}"
        )
    check_size("global_batch", workload.global_batch)
    cluster.peak(workload.precision)
    if not stack.zero or not stack.rank_orders:
        raise ValueError(f"stack {stack.name} allows no zero or no rank_orders; list at least one")


def check_size(name: str, value: object) -> None:
    """Raise ``ValueError`` for a number that no column can hold."""
    if isinstance(value, int) and value > LARGEST:
        raise ValueError(f"{name}={value} is too large; use at most {LARGEST}")


def divisors(number: int, limit: int | None = None) -> list[int]:
    """Divisors of ``number``, ascending, up to ``limit``."""
    small = [i for i in range(1, int(number**0.5) + 1) if number % i == 0]
    every = sorted({*small, *(number // i for i in small)})
    return every if limit is None else [d for d in every if d <= limit]


def offer(values: Iterable[int], limit: int = 8) -> str:
    """Remedy text: the first few values worth trying."""
    listed = list(values)
    if not listed:
        return "no other value helps here"
    return "try " + ", ".join(str(value) for value in listed[:limit])
