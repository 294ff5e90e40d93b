"""AMPeD: hand-worked terms, the laws of its sum, and what its factors do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import Cluster, Estimates, Plan, Plans, Transformer, Workload
from estimator.amped import Amped, training_days
from estimator.catalog import load_cluster
from estimator.estimate import TIME_PARTS
from estimator.model import Experts
from tests.estimator.amped_problems import STACK, amped

HIDDEN, LAYERS, HEADS, VOCAB, SEQUENCE, BATCH = 4096, 32, 32, 51200, 2048, 256
DENSE = Transformer(
    name="gpt",
    layers=LAYERS,
    hidden=HIDDEN,
    ffn=4 * HIDDEN,
    heads=HEADS,
    kv_heads=HEADS,
    head_dim=128,
    vocab=VOCAB,
    max_positions=SEQUENCE,
    activation="gelu",
    positions="rotary",
    norm="layernorm",
    bias="none",
    tied=True,
)
SPARSE = replace(DENSE, experts=Experts(count=64, top_k=2, ffn=HIDDEN))
WORKLOAD = Workload(global_batch=BATCH, sequence=SEQUENCE)
CLUSTER = load_cluster("a100-sxm-80gb:64")
PEAK, EFFICIENCY = 312e12, 0.51


def price(
    text: str,
    parameters: Amped | None = None,
    *,
    model: Transformer = DENSE,
    workload: Workload = WORKLOAD,
    cluster: Cluster = CLUSTER,
) -> Estimates:
    plan = Plan.parse(text, world=cluster.gpus)
    return amped(model, workload, cluster, Plans.of([plan]), parameters)


def part(answer: Estimates, name: str) -> float:
    return float(answer.time[name][0])


def elements(passes: float) -> float:
    """Seconds of element-wise work: h of softmax and 2 (h + 4h) per token and layer."""
    return passes * BATCH * SEQUENCE * LAYERS * 11 * HIDDEN * 2 / 19.5e12 / 64


@pytest.mark.parametrize("text", ["tp=8", "pp=8", "tp=4,pp=4,interleave=2", "tp=1,cp=2"])
def test_compute_is_the_flops_of_the_megatron_paper(text: str) -> None:
    """arXiv 2104.04473, equation 3, counts the same products, with a full recompute."""
    tail = 1 + SEQUENCE / (6 * HIDDEN) + VOCAB / (16 * LAYERS * HIDDEN)
    flops = 96 * BATCH * SEQUENCE * LAYERS * HIDDEN**2 * tail
    expected = flops / (64 * PEAK * EFFICIENCY) + elements(3)
    assert part(price(f"{text},recompute=full"), "compute") == pytest.approx(expected, rel=1e-12)


def test_recompute_repeats_what_it_says() -> None:
    one = price("pp=4").compute_phases
    full = price("pp=4,recompute=full").compute_phases
    half = price("pp=4,recompute=full,recompute_layers=4").compute_phases
    core = price("pp=4,recompute=selective").compute_phases
    assert one["recompute"][0] == 0
    head = 2 * BATCH * SEQUENCE * HIDDEN * VOCAB / (64 * PEAK * EFFICIENCY)
    assert full["recompute"][0] == pytest.approx(one["forward"][0] - head, rel=1e-12)
    assert half["recompute"][0] == pytest.approx(full["recompute"][0] / 2, rel=1e-12)
    scores = 4 * BATCH * SEQUENCE**2 * HIDDEN * LAYERS / (64 * PEAK * EFFICIENCY)
    assert core["recompute"][0] == pytest.approx(scores + elements(1 / 11), rel=1e-12)


def test_tensor_parallel_traffic_by_hand() -> None:
    """8 micro-batches of 4 x 2048 x 4096 half-precision elements, twice per layer and pass."""
    answer = price("tp=8,mbs=4")
    up = CLUSTER.scale_up
    message = 2 * 4 * SEQUENCE * HIDDEN
    ring = up.latency + 14 * up.hop_latency + message * 14 / 8 / (300e9 * up.efficiency)
    assert part(answer, "tp") == pytest.approx(2 * 2 * LAYERS * 8 * ring, rel=1e-12)
    again = price("tp=8,mbs=4,recompute=full")
    assert part(again, "tp") == pytest.approx(1.5 * part(answer, "tp"), rel=1e-12)


def test_gradients_are_reduced_inside_then_between_by_hand() -> None:
    """tp=2: 32 replicas, four of them in each of eight nodes."""
    parameters = LAYERS * (12 * HIDDEN**2 + 4 * HIDDEN) + VOCAB * HIDDEN + 2 * HIDDEN
    size = 4 * parameters / 2
    up, out = CLUSTER.scale_up, CLUSTER.scale_out
    assert out is not None and STACK.gradient_bytes == 4
    inside = up.latency + 6 * up.hop_latency + size * 1.5 / (300e9 * up.efficiency)
    between = out.latency + size / 4 * 1.75 / (25e9 * out.efficiency)
    assert part(price("tp=2"), "dp") == pytest.approx(inside + between, rel=1e-12)
    half = price("tp=2", Amped(gradients=0.25))
    assert part(half, "dp") == pytest.approx(0.25 * (inside + between), rel=1e-12)
    assert half.hidden["dp"][0] == pytest.approx(0.75 * (inside + between), rel=1e-12)


def test_the_bubble_holds_all_that_a_stage_does() -> None:
    """W = R / v (p - 1) / m of compute and communication, without the slip of 1 / L."""
    answer = price("tp=8,pp=4,mbs=2")
    busy = sum(part(answer, name) for name in ("compute", "tp", "pp"))
    assert part(answer, "bubble") == pytest.approx(3 / 64 * busy, rel=1e-12)
    assert part(price("tp=8,pp=4,mbs=2", Amped(bubble=0)), "bubble") == 0
    chunks = price("tp=8,pp=4,mbs=2,interleave=2")
    busy = sum(part(chunks, name) for name in ("compute", "tp", "pp"))
    assert part(chunks, "bubble") == pytest.approx(3 / 128 * busy, rel=1e-12)
    assert part(chunks, "pp") == pytest.approx(2 * part(answer, "pp"), rel=1e-12)


def test_boundaries_cross_the_slower_tier() -> None:
    out, up = CLUSTER.scale_out, CLUSTER.scale_up
    assert out is not None
    sent = 2 * SEQUENCE * HIDDEN / 8
    between = out.latency + sent / (25e9 * out.efficiency)
    assert part(price("tp=8,pp=8"), "pp") == pytest.approx(2 * 256 * between, rel=1e-12)
    sent = 2 * SEQUENCE * HIDDEN / 2
    inside = up.latency + sent / (300e9 * up.efficiency)
    near = price("tp=2,pp=4,order=tp-cp-ep-pp-dp")
    assert part(near, "pp") == pytest.approx(2 * 32 * inside, rel=1e-12)


def test_efficiency_grows_with_the_micro_batch_up_to_its_cap() -> None:
    curve = Amped(efficiency=1.0, half_micro_batch=1.0)
    matrices = part(price("tp=8"), "compute") - elements(2)
    for micro_batch, reached in ((1, 1 / 2), (2, 2 / 3), (32, 0.91)):
        answer = price(f"tp=8,mbs={micro_batch}", curve)
        expected = matrices * EFFICIENCY / reached + elements(2)
        assert part(answer, "compute") == pytest.approx(expected, rel=1e-12)


def test_the_number_of_micro_batches_may_be_given() -> None:
    own, given_ = price("tp=8,pp=2,mbs=4"), price("tp=8,pp=2,mbs=1", Amped(micro_batches=16))
    for name in TIME_PARTS:
        assert part(own, name) == pytest.approx(part(given_, name), rel=1e-12)


def test_sharded_weights_add_a_share_of_the_other_traffic() -> None:
    plain, sharded = price("tp=8,zero=2"), price("tp=8,zero=3")
    extra = part(sharded, "dp") - part(plain, "dp")
    assert extra == pytest.approx(0.25 * part(plain, "tp"), rel=1e-12)
    assert part(sharded, "tp") == part(plain, "tp")


def test_forward_alone_has_no_backward_and_no_gradients() -> None:
    train = price("tp=8,pp=2,recompute=full")
    forward = price("tp=8,pp=2,recompute=full", workload=replace(WORKLOAD, mode="forward"))
    assert part(forward, "dp") == 0 and forward.compute_phases["backward"][0] == 0
    assert part(forward, "compute") == pytest.approx(train.compute_phases["forward"][0])
    assert part(forward, "tp") == pytest.approx(part(train, "tp") / 3, rel=1e-12)


def test_adapters_spare_weight_gradients_and_their_reduction() -> None:
    whole, adapters = price("tp=1"), price("tp=1", workload=replace(WORKLOAD, lora_rank=16))
    assert part(adapters, "dp") < 0.05 * part(whole, "dp")
    ratio = part(adapters, "compute") / part(whole, "compute")
    assert 0.66 < ratio < 0.75


def test_experts_cost_what_a_token_visits_and_their_gate() -> None:
    few = price("tp=1,ep=8", model=SPARSE)
    assert SPARSE.experts is not None
    more = replace(SPARSE, experts=replace(SPARSE.experts, count=128))
    gate = 3 * 2 * BATCH * SEQUENCE * LAYERS * 64 * HIDDEN / (64 * PEAK * EFFICIENCY)
    extra = part(price("tp=1,ep=8", model=more), "compute") - part(few, "compute")
    assert extra == pytest.approx(gate, rel=1e-9)


def test_tokens_travel_to_experts_by_hand() -> None:
    """ep=16 on nodes of eight: 7 of 16 parts of the tokens stay inside, 8 leave."""
    answer = price("tp=1,ep=16,mbs=2", model=SPARSE)
    up, out = CLUSTER.scale_up, CLUSTER.scale_out
    assert out is not None
    sent = 2 * 2 * SEQUENCE * HIDDEN * 2
    near = up.latency + sent * 7 / 16 / (300e9 * up.efficiency)
    far = out.latency + sent * 8 / 16 / (25e9 * out.efficiency)
    assert part(answer, "ep") == pytest.approx(2 * 2 * LAYERS * 2 * (near + far), rel=1e-12)
    assert part(price("tp=1", model=SPARSE), "ep") == 0
    alone = price("tp=1,ep=8", model=SPARSE)
    assert part(alone, "ep") < part(answer, "ep")
    assert part(alone, "dp") < part(price("tp=1", model=SPARSE), "dp")


def test_one_device_only_computes() -> None:
    answer = price("tp=1", cluster=load_cluster("a100-sxm-80gb:1"))
    assert {name for name in TIME_PARTS if part(answer, name)} == {"compute"}


MESHES = st.sampled_from(
    ["tp=8", "tp=4,pp=2", "tp=16,pp=2", "cp=2,tp=2", "pp=4,interleave=2,zero=3", "tp=2,zero=1"]
)


@given(MESHES, st.sampled_from([1, 2, 4]), st.floats(1.1, 10))
def test_parts_sum_and_faster_hardware_is_no_slower(
    mesh: str, micro_batch: int, factor: float
) -> None:
    text = f"{mesh},mbs={micro_batch}"
    answer = price(text)
    total = sum(part(answer, name) for name in TIME_PARTS)
    assert float(answer.step_seconds[0]) == pytest.approx(total, rel=1e-12)
    phases = sum(float(value[0]) for value in answer.compute_phases.values())
    assert phases == pytest.approx(part(answer, "compute"), rel=1e-12)
    assert CLUSTER.scale_out is not None
    for link in ("scale_up", "scale_out"):
        one = getattr(CLUSTER, link)
        better = replace(CLUSTER, **{link: replace(one, bandwidth=factor * one.bandwidth)})
        assert float(price(text, cluster=better).step_seconds[0]) <= total
    peaks = {dtype: factor * peak for dtype, peak in CLUSTER.device.peaks.items()}
    quick = replace(CLUSTER, device=replace(CLUSTER.device, peaks=peaks))
    compute = part(price(text, cluster=quick), "compute")
    assert compute == pytest.approx(part(answer, "compute") / factor, rel=1e-9)


def test_a_batch_of_plans_is_its_plans() -> None:
    texts = ["tp=8", "tp=2,pp=4,mbs=2", "cp=4,zero=3", "tp=8,pp=8,recompute=full"]
    plans = Plans.of(Plan.parse(text, world=64) for text in texts)
    together = amped(DENSE, WORKLOAD, CLUSTER, plans)
    alone = [float(price(text).step_seconds[0]) for text in texts]
    np.testing.assert_allclose(together.step_seconds, alone, rtol=1e-12)


def test_stages_carry_the_step() -> None:
    answer = price("tp=8,pp=4,mbs=2")
    busy = sum(part(answer, name) for name in ("compute", "tp", "pp"))
    seconds = answer.stages.seconds[0]
    assert seconds[0] == pytest.approx(busy / 64, rel=1e-12)
    assert seconds[1] == 0, "a class without stages"


def test_days_of_a_run() -> None:
    answer = price("tp=8")
    steps = 1e12 / (BATCH * SEQUENCE)
    days = steps * float(answer.step_seconds[0]) / 86400
    assert training_days(answer, 1e12)[0] == pytest.approx(days, rel=1e-12)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("efficiency", 0.0),
        ("most", 1.2),
        ("bubble", -0.1),
        ("gradients", 2.0),
        ("half_micro_batch", float("inf")),
        ("zero_overhead", -1.0),
        ("micro_batches", 0),
        ("uncertainty", 1.0),
    ],
)
def test_parameters_out_of_range_are_one_line(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field}={value} must") as error:
        Amped(**{field: value})  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
