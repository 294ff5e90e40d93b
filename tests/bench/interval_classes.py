"""How wide errors of classes of runs are: what the factors of ``estimator/intervals.py`` rest on.

    python tests/bench/interval_classes.py RUNS.csv --role fit

Half widths that hold 80 % of the errors of distinct runs, dense models on devices with and without
kernel tables, and Megatron-Bridge's runs of dense models and of mixtures of experts.
"""

from __future__ import annotations

import numpy as np
from scored_runs import scored_runs

from estimator.pricers import pricer_of
from search.accuracy import Configuration


def extrapolated(one: Configuration) -> bool:
    """Whether its device has no kernel table."""
    return pricer_of("analytic", one.rows[0].mapped.cluster).origin == "extrapolated"


def dense(one: Configuration) -> bool:
    """Whether its model has no experts."""
    return one.rows[0].mapped.model.experts is None


def bridge(one: Configuration) -> bool:
    """Whether Megatron-Bridge published it."""
    return one.rows[0].run.source_id == "mbridge"


def main() -> None:
    """Print a line a class."""
    found = scored_runs(__doc__)
    classes = {
        "dense, device measured": [one for one in found if dense(one) and not extrapolated(one)],
        "dense, device extrapolated": [one for one in found if dense(one) and extrapolated(one)],
        "Megatron-Bridge, dense": [one for one in found if bridge(one) and dense(one)],
        "Megatron-Bridge, experts": [one for one in found if bridge(one) and not dense(one)],
    }
    for name, members in classes.items():
        errors = [abs(one.error) for one in members]
        width = 100 * float(np.quantile(errors, 0.8))
        print(f"{name:28}{len(members):5} runs  80 % within {width:5.1f} %")


if __name__ == "__main__":
    main()
