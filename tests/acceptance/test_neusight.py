"""The shipped tile model on NeuSight's labels: GPUs that no training row is from.

The tables are too large for the repository. ``TRAINPLAN_NEUSIGHT`` names a folder with them, laid
out as ``tests/bench/score_neusight.py`` says. Each bound is the score reached and a margin for
other platforms' arithmetic; beside it stands what NeuSight's own stored predictions score.
"""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd  # type: ignore[import-untyped]
import pytest

from estimator.cost.tiles import shipped_tiles
from tests.bench import score_neusight as scores

FOLDER = Path(os.environ.get("TRAINPLAN_NEUSIGHT", "."))
pytestmark = pytest.mark.skipif(
    not (FOLDER / "e2e/opgraph.parquet").is_file(),
    reason="TRAINPLAN_NEUSIGHT names no folder with e2e/opgraph.parquet",
)


@pytest.fixture(scope="module")
def graphs() -> scores.Graphs:
    return scores.load_graphs(FOLDER / "e2e/opgraph.parquet")


@pytest.fixture(scope="module")
def families(graphs: scores.Graphs) -> pd.DataFrame:
    return scores.family_scores(FOLDER, graphs, shipped_tiles())


@pytest.fixture(scope="module")
def runs(graphs: scores.Graphs) -> pd.DataFrame:
    return scores.end_to_end(FOLDER, graphs, shipped_tiles())


@pytest.mark.parametrize(
    ("family", "most", "neusight"),
    [
        ("bmm", 12.5, 16.3),
        ("linear", 7.5, 13.8),
        ("elementwise", 8.5, 15.4),
        ("softmax", 13.5, 13.9),
        ("layer_norm", 22.0, 66.5),
    ],
)
def test_families_on_unseen_gpus(
    families: pd.DataFrame, family: str, most: float, neusight: float
) -> None:
    """Operators of a family summed per run on H100, A100-80 and L4; 36 runs."""
    mine = families[families["family"] == family]
    assert len(mine) == 36
    assert mine["neusight"].abs().mean() == pytest.approx(neusight, abs=0.05)
    assert mine["ours"].abs().mean() < most < neusight


def test_labels_are_summed_as_the_authors_do(families: pd.DataFrame) -> None:
    assert families["label_check"].to_numpy() == pytest.approx(1.0, abs=1e-6)


def test_whole_models(runs: pd.DataFrame) -> None:
    dense = runs[runs["option"] == ""]
    assert len(dense) == 70
    assert dense["neusight_error"].abs().mean() == pytest.approx(9.0, abs=0.05)
    assert dense["error"].abs().mean() < 7.5
    good = dense[dense["quality"].abs() <= scores.NOISE]
    assert good["error"].abs().mean() < 6.7
    h100 = dense[dense["device"] == "h100-sxm"]
    for mode, most, neusight in (("inf", 5.7, 6.4), ("train", 6.8, 6.8)):
        mine = h100[h100["mode"] == mode]
        assert mine["error"].abs().mean() < most
        assert mine["neusight_error"].abs().mean() == pytest.approx(neusight, abs=0.05)
    l4 = dense[dense["device"] == "l4"]
    assert l4["error"].abs().mean() < 8.5 < l4["neusight_error"].abs().mean()


def test_one_measured_run_as_a_scalar(runs: pd.DataFrame) -> None:
    assert scores.with_one_run(runs[runs["option"] == ""])["h100-sxm"] < 5.0


def test_fused_models(runs: pd.DataFrame) -> None:
    fused = runs[runs["option"] == "fusion"]
    assert len(fused) == 12
    assert fused["error"].abs().mean() < 11.0 < fused["neusight_error"].abs().mean()


def test_four_gpus() -> None:
    four = scores.distributed(FOLDER, shipped_tiles())
    assert len(four) == 11
    assert four["error"].abs().mean() < 5.5 < four["neusight_error"].abs().mean()


def test_amd_products_are_within_a_factor() -> None:
    """No AMD product was fitted: large ones are priced too fast, by a known amount."""
    table = scores.amd_products(FOLDER, shipped_tiles()).set_index(["family", "device"])
    assert (table["mean"] < 40).all()
    assert (table["bias"] < 0).all()
    assert (table.loc["linear", "mean"] < 25).all()
