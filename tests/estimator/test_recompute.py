"""What recompute runs again, by kind and by framework, against counts made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from estimator import Plan, Plans, Stack, Transformer, Workload, estimate
from estimator.catalog import load_cluster, load_model, load_stack
from estimator.lower.keys import layer_keys
from estimator.lower.memory import activation_bytes
from estimator.lower.slots import Columns
from estimator.lower.transformer import lower_layers

LLAMA = load_model("llama-3.1-8b")
CLUSTER = load_cluster("h100-sxm:8")
WORKLOAD = Workload(global_batch=64, sequence=4096)
MEGATRON, FSDP, MAXTEXT = (load_stack(name) for name in ("megatron", "fsdp", "maxtext"))
TOKENS, HIDDEN, FFN, KV = 4096, 4096, 14336, 1024
DOWN = 2 * TOKENS * HIDDEN * FFN
UP = 2 * DOWN
PROJECTIONS = 2 * TOKENS * HIDDEN * (2 * HIDDEN + 2 * KV)
CORE = 2 * TOKENS**2 * HIDDEN
"""Two products over the lower triangle, the diagonal counted half."""


def lowered(stack: Stack, model: Transformer = LLAMA, **changes: Any) -> Columns:
    keys, _ = layer_keys(Plans.of([Plan(dp=8, **changes)]), stack)
    return lower_layers(model, WORKLOAD, CLUSTER, keys, stack)


def again(ops: Columns, kind: str) -> float:
    """FLOPs of a layer that recompute of a kind runs again."""
    return float(
        sum(
            (ops.flops[i] * ops.count[i])[0]
            for i, slot in enumerate(ops.slots)
            if slot.place == "layer" and kind in slot.recomputed_by
        )
    )


@pytest.mark.parametrize(
    ("stack", "selective", "mlp", "full"),
    [
        (MEGATRON, CORE, UP + DOWN, PROJECTIONS + CORE + UP + DOWN),
        (FSDP, CORE, UP, PROJECTIONS + CORE + UP),
        (MAXTEXT, CORE, UP + CORE, PROJECTIONS + CORE + UP),
    ],
    ids=["megatron", "fsdp", "maxtext"],
)
def test_flops_that_run_again(stack: Stack, selective: float, mlp: float, full: float) -> None:
    ops = lowered(stack)
    assert again(ops, "none") == 0
    for kind, expected in (("selective", selective), ("mlp", mlp), ("full", full)):
        assert again(ops, kind) == pytest.approx(expected, rel=3e-4), kind


def test_what_is_read_after_the_last_gemm_runs_again() -> None:
    """Norms after the MLP read its output, adapters beside it come later; experts are combined."""
    whole = replace(FSDP, recompute_style="modules")
    sandwich = replace(LLAMA, norms_per_layer=4)
    assert again(lowered(FSDP, sandwich), "full") == again(lowered(whole, sandwich), "full")
    experts = load_model("mixtral-8x7b")
    assert again(lowered(FSDP, experts), "full") == again(lowered(whole, experts), "full")
    adapters = replace(WORKLOAD, lora_rank=16, lora_targets="all")
    keys, _ = layer_keys(Plans.of([Plan(dp=8)]), FSDP)
    early, late = (lower_layers(LLAMA, adapters, CLUSTER, keys, stack) for stack in (FSDP, whole))
    assert again(early, "full") == again(late, "full")


def test_sums_over_tensor_parallel_ranks_run_again_with_their_gemm() -> None:
    def sums(stack: Stack, kind: str) -> list[str]:
        keys, _ = layer_keys(Plans.of([Plan(dp=2, tp=4, sequence_parallel=True)]), stack)
        ops = lower_layers(LLAMA, WORKLOAD, CLUSTER, keys, stack)
        return [
            slot.name
            for i, slot in enumerate(ops.slots)
            if slot.stream == "tp" and kind in slot.recomputed_by and ops.count[i][0] > 0
        ]

    ends = ["qkv input", "attention output output", "mlp up input", "mlp down output"]
    assert sums(MEGATRON, "full") == ends
    assert sums(FSDP, "full") == ends[:3]
    assert sums(MEGATRON, "mlp") == ends[2:]


@pytest.mark.parametrize("stack", [MEGATRON, FSDP, MAXTEXT], ids=lambda stack: stack.name)
@pytest.mark.parametrize("pp", [1, 4])
@pytest.mark.parametrize("cost", ["analytic", "amped"])
def test_an_mlp_lies_between_nothing_and_all(stack: Stack, pp: int, cost: str) -> None:
    kinds = ("none", "mlp", "full")
    rows = [Plan(dp=8 // pp, pp=pp, micro_batch=2, recompute=kind) for kind in kinds]  # type: ignore[arg-type]
    found = estimate(LLAMA, WORKLOAD, CLUSTER, Plans.of(rows), stack=stack, cost=cost)
    none, mlp, full = found.step_seconds
    assert none < mlp < full
    none, mlp, full = found.memory["activations"]
    assert none > mlp > full


def test_the_working_set_of_one_mlp_comes_back() -> None:
    """Both sides of the activation, of every layer but the one that runs again."""
    none, mlp = (
        estimate(
            LLAMA,
            WORKLOAD,
            CLUSTER,
            Plan(dp=8, recompute=kind),  # type: ignore[arg-type]
            stack=MEGATRON,
        ).memory["activations"]
        for kind in ("none", "mlp")
    )
    kept = 2 * 3 * TOKENS * FFN
    assert none - mlp == pytest.approx((LLAMA.layers - 1) * kept, rel=1e-9)


def test_xla_keeps_the_products_of_attention() -> None:
    """A layer's input, queries, keys and values, and the output projection, all in bf16."""
    keys, _ = layer_keys(Plans.of([Plan(dp=8)]), MAXTEXT)
    kept = activation_bytes(LLAMA, WORKLOAD, MAXTEXT, keys)
    assert kept.without_mlp[0, 0] == 2 * TOKENS * (HIDDEN + (HIDDEN + 2 * KV) + HIDDEN)
    assert kept.checkpoint[0] == 2 * TOKENS * HIDDEN


