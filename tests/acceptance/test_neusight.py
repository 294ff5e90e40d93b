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

FOLDER = Path(os.environ.get("TRAINPLAN_NEUSIGHT", "."))
pytestmark = pytest.mark.skipif(
    not (FOLDER / "e2e/opgraph.parquet").is_file(),
    reason="TRAINPLAN_NEUSIGHT names no folder with e2e/opgraph.parquet",
)
if not (FOLDER / "e2e/opgraph.parquet").is_file():
    pytest.skip("TRAINPLAN_NEUSIGHT names no folder", allow_module_level=True)

pytest.importorskip("pyarrow")

from estimator.cost.tiles import shipped_tiles
from tests.bench import score_neusight as scores


@pytest.fixture(scope="module")
def graphs() -> scores.Graphs:
    return scores.load_graphs(FOLDER / "e2e/opgraph.parquet")


@pytest.fixture(scope="module")
def families(graphs: scores.Graphs) -> pd.DataFrame:
    return scores.family_scores(FOLDER, graphs, shipped_tiles())


@pytest.fixture(scope="module")
def runs(graphs: scores.Graphs) -> pd.DataFrame:
    return scores.end_to_end(FOLDER, graphs, shipped_tiles())
