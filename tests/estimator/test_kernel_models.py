"""One suite over every model of kernels: the laws of the ``KernelModel`` protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.catalog import load_device
from estimator.cluster import Device
from estimator.cost.analytic_kernels import AnalyticKernels
from estimator.cost.best import all_kernels
from estimator.cost.kernels import KernelModel, light_seconds
from estimator.cost.parameters import load_kernels
from estimator.cost.regression import shipped_regression
from estimator.cost.surface import shipped_surfaces
from estimator.cost.tiles import shipped_tiles
from estimator.operators import Operators, concatenate, operators

A100 = load_device("a100-sxm-80gb")
Model = Callable[[Device], KernelModel]
MODELS: dict[str, tuple[Model, str]] = {
    "analytic": (lambda device: AnalyticKernels(), "bf16"),
    "surfaces": (lambda device: shipped_surfaces(device.name), "bf16"),
    "regression": (lambda device: shipped_regression(), "fp16"),
    "tiles": (lambda device: shipped_tiles(), "fp32"),
    "best": (all_kernels, "bf16"),
    "best-fp32": (all_kernels, "fp32"),
}
FILES = {"surfaces": shipped_surfaces, "regression": shipped_regression, "tiles": shipped_tiles}
sizes = st.integers(8, 16384)


def _some(dtype: str, m: int, n: int, k: int) -> Operators:
    """Rows of the kinds that models know, forward and backward."""
    rows = [
        operators("linear", dtype=dtype, phase=["forward", "backward"], m=m, n=n, k=k),
        operators("bmm", dtype=dtype, batch=4, m=m, n=n, k=k),
        operators("elementwise", dtype=dtype, name="gelu", m=m, n=n),
        operators("softmax", dtype=dtype, name="softmax", m=m, n=n),
        operators("layer_norm", dtype=dtype, name="layernorm", m=m, n=n),
    ]
    if dtype != "fp32":
        rows.append(
            operators("attention", dtype=dtype, name="flash2", m=m, n=m, k=128, heads=8, causal=1)
        )
    return concatenate(rows)


def _covered(name: str, m: int, n: int, k: int) -> tuple[KernelModel, Operators]:
    build, dtype = MODELS[name]
    model = build(A100)
    ops = _some(dtype, m, n, k)
    return model, ops.take(model.covers(ops, A100))


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=25, deadline=None)
@given(m=sizes, n=sizes, k=sizes)
def test_laws(name: str, m: int, n: int, k: int) -> None:
    """Finite, no faster than light, row by row the same, and proportional to the count."""
    model, ops = _covered(name, m, n, k)
    assert len(ops) > 0
    seconds = model.seconds(ops, A100)
    assert np.isfinite(seconds).all() and (seconds >= light_seconds(ops, A100)).all()
    alone = [model.seconds(ops.take(np.array([row])), A100)[0] for row in range(len(ops))]
    assert seconds == pytest.approx(alone, rel=1e-5)
    twice = model.seconds(replace(ops, count=2 * ops.count), A100)
    assert twice == pytest.approx(2 * seconds, rel=1e-12)
    known = ("analytic", "measured", "learned", "extrapolated")
    assert set(model.origin(ops, A100).tolist()) <= set(known)


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=25, deadline=None)
@given(m=sizes, n=sizes, k=sizes, faster=st.floats(1, 4))
def test_a_faster_device_is_never_slower(name: str, m: int, n: int, k: int, faster: float) -> None:
    """What-ifs of a fitted device: more bandwidth, or higher peaks."""
    model, ops = _covered(name, m, n, k)
    before = model.seconds(ops, A100)
    bandwidth = replace(A100, bandwidth=faster * A100.bandwidth)
    peaks = replace(A100, peaks={dtype: faster * peak for dtype, peak in A100.peaks.items()})
    for device in (bandwidth, peaks):
        assert (model.seconds(ops, device) <= before * (1 + 1e-6)).all()


@pytest.mark.parametrize("name", FILES)
def test_parameters_survive_their_file(name: str, tmp_path: Path) -> None:
    model, path = FILES[name](), tmp_path / "model.npz"
    path.write_bytes(model.npz())
    again = load_kernels(path)
    ops = _some(MODELS[name][1], 4096, 1024, 512)
    ops = ops.take(model.covers(ops, A100))
    assert (again.seconds(ops, A100) == model.seconds(ops, A100)).all()
    assert again.npz() == model.npz()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", MODELS)
def test_a_row_without_a_model_is_named(name: str) -> None:
    model = MODELS[name][0](A100)
    ops = operators("linear", dtype=["fp4"], m=64, n=64, k=64)
    assert not model.covers(ops, A100).any()
    with pytest.raises(ValueError, match=r"fp4.*a100-sxm-80gb|a100-sxm-80gb.*fp4"):
        model.seconds(ops, A100)


def test_a_users_own_samples_come_first(tmp_path: Path) -> None:
    from estimator.cost.regression import RegressionModel
    from estimator.samples import samples

    ops = operators("linear", dtype="bf16", m=2.0 ** np.arange(6, 14), n=1024, k=1024)
    own = RegressionModel.fit(
        samples(ops, device=A100.name, seconds=30 * light_seconds(ops, A100) + 1e-4)
    )
    best = all_kernels(A100, first=[own])
    assert (best.seconds(ops, A100) == own.seconds(ops, A100)).all()
    assert (best.seconds(ops, A100) > 3 * all_kernels(A100).seconds(ops, A100)).all()


def test_order_is_fitted_here_then_elsewhere_then_analytic() -> None:
    row = operators("linear", dtype="bf16", m=4096, n=4096, k=4096)
    for device, expected in (
        ("h100-sxm", "learned"),
        ("h100-pcie", "extrapolated"),
        ("mi300x", "extrapolated"),
    ):
        place = load_device(device)
        best = all_kernels(place)
        assert best.origin(row, place).tolist() == [expected]
    mi300x = load_device("mi300x")
    analytic = AnalyticKernels().seconds(row, mi300x)
    assert (all_kernels(mi300x).seconds(row, mi300x) == analytic).all()
