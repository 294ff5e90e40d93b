"""One suite over every cost model, and hand-worked rows of the roofline and of collectives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import Plan, Plans, Workload
from estimator.catalog import load_cluster, load_device, load_model, load_stack, names
from estimator.cluster import Cluster, Device
from estimator.cost import CostModel
from estimator.cost.collectives import linear_seconds
from estimator.cost.composite import composite
from estimator.cost.roofline import roofline
from estimator.lower.keys import layer_keys
from estimator.lower.slots import Builder, Collective, Slot
from estimator.lower.transformer import lower_layers
from tests.estimator.problems import MODEL, many

MODELS = [roofline(load_device(name)) for name in names("devices")]


def precision_of(device: str) -> str:
    peaks = load_device(device).peaks
    return next(dtype for dtype in ("bf16", "fp16", "fp32") if dtype in peaks)


@pytest.mark.parametrize("device", names("devices"))
@pytest.mark.parametrize("attention", ["flash", "eager"])
@pytest.mark.parametrize("build", [roofline, composite])
def test_conformance(build: Callable[[Device], CostModel], device: str, attention: str) -> None:
    """Every row gets a finite price that is not below what the hardware's peaks allow."""
    model = build(load_device(device))
    stack = replace(load_stack("megatron"), attention_kernel="flash2")
    precision = precision_of(device)
    if precision == "fp32" and attention == "flash":
        pytest.skip("fused attention runs in half precision")
    workload = Workload(
        global_batch=256,
        sequence=4096,
        precision=precision,  # type: ignore[arg-type]
        attention=attention,  # type: ignore[arg-type]
    )
    cluster = replace(load_cluster("h100-sxm:64"), device=load_device(device))
    keys, _ = layer_keys(many(30), stack)
    ops = lower_layers(MODEL, workload, cluster, keys, stack)
    if attention == "flash" and "flash2" not in roofline(cluster.device).attention:
        with pytest.raises(ValueError, match="use attention eager"):
            model.seconds(ops, workload, cluster, stack)
        return
    seconds = model.seconds(ops, workload, cluster, stack)
    assert seconds.shape == ops.flops.shape
    assert np.isfinite(seconds).all()
    assert (seconds >= 0).all()
    assert (seconds[ops.count == 0] == 0).all()
    floor = ops.count * ops.flops / max(cluster.device.peaks.values())
    assert (seconds >= floor).all()
    assert model.origin in ("analytic", "learned", "measured", "extrapolated")


def test_hand_worked_gemm_and_memory_rows() -> None:
    device = load_device("h100-sxm")
    model = replace(
        roofline(device),
        gemm_efficiency={"bf16": 0.5},
        saturation_flops=1e9,
        gemm_overhead=2e-6,
        gemm_bandwidth=0.8,
        memory_bandwidth=0.5,
        memory_overhead=4e-6,
    )
    rows = Builder(unique=2)
    rows.add(
        Slot(name="gemm", kind="gemm", place="layer", phase="forward"),
        flops=np.array([2.0 * 4096**3, 0.0]),
        bytes=np.array([6.0 * 4096**2, 6e9]),
        count=np.array([3.0, 1.0]),
    )
    rows.add(
        Slot(name="norm", kind="memory", place="layer", phase="forward"),
        bytes=np.array([1e9, 2e9]),
    )
    cluster, stack = load_cluster("h100-sxm:8"), load_stack("megatron")
    workload = Workload(global_batch=8, sequence=128)
    seconds = model.seconds(rows.build(), workload, cluster, stack)
    compute = (2 * 4096**3 + 1e9) / (989.4e12 * 0.5) + 2e-6
    memory = 6e9 / (device.bandwidth * 0.8) + 2e-6
    assert seconds[0] == pytest.approx([3 * compute, memory], rel=1e-9)
    expected = [1e9 / (device.bandwidth * 0.5) + 4e-6, 2e9 / (device.bandwidth * 0.5) + 4e-6]
    assert seconds[1] == pytest.approx(expected, rel=1e-9)


def test_backward_of_wide_heads_takes_longer() -> None:
    kernel = roofline(load_device("a100-sxm-80gb")).attention["flash2"]
    backward = np.array([False, True, True])
    found = kernel.over_forward(backward, np.array([192.0, 128.0, 192.0]))
    assert found == pytest.approx([1.0, 2.9 / 2.5, 1.16 * 2.9 / 2.5], rel=1e-9)


def test_the_composite_leaves_experts_products_to_the_roofline() -> None:
    cluster, stack = load_cluster("h100-sxm:64"), load_stack("megatron")
    workload = Workload(global_batch=256, sequence=4096)
    keys, _ = layer_keys(Plans.of([Plan.parse("ep=4", world=64)]), stack)
    ops = lower_layers(load_model("mixtral-8x7b"), workload, cluster, keys, stack)
    learned, analytic = composite(cluster.device), roofline(cluster.device)
    same = learned.seconds(ops, workload, cluster, stack) == analytic.seconds(
        ops, workload, cluster, stack
    )
    names = learned.origins(ops, workload, cluster, stack)
    for row in ops.rows("gemm"):
        expert = ops.slots[row].name.startswith("expert ")
        assert same[row].all() == expert
        assert (names[row] == "analytic").all() == expert


CLUSTER = load_cluster("a100-sxm-80gb:64")
UP, OUT = CLUSTER.scale_up, CLUSTER.scale_out
assert OUT is not None


