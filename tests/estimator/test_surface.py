"""Surfaces: what they learn, the laws that hold whatever they learned, and their file."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.catalog import load_device
from estimator.cost.kernels import light_seconds
from estimator.cost.oblivious import fit_trees
from estimator.cost.surface import ANY, SurfaceModel, load_surfaces, shipped_surfaces
from estimator.cost.surface_features import floor_seconds
from estimator.operators import operators
from estimator.samples import pooled, samples

H100, A100 = load_device("h100-sxm"), load_device("a100-sxm-80gb")


def _samples(device, efficiency, rows=600, seed=0):
    draw = np.random.default_rng(seed)
    m, n, k = (2.0 ** draw.integers(5, 13, rows) for _ in range(3))
    ops = operators("linear", dtype="bf16", m=m, n=n, k=k)
    return samples(ops, device=device.name, seconds=floor_seconds(ops, device) / efficiency(m))


@pytest.fixture(scope="module")
def fitted():
    pytest.importorskip("torch")
    from estimator.cost.train_surface import fit_surfaces

    def ramp(m):
        return 0.8 * m / (m + 200)

    both = pooled([_samples(A100, ramp), _samples(H100, ramp)])
    return fit_surfaces(both, seed=3), both, ramp


def test_an_efficiency_is_learned_and_carried_to_shapes_not_seen(fitted):
    model, _, ramp = fitted
    m = np.array([96.0, 700.0, 3000.0])
    ops = operators("linear", dtype="bf16", m=m, n=2048, k=2048)
    ratio = model.seconds(ops, H100) / (floor_seconds(ops, H100) / ramp(m))
    assert np.abs(ratio - 1).max() < 0.15


def test_a_device_without_samples_is_priced_by_the_others_and_says_so(fitted):
    model, _, ramp = fitted
    other = load_device("h200")
    ops = operators("linear", dtype="bf16", m=4096, n=4096, k=4096)
    assert [surface.device for surface in model.surfaces] == ["a100-sxm-80gb", "h100-sxm", ANY]
    assert model.origin(ops, H100).tolist() == ["learned"]
    assert model.origin(ops, other).tolist() == ["extrapolated"]
    expected = floor_seconds(ops, other) / ramp(4096.0)
    assert model.seconds(ops, other) == pytest.approx(expected, rel=0.2)


def test_the_floor_of_any_follows_the_power_between_what_was_fitted(fitted):
    """Half of the peak at 0.5 W per TFLOP/s and 0.8 at 2: by logarithms the mean at 1."""
    model, _, _ = fitted
    shared = model.surfaces[-1]
    power = replace(shared, power=np.array([[0.5, 0.5], [2.0, 0.8]]))
    peak = H100.peaks["bf16"] * 1e-12
    for watts, share in ((0.1, 0.5), (0.5, 0.5), (1.0, 0.4**0.5), (2.0, 0.8), (9.0, 0.8)):
        board = replace(H100, tdp_watts=watts * peak)
        assert power.sustained(board) == pytest.approx(share)
    assert shared.sustained(H100) == 1.0, "no product of the samples was large enough to say"
    large = operators("linear", dtype="bf16", m=[16384, 64], n=16384, k=16384)
    both = power.seconds(large, H100) / shared.seconds(large, H100)
    assert both[0] == pytest.approx(1 / power.sustained(H100)), "bound by its work"


def test_same_samples_and_seed_give_the_same_bytes(fitted):
    from estimator.cost.train_surface import fit_surfaces

    model, both, _ = fitted
    assert fit_surfaces(both, seed=3).npz() == model.npz()
    assert fit_surfaces(both, seed=4).npz() != model.npz()


def test_round_trip_through_the_file(fitted, tmp_path):
    model, both, _ = fitted
    path = tmp_path / "surfaces.npz"
    path.write_bytes(model.npz())
    again = load_surfaces(path)
    assert np.array_equal(again.seconds(both.ops, H100), model.seconds(both.ops, H100))
    assert again.provenance == model.provenance
    assert {s.device for s in load_surfaces(path, "h100-sxm").surfaces} == {"h100-sxm", ANY}


def test_a_file_of_something_else_is_refused(tmp_path):
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    (tmp_path / "text.npz").write_text("hello")
    for name in ("other.npz", "text.npz", "none.npz"):
        with pytest.raises(ValueError, match=name):
            load_surfaces(tmp_path / name)


def test_held_out_devices_leave_no_trace(fitted):
    from estimator.cost.train_surface import fit_surfaces

    _, both, _ = fitted
    alone = fit_surfaces(both, hold_out=["h100-sxm"], seed=3)
    assert [surface.device for surface in alone.surfaces] == ["a100-sxm-80gb"]
    with pytest.raises(ValueError, match="forward rows"):
        fit_surfaces(both, hold_out=["h100-sxm", "a100-sxm-80gb"])


def test_architectures_that_were_not_fitted_are_not_covered():
    ops = operators("linear", dtype="bf16", m=4096, n=4096, k=4096)
    for name in ("mi300x", "v100-sxm-32gb"):
        device = load_device(name)
        assert not shipped_surfaces(name).covers(ops, device).any()


def test_kinds_without_a_surface_are_refused_by_row():
    ops = operators(["linear", "softmax"], dtype="bf16", m=64, n=64, k=64)
    model = shipped_surfaces("h100-sxm")
    assert model.covers(ops, H100).tolist() == [True, False]
    with pytest.raises(ValueError, match="row 2: no surface of bf16 softmax"):
        model.seconds(ops, H100)


def test_attention_backward_takes_the_stated_ratio():
    both = operators(
        "attention",
        name="flash2",
        dtype="bf16",
        phase=["forward", "backward"],
        m=4096,
        n=4096,
        k=128,
        heads=32,
        kv_heads=8,
        causal=1,
    )
    forward, backward = SurfaceModel.seconds(shipped_surfaces("a100-sxm-80gb"), both, A100)
    assert backward / forward == pytest.approx(2.9)


@given(value=st.floats(-5, 5), rows=st.integers(1, 40), seed=st.integers(0, 3))
def test_trees_stay_near_what_they_were_fitted_on(value, rows, seed):
    draw = np.random.default_rng(seed)
    trees = fit_trees(draw.normal(size=(rows, 3)), np.full(rows, value), trees=40, seed=seed)
    found = trees.predict(10 * draw.normal(size=(50, 3)))
    assert (np.abs(found) <= 2 * abs(value) + 1e-3).all()


@given(rows=st.integers(0, 600), seed=st.integers(0, 5))
def test_trees_are_walked_question_by_question(rows, seed):
    draw = np.random.default_rng(seed)
    known = draw.normal(size=(60, 4))
    trees = fit_trees(known, known.sum(axis=1), trees=15, seed=seed)
    asked = np.concatenate([known, draw.normal(size=(600, 4))])[:rows]
    expected = np.zeros(rows)
    for features, cuts, leaves in zip(trees.feature, trees.cut, trees.leaves, strict=True):
        leaf = np.zeros(rows, dtype=int)
        for feature, cut in zip(features, cuts, strict=True):
            passes = asked[:, feature].astype(np.float32) > trees.edges[feature, cut]
            leaf = 2 * leaf + passes
        expected += leaves[leaf]
    assert np.allclose(trees.predict(asked), expected, rtol=0, atol=1e-5)


def test_trees_learn_a_step():
    features = np.linspace(0, 1, 400)[:, None]
    values = np.where(features[:, 0] > 0.3, 2.0, -1.0)
    trees = fit_trees(features, values, trees=100)
    assert np.abs(trees.predict(np.array([[0.1], [0.9]])) - [-1, 2]).max() < 0.05


@given(
    m=st.integers(1, 10**6),
    n=st.integers(1, 10**5),
    k=st.integers(1, 10**5),
    batch=st.integers(1, 64),
)
def test_never_faster_than_light(m, n, k, batch):
    ops = operators("linear", dtype="bf16", batch=batch, m=m, n=n, k=k)
    for device in (H100, load_device("h100-pcie")):
        seconds = shipped_surfaces(device.name).seconds(ops, device)
        assert np.isfinite(seconds).all() and (seconds >= light_seconds(ops, device)).all()
