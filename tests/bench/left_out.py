"""Errors on test rows with stacks as they were before they were fitted to published runs.

Run as ``python tests/bench/left_out.py RUNS.csv [--role test]``. No stack has then seen any source:
what is left is physics, kernel and collective tables, and one in-situ factor for all. Prints the
mean error of each source, and the mean over sources: what to expect of software that nobody
calibrated. A scoring of test rows belongs into ACCURACY.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from estimator.catalog import load_stack
from estimator.runs import Run, read_runs
from search.accuracy import group_errors
from search.validate import Scored, forced, mapped_rows, priced


def uncalibrated(runs: list[Run], role: str) -> list[Scored]:
    """Rows priced with the stacks that their frameworks have, none of them fitted."""
    rows = mapped_rows(runs, role=role)
    names = {row.mapped.stack.name for row in rows if row.mapped is not None}
    scored: list[Scored] = [row for row in rows if row.mapped is None]
    for name in sorted(names):
        own = [row for row in rows if row.mapped is not None and row.mapped.stack.name == name]
        scored += forced(own, load_stack(name, calibrated=False))
    return priced(scored, "analytic")


def main() -> None:
    """Print errors by source and overall, and their mean over sources."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--role", default="test")
    arguments = parser.parse_args()
    rows = uncalibrated(read_runs(arguments.runs).runs, arguments.role)
    groups = [*group_errors(rows, "source"), *group_errors(rows, "all")]
    for group in groups:
        if group.mape is not None and group.median is not None:
            print(
                f"{group.key:20s} {group.configurations:4d} of {group.rows:4d} rows  "
                f"median {100 * group.median:5.1f} %  mean {100 * group.mape:5.1f} %"
            )
    means = [group.mape for group in groups[:-1] if group.mape is not None]
    print(f"mean over {len(means)} sources: {100 * sum(means) / len(means):.1f} %")


if __name__ == "__main__":
    main()
