"""Experts, latent attention, windows and encoders: counts by hand, and laws of the costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import Estimate, Plan, Plans, Stack, Transformer, Workload, estimate
from estimator.catalog import load_cluster, load_model, load_stack
from estimator.lower.attention import attended_pairs
from estimator.lower.keys import layer_keys
from estimator.lower.kinds import layer_kinds, layers_by_kind
from estimator.lower.slots import Columns
from estimator.lower.stages import stage_classes
from estimator.lower.step import step_keys
from estimator.lower.transformer import lower_layers, model_flops
from estimator.model import Experts, LatentAttention
from estimator.simulate import simulate

STACK = load_stack("megatron")
CLUSTER = load_cluster("h100-sxm:64")
MIXTURE = replace(
    load_model("llama-3.1-8b"),
    name="mixture",
    experts=Experts(count=8, top_k=2, ffn=14336),
)
LATENT = replace(
    MIXTURE,
    name="latent",
    kv_heads=32,
    experts=Experts(count=64, top_k=6, ffn=1408, shared_ffn=2816, first_dense=1),
    latent=LatentAttention(q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128),
)
WORKLOAD = Workload(global_batch=256, sequence=4096, expert_imbalance=1.0)


def lowered(
    model: Transformer, plan: Plan, workload: Workload = WORKLOAD, stack: Stack = STACK
) -> Columns:
    keys, _ = layer_keys(Plans.of([plan]), stack)
    return lower_layers(model, workload, CLUSTER, keys, stack)


def forward_flops(ops: Columns, layer: int) -> float:
    return float(
        sum(
            (ops.flops[i] * ops.count[i])[0]
            for i, slot in enumerate(ops.slots)
            if slot.place == "layer" and slot.phase == "forward" and slot.layer == layer
        )
    )


@pytest.mark.parametrize(
    "plan",
    [
        Plan(dp=64),
        Plan(dp=64, ep=8),
        Plan(dp=16, tp=4, ep=2, sequence_parallel=True),
        Plan(dp=16, tp=4, ep=8, etp=1, sequence_parallel=True),
    ],
)
def test_flops_of_a_mixture_layer(plan: Plan) -> None:
    """Per rank: its tokens' attention, router and two experts each, however these are shared."""
    ops = lowered(MIXTURE, plan)
    t, h, f = 4096, 4096, 14336
    attention = 2 * t * h * (4096 + 2 * 1024) + 2 * t * 4096 * h + 2 * t * t * 4096
    # Each rank routes its own part of the tokens.
    router = 2 * t * h * 8
    experts = 2 * 3 * 2 * t * h * f
    assert forward_flops(ops, 0) == pytest.approx((attention + router + experts) / plan.tp, 1e-9)


def test_imbalance_loads_the_busiest_rank() -> None:
    plan = Plan(dp=64, ep=8)
    even = forward_flops(lowered(MIXTURE, plan), 0)
    skewed = forward_flops(lowered(MIXTURE, plan, replace(WORKLOAD, expert_imbalance=1.5)), 0)
    assert skewed - even == pytest.approx(0.5 * 2 * 3 * 2 * 4096 * 4096 * 14336, 1e-9)


def sent(
    model: Transformer, plan: Plan, stack: Stack = STACK, workload: Workload = WORKLOAD
) -> tuple[float, float]:
    ops = lowered(model, plan, workload, stack)
    rows = [
        i
        for i, s in enumerate(ops.slots)
        if s.stream == "ep" and s.phase == "forward" and not s.layer
    ]
    (row,) = rows
    return float(ops.bytes[row, 0]), float(ops.between[row, 0])


def test_an_uneven_dispatch_waits_for_the_busiest_rank() -> None:
    even = sent(MIXTURE, Plan(dp=64, ep=8))
    skewed = sent(MIXTURE, Plan(dp=64, ep=8), workload=replace(WORKLOAD, expert_imbalance=1.5))
    assert skewed == pytest.approx((1.5 * even[0], 0.0))


def test_bytes_of_a_dispatch() -> None:
    """Two visits of 4096 tokens x 4096 x 2 B; 8 ranks in a node, or 16 over two nodes."""
    visits = 2 * 4096 * 4096 * 2.0
    wide = replace(MIXTURE, experts=Experts(count=16, top_k=2, ffn=14336))
    assert sent(wide, Plan(dp=64, ep=8)) == pytest.approx((visits * 7 / 8, 0.0))
    assert sent(wide, Plan(dp=64, ep=16)) == pytest.approx((visits * 7 / 16, visits * 8 / 16))


