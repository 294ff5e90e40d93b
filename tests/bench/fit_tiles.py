"""Fit ``estimator/cost/data/tiles.npz``, or show how whole GPUs left out are predicted.

Run as ``python tests/bench/fit_tiles.py DATA [--left-out DEVICE ...]`` (torch, pandas, pyarrow).
``DATA`` holds NeuSight's training tables (github sitar-lab/NeuSight, MIT) as Parquet:
``train/{bmm,linear,vec}`` of P4, P100, V100, T4 and A100-40 and ``amd/train/vec`` of MI100 and
MI210. Its convolutions are not read: they were measured on A100-80, which the scores hold out.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import estimator.cost
from estimator.cost.train_tiles import HIDDEN, fit_tiles, left_out
from estimator.samples import load_samples, pooled

TABLES = ("train/bmm", "train/linear", "train/vec", "amd/train/vec")
SOURCE = "NeuSight (ASPLOS'25, github sitar-lab/NeuSight @6945927, MIT): fp32, PyTorch 2.1, cu121"

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("data", type=Path)
    parser.add_argument("--left-out", nargs="+", default=[], metavar="DEVICE")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hidden", type=int, nargs="+", default=HIDDEN, help="512 x 8: NeuSight")
    parser.add_argument("-o", type=Path, help="the .npz to write, instead of the shipped one")
    arguments = parser.parse_args()
    samples = pooled([load_samples(arguments.data / f"{name}.parquet") for name in TABLES])
    if arguments.left_out:
        for (device, family), (mean, bias) in left_out(
            samples, arguments.left_out, seed=arguments.seed, hidden=arguments.hidden
        ).items():
            print(f"{device:16} {family:12} mean APE {mean:6.1%}  median error {bias:+6.1%}")
    else:
        start = time.perf_counter()
        described = {
            "source": SOURCE,
            "tables": list(TABLES),
            "excluded": dict(samples.excluded),
            "command": "python tests/bench/fit_tiles.py DATA",
        }
        model = fit_tiles(
            samples, seed=arguments.seed, hidden=arguments.hidden, provenance=described
        )
        shipped = Path(estimator.cost.__file__).parent / "data" / "tiles.npz"
        path = arguments.o or shipped
        model.save(path)
        print(
            f"{path}: {path.stat().st_size} bytes, {time.perf_counter() - start:.0f} s, {model.law}"
        )
