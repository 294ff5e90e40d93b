"""What three runs are worth: calibrate on three of a source, predict its others.

    python tests/bench/calibrate_three.py runs.csv --role fit
    python tests/bench/calibrate_three.py runs.csv --role fit --stack megatron

Each source with at least six distinct runs of one stack; 20 random draws each, seeds fixed. It
starts from its stack as that was before any calibration; with ``--stack`` every source starts from
that one, as software does that the catalogue does not know. Beside it the error that the best
factor on all times leaves, chosen on all runs of the source: what no ``in_situ`` can beat.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import replace
from statistics import mean, median

import numpy as np

from estimator.catalog import load_stack
from estimator.runs import read_runs
from search.accuracy import Configuration, configurations
from search.calibration import calibrate
from search.repricing import Repricing
from search.validate import mapped_rows, priced

LEAST, DRAWN, DRAWS = 6, 3, 20
FACTORS = np.geomspace(0.5, 2, 400)


def groups(
    path: str, role: str | None, stack: str | None
) -> dict[tuple[str, str], list[Configuration]]:
    """Distinct runs by source and stack, where there are enough."""
    found: dict[tuple[str, str], list[Configuration]] = defaultdict(list)
    rows = mapped_rows(read_runs(path).runs, role=role)
    names = {row.mapped.stack.name for row in rows if row.mapped is not None}
    bases = {name: load_stack(stack or name, calibrated=False) for name in names}
    started = [
        row
        if row.mapped is None
        else replace(row, mapped=replace(row.mapped, stack=bases[row.mapped.stack.name]))
        for row in rows
    ]
    for one in configurations(priced(started)):
        row = one.rows[0]
        found[row.run.source_id or "unnamed", row.mapped.stack.name].append(one)
    return {key: found[key] for key in sorted(found) if len(found[key]) >= LEAST}


def draws(members: list[Configuration], drawn: int) -> list[tuple[float, float, list[str]]]:
    """Median errors of the others before and after, and what moved, draw by draw."""
    repricing = Repricing([one.rows[0].mapped for one in members], "analytic")
    measured = np.array([one.seconds for one in members])
    base = members[0].rows[0].mapped.stack
    before = np.abs(repricing.seconds(base) / measured - 1)
    answers = []
    for seed in range(DRAWS):
        chosen = np.random.default_rng(seed).choice(len(members), drawn, replace=False)
        others = np.setdiff1d(np.arange(len(members)), chosen)
        runs = [row.run for n in chosen for row in members[n].rows]
        try:
            fitted = calibrate(runs, stack=base, name="three")
        except ValueError as error:  # the overall factor at its bound: nothing is written
            answers.append((float(np.median(before[others])),) * 2 + ([str(error)[:12]],))
            continue
        after = np.abs(repricing.seconds(fitted.stack) / measured - 1)
        moved = [one.name for one in fitted.scalars if one.state == "identified"]
        answers.append((float(np.median(before[others])), float(np.median(after[others])), moved))
    return answers


def least(members: list[Configuration]) -> float:
    """Median error of all members under the one factor that makes it least."""
    repricing = Repricing([one.rows[0].mapped for one in members], "analytic")
    base = members[0].rows[0].mapped.stack
    ratio = repricing.seconds(base) / np.array([one.seconds for one in members])
    return min(float(np.median(np.abs(factor * ratio - 1))) for factor in FACTORS)


def main() -> None:
    """Print medians per source, and over all sources."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs")
    parser.add_argument("--role")
    parser.add_argument("--stack")
    parser.add_argument("--drawn", type=int, default=DRAWN)
    given = parser.parse_args()
    columns = f"{'runs':>5}{'before %':>10}{'after %':>10}{'cut %':>8}{'factor %':>10}"
    print(f"{'source':22}{'stack':20}{columns}  moved")
    everything: list[tuple[float, float, float]] = []
    for (source, stack), members in groups(given.runs, given.role, given.stack).items():
        found = draws(members, given.drawn)
        before, after = (median(one[k] for one in found) for k in (0, 1))
        best = least(members)
        everything.append((before, after, best))
        counts: dict[str, int] = defaultdict(int)
        for one in found:
            for name in one[2]:
                counts[name] += 1
        moved = ", ".join(f"{name} {count}" for name, count in counts.items())
        print(
            f"{source:22}{stack:20}{len(members):5}{100 * before:10.1f}{100 * after:10.1f}"
            f"{100 * (1 - after / before):8.0f}{100 * best:10.1f}  {moved}"
        )
    for word, of in (("median", median), ("mean", mean)):
        before, after, best = (of(one[k] for one in everything) for k in (0, 1, 2))
        cut = 100 * (1 - after / before)
        print(f"{word:47}{100 * before:10.1f}{100 * after:10.1f}{cut:8.0f}{100 * best:10.1f}")


if __name__ == "__main__":
    main()