def test_deduplicated_dispatch_sends_less_between_nodes() -> None:
    """Of two nodes, k visits reach 2 (1 - 2^-k) on average; one of them is elsewhere."""
    many = replace(MIXTURE, experts=Experts(count=64, top_k=8, ffn=1024))
    once = replace(STACK, deduplicated_dispatch=True)
    _, plain = sent(many, Plan(dp=64, ep=16))
    _, deduplicated = sent(many, Plan(dp=64, ep=16), once)
    token = 4096 * 4096 * 2.0
    assert plain == pytest.approx(8 * token / 2)
    assert deduplicated == pytest.approx(token * 2 * (1 - 0.5**8) / 2)


def test_kinds_and_their_places() -> None:
    kinds = layer_kinds(LATENT)
    assert [(kind.mlp, kind.windowed) for kind in kinds] == [("dense", False), ("moe", False)]
    classes = stage_classes(LATENT.layers, Plans.of([Plan(pp=4)]))
    by_kind = layers_by_kind(LATENT, kinds, classes)[:, :, 0]
    np.testing.assert_allclose(by_kind[0], [1, 0, 0, 0])
    np.testing.assert_allclose(by_kind[1], [7, 0, 8, 8])


@given(
    st.integers(2, 60),
    st.integers(1, 8),
    st.integers(0, 5),
    st.integers(1, 3),
    st.integers(0, 60),
    st.integers(0, 2),
)
def test_every_layer_has_a_kind(
    layers: int, pp: int, prefix: int, every: int, windowed: int, mtp: int
) -> None:
    prefix = min(prefix, layers - 1)
    model = replace(
        MIXTURE,
        layers=layers,
        window=512,
        windowed_layers=min(windowed, layers),
        experts=Experts(
            count=8, top_k=2, ffn=64, first_dense=prefix, every=min(every, layers - prefix)
        ),
        mtp_layers=mtp,
    )
    kinds = layer_kinds(model)
    table = Plans.of([Plan(pp=min(pp, layers))])
    classes = stage_classes(layers, table)
    by_kind = layers_by_kind(model, kinds, classes)
    counted = (by_kind * classes.count).sum(axis=(1, 2))
    assert counted.sum() == pytest.approx(layers + mtp)
    moe = sum(n for n, kind in zip(counted, kinds, strict=True) if kind.mlp == "moe")
    assert moe == pytest.approx(model.moe_layers + (mtp if model.moe_layers else 0))


def test_parameters_per_rank_add_up() -> None:
    """Summed over the ranks of a stage's groups: every expert once per expert replica."""
    plan = Plan(dp=8, tp=2, pp=4, ep=4, etp=1, sequence_parallel=True)
    shards, _ = step_keys(LATENT, WORKLOAD, Plans.of([plan]))
    count = shards.classes.count[:, 0]
    routed = LATENT.moe_layers * 64 * LATENT.expert_parameters
    assert (shards.experts_CU[:, 0] * count).sum() * 4 == pytest.approx(routed)
    assert shards.expert_ranks[0] == 8 * 2 // 4
    replicated = LATENT.layer_replicated_parameters("moe") * LATENT.moe_layers
    replicated += LATENT.layer_replicated_parameters("dense")
    rest = LATENT.parameters - routed
    edges = LATENT.norm_parameters
    expected = (rest - replicated - edges) / 2 + replicated + edges
    assert (shards.parameters_CU[:, 0] * count).sum() == pytest.approx(expected)


def test_latent_attention_by_hand() -> None:
    """Five GEMMs and a core of 192-wide queries and 128-wide values."""
    ops = lowered(LATENT, Plan(dp=64))
    t, h, a = 4096, 4096, 32
    gemms = h * 1536 + 1536 * a * 192 + h * 576 + 512 * a * 256 + a * 128 * h
    core = 2 * a * (192 + 128) * t * t / 2
    dense = 2 * t * (gemms + 3 * h * 14336) + core
    assert forward_flops(ops, 0) == pytest.approx(dense, 1e-9)
    # Backward: scores, dQ and dK over 192 columns, dP and dV over 128; half the square of pairs.
    backward = [
        i
        for i in ops.rows("attention")
        if ops.slots[i].phase != "forward" and not ops.slots[i].layer
    ]
    expected = 2 * a * (3 * 192 + 2 * 128) * t * t / 2
    assert ops.flops[backward].sum() == pytest.approx(expected, 1e-9)


