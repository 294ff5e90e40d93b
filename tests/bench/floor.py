"""What no model of these inputs can beat: runs that a source repeats under one plan.

    python tests/bench/floor.py RUNS.csv --role test

Runs of one source that map to one model, workload, machine and plan differ by release, by who ran
them, or by chance. Prints, by source, how far they lie from their own median, beside the errors of
the predictions of the same runs; both are means of sizes, in percent.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from scored_runs import scored_runs

from search.accuracy import Configuration


def repeats(found: list[Configuration]) -> list[list[Configuration]]:
    """Configurations that are the same to the model, where there are two or more."""
    alike: dict[Any, list[Configuration]] = defaultdict(list)
    for one in found:
        run, mapped = one.rows[0].run, one.rows[0].mapped
        key = run.source_id, mapped.model, mapped.workload, mapped.cluster.name, mapped.plan
        alike[key].append(one)
    return [members for members in alike.values() if len(members) > 1]


def main() -> None:
    """Print a line a source, and one for all."""
    found = scored_runs(__doc__)
    own: dict[str, list[float]] = defaultdict(list)
    ours: dict[str, list[float]] = defaultdict(list)
    for members in repeats(found):
        middle = float(np.median([one.seconds for one in members]))
        for name in (members[0].rows[0].run.source_id or "unnamed", "all"):
            own[name] += [abs(middle / one.seconds - 1) for one in members]
            ours[name] += [abs(one.error) for one in members]
    print(f"{'source':20}{'runs':>6}{'own median':>12}{'predicted':>11}")
    for name in sorted(own, key=lambda each: (each == "all", each)):
        errors = 100 * np.mean(own[name]), 100 * np.mean(ours[name])
        print(f"{name:20}{len(own[name]):6}{errors[0]:12.1f}{errors[1]:11.1f}")


if __name__ == "__main__":
    main()
