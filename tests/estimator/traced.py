"""Modules to trace, and what their traces hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from estimator.lower.module import ModuleTrace, trace_module
from estimator.lower.operators import flops, moved_bytes

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
PRODUCTS = ("linear", "bmm", "attention")


class Runs(nn.Module):  # type: ignore[misc,name-defined]
    """A module whose forward is a function of it and its inputs."""

    def __init__(self, run: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Any) -> Any:
        return self.run(self, *inputs)


def leaf(*shape: int, dtype: Any = None) -> Any:
    return torch.empty(shape, dtype=dtype or torch.float32, device="meta", requires_grad=True)


def ran(run: Callable[..., Any], *inputs: Any, training: bool = False, **how: bool) -> ModuleTrace:
    """The trace of a function of tensors."""
    return trace_module(Runs(lambda self, *x: run(*x)), inputs, training=training, **how)


def products(trace: ModuleTrace, *, backward: bool) -> Counter[tuple[int, ...]]:
    """(batch, m, n, k) of GEMMs in one pass, with their counts."""
    found: Counter[tuple[int, ...]] = Counter()
    mine = np.isin(trace.ops.kind, ("linear", "bmm")) & (trace.in_backward == backward)
    for row in np.flatnonzero(mine):
        sizes = tuple(int(getattr(trace.ops, size)[row]) for size in ("batch", "m", "n", "k"))
        found[sizes] += int(trace.ops.count[row])
    return found


def product_flops(trace: ModuleTrace, *, backward: bool) -> float:
    mine = np.isin(trace.ops.kind, PRODUCTS) & (trace.in_backward == backward)
    return float((flops(trace.ops) * trace.ops.count)[mine].sum())


def only(trace: ModuleTrace, name: str) -> dict[str, Any]:
    """The one row of this name."""
    rows = np.flatnonzero(trace.ops.name == name)
    assert len(rows) == 1, trace.ops.name
    row = {column: values[rows[0]] for column, values in trace.ops.columns().items()}
    return row | {"in_backward": bool(trace.in_backward[rows[0]])}


def total_bytes(trace: ModuleTrace) -> float:
    return float((moved_bytes(trace.ops) * trace.ops.count).sum())