def test_scales_by_row_cast_again_for_backward() -> None:
    """Forward reads 2 and writes 1 byte an element; backward casts inputs by column, which reads
    twice (5), and half as many gradients again by row and by column (1.5 x 8); weights like inputs.
    """
    fp8 = replace(WORKLOAD, precision="fp8")
    keys, _ = layer_keys(Plans.of([Plan(dp=4, tp=2, sequence_parallel=True)]), MEGATRON)

    def moved(workload: Workload, name: str) -> list[float]:
        ops = lower_layers(LLAMA, workload, CLUSTER, keys, MEGATRON)
        return [
            float(ops.bytes[i][0]) for i, slot in enumerate(ops.slots) if slot.name.startswith(name)
        ]

    row = replace(fp8, fp8_scaling="row")
    inputs = TOKENS * (HIDDEN + HIDDEN / 2)
    assert moved(row, "casts of attention") == [3 * inputs, 17 * inputs]
    assert moved(fp8, "casts of attention") == [4 * inputs, 6 * inputs]
    weights = LLAMA.layer_sharded_parameters("dense") / 2
    weights += LLAMA.layer_replicated_parameters("dense")
    assert moved(row, "casts of weights") == [3 * weights, 5 * weights]
    assert moved(fp8, "casts of weights") == []
    # What tensor-parallel ranks gather stays in bf16: twice the bytes of fp8.
    halves = [one / two for one, two in zip(moved(fp8, "qkv"), moved(row, "qkv"), strict=True)]
    assert {1.0, 0.5} == set(halves)


def test_fused_casts_write_what_they_read() -> None:
    """bf16 read (2) and two fp8 copies written (1 each), or the copies alone."""
    fp8 = replace(WORKLOAD, precision="fp8")
    keys, _ = layer_keys(Plans.of([Plan(dp=8)]), MEGATRON)
    fused = replace(MEGATRON, fused=MEGATRON.fused | {"cast"})

    def cast(stack: Stack) -> float:
        ops = lower_layers(LLAMA, fp8, CLUSTER, keys, stack)
        names = ("casts of attention", "casts of mlp")
        return float(
            sum(
                ops.bytes[i][0]
                for i, slot in enumerate(ops.slots)
                if slot.name in names and slot.phase == "forward"
            )
        )

    assert cast(MEGATRON) == 4 * TOKENS * (3 * HIDDEN + FFN)
    assert cast(fused) == cast(MEGATRON) / 2
