"""Counts of the lowering against closed forms derived elsewhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import Plan, Plans, Transformer, Workload, estimate
from estimator.catalog import load_cluster, load_model, load_stack
from estimator.lower.keys import dp_ranks_inside, layer_keys
from estimator.lower.memory import activation_bytes
from estimator.lower.slots import Columns, unique_rows
from estimator.lower.stages import stage_classes
from estimator.lower.step import (
    edge_parameters,
    lower_step,
    optimizer_traffic,
    state_bytes,
    step_keys,
)
from estimator.lower.transformer import lower_layers, model_flops
from estimator.workload import Optimizer
from tests.estimator.problems import plans

GPT = replace(load_model("megatron-22b"), vocab=51200)
STACK = load_stack("megatron")
CLUSTER = load_cluster("a100-sxm-80gb:64")
EAGER = Workload(global_batch=64, sequence=2048, precision="fp16", attention="eager", dropout=True)


def lowered(plan: Plan, model: Transformer = GPT, workload: Workload = EAGER) -> Columns:
    keys, _ = layer_keys(Plans.of([plan]), STACK)
    return lower_layers(model, workload, CLUSTER, keys, STACK)


def flops(ops: Columns, place: str, phases: tuple[str, ...]) -> float:
    return float(
        sum(
            (ops.flops[i] * ops.count[i])[0]
            for i, slot in enumerate(ops.slots)
            if slot.place == place and slot.phase in phases
        )
    )


@pytest.mark.parametrize(("tp", "cp", "micro_batch"), [(1, 1, 1), (4, 1, 2), (2, 2, 4)])
def test_flops_of_a_gpt_layer(tp: int, cp: int, micro_batch: int) -> None:
    """Korthikanti et al., appendix A: 24 b s h^2 + 4 b s^2 h forward, twice that backward."""
    b, s, h = micro_batch, 2048, 6144
    ops = lowered(Plan(tp=tp, cp=cp, micro_batch=micro_batch))
    forward = (24 * b * s * h**2 + 4 * b * s**2 * h) / (tp * cp)
    assert flops(ops, "layer", ("forward",)) == pytest.approx(forward, 1e-9)
    backward = flops(ops, "layer", ("backward_input", "backward_weight"))
    assert backward == pytest.approx(2 * forward, 1e-9)
    logits = 2 * b * s * h * 51200 / (tp * cp)
    assert flops(ops, "head", ("forward",)) == pytest.approx(logits, 1e-9)


def test_flash_attention_counts_the_lower_triangle() -> None:
    """Causal: half of 4 s^2 h per sequence forward; five products backward to two forward."""
    ops = lowered(Plan(), workload=replace(EAGER, attention="flash", dropout=False))
    rows = [i for i, slot in enumerate(ops.slots) if slot.kind == "attention"]
    assert ops.flops[rows, 0] == pytest.approx([2 * 2048**2 * 6144, 5 * 2048**2 * 6144])


def test_model_flops_of_gpt3() -> None:
    """72 B L s h^2 (1 + s / 12 h + V / 12 h L) with causal scores (Narayanan et al., eq. 3)."""
    model = replace(load_model("gpt3-175b"), vocab=51200)
    workload = Workload(global_batch=1536, sequence=2048)
    b, layers, s, h = 1536, 96, 2048, 12288
    causal = 72 * b * layers * s * h**2 * (1 + s / (12 * h) + 51200 / (12 * h * layers))
    assert model_flops(model, workload) == pytest.approx(causal, 1e-9)
    forward = model_flops(model, replace(workload, mode="forward"))
    assert forward == pytest.approx(causal / 3)


@pytest.mark.parametrize("sp", [False, True])
def test_tensor_parallel_traffic(sp: bool) -> None:
    """Two all-reduces of b s h a pass; with sequence parallelism, gather and scatter instead."""
    ops = lowered(Plan(tp=8, micro_batch=4, sequence_parallel=sp))
    size = 4 * 2048 * 6144 * 2.0
    total: dict[tuple[str, str], float] = {}
    for i, slot in enumerate(ops.slots):
        if slot.place == "layer" and slot.stream == "tp":
            key = (str(slot.collective), "forward" if slot.phase == "forward" else "backward")
            total[key] = total.get(key, 0.0) + float(ops.bytes[i, 0] * ops.count[i, 0])
    present = {key: value / size for key, value in total.items() if value}
    if sp:
        assert present == {
            ("all_gather", "forward"): 2,
            ("reduce_scatter", "forward"): 2,
            ("all_gather", "backward"): 4,
            ("reduce_scatter", "backward"): 2,
        }
    else:
        assert present == {("all_reduce", "forward"): 2, ("all_reduce", "backward"): 2}


@pytest.mark.parametrize("t", [1, 2, 8])
@pytest.mark.parametrize("sp", [False, True])
def test_activations_of_a_gpt_layer(t: int, sp: bool) -> None:
    """Korthikanti et al., equations 1, 2 and 4: s b h (10 + 24 / t + 5 a s / h t), or 34 / t."""
    if sp and t == 1:
        return
    b, s, h, a = 4, 2048, 6144, 64
    keys, _ = layer_keys(Plans.of([Plan(tp=t, micro_batch=b, sequence_parallel=sp)]), STACK)
    kept = activation_bytes(GPT, EAGER, STACK, keys)
    rows = 34 / t if sp else 10 + 24 / t
    assert kept.layer[0, 0] == pytest.approx(s * b * h * (rows + 5 * a * s / (h * t)), 1e-9)
    assert kept.without_scores[0, 0] == pytest.approx(s * b * h * rows, 1e-9)
    assert kept.checkpoint[0] == pytest.approx(2 * s * b * h / (t if sp else 1), 1e-9)


def test_gradient_traffic_of_one_stage() -> None:
    """zero=0 all-reduces every fp32 gradient; zero=1 scatters them and gathers bf16 weights."""
    plans_ = Plans.of([Plan(dp=8, tp=8), Plan(dp=8, tp=8, zero=1)])
    shards, _ = step_keys(GPT, EAGER, plans_)
    ops = lower_step(GPT, EAGER, CLUSTER, shards, STACK)
    names = [slot.name for slot in ops.slots]
    columns = (ops.bytes * ops.count).reshape(len(names), 4, -1)[:, 0]
    by_zero = {int(zero): columns[:, i] for i, zero in enumerate(shards.plans.zero)}
    parameters = (
        GPT.layers * GPT.layer_sharded_parameters("dense") / 8
        + GPT.layers * GPT.layer_replicated_parameters("dense")
        + 51200 * 6144 / 8
        + 2048 * 6144
        + 2 * 6144
    )
    assert by_zero[0][names.index("gradient reduction")] == pytest.approx(4 * parameters)
    assert by_zero[0][names.index("weight gather")] == 0
    assert by_zero[1][names.index("gradient scatter")] == pytest.approx(4 * parameters)
    assert by_zero[1][names.index("weight gather")] == pytest.approx(2 * parameters)
    # Adam in mixed precision: 2 x 4 gradient, 16 moments, 8 master, 2 weights.
    assert by_zero[1][names.index("optimizer")] == pytest.approx(34 * parameters / 8)


@pytest.mark.parametrize(("dp", "shard_size"), [(8, None), (8, 2), (4096, None)])
def test_owners_of_whole_tensors_broadcast_them(dp: int, shard_size: int | None) -> None:
    """InternEvo: gradients reduced everywhere, then one broadcast by each rank that owns any."""
    stack = replace(STACK, whole_tensor_owners=True)
    cluster = replace(CLUSTER, nodes=max(dp // 8, 1))
    plan_ = Plans.of([Plan(dp=dp, zero=1, shard_size=shard_size)])
    shards, _ = step_keys(GPT, EAGER, plan_)
    ops = lower_step(GPT, EAGER, cluster, shards, stack)
    rows = {slot.name: i for i, slot in enumerate(ops.slots)}
    parameters = float(shards.parameters_CU[0, 0])
    ranks = shard_size or dp
    tensors = 48 * 4 + 1  # queries, keys and values, output and two of the MLP; a tied table
    owners = min(ranks, tensors)
    reduced, sent = rows["gradient reduction"], rows["weight broadcast"]
    assert (ops.count[reduced, 0], ops.group[reduced, 0]) == (1, dp)
    assert ops.bytes[reduced, 0] == 4 * parameters
    assert (ops.count[sent, 0], ops.group[sent, 0]) == (owners, ranks)
    assert ops.bytes[sent, 0] * owners == pytest.approx(2 * parameters)
    for absent in ("gradient scatter", "replica reduction", "weight gather"):
        assert ops.count[rows[absent]].sum() == 0
    # The owner of the embedding updates all of it, however many ranks there are.
    least = max(parameters / ranks, 51200 * 6144)
    assert ops.bytes[rows["optimizer"], 0] == pytest.approx(34 * least)


@pytest.mark.parametrize(
    ("optimizer", "moments"),
    [("adam", 8), ("adam-bf16", 4), ("adam-8bit", 2 + 8 / 2048), ("sgd-momentum", 4), ("sgd", 0)],
)
def test_moments_in_memory_and_traffic(optimizer: Optimizer, moments: float) -> None:
    """fp32 master of 4 bytes and the moments; a step reads and writes both, beside 10 others."""
    workload = replace(EAGER, optimizer=optimizer)
    assert state_bytes(workload, STACK)[2] == pytest.approx(4 + moments)
    assert optimizer_traffic(workload, STACK) == pytest.approx(2 * (4 + moments) + 2 * 4 + 2)


@given(st.integers(1, 130), st.integers(1, 40), st.booleans(), st.booleans(), st.data())
def test_stage_classes_hold_every_layer(
    layers: int, pp: int, first: bool, last: bool, data: st.DataObject
) -> None:
    pp = min(pp, layers)
    given_first = data.draw(st.integers(1, max(layers // pp, 1))) if first and pp > 2 else None
    given_last = data.draw(st.integers(1, max(layers // pp, 1))) if last and pp > 2 else None
    table = Plans.of([Plan(pp=pp, first_stage_layers=given_first, last_stage_layers=given_last)])
    classes = stage_classes(layers, table)
    count, held, position = classes.count[:, 0], classes.layers[:, 0], classes.position[:, 0]
    assert (count * held).sum() == layers
    assert count.sum() == pp
    assert (held[count > 0] > 0).all()
    starts = np.cumsum(count) - count
    assert (position[count > 0] == starts[count > 0]).all()
    if given_first:
        assert held[0] == given_first
    if given_last:
        assert held[3] == given_last


@given(st.lists(st.lists(st.integers(-1, 5), min_size=3, max_size=3), min_size=1, max_size=30))
def test_unique_rows(rows: list[list[int]]) -> None:
    columns = list(np.array(rows, dtype=np.int64).T)
    first, index = unique_rows(columns)
    assert len(first) == len({tuple(row) for row in rows})
    for column in columns:
        np.testing.assert_array_equal(column[first][index], column)


def test_unique_rows_of_wide_columns() -> None:
    wide = np.array([0, 2**40, 2**40, 5], dtype=np.int64)
    first, index = unique_rows([wide, wide[::-1].copy(), wide])
    assert len(first) == 3
    np.testing.assert_array_equal(wide[first][index], wide)


@given(plans())
def test_dp_groups_stay_inside_a_domain(plan: Plan) -> None:
    """Ranks of the group counted one by one on nodes of 8."""
    keys, _ = layer_keys(Plans.of([plan]), STACK)
    inside = dp_ranks_inside(keys, CLUSTER.scale_up_domain)[0]
    dp_stride = plan.tp * plan.cp * (plan.pp if plan.order == "tp-cp-ep-pp-dp" else 1)
    ranks = [c * plan.tp + d * dp_stride for c in range(plan.cp) for d in range(plan.dp)]
    assert inside == sum(rank < 8 for rank in ranks)


def test_edges_of_a_tied_model() -> None:
    tied = replace(GPT, tied=True)
    edges = edge_parameters(tied, Plans.of([Plan(), Plan(pp=2)]))
    table, positions, norm = 51200 * 6144, 2048 * 6144, 2 * 6144
    assert edges[0, 0] == table + positions + norm
    assert edges[0, 1] == table + positions
    assert edges[3, 1] == table + norm


def test_fine_tuning_in_fp8_keeps_frozen_weights_in_a_byte() -> None:
    """NeMo's adapters beside frozen fp8 weights: by hand for one rank without sharding."""
    model, stack = load_model("llama-2-70b"), load_stack("nemo")
    workload = Workload(global_batch=8, sequence=4096, precision="fp8", lora_rank=16)
    cluster = load_cluster("h200:8")
    answer = estimate(model, workload, cluster, Plan(dp=8), stack=stack)
    adapters = 80 * 16 * (8192 + 10240 + 8192 + 8192)
    assert model.adapter_parameters(16) * 80 == adapters
    assert answer.memory["weights"] == pytest.approx(model.parameters + 2 * adapters)
    half = estimate(model, replace(workload, precision="bf16"), cluster, Plan(dp=8), stack=stack)
    assert half.memory["weights"] == pytest.approx(2 * (model.parameters + adapters))
    # Both halves of the first projection, one byte instead of two.
    saved = 80 * 4096 * 2 * 28672
    difference = half.memory["activations"] - answer.memory["activations"]
    assert difference == pytest.approx(saved, rel=0.01)
