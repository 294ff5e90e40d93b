"""Laws of estimates: parts add up, rows stand alone, faster hardware is never slower."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator import Estimates, Plan, Plans, Workload, estimate, peak_memory
from estimator.compose import composition
from estimator.estimate import ALLOCATED_PARTS, MEMORY_PARTS, TIME_PARTS
from estimator.layer import COMPUTE, FLOOR_NORM, HOST, TP
from tests.estimator.problems import CLUSTER, MODEL, STACK, WORKLOAD, faster, many, plans


def price(table: Plans, workload: Workload = WORKLOAD) -> Estimates:
    return estimate(MODEL, workload, CLUSTER, table, stack=STACK)


@given(plans())
def test_parts_sum_to_totals(plan: Plan) -> None:
    answer = estimate(MODEL, WORKLOAD, CLUSTER, plan, stack=STACK)
    assert set(answer.time) == set(TIME_PARTS)
    assert set(answer.memory) == set(MEMORY_PARTS)
    assert all(value >= 0 for value in (*answer.time.values(), *answer.memory.values()))
    assert all(value >= -1e-12 for value in answer.hidden.values())
    assert answer.step_seconds == pytest.approx(sum(answer.time.values()))
    assert answer.peak_bytes == pytest.approx(sum(answer.memory.values()))
    allocated = sum(answer.memory[part] for part in ALLOCATED_PARTS)
    assert answer.allocated_bytes == pytest.approx(allocated)
    assert sum(answer.compute_phases.values()) == pytest.approx(answer.time["compute"])
    assert answer.low_seconds < answer.step_seconds < answer.high_seconds
    fullest = max(stage["allocated_bytes"] for stage in answer.stages)
    assert fullest == pytest.approx(answer.allocated_bytes)
    assert sum(stage["count"] * stage["layers"] for stage in answer.stages) == MODEL.layers
    assert 0 < answer.mfu < 1


@given(st.lists(plans(), min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_rows_stand_alone_and_permute(rows: list[Plan], random: object) -> None:
    table = Plans.of(rows)
    together = price(table)
    order = np.array(random.sample(range(len(rows)), len(rows)))  # type: ignore[attr-defined]
    shuffled = price(table[order])
    for part in TIME_PARTS:
        np.testing.assert_allclose(shuffled.time[part], together.time[part][order], rtol=1e-12)
    for part in MEMORY_PARTS:
        np.testing.assert_allclose(shuffled.memory[part], together.memory[part][order], rtol=1e-12)
    for i, row in enumerate(rows):
        alone = estimate(MODEL, WORKLOAD, CLUSTER, row, stack=STACK)
        assert alone.step_seconds == pytest.approx(float(together.step_seconds[i]), rel=1e-12)
        assert alone.plan == row


@settings(max_examples=20)
@given(
    st.floats(1, 4).map(lambda x: {"peak": x})
    | st.floats(1, 4).map(lambda x: {"memory": x})
    | st.floats(1, 4).map(lambda x: {"links": x})
)
def test_faster_hardware_is_never_slower(scale: dict[str, float]) -> None:
    table = many(40)
    before = price(table).step_seconds
    better = faster(CLUSTER, **scale)
    after = estimate(MODEL, WORKLOAD, better, table, stack=STACK).step_seconds
    assert (after <= before * (1 + 1e-9)).all()


def test_peak_memory_is_the_memory_half() -> None:
    table = many(60)
    np.testing.assert_allclose(
        peak_memory(MODEL, WORKLOAD, CLUSTER, table, stack=STACK), price(table).peak_bytes
    )


@given(plans())
def test_more_recompute_takes_time_and_saves_memory(plan: Plan) -> None:
    none, full = (
        estimate(
            MODEL,
            WORKLOAD,
            CLUSTER,
            replace(plan, recompute=kind, recompute_layers=None),  # type: ignore[arg-type]
            stack=STACK,
        )
        for kind in ("none", "full")
    )
    assert full.step_seconds > none.step_seconds
    # One layer's working set comes back, so a stage of few layers may not gain.
    assert full.memory["activations"] + full.memory["logits"] <= 1.15 * (
        none.memory["activations"] + none.memory["logits"]
    )
    assert full.compute_phases["recompute"] == pytest.approx(
        full.compute_phases["forward"], rel=0.25
    )


def test_partial_recompute_lies_between() -> None:
    base = Plan(dp=8, tp=4, pp=2, micro_batch=2, recompute="full")
    rows = [replace(base, recompute_layers=k) for k in (1, 4, 8, 16)]
    answers = price(Plans.of([replace(base, recompute="none"), *rows, base]))
    assert (np.diff(answers.step_seconds[:-1]) > 0).all()
    assert answers.step_seconds[-1] == pytest.approx(answers.step_seconds[-2])  # 16 layers a stage
    assert (np.diff(answers.memory["activations"][1:-1]) < 0).all()


def test_forward_only_has_no_backward() -> None:
    plan = Plan(dp=16, tp=4, micro_batch=4)
    train = estimate(MODEL, WORKLOAD, CLUSTER, plan, stack=STACK)
    forward = estimate(MODEL, replace(WORKLOAD, mode="forward"), CLUSTER, plan, stack=STACK)
    assert forward.compute_phases["backward"] == pytest.approx(0, abs=1e-12)
    assert forward.time["dp"] == forward.time["optimizer"] == 0
    assert forward.memory["gradients"] == forward.memory["optimizer"] == 0
    assert forward.time["compute"] < 0.4 * train.time["compute"]


def test_one_stage_without_overlap_is_the_sum_of_its_micro_batches() -> None:
    """With pp=1 there is no bubble and time is linear in the number of micro-batches."""
    plan = Plan(dp=8, tp=8, micro_batch=1, overlap_grad=False, overlap_param=False)
    workloads = [replace(WORKLOAD, global_batch=8 * m) for m in (1, 2, 3)]
    seconds = [estimate(MODEL, one, CLUSTER, plan, stack=STACK).step_seconds for one in workloads]
    assert seconds[2] - seconds[1] == pytest.approx(seconds[1] - seconds[0])


def test_balanced_pipeline_has_the_textbook_bubble() -> None:
    """Without embedding and logits to unbalance them: (p - 1) / m of the useful time."""
    model = replace(MODEL, vocab=1)
    plan = Plan(dp=8, tp=2, pp=4, micro_batch=1)
    answer = estimate(model, WORKLOAD, CLUSTER, plan, stack=STACK)
    micro_batches = 256 // 8
    useful = answer.time["compute"] + answer.time["tp"] + answer.time["pp"] + answer.time["host"]
    assert answer.time["bubble"] == pytest.approx(useful * 3 / micro_batches, rel=0.02)


def test_offloaded_states_leave_the_device_and_cost_copies() -> None:
    """By hand: gradient down and weights up over PCIe, the update through host memory."""
    plan = Plan(dp=64, zero=1)
    kept, away = (
        estimate(MODEL, WORKLOAD, CLUSTER, replace(plan, offload=kind), stack=STACK)  # type: ignore[arg-type]
        for kind in ("none", "optimizer")
    )
    host = CLUSTER.device.host
    assert host is not None
    assert away.memory["optimizer"] == 0 < kept.memory["optimizer"]
    shard = MODEL.parameters / 64
    seconds = shard * ((4 + 2) / host.bandwidth + 34 / host.memory_bandwidth)
    scale = STACK.in_situ["analytic"] * (1 + STACK.straggler_per_doubling * 3)
    assert away.time["optimizer"] == pytest.approx(scale * seconds, rel=1e-3)


@pytest.mark.parametrize(("tp", "sequence_parallel"), [(1, False), (4, False), (4, True)])
def test_checkpoints_on_the_host_leave_the_device_and_cost_copies(
    tp: int, sequence_parallel: bool
) -> None:
    """By hand: each layer's input once down and once up, a part of it on each of tp ranks."""
    plan = Plan(
        dp=64 // tp,
        tp=tp,
        zero=3,
        recompute="full",
        sequence_parallel=sequence_parallel,
        micro_batch=4,
    )
    kept, away = (
        estimate(MODEL, WORKLOAD, CLUSTER, replace(plan, offload=kind), stack=STACK)  # type: ignore[arg-type]
        for kind in ("none", "checkpoints")
    )
    host = CLUSTER.device.host
    assert host is not None
    row = 4 * WORKLOAD.sequence * MODEL.hidden * 2
    layers = MODEL.layers
    saved = kept.memory["activations"] - away.memory["activations"]
    assert saved == pytest.approx(layers * row / (tp if sequence_parallel else 1), rel=1e-6)
    assert away.memory["optimizer"] == kept.memory["optimizer"] > 0
    micro_batches = WORKLOAD.global_batch / (64 / tp * 4)
    seconds = micro_batches * layers * 2 * row / tp / host.bandwidth
    scale = STACK.in_situ["analytic"] * (1 + STACK.straggler_per_doubling * 3)
    assert away.time["compute"] - kept.time["compute"] == pytest.approx(scale * seconds, rel=1e-3)
    assert away.time["optimizer"] == kept.time["optimizer"]
    both = estimate(MODEL, WORKLOAD, CLUSTER, replace(plan, offload="both"), stack=STACK)
    assert both.memory["activations"] == away.memory["activations"]
    assert both.memory["optimizer"] == 0
    assert both.time["compute"] == away.time["compute"]


