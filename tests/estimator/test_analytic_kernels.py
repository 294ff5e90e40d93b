"""Operators as rows at the default pricer's constants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator import Plan, Plans, Workload
from estimator.catalog import load_cluster, load_device, load_model, load_stack, names
from estimator.cost.analytic_kernels import AnalyticKernels
from estimator.cost.kernels import KernelModel, light_seconds
from estimator.cost.roofline import roofline
from estimator.lower.keys import layer_keys
from estimator.lower.transformer import lower_layers
from estimator.operators import KINDS, Operators, operators

MODEL: KernelModel = AnalyticKernels()
H100 = load_device("h100-sxm")


def one_of_each(dtype: str = "bf16") -> Operators:
    both = [*KINDS, *KINDS]
    phases = ["forward"] * len(KINDS) + ["backward"] * len(KINDS)
    sizes = {"m": 512.0, "n": 1024.0, "k": 64.0, "heads": 8.0, "kv_heads": 2.0, "causal": 1.0}
    return operators(both, phase=phases, dtype=dtype, **sizes)


def test_a_gemm_by_hand() -> None:
    """H100: (2 m n k + 0.76e9) / (0.77 x 989.4e12) + 2.6 us; two of them backward."""
    ops = operators(
        "linear", dtype="bf16", phase=["forward", "backward"], m=4096, n=4096, k=4096, count=3
    )
    once = (2 * 4096**3 + 0.76e9) / (0.77 * 989.4e12) + 2.6e-6
    assert MODEL.seconds(ops, H100) == pytest.approx([3 * once, 6 * once], rel=1e-9)


def test_memory_by_hand() -> None:
    """H100: bytes over 0.69 of 3.352 TB/s, and 2.6 us for each launch."""
    ops = operators("elementwise", dtype="fp32", m=4096, n=4096, reads=2, count=5)
    once = 3 * 4096**2 * 4 / (0.69 * 3.352e12) + 2.6e-6
    assert MODEL.seconds(ops, H100) == pytest.approx([5 * once], rel=1e-9)


def test_rows_cost_what_the_layers_of_a_plan_cost() -> None:
    """The same GEMMs and fused attention as slots of a plan, priced by ``Roofline``."""
    workload = Workload(global_batch=2, sequence=2048)
    cluster, stack = load_cluster("h100-sxm:1"), load_stack("megatron")
    keys, _ = layer_keys(Plans.of([replace(Plan(), micro_batch=2)]), stack)
    slots = lower_layers(load_model("llama-3.1-8b"), workload, cluster, keys, stack)
    seconds = roofline(H100).seconds(slots, workload, cluster, stack)[:, 0]
    size = {"dtype": "bf16", "m": 2 * 2048.0, "k": 4096.0}
    gemm = MODEL.seconds(operators("linear", n=4096, **size), H100)  # type: ignore[arg-type]
    found = [
        seconds[i]
        for i, slot in enumerate(slots.slots)
        if slot.kind == "gemm" and slots.flops[i, 0] == 2 * 2 * 2048 * 4096 * 4096
    ]
    assert found and gemm == pytest.approx(found[0], rel=1e-12)
    attention = operators(
        "attention",
        dtype="bf16",
        phase=["forward", "backward"],
        batch=2,
        heads=32,
        kv_heads=8,
        m=2048,
        n=2048,
        k=128,
        causal=1,
    )
    rows = [i for i, slot in enumerate(slots.slots) if slot.kind == "attention"]
    mine = AnalyticKernels(attention_kernel=stack.attention_kernel).seconds(attention, H100)
    # A plan counts s / 2 keys for each query, rows the (s + 1) / 2 that there are.
    assert mine == pytest.approx(seconds[rows] * 2049 / 2048, rel=1e-9)


@pytest.mark.parametrize("name", names("devices"))
def test_every_device_prices_what_it_covers(name: str) -> None:
    device = load_device(name)
    for dtype in device.peaks:
        ops = one_of_each(dtype)
        covered = MODEL.covers(ops, device)
        assert covered[ops.kind != "attention"].all()
        assert covered[ops.kind == "attention"].all() == bool(roofline(device).attention)
        mine = ops.take(covered)
        assert (MODEL.seconds(mine, device) >= light_seconds(mine, device)).all()
        assert set(MODEL.origin(mine, device)) <= {"analytic", "extrapolated"}


def test_what_is_not_covered_is_refused_in_one_line() -> None:
    ops = one_of_each("fp4")
    assert not MODEL.covers(ops, H100)[ops.kind == "linear"].any()
    with pytest.raises(ValueError, match="h100-sxm has no fp4 peak"):
        MODEL.seconds(ops, H100)
    with pytest.raises(ValueError, match="no constants for fused attention flash2 on t4"):
        MODEL.seconds(one_of_each("fp16"), load_device("t4"))


def test_fp8_blocks_run_at_the_rate_of_fp8() -> None:
    size = {"m": 4096.0, "n": 4096.0, "k": 4096.0}
    blocks, plain = (operators("linear", dtype=d, **size) for d in ("fp8_block", "fp8"))
    assert MODEL.seconds(blocks, H100) == MODEL.seconds(plain, H100)


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=8),
    st.sampled_from(("forward", "backward")),
    st.integers(1, 4096),
    st.floats(1, 4),
)
def test_laws_of_a_kernel_model(kinds: list[str], phase: str, m: int, faster: float) -> None:
    """Never under light; a batch is its rows; more bandwidth and peak never take longer."""
    ops = operators(kinds, dtype="bf16", phase=phase, m=m, n=512, k=128, heads=4, kv_heads=4)
    seconds = MODEL.seconds(ops, H100)
    assert (seconds >= light_seconds(ops, H100)).all()
    apart = [float(MODEL.seconds(ops.take(np.array([i])), H100)[0]) for i in range(len(ops))]
    assert seconds.tolist() == apart
    wider = replace(H100, bandwidth=H100.bandwidth * faster)
    quicker = replace(H100, peaks={d: peak * faster for d, peak in H100.peaks.items()})
    for better in (wider, quicker):
        assert (MODEL.seconds(ops, better) <= seconds * (1 + 1e-12)).all()