def test_windows_and_encoders() -> None:
    model = replace(MIXTURE, window=1024, windowed_layers=16)
    assert attended_pairs(model, 4096, windowed=False) == 4096**2 / 2
    assert attended_pairs(model, 4096, windowed=True) == 4096 * 1024 - 1024**2 / 2
    assert attended_pairs(model, 512, windowed=True) == 512**2 / 2
    encoder = replace(MIXTURE, causal=False)
    assert attended_pairs(encoder, 4096, windowed=False) == 4096**2


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"count": 0}, "experts.count=0 must be at least 1"),
        ({"top_k": 9}, "experts.top_k=9 must be at most the 8 experts"),
        ({"first_dense": 32}, "experts.first_dense=32 of mixture must leave one of its 32 layers"),
        ({"every": 40}, "experts.every=40 of mixture leaves no layer for experts"),
        ({"shared_ffn": -1}, "experts.shared_ffn=-1 must not be negative"),
    ],
)
def test_bad_experts(change: dict[str, int], line: str) -> None:
    assert MIXTURE.experts is not None
    with pytest.raises(ValueError) as error:
        replace(MIXTURE, experts=replace(MIXTURE.experts, **change))
    assert str(error.value).startswith(line)


def test_model_flops_count_the_experts_visited() -> None:
    """Three passes of two FLOPs per active matrix parameter, and the causal scores."""
    embedding = MIXTURE.embedding_parameters
    replicated = 2 * MIXTURE.norm_parameters
    active = MIXTURE.active_parameters - embedding - MIXTURE.norm_parameters
    matrices = active - MIXTURE.layers * replicated
    scores = MIXTURE.layers * 2 * 4096 * 4096
    expected = WORKLOAD.tokens * 3 * (2 * matrices + scores)
    assert model_flops(MIXTURE, WORKLOAD) == pytest.approx(expected, 1e-12)


def price(model: Transformer, plan: Plan, workload: Workload = WORKLOAD) -> Estimate:
    return estimate(model, workload, CLUSTER, plan, stack=STACK)


@pytest.mark.parametrize("model", [MIXTURE, LATENT], ids=lambda m: m.name)
def test_parts_of_a_mixture_add_up(model: Transformer) -> None:
    answer = price(model, Plan(dp=8, tp=2, pp=4, ep=4, etp=1, sequence_parallel=True, zero=1))
    assert answer.step_seconds == pytest.approx(sum(answer.time.values()))
    assert sum(answer.compute_phases.values()) == pytest.approx(answer.time["compute"])
    assert answer.time["ep"] > 0
    assert answer.peak_bytes == pytest.approx(sum(answer.memory.values()))
    fullest = max(stage["allocated_bytes"] for stage in answer.stages)
    assert fullest == pytest.approx(answer.allocated_bytes)


def test_expert_parallelism_trades_memory_for_traffic() -> None:
    whole, shared = price(MIXTURE, Plan(dp=64, zero=1)), price(MIXTURE, Plan(dp=64, ep=8, zero=1))
    assert shared.memory["weights"] < 0.4 * whole.memory["weights"]
    assert shared.time["ep"] > whole.time["ep"] == 0


def test_a_mixture_of_one_is_dense_but_for_routing() -> None:
    """One expert that every token visits costs the dense layer, a router and the permutation."""
    single = replace(MIXTURE, experts=Experts(count=1, top_k=1, ffn=14336))
    dense = replace(MIXTURE, experts=None)
    mixture, plain = price(single, Plan(dp=64)), price(dense, Plan(dp=64))
    assert 1 < mixture.time["compute"] / plain.time["compute"] < 1.06
    assert mixture.memory["weights"] == pytest.approx(plain.memory["weights"], rel=1e-3)


def test_further_tokens_cost_a_layer_and_a_head_each() -> None:
    plan = Plan(dp=64, ep=8)
    none, one = price(LATENT, plan), price(replace(LATENT, mtp_layers=1), plan)
    assert 1 + 1 / 34 < one.time["compute"] / none.time["compute"] < 1 + 3 / 32


