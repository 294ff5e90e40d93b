"""What published runs of role fit ask for of the shares in ``estimator/cost/data/roofline.yaml``.

Run as ``python tests/bench/fit_shares.py RUNS.csv``. Kernel tables measure few low-precision
kernels of an architecture; its published training runs say more. Prints, for Blackwell and Hopper,
the shares of fp8, fp4 and element-wise bandwidth at which the log errors of its runs are least, in
soft L1, first on all its runs and then without each publisher. Every framework keeps its fit; on
Hopper its median error is taken off as well, since its fit was made with the share that is asked.
A weak prior holds each share near the shipped one, so that a share no run sees stays there.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize  # type: ignore[import-untyped]

from estimator import pricers
from estimator.catalog import load_device
from estimator.cost.roofline import Roofline, roofline
from estimator.runs import read_runs
from search.accuracy import configurations
from search.validate import Scored, mapped_rows, priced

Row = NDArray[np.float64]

MEMORY = "element-wise"
# Each architecture's device by which shares are told, the shares, and whether offsets are free.
SOUGHT: dict[str, tuple[str, tuple[str, ...], bool]] = {
    "blackwell": ("b200", ("fp8", "fp4", MEMORY), False),
    "hopper": ("h100-sxm", ("fp8",), True),
}
# Log errors beyond this count by their size and not its square.
BULK = 0.1
# Half the loss of one run that is off by BULK, at a share off by this factor's log.
PRIOR = 0.3


def scaled(constants: Roofline, shares: dict[str, float]) -> Roofline:
    """The constants with shares multiplied."""
    gemm = {
        dtype: share * shares.get(dtype, 1.0) for dtype, share in constants.gemm_efficiency.items()
    }
    memory = constants.memory_bandwidth * shares.get(MEMORY, 1.0)
    return replace(constants, gemm_efficiency=gemm, memory_bandwidth=memory)


def log_errors(rows: list[Scored], shares: dict[str, float]) -> dict[tuple[str, str], Row]:
    """Log errors by publisher and framework, one a configuration."""
    pricers.roofline = lambda device: scaled(roofline(device), shares)  # type: ignore[attr-defined]
    found = defaultdict(list)
    for one in configurations(priced(rows)):
        first = one.rows[0]
        if first.mapped is not None and one.error is not None:
            found[first.run.source_id, first.mapped.stack.name].append(np.log1p(one.error))
    pricers.roofline = roofline  # type: ignore[attr-defined]
    return {key: np.array(errors) for key, errors in found.items()}


def loss(errors: dict[tuple[str, str], Row], logs: Row, offsets: bool) -> float:
    """Soft L1 of all errors, a publisher of many runs down-weighted, and the prior."""
    count: dict[str, int] = defaultdict(int)
    by_stack = defaultdict(list)
    for (source, stack), row in errors.items():
        count[source] += len(row)
        by_stack[stack].append(row)
    total = 0.0
    for (source, stack), row in errors.items():
        off = np.median(np.concatenate(by_stack[stack])) if offsets else 0.0
        soft = np.sqrt(1 + ((row - off) / BULK) ** 2) - 1
        total += count[source] ** -0.25 * float(soft.sum())
    return total + float(np.sum((logs / PRIOR) ** 2)) / 5


def asked(rows: list[Scored], names: tuple[str, ...], offsets: bool) -> dict[str, float]:
    """The factors on the shipped shares at the least loss."""

    def at(logs: Row) -> float:
        shares = dict(zip(names, np.exp(logs), strict=True))
        return loss(log_errors(rows, shares), logs, offsets)

    start = np.zeros(len(names))
    simplex = np.vstack([start, start + 0.1 * np.eye(len(names))])
    options = {"initial_simplex": simplex, "maxfev": 90, "xatol": 0.005, "fatol": 1e-3}
    found = minimize(at, start, method="Nelder-Mead", options=options)
    return dict(zip(names, np.exp(found.x), strict=True))


def main() -> None:
    """Print the shares of each architecture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    arguments = parser.parse_args()
    every = mapped_rows(read_runs(arguments.runs).runs, role="fit")
    for architecture, (device, names, offsets) in SOUGHT.items():
        rows = [
            row
            for row in every
            if row.mapped is not None
            and row.seconds is not None
            and row.mapped.cluster.device.architecture == architecture
        ]
        shipped = roofline(load_device(device))
        value = {**shipped.gemm_efficiency, MEMORY: shipped.memory_bandwidth}
        print(f"{architecture}, shares of {device}, {len(rows)} runs", flush=True)
        print("    shipped: " + ", ".join(f"{name} {value[name]:.3f}" for name in names))
        for without in [None, *sorted({row.run.source_id for row in rows})]:
            used = [row for row in rows if row.run.source_id != without]
            factor = asked(used, names, offsets)
            told = ", ".join(f"{name} {value[name] * factor[name]:.3f}" for name in names)
            print(f"    {f'without {without}' if without else 'all'}: {told}", flush=True)


if __name__ == "__main__":
    main()
