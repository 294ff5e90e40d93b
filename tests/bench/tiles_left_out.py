"""Errors of the tile model on GPUs that its training leaves out, by family.

Run as ``python tests/bench/tiles_left_out.py TABLES/kernels/neusight`` (pyarrow, torch),
ten minutes. ``TABLES/kernels/neusight`` holds NeuSight's training tables (MIT): of each GPU the
shipped model is fitted anew to all others. ``--starts 1 --seed N`` is a single start; ``--reference
--rows 500 --device a100-pcie-40gb`` the paper's network of 8 x 512 (20 minutes).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from estimator.cost.train_tiles import HIDDEN, MEMBERS, RATE, REFERENCE, ROWS, left_out
from estimator.samples import load_samples, pooled

TABLES = ("train/linear", "train/bmm", "train/vec", "amd/train/vec")
"""What the shipped file was fitted to."""
DEVICES = ("a100-pcie-40gb", "v100-pcie-32gb", "t4", "p100-pcie")


def main() -> None:
    """Print a line a family: mean of errors, and of their medians with sign, over GPUs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", action="append", help="GPU left out; all four without it")
    parser.add_argument("--starts", type=int, default=MEMBERS, help="networks that are averaged")
    parser.add_argument("--rows", type=int, default=ROWS, help="samples of a family and device")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reference", action="store_true", help="the paper's network")
    given = parser.parse_args()
    samples = pooled([load_samples(given.folder / f"{name}.parquet") for name in TABLES])
    scores = left_out(
        samples,
        given.device or DEVICES,
        seed=given.seed,
        rows=given.rows,
        hidden=REFERENCE if given.reference else HIDDEN,
        members=1 if given.reference else given.starts,
        rate=RATE / 10 if given.reference else RATE,
    )
    for family in dict.fromkeys(family for _, family in scores):
        own = np.array([error for (_, name), error in scores.items() if name == family])
        mean, signed = 100 * own.mean(axis=0)
        print(f"{family:12} mean {mean:5.1f} %   median {signed:+6.1f} %   {len(own)} GPUs")


if __name__ == "__main__":
    main()
