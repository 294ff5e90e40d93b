"""The tile model's laws: utilisation, the speed of light, monotony, batches, files, training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.catalog import load_device
from estimator.cost.kernels import light_seconds
from estimator.cost.tile_law import (
    ENERGY,
    lanes,
    memory_seconds,
    shared_memory_share,
    tiles,
)
from estimator.cost.tiles import FAMILIES, TileModel, load_tiles, shipped_tiles
from estimator.lower.operators import as_run, flops, moved_bytes
from estimator.operators import Operators, operators
from estimator.samples import Samples, pooled, samples

DEVICES = ("p4", "p100-pcie", "v100-pcie-32gb", "t4", "a100-pcie-80gb", "h100-sxm", "l4", "mi210")
SIZE = st.integers(1, 8192)
DIMENSIONS = st.tuples(st.sampled_from(FAMILIES), st.integers(1, 256), SIZE, SIZE, SIZE)
ROWS = st.lists(DIMENSIONS, min_size=1, max_size=8)
PHASES = st.sampled_from(["forward", "backward"])


def made(rows: list[tuple[str, int, int, int, int]], phase: str = "forward") -> Operators:
    kinds, batch, m, n, k = zip(*rows, strict=True)
    batched = [b if kind == "bmm" else 1 for kind, b in zip(kinds, batch, strict=True)]
    return operators(list(kinds), dtype="fp32", phase=phase, batch=batched, m=m, n=n, k=k)


@settings(deadline=None, max_examples=50)
@given(rows=ROWS, phase=PHASES, name=st.sampled_from(DEVICES))
def test_no_kernel_beats_the_speed_of_light(rows, phase, name) -> None:
    ops, device = made(rows, phase), load_device(name)
    seconds = shipped_tiles().seconds(ops, device)
    assert (seconds >= light_seconds(ops, device)).all()
    assert np.isfinite(seconds).all()
    assert (shipped_tiles().isolated_seconds(ops, device) > seconds).all()


@settings(deadline=None, max_examples=50)
@given(rows=ROWS, name=st.sampled_from(DEVICES))
def test_utilisation_is_a_share(rows, name) -> None:
    share = shipped_tiles().utilisation(made(rows), load_device(name))
    assert ((share > 0) & (share <= 1)).all()


@settings(deadline=None, max_examples=50)
@given(rows=ROWS, phase=PHASES, name=st.sampled_from(DEVICES), more=st.floats(1.0, 1.15))
def test_time_falls_with_bandwidth_and_peak(rows, phase, name, more) -> None:
    ops, device = made(rows, phase), load_device(name)
    before = shipped_tiles().seconds(ops, device)
    wider = replace(device, bandwidth=device.bandwidth * more)
    faster = replace(device, peaks={"fp32": device.peaks["fp32"] * more})
    cooler = replace(device, tdp_watts=device.tdp_watts * more)
    for better in (wider, faster, cooler):
        assert lanes(better) == lanes(device)
        assert (shipped_tiles().seconds(ops, better) <= before * (1 + 1e-9)).all()


@settings(deadline=None, max_examples=50)
@given(rows=ROWS, phase=PHASES)
def test_a_batch_is_its_rows(rows, phase) -> None:
    ops, device = made(rows, phase), load_device("h100-sxm")
    alone = [shipped_tiles().seconds(ops.take(np.array([i])), device)[0] for i in range(len(ops))]
    assert shipped_tiles().seconds(ops, device) == pytest.approx(alone, rel=1e-5)


def test_count_multiplies() -> None:
    device = load_device("l4")
    one, five = (operators("softmax", dtype="fp32", m=512, n=512, count=c) for c in (1, 5))
    model = shipped_tiles()
    assert model.seconds(five, device) == pytest.approx(5 * model.seconds(one, device))


def test_a_backward_product_is_two_forward_ones() -> None:
    device, model = load_device("a100-pcie-80gb"), shipped_tiles()
    backward = operators("linear", dtype="fp32", phase="backward", m=2048, n=512, k=1024)
    inputs = operators("linear", dtype="fp32", m=2048, n=1024, k=512)
    weights = operators("linear", dtype="fp32", m=1024, n=512, k=2048)
    run, row = as_run(backward)
    assert row.tolist() == [0, 0]
    assert flops(run).sum() == flops(backward).sum()
    assert moved_bytes(run).sum() == moved_bytes(backward).sum()
    both = model.seconds(inputs, device) + model.seconds(weights, device)
    assert model.seconds(backward, device) == pytest.approx(both, rel=1e-5)


def test_small_arrays_stay_in_l2() -> None:
    """A100: half of 40 MiB at 32 bytes a clock of 108 multiprocessors, the whole from DRAM."""
    device = load_device("a100-pcie-80gb")
    half, whole = 20 * 2**20, 40 * 2**20
    clock = 19.5e12 / (2 * 64 * 108)
    expected = [half / (32 * 108 * clock), whole / 1935e9, 1e9 / 1935e9]
    assert memory_seconds(np.array([half, whole, 1e9]), device) == pytest.approx(expected)


def test_a_norm_rereads_rows_that_l2_cannot_hold() -> None:
    rows = operators("layer_norm", dtype="fp32", m=65536, n=8192)
    device = load_device("v100-pcie-32gb")
    model = shipped_tiles()
    larger = replace(device, l2_bytes=16 * device.l2_bytes)
    assert model.seconds(rows, larger) < 0.9 * model.seconds(rows, device)
    assert model.seconds(rows, larger) == model.seconds(rows, replace(larger, l2_bytes=1e9))


def test_few_blocks_of_a_deep_reduction_are_split() -> None:
    device = load_device("h100-sxm")
    deep = operators("linear", dtype="fp32", m=128, n=128, k=[64, 16384])
    _, splits, waves = tiles(deep, device)
    assert splits[0] == 1 < splits[1]
    assert waves.tolist() == [1, 1]
    whole = operators("linear", dtype="fp32", m=8192, n=8192, k=1024)
    chosen, splits, waves = tiles(whole, device)
    assert (chosen[0], splits[0]) == (0, 1)
    assert waves[0] == np.ceil(64 * 64 / 132)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *[("p100-pcie", 64), ("v100-pcie-32gb", 64), ("t4", 64), ("a100-pcie-80gb", 64)],
        *[("p4", 128), ("h100-sxm", 128), ("l4", 128), ("a10", 128), ("rtx-4090", 128)],
    ],
)
def test_lanes_are_those_of_the_white_papers(name: str, expected: int) -> None:
    device = load_device(name)
    assert lanes(device) == expected
    assert shared_memory_share(device) == pytest.approx({64: 0.9615, 128: 0.7937}[expected], 1e-3)


def test_a_small_board_runs_at_its_power_limit() -> None:
    """L4 has T4's watts for 3.7 times its peak: a large product draws them all."""
    large = operators("linear", dtype="fp32", m=4096, n=4096, k=4096)
    l4, h100 = load_device("l4"), load_device("h100-sxm")
    model = shipped_tiles()
    for device, limited in ((l4, True), (h100, False)):
        doubled = replace(device, tdp_watts=2 * device.tdp_watts)
        gained = model.seconds(large, device) / model.seconds(large, doubled) > 1.05
        assert bool(gained[0]) is limited
    source, scale = ENERGY["ada"]
    joules = 0.85 * l4.tdp_watts * model.seconds(large, l4) / flops(large)
    least = model.law.joules[source] * scale
    assert least <= joules[0] <= 1.5 * least


