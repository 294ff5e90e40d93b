"""Published training runs replayed: errors of the step time, and whether intervals hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimator.runs import read_runs
from search.accuracy import GroupErrors, group_errors
from search.validate import score

EXTRACT = Path(__file__).parents[1] / "data" / "published_runs" / "runs.csv"
ALL = Path(__file__).parents[3] / "shared" / "data" / "runs" / "runs.csv"


def errors(path: Path, by: str, role: str | None = None) -> dict[str, GroupErrors]:
    rows = score(read_runs(path).runs, role=role)
    return {group.key: group for group in group_errors(rows, by)}


def test_runs_of_twelve_publishers() -> None:
    """They were seen in calibration: the bounds say that the model still does what it did then."""
    found = errors(EXTRACT, "all")["all"]
    print(f"median {found.median:.1%}, mean {found.mape:.1%}, 90th percentile {found.p90:.1%}")
    assert found.rows == found.mapped == found.configurations == 57
    assert found.median is not None and found.median <= 0.06
    assert found.mape is not None and found.mape <= 0.08
    assert found.p90 is not None and found.p90 <= 0.18
    assert found.coverage is not None and found.coverage >= 0.70


def test_no_publisher_is_far_off() -> None:
    for source, found in errors(EXTRACT, "source").items():
        limit = 0.25 if source == "bigscience_v100" else 0.13
        assert found.mape is not None and found.mape <= limit, source


def test_every_run_that_calibration_saw() -> None:
    if not ALL.is_file():
        pytest.skip("the collection of measured runs is not here")
    found = errors(ALL, "all", role="fit")["all"]
    assert found.mapped / found.rows >= 0.98
    assert found.median is not None and found.median <= 0.06
    assert found.mape is not None and found.mape <= 0.09
    assert found.p90 is not None and found.p90 <= 0.20
