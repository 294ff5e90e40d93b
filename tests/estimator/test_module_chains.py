"""Chains of calls that run as one kernel: what joins them, what ends them, what they move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.lower.operators import flops
from tests.estimator.traced import leaf, only, products, ran, total_bytes

torch = pytest.importorskip("torch")
functional = torch.nn.functional


def test_a_chain_is_one_kernel() -> None:
    trace = ran(lambda x: torch.tanh(x * 2 + 1), torch.zeros(8, 16), fuse=True)
    row = only(trace, "fused(mul+add+tanh)")
    assert (row["kind"], row["m"], row["n"]) == ("elementwise", 8, 16)
    assert (row["reads"], row["writes"], row["work"]) == (1, 1, 3)


def test_two_branches_meet_in_one_kernel() -> None:
    trace = ran(lambda x, y: torch.sin(x) * torch.cos(y), leaf(8, 16), leaf(8, 16), fuse=True)
    row = only(trace, "fused(sin+cos+mul)")
    assert (row["reads"], row["writes"], row["work"]) == (2, 1, 3)


def test_a_value_with_two_readers_ends_its_chain() -> None:
    def run(x: Any) -> Any:
        y = torch.sin(x * 2)
        return torch.cos(y) + 1, y @ y

    trace = ran(run, torch.zeros(8, 8), fuse=True)
    assert trace.ops.name.tolist() == ["fused(mul+sin)", "fused(cos+add)", "mm"]


def test_what_the_module_returns_is_written() -> None:
    def run(x: Any) -> Any:
        y = x * 2
        return y, torch.sin(y)

    assert ran(run, torch.zeros(8, 8), fuse=True).ops.name.tolist() == ["mul", "sin"]


def test_what_backward_needs_is_written() -> None:
    trace = ran(lambda x: torch.cos(torch.sin(x)), leaf(8, 8), fuse=True, training=True)
    assert only(trace, "fused(sin+cos)")["writes"] == 2
    # Backward makes sin of what forward saved, and cos of the input, on the way.
    assert trace.in_backward.sum() == 1


def test_a_softmax_takes_what_feeds_it_along() -> None:
    def run(scores: Any, mask: Any) -> Any:
        return torch.softmax((scores / 8).masked_fill(mask, -1e9), -1)

    mask = torch.zeros(16, 16, dtype=torch.bool)
    row = only(ran(run, torch.zeros(4, 16, 16), mask, fuse=True), "fused(div+masked_fill+softmax)")
    assert (row["kind"], row["m"], row["n"]) == ("softmax", 64, 16)
    assert (row["reads"], row["writes"]) == (1 + 1 / 16, 1)


def test_a_reduction_across_rows_ends_its_chain() -> None:
    rows = ran(lambda x: torch.exp((x * 2).sum(-1)), torch.zeros(8, 16), fuse=True)
    assert rows.ops.name.tolist() == ["fused(mul+sum+exp)"]
    columns = ran(lambda x: torch.exp((x * 2).sum(0)), torch.zeros(8, 16), fuse=True)
    assert columns.ops.name.tolist() == ["fused(mul+sum)", "exp"]


STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "tanh": lambda x, y: torch.tanh(x),
    "scale": lambda x, y: x * 3,
    "add": lambda x, y: x + y,
    "twice": lambda x, y: torch.sin(x) + torch.exp(x),
    "norm": lambda x, y: functional.layer_norm(x, x.shape[-1:]),
    "softmax": lambda x, y: torch.softmax(x, -1),
    "product": lambda x, y: x @ y,
    "center": lambda x, y: x - x.mean(-1, keepdim=True),
    "swap": lambda x, y: x.transpose(0, 1).contiguous(),
    "in place": lambda x, y: (x * 1).relu_(),
}


@settings(max_examples=25, deadline=None)
@given(
    names=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6), training=st.booleans()
)
def test_fusing_keeps_products_and_never_moves_more(names: list[str], training: bool) -> None:
    def run(x: Any, y: Any) -> Any:
        for name in names:
            x = STEPS[name](x, y)
        return x

    apart = ran(run, leaf(8, 8), leaf(8, 8), training=training)
    fused = ran(run, leaf(8, 8), leaf(8, 8), training=training, fuse=True)
    for backward in (False, True):
        assert products(fused, backward=backward) == products(apart, backward=backward)
    assert total_bytes(fused) <= total_bytes(apart) * (1 + 1e-12)
    assert fused.ops.count.sum() <= apart.ops.count.sum()
    assert flops(fused.ops) @ fused.ops.count == pytest.approx(flops(apart.ops) @ apart.ops.count)
