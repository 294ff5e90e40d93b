"""Fits of collectives against published measurements: errors beside a straight line's.

The tables are too large for the repository. ``TRAINPLAN_COLLECTIVES`` names a folder with
``nccl.csv`` (published nccl-tests tables and NVIDIA aiconfigurator's, one row a size, in the
columns of ``estimator/collective_csv.py``) and ``vtrain_allreduce.parquet`` (vTrain's all-reduce
tables: gpu, n, bytes, time_us).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from estimator.collective_tables import MeasuredTable
from estimator.cost.fitted import FittedCollective
from estimator.nccl_logs import read_measured
from search.collectives import (
    SCORED_SIZES,
    fit,
    geometric_mean,
    left_out_groups,
    score_left_out,
)

FOLDER = os.environ.get("TRAINPLAN_COLLECTIVES", "")
pytestmark = pytest.mark.skipif(
    not (Path(FOLDER) / "nccl.csv").is_file() or not FOLDER,
    reason="TRAINPLAN_COLLECTIVES names no folder with nccl.csv",
)


@pytest.fixture(scope="module")
def tables() -> list[MeasuredTable]:
    read = read_measured(Path(FOLDER) / "nccl.csv").tables
    return [table for table in read if not table.partial and len(table.size) >= SCORED_SIZES]


def vtrain() -> list[MeasuredTable]:
    """vTrain's tables: 1 MiB to 1 GiB in steps of 1 MiB, on A100 and V100 nodes."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    path = Path(FOLDER) / "vtrain_allreduce.parquet"
    if not path.is_file():
        pytest.skip("TRAINPLAN_COLLECTIVES has no vtrain_allreduce.parquet")
    return [
        MeasuredTable(
            kind="all_reduce",
            group=int(ranks),
            inside=int(ranks),
            device=str(gpu),
            size=rows["bytes"].to_numpy(float),
            seconds=rows["time_us"].to_numpy(float) * 1e-6,
            scale_up={"A100": 300e9, "V100": 150e9}[gpu],
            source=f"vTrain {gpu} x{ranks}",
        )
        for (gpu, ranks), rows in pandas.read_parquet(path).groupby(["gpu", "n"])
    ]


def shown(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with capsys.disabled():
        print(f"\n{text}", end="")


def test_every_third_size_left_out(
    tables: list[MeasuredTable], capsys: pytest.CaptureFixture[str]
) -> None:
    scores = [score_left_out(table) for table in tables]
    sigmoid = np.array([geometric_mean(score.sigmoid) for score in scores])
    line = np.array([geometric_mean(score.line) for score in scores])
    better = float(np.mean(sigmoid < line))
    shown(
        capsys,
        f"{len(tables)} tables: median {np.median(sigmoid):.2%}, "
        f"90 % {np.quantile(sigmoid, 0.9):.2%}, worst {sigmoid.max():.1%}; "
        f"line {np.median(line):.2%}, {np.quantile(line, 0.9):.2%}, {line.max():.1%}; "
        f"sigmoid better in {better:.1%}",
    )
    for kind in sorted({table.kind for table in tables}):
        mine = np.array([table.kind == kind for table in tables])
        shown(
            capsys,
            f"  {kind}: {mine.sum()} tables, {np.median(sigmoid[mine]):.2%} against "
            f"{np.median(line[mine]):.2%}, better in {np.mean((sigmoid < line)[mine]):.0%}",
        )
    assert np.median(sigmoid) <= 0.04
    assert np.quantile(sigmoid, 0.9) <= 0.08
    assert better >= 0.8


def test_fourteen_thousand_all_reduces(capsys: pytest.CaptureFixture[str]) -> None:
    scores = [score_left_out(table) for table in vtrain()]
    sigmoid = np.concatenate([np.abs(score.sigmoid) for score in scores])
    line = np.concatenate([np.abs(score.line) for score in scores])
    shown(
        capsys,
        f"vTrain, {len(sigmoid)} of three times as many points left out: mean error "
        f"{sigmoid.mean():.2%} (geometric {geometric_mean(sigmoid):.2%}), worst table "
        f"{max(np.abs(score.sigmoid).mean() for score in scores):.2%}; "
        f"line {line.mean():.2%} (geometric {geometric_mean(line):.2%})",
    )
    assert max(np.abs(score.sigmoid).mean() for score in scores) <= 0.013


def test_a_group_left_out(tables: list[MeasuredTable], capsys: pytest.CaptureFixture[str]) -> None:
    groups = left_out_groups(tables)
    for title, part in (
        ("between others", [g for g in groups if g.between]),
        ("beyond others", [g for g in groups if not g.between]),
        ("nodes", [g for g in groups if g.table.inside < g.table.group]),
        ("all", groups),
    ):
        errors = np.array([g.error for g in part])
        if len(errors):
            shown(
                capsys,
                f"group left out, {title}: {len(errors)}, median {np.median(errors):.1%}, "
                f"90 % {np.quantile(errors, 0.9):.1%}",
            )
    assert np.median([g.error for g in groups]) <= 0.12


def laws(table: MeasuredTable, fitted: FittedCollective) -> Sequence[str]:
    grid = np.geomspace(1, 1e13, 4000)
    seconds = fitted.seconds(grid)
    broken = []
    if np.any(np.diff(seconds) < -1e-9 * seconds[1:]):
        broken.append(f"{table.source} falls with size")
    if np.any(fitted.factor * grid / seconds > fitted.peak * (1 + 1e-6)):
        broken.append(f"{table.source} exceeds its peak")
    return broken


def test_no_fit_breaks_a_law_and_each_is_quick(
    tables: list[MeasuredTable], capsys: pytest.CaptureFixture[str]
) -> None:
    every = [*tables, *vtrain()]
    taken, broken, bounded = [], [], 0
    for table in every:
        started = time.perf_counter()
        fitted = fit(table)
        taken.append(time.perf_counter() - started)
        broken.extend(laws(table, fitted))
        bounded += table.scale_up is not None
    shown(
        capsys,
        f"{len(every)} fits ({bounded} with the link's nominal peak): median "
        f"{np.median(taken):.3f} s, 300 in {300 * np.mean(taken):.0f} s; {len(broken)} break a law",
    )
    assert not broken