def test_swapping_heads_for_sequence_is_an_exchange_too() -> None:
    swap = replace(STACK, cp_exchange="all_to_all")
    plan = Plan(dp=8, cp=8)
    ring = estimate(MIXTURE, WORKLOAD, CLUSTER, plan, stack=STACK)
    swapped = estimate(MIXTURE, WORKLOAD, CLUSTER, plan, stack=swap)
    assert swapped.time["cp"] + swapped.hidden["cp"] < ring.time["cp"] + ring.hidden["cp"]


EXCHANGED = Plan(dp=64, ep=8, etp=1, zero=1, overlap_ep=True)


def exchange(
    plan: Plan, stack: Stack = STACK, workload: Workload = WORKLOAD
) -> tuple[float, float]:
    """Exposed and hidden seconds of the exchange of experts, not scaled by the stack."""
    found = estimate(MIXTURE, workload, CLUSTER, plan, stack=stack)
    return found.time["ep"] / stack.in_situ["analytic"], found.hidden["ep"] / stack.in_situ[
        "analytic"
    ]


@pytest.mark.parametrize("pp", [1, 4])
def test_an_exchange_beside_compute_costs_its_multiprocessors(pp: int) -> None:
    """All but pp of m micro-batches meet another's pass, and 20 of 132 multiprocessors are lost."""
    plan = replace(EXCHANGED, dp=64 // pp, pp=pp, interleave=1 if pp == 1 else 2)
    whole, nothing = exchange(replace(plan, overlap_ep=False))
    exposed, hidden = exchange(plan)
    assert nothing == 0
    m = WORKLOAD.global_batch // plan.dp
    assert exposed == pytest.approx(whole * (pp / m + (1 - pp / m) * 0.15), rel=1e-9)
    assert exposed + hidden == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize(
    "change",
    [
        {"ep": 1, "etp": None},
        {"dp": 16, "pp": 4},
        {"dp": 16, "pp": 4, "schedule": "gpipe"},
        {"overlap_ep": None},
    ],
)
def test_an_exchange_hides_only_behind_another_micro_batch(change: dict[str, object]) -> None:
    assert exchange(replace(EXCHANGED, **change))[1] == 0  # type: ignore[arg-type]


def test_one_micro_batch_hides_nothing() -> None:
    assert exchange(EXCHANGED, workload=replace(WORKLOAD, global_batch=64))[1] == 0


def test_no_more_hides_than_there_is_compute() -> None:
    """Over slow links an exchange is longer than the compute that it runs beside."""
    slow = replace(CLUSTER.scale_up, bandwidth=CLUSTER.scale_up.bandwidth / 100)
    assert CLUSTER.scale_out is not None
    cluster = replace(CLUSTER, scale_up=slow, collectives=())
    found = estimate(MIXTURE, WORKLOAD, cluster, EXCHANGED, stack=STACK)
    assert 0 < found.hidden["ep"] <= 0.75 * found.time["compute"] * (1 + 1e-9)
    assert found.time["ep"] > found.hidden["ep"]


@pytest.mark.parametrize("recompute", ["none", "mlp", "full"])
@pytest.mark.parametrize("pp", [1, 4])
def test_simulated_exchanges_hide_as_much(pp: int, recompute: str) -> None:
    plan = replace(
        EXCHANGED,
        dp=64 // pp,
        pp=pp,
        interleave=1 if pp == 1 else 2,
        recompute=recompute,  # type: ignore[arg-type]
    )
    apart = replace(plan, overlap_ep=False)
    stages, ops, ops_apart = (
        simulate(MIXTURE, WORKLOAD, CLUSTER, each, stack=STACK, detail=detail)
        for each, detail in ((plan, "stages"), (plan, "ops"), (apart, "ops"))
    )
    closed = stages.closed_form
    assert stages.estimate.time["ep"] == pytest.approx(closed.time["ep"], rel=1e-9)
    assert stages.estimate.hidden["ep"] == closed.hidden["ep"] > 0
    # Operators also run an exchange beside the weights' gradients that nothing waits for.
    shorter = closed.time["ep"] / (closed.time["ep"] + closed.hidden["ep"])
    longer = ops_apart.estimate.time["ep"]
    assert ops.estimate.time["ep"] == pytest.approx(shorter * longer, rel=1e-6)
    assert ops.makespan < ops_apart.makespan
