"""The simulator fed with measured stage times: what is missing is what no stage timer sees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from estimator import Plan
from estimator.simulate.build import build
from estimator.simulate.engine import naive_seconds, run
from tests.acceptance.extracts import rows
from tests.estimator.test_simulate_orders import pure

MOST_ERROR = {"perlmutter": 0.035, "vista": 0.025}


def measured(row: dict[str, str], part: str) -> list[float]:
    """Seconds of every stage."""
    first, middle, last = (float(row[f"{part}_{s}_ms"]) / 1e3 for s in ("first", "middle", "last"))
    return [first, *[middle] * (int(row["pp"]) - 2), last]


def predicted(row: dict[str, str]) -> tuple[float, float]:
    """Seconds of a step on the critical path, and without synchronisation.

    Only the first stage, which ends last, waits for nobody in its reduction and update.
    """
    stages = int(row["pp"])
    work = replace(
        pure(measured(row, "forward"), measured(row, "backward"), int(row["micro_batches"])),
        gradients=np.full(stages, measured(row, "all_reduce")[0]),
        optimizer=np.full(stages, measured(row, "update")[0]),
        crossing=float(row["transfer_ms"]) / 1e3,
    )
    tasks = build(work, Plan(pp=stages)).tasks
    return run(tasks).makespan, naive_seconds(tasks)


@pytest.mark.parametrize("system", sorted(MOST_ERROR))
def test_measured_stages_give_the_measured_step(
    system: str, capsys: pytest.CaptureFixture[str]
) -> None:
    errors, naive = [], []
    for row in rows("neox_stages", "stages.csv"):
        if row["system"] != system:
            continue
        seconds = float(row["step_ms"]) / 1e3
        path, streams = predicted(row)
        errors.append(path / seconds - 1)
        naive.append(streams / seconds - 1)
        with capsys.disabled():
            print(
                f"\n{system} {row['model']} pp={row['pp']} tp={row['tp']}: "
                f"{100 * errors[-1]:+.1f} %, without synchronisation {100 * naive[-1]:+.1f} %"
            )
    assert len(errors) == 5
    assert np.abs(errors).mean() <= MOST_ERROR[system]
    assert np.abs(naive).mean() > 3 * np.abs(errors).mean(), "ignoring who waits for whom costs"
