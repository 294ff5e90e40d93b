"""The raw grid of a Transformer's plans: the values of each field before any rule is applied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from estimator.plan import CHOICES, NAMES, UNSET, Plan, code
from spaces.problem import Problem, divisors
from spaces.run_rules import FULL
from spaces.space import Constraints

DERIVED = ("dp", "first_stage_layers", "last_stage_layers", "recompute_layers")
"""Fields that follow from others and have no axis of their own."""
TOKENS_PER_MICRO_BATCH = 1 << 17
"""Larger micro-batches than this (and than 8 sequences) have long saturated a device."""
MOST_CHUNKS = 16
"""Model chunks per stage beyond which interleaving only adds messages."""


@dataclass(frozen=True, slots=True)
class Recomputing:
    """One value of the axis ``recompute``: which activations, and in how many layers."""

    recompute: int
    quarters: int = 4
    """Of the fullest stage's layers, rounded up; 4 is every layer."""
    layers: int | None = None
    """A given count instead."""


def declared_axes(problem: Problem) -> dict[str, tuple[Any, ...]]:
    """The declared raw grid before narrowing: column values per field, in order of expansion."""
    model, workload, stack = problem.model, problem.workload, problem.stack
    world, sequence = problem.cluster.gpus, workload.sequence
    chunks = {1}
    if stack.interleaving:
        short = (0, 1, 2) if stack.uneven_stages else (0,)
        for missing in short:
            chunks.update(divisors(model.layers + missing, min(MOST_CHUNKS, model.layers)))
    recompute = [Recomputing(CHOICES["recompute"].index(word)) for word in stack.recompute]
    recompute += [Recomputing(FULL, quarters) for quarters in (3, 2, 1)]
    free: dict[str, Sequence[Any]] = {
        "tp": divisors(world, model.heads),
        "cp": divisors(world, min(stack.max_cp, max(1, sequence // 2))),
        "pp": divisors(world, model.layers),
        **_expert_axes(problem),
        "micro_batch": divisors(workload.global_batch, max(8, TOKENS_PER_MICRO_BATCH // sequence)),
        "interleave": sorted(chunks),
        "recompute": recompute if "full" in stack.recompute else recompute[:-3],
        "sequence_parallel": (0, 1),
        "zero": sorted(stack.zero),
        "order": [CHOICES["order"].index(word) for word in stack.rank_orders],
    }
    default = Plan()
    single = {
        name: (code(name, getattr(default, name)),)
        for name in NAMES
        if name not in free and name not in DERIVED
    }
    return {name: tuple(values) for name, values in {**free, **single}.items()}


def _expert_axes(problem: Problem) -> dict[str, Sequence[Any]]:
    """Values of ep and etp: experts cut like the other layers, or whole on each rank."""
    experts = problem.model.experts
    if experts is None:
        return {"ep": (1,), "etp": (UNSET,)}
    return {"ep": divisors(experts.count, problem.cluster.gpus), "etp": (UNSET, 1)}


def narrow(axes: dict[str, tuple[Any, ...]], asked: Constraints) -> dict[str, tuple[Any, ...]]:
    """The axes with what the user asks applied: a fixed field has one value, whatever its axis."""
    narrowed: dict[str, tuple[Any, ...]] = {}
    for name, values in axes.items():
        if name == "recompute":
            kept = _narrow_recompute(values, asked)
        else:
            if name in asked.fix:
                values = (code(name, asked.fix[name]),)
            kept = tuple(
                v for v, k in zip(values, asked.keeps(name, np.array(values)), strict=True) if k
            )
        if not kept:
            raise ValueError(
                f"fix, max and forbid leave no value of {name}; its values are "
                f"{', '.join(str(_shown(name, value)) for value in values)}"
            )
        narrowed[name] = kept
    return narrowed


def _narrow_recompute(
    values: tuple[Recomputing, ...], asked: Constraints
) -> tuple[Recomputing, ...]:
    if asked.fix.get("recompute_layers") is not None:
        values = (Recomputing(FULL, layers=asked.fix["recompute_layers"]),)
    elif "recompute" in asked.fix:
        word = code("recompute", asked.fix["recompute"])
        values = tuple(v for v in values if v.recompute == word) or (Recomputing(word),)
    keep = asked.keeps("recompute", np.array([value.recompute for value in values]))
    return tuple(value for value, kept in zip(values, keep, strict=True) if kept)


def _shown(name: str, value: Any) -> Any:
    if isinstance(value, Recomputing):
        value = value.recompute
    return CHOICES[name][value] if name in CHOICES else value
