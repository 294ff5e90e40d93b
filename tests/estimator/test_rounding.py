"""Fits agree to the bit whatever vector units a CPU has."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from estimator.cost import rounding

WITHOUT = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "OPENBLAS_CORETYPE": "Nehalem",
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX2 FMA3",
}
"""What turns vector units off in torch, MKL, OpenBLAS and numpy; who has none is told so by a
warning."""


def digests() -> dict[str, str]:
    """Of a small model of each form, fitted here."""
    from estimator.cost.regression import fit_regression
    from estimator.cost.train_surface import fit_surfaces
    from tests.estimator.test_surface import H100, _samples
    from tests.estimator.test_tiles import trained

    rows = _samples(H100, lambda m: 0.6 * m / (m + 300.0))
    files = {
        "tiles": trained(60).npz(),
        "surfaces": fit_surfaces(rows).npz(),
        "regression": fit_regression(rows).npz(),
    }
    return {form: hashlib.sha256(file).hexdigest() for form, file in files.items()}


def test_fits_agree_without_vector_units() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    code = f"import {__name__} as it; print(*it.digests().values())"
    command = [sys.executable, "-W", "ignore", "-c", code]
    env = {**os.environ, **WITHOUT}
    root = Path(__file__).parents[2]
    run = subprocess.run(command, env=env, cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == list(digests().values())


@given(arrays(np.float64, st.integers(0, 20), elements=st.floats(-1e6, 1e6, allow_subnormal=False)))
def test_rounding_moves_less_than_anything_measured(values: np.ndarray) -> None:
    assert np.abs(rounding.targets(values) - values).max(initial=0) <= 0.51e-7
    kept = rounding.significant(values)
    assert (np.abs(kept - values) <= 1e-9 * np.abs(values)).all()
    assert (np.sign(kept) == np.sign(values)).all()


@pytest.mark.parametrize("value", [0.0, 1.5e-12, 0.25, -7.0, 3e11])
def test_rounded_coefficients_forget_their_last_place(value: float) -> None:
    noisy = np.array([value, value * (1 + 2e-16), value * (1 - 2e-16)])
    assert len(set(rounding.significant(noisy).tolist())) == 1


def test_a_step_leaves_weights_on_a_grid() -> None:
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.tensor([0.1234567891, -2.0], dtype=torch.float64))
    optimizer = torch.optim.AdamW([weight], lr=1e-3)
    for tiny in (0.0, 4e-9):
        weight.grad = torch.tensor([0.5 + tiny, tiny], dtype=torch.float64)
        rounding.step(optimizer)
        assert weight.grad.tolist() == [0.5, 0.0], "below half of the grid is nothing"
        grid = weight.detach().numpy() * 1e6
        assert grid == pytest.approx(np.round(grid), abs=1e-6)
