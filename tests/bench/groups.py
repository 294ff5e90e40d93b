"""Errors of groups of runs that are no source: of a machine, of a kind of model, of a recipe.

    python tests/bench/groups.py RUNS.csv --role test

Distinct runs, median / mean / 90th percentile of the size of their errors.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scored_runs import scored_runs

from search.accuracy import Configuration


def device(one: Configuration) -> str:
    """Name of the device in the catalogue."""
    name: str = one.rows[0].mapped.cluster.device.name
    return name


def uninformed(one: Configuration) -> bool:
    """Whether its source leaves out what its time hangs on: V100, AMD, row-wise fp8, Vista."""
    run, cluster = one.rows[0].run, one.rows[0].mapped.cluster
    words = f"{run.notes or ''} {run.precision or ''}"
    old = device(one).startswith(("v100", "mi"))
    return old or "rowwise" in words or cluster.name.startswith("vista")


def of(source: str, also: Callable[[Configuration], bool]) -> Callable[[Configuration], bool]:
    """Runs of a source that are also something else."""
    return lambda one: one.rows[0].run.source_id == source and also(one)


def amd(one: Configuration) -> bool:
    """Whether it ran on a GPU of AMD's."""
    return device(one).startswith("mi")


def experts(one: Configuration) -> bool:
    """Whether its model is a mixture of experts."""
    return one.rows[0].mapped.model.experts is not None


GROUPS: dict[str, Callable[[Configuration], bool]] = {
    "all": lambda one: True,
    "without V100, AMD, row-wise fp8, Vista": lambda one: not uninformed(one),
    "AMD": amd,
    "MLPerf, NVIDIA": of("mlperf", lambda one: not amd(one)),
    "Megatron-Bridge, dense": of("mbridge", lambda one: not experts(one)),
    "Megatron-Bridge, experts": of("mbridge", experts),
}


def main() -> None:
    """Print a line a group."""
    found = scored_runs(__doc__)
    for name, belongs in GROUPS.items():
        errors = [abs(100 * one.error) for one in found if belongs(one)]
        if errors:
            median, mean, p90 = np.median(errors), np.mean(errors), np.quantile(errors, 0.9)
            print(f"{name:40}{len(errors):5}{median:7.1f} / {mean:.1f} / {p90:.1f} %")


if __name__ == "__main__":
    main()