def test_an_architecture_without_measured_joules_has_no_limit() -> None:
    large = operators("linear", dtype="fp32", m=4096, n=4096, k=4096)
    l4, model = load_device("l4"), shipped_tiles()
    free = replace(model, law=replace(model.law, joules={}))
    unlimited = model.seconds(large, replace(l4, tdp_watts=1e6))
    assert free.seconds(large, l4) == pytest.approx(unlimited)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("rope", "fp32"), ("linear", "bf16"), ("attention", "fp32")]
)
def test_what_was_not_fitted_is_refused(kind: str, dtype: str) -> None:
    ops = operators(["linear", kind], dtype=["fp32", dtype], m=64, n=64, k=64)
    device = load_device("h100-sxm")
    assert shipped_tiles().covers(ops, device).tolist() == [True, False]
    for priced in (shipped_tiles().seconds, shipped_tiles().origin):
        with pytest.raises(ValueError, match=f"row 2: no tile model of {dtype} {kind} on h100"):
            priced(ops, device)


def test_beyond_the_samples_is_extrapolated() -> None:
    ops = operators("linear", dtype="fp32", m=[512, 512], n=[512, 512], k=[512, 1e6])
    origin = shipped_tiles().origin(ops, load_device("l4"))
    assert origin.tolist() == ["learned", "extrapolated"]


