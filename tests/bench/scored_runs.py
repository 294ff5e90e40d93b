"""Arguments and predictions that scripts of accuracy share: RUNS.csv and --role."""

from __future__ import annotations

import argparse

from estimator.runs import read_runs
from search.accuracy import Configuration, configurations
from search.validate import score


def scored_runs(description: str | None) -> list[Configuration]:
    """Distinct runs of the command line's file and role, with predictions."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("runs", help="CSV of measured runs")
    parser.add_argument("--role", help="fit or test; all rows without it")
    given = parser.parse_args()
    return configurations(score(read_runs(given.runs).runs, role=given.role))