def test_unknown_cost_model_is_named() -> None:
    with pytest.raises(ValueError, match=r"unknown cost model 'banana'; use one of analytic"):
        estimate(MODEL, WORKLOAD, CLUSTER, Plan(dp=64), stack=STACK, cost="banana")


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_reductions_hide_behind_the_weights_gemm_alone(sequence_parallel: bool) -> None:
    """By hand, from the priced slots of a layer; launches and other overlap are off."""
    stack = replace(STACK, launch_forward=0.0, launch_backward=0.0)
    plan = Plan(dp=8, tp=8, micro_batch=1, sequence_parallel=sequence_parallel)
    composed = composition(MODEL, WORKLOAD, CLUSTER, Plans.of([plan]), stack=stack)
    rows: dict[tuple[str, str, str], float] = {}
    for slot, seconds in zip(composed.ops.slots, composed.ops_seconds[:, 0], strict=True):
        if slot.place == "layer":
            key = (slot.name, slot.stream, slot.phase)
            rows[key] = rows.get(key, 0.0) + float(seconds)
    total = sum(
        seconds
        for (_, stream, phase), seconds in rows.items()
        if stream == "tp" and phase != "forward"
    )
    hidden = 0.0
    for name in ("qkv", "mlp up"):
        gemm = [rows[name, "compute", phase] for phase in ("backward_input", "backward_weight")]
        hidden += min(rows[f"{name} input", "tp", "backward_input"], gemm[1])
        hidden += min(rows[f"{name} input", "tp", "backward_weight"], gemm[0])
    assert 0 < hidden < total
    backward = composed.layers.layers[0].backward
    assert backward.exposed[0, 0, TP] == pytest.approx(total - hidden, rel=1e-9)
    assert backward.hidden[0, 0, TP] == pytest.approx(hidden, rel=1e-9)


def test_launches_run_ahead_during_collectives() -> None:
    """A layer whose kernels and collectives outlast its launches does not wait for the host."""
    slow = replace(STACK, launch_forward=2e-3)
    plan = Plan(dp=8, tp=8, micro_batch=4, sequence_parallel=True)
    composed = composition(MODEL, WORKLOAD, CLUSTER, Plans.of([plan]), stack=slow)
    forward = composed.layers.layers[0].forward
    kernels, collectives = forward.exposed[0, COMPUTE], forward.exposed[0, TP]
    assert kernels < slow.launch_forward < kernels + collectives
    bound = (kernels + collectives) * 2 ** (1 / FLOOR_NORM) - kernels - collectives
    assert 0 < forward.exposed[0, HOST] < bound