def one(kind: Collective, size: float, group: int, inside: int) -> float:
    columns = (np.array([float(value)]) for value in (size, group, inside))
    return float(linear_seconds(kind, *columns, CLUSTER)[0])


def test_hand_worked_ring_in_a_node() -> None:
    """Eight ranks: two trips of 7/8 of the buffer at bus bandwidth, after 14 hops."""
    bandwidth = 300e9 * UP.efficiency
    expected = UP.latency + 14 * UP.hop_latency + 2 * 7 / 8 * 1e9 / bandwidth
    assert one("all_reduce", 1e9, 8, 8) == pytest.approx(expected, rel=1e-9)


def test_hand_worked_ring_over_nodes() -> None:
    """One rank a node: its own NIC, 25 GB/s; a tree of latencies beats seven hops."""
    bandwidth = 25e9 * OUT.efficiency
    expected = OUT.latency + 2 * 3 * OUT.hop_latency + 2 * 7 / 8 * 1e9 / bandwidth
    assert one("all_reduce", 1e9, 8, 1) == pytest.approx(expected, rel=1e-9)


def test_more_ranks_of_a_node_bring_more_nics() -> None:
    alone, eight = one("all_reduce", 1e10, 8, 1), one("all_reduce", 1e10, 64, 8)
    assert eight < alone / 3


def test_hand_worked_broadcast() -> None:
    """64 ranks on 8 nodes: 56 hops inside and 7 between, each of which holds 1 MiB for a NIC."""
    passing = 56 * UP.hop_latency + 7 * (OUT.hop_latency + 2**20 / (25e9 * OUT.efficiency))
    slowest = min(8 * 25e9 * OUT.efficiency, 300e9 * UP.efficiency)
    expected = OUT.latency + passing + 1e9 / slowest
    assert one("broadcast", 1e9, 64, 8) == pytest.approx(expected, rel=1e-9)
    inside = UP.latency + 7 * UP.hop_latency + 1e9 / (300e9 * UP.efficiency)
    assert one("broadcast", 1e9, 8, 8) == pytest.approx(inside, rel=1e-9)


def test_a_faster_nic_passes_a_broadcast_on_sooner() -> None:
    """Half as many NICs of twice the rate carry as much, but a step fills sooner."""
    assert OUT is not None
    fewer = replace(CLUSTER, scale_out=replace(OUT, nic_bandwidth=50e9))
    columns = [np.array([float(value)]) for value in (1e9, 64, 8)]
    own, shared = (
        float(linear_seconds("broadcast", *columns, cluster)[0]) for cluster in (CLUSTER, fewer)
    )
    assert own - shared == pytest.approx(7 * 2**20 / (50e9 * OUT.efficiency), rel=1e-6)


def test_the_machine_whose_groups_find_one_nic() -> None:
    """Jean Zay, 4 GB over 16 nodes of four: 1.09 to 1.16 s (bigscience, experiments/bandwidth).

    Its cluster keeps the middle of what longer runs showed, 44 to 57 Gb/s counted both ways.
    """
    cluster = load_cluster("jean-zay-v100:64")
    assert cluster.scale_out is not None
    free = replace(cluster, scale_out=replace(cluster.scale_out, group_bandwidth=None))

    def all_reduce(where: Cluster, group: int, inside: int) -> float:
        columns = [np.array([float(value)]) for value in (4e9, group, inside)]
        return float(linear_seconds("all_reduce", *columns, where)[0])

    assert 4e9 * 2 * 8 / 57e9 < all_reduce(cluster, 64, 4) < 4e9 * 2 * 8 / 44e9
    assert 1.9 < all_reduce(cluster, 64, 4) / all_reduce(free, 64, 4) < 2
    assert all_reduce(cluster, 16, 1) == all_reduce(free, 16, 1)


@given(
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "send_recv", "broadcast"]),
    st.floats(1, 1e11),
    st.integers(1, 512),
    st.sampled_from([1, 2, 4, 8]),
)
def test_collectives_grow_with_size(kind: Collective, size: float, group: int, inside: int) -> None:
    inside = min(inside, group)
    less, more = one(kind, size, group, inside), one(kind, 2 * size, group, inside)
    assert 0 <= less <= more <= 2 * less * (1 + 1e-9)
    assert (less == 0) == (group == 1)


def test_reduction_is_scatter_and_gather() -> None:
    parts = one("reduce_scatter", 4e9, 64, 8) + one("all_gather", 4e9, 64, 8)
    assert one("all_reduce", 4e9, 64, 8) == pytest.approx(parts, rel=0.01)


def test_pricing_is_by_row() -> None:
    plans: Plans = many(25)
    stack, cluster = load_stack("megatron"), load_cluster("h100-sxm:64")
    workload = Workload(global_batch=256, sequence=4096)
    model = roofline(cluster.device)
    keys, index = layer_keys(plans, stack)
    together = model.seconds(
        lower_layers(MODEL, workload, cluster, keys, stack), workload, cluster, stack
    )
    for i in range(len(plans)):
        alone, _ = layer_keys(plans[i : i + 1], stack)
        ops = lower_layers(MODEL, workload, cluster, alone, stack)
        np.testing.assert_allclose(
            model.seconds(ops, workload, cluster, stack)[:, 0], together[:, index[i]]
        )