def test_parameters_survive_their_file(tmp_path: Path) -> None:
    model, path = shipped_tiles(), tmp_path / "tiles.npz"
    path.write_bytes(model.npz())
    again = load_tiles(path)
    ops = made([(kind, 8, 300, 500, 700) for kind in FAMILIES])
    for name in DEVICES:
        device = load_device(name)
        assert (again.seconds(ops, device) == model.seconds(ops, device)).all()
    assert again.provenance == model.provenance
    assert path.stat().st_size < 200_000


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("hello", encoding="utf-8")
    for name in ("nothing.npz", "text.npz"):
        with pytest.raises(ValueError, match=name):
            load_tiles(tmp_path / name)


def test_shipped_parameters_say_where_they_are_from() -> None:
    provenance = shipped_tiles().provenance
    assert provenance["excluded"] == {"p4-linear-slow": 6423}
    assert not {"h100-sxm", "a100-pcie-80gb", "l4"} & set(provenance["devices"])
    assert set(shipped_tiles().families) == set(FAMILIES)


def synthetic(name: str, share: float, seed: int) -> Samples:
    """Kernels at a constant share of the peak or the bandwidth, and some that only launch."""
    chance = np.random.default_rng(seed)
    sizes = {size: np.round(2 ** chance.uniform(9, 12, 80)) for size in ("m", "n", "k")}
    device = load_device(name)
    products = operators("linear", dtype="fp32", **sizes)
    vectors = operators("softmax", dtype="fp32", m=64 * sizes["m"], n=sizes["n"])
    smallest = operators(["linear", "softmax"] * 5, dtype="fp32", m=8, n=8, k=8)
    return pooled(
        [
            samples(products, device=name, seconds=flops(products) / device.peaks["fp32"] / share),
            samples(vectors, device=name, seconds=moved_bytes(vectors) / device.bandwidth / share),
            samples(smallest, device=name, seconds=np.full(10, 5e-6)),
        ]
    )


def trained(steps: int) -> TileModel:
    from estimator.cost.train_tiles import fit_tiles

    table = pooled([synthetic("v100-pcie-32gb", 0.6, 1), synthetic("a100-pcie-40gb", 0.6, 2)])
    return fit_tiles(table, seed=3, hidden=(8,), steps=steps)


def test_training_recovers_a_constant_share() -> None:
    pytest.importorskip("torch")
    fresh = synthetic("a100-pcie-40gb", 0.6, 7)
    predicted = trained(150).seconds(fresh.ops, load_device("a100-pcie-40gb"))
    error = np.abs(predicted / fresh.seconds - 1)
    assert np.median(error[fresh.ops.kind == "softmax"]) < 0.05
    assert np.median(error[fresh.ops.kind == "linear"]) < 0.05


def test_a_seed_decides_everything() -> None:
    pytest.importorskip("torch")
    first, second = trained(5), trained(5)
    assert first.law == second.law
    assert first.npz() == second.npz()


def test_held_out_devices_are_not_looked_at() -> None:
    pytest.importorskip("torch")
    from estimator.cost.train_tiles import fit_tiles

    with pytest.raises(ValueError, match="no fp32 forward sample of linear, bmm"):
        fit_tiles(synthetic("t4", 0.5, 0), hold_out=["t4"])
    assert "t4" not in shipped_tiles().provenance.get("hold_out", [])
