"""How far errors of two plans of one problem differ: what makes plans tie.

Run as ``python tests/bench/pairs.py RUNS.csv [--role fit]``. Prints, for each choice group (runs
that differ in their plan alone), the 80 % quantile of ``|log(predicted / measured)|`` of one plan
over another, among all pairs and among plans predicted within a fifth of the best.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import numpy as np

from estimator.runs import read_runs
from search.accuracy import Configuration, configurations
from search.validate import score

NEAR = 1.2


def quantile(plans: list[Configuration]) -> str:
    """80 % quantile over pairs, percent."""
    logs = [np.log1p(one.error) for one in plans]
    gaps = [abs(a - b) for a, b in combinations(logs, 2)]
    return f"{100 * np.quantile(gaps, 0.8):.1f} % of {len(gaps)} pairs" if gaps else "-"


def seconds(one: Configuration) -> float:
    """Predicted step time."""
    predicted = one.rows[0].predicted
    assert predicted is not None
    return predicted.step_seconds


def main() -> None:
    """Print both quantiles, group by group."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--role", default="fit")
    arguments = parser.parse_args()
    groups: dict[tuple[str, str | None], list[Configuration]] = defaultdict(list)
    for one in configurations(score(read_runs(arguments.runs).runs, role=arguments.role)):
        run = one.rows[0].run
        if run.choice_group:
            groups[run.choice_group, run.framework].append(one)
    for (group, _), plans in sorted(groups.items()):
        near = [one for one in plans if seconds(one) <= NEAR * min(map(seconds, plans))]
        print(f"{group[:60]:60s} all {quantile(plans)}; near the best {quantile(near)}")


if __name__ == "__main__":
    main()
