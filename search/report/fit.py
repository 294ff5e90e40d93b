"""What ``trainplan fit collectives`` prints: parameters, and errors beside a straight line's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from estimator.cluster import Cluster
from estimator.collective_tables import Measured, MeasuredTable
from estimator.cost.fitted import FittedCollective
from estimator.cost.sigmoid import FEWEST_SIZES, Interval, Line
from search.collectives import (
    SCORED_SIZES,
    Scored,
    by_decade,
    geometric_mean,
    left_out_groups,
    peak_words,
    score_fit,
    score_left_out,
)
from search.report.units import console, say


def fit_text(
    measured: Measured,
    tables: Sequence[MeasuredTable],
    fits: Sequence[FittedCollective],
    cluster: Cluster | None,
) -> None:
    """Print the fitted parameters and the errors of the fits by decade of size."""
    out = console()
    rows = sum(len(table.size) for table in measured.tables)
    say(
        out,
        f"{_count(len(measured.tables), 'table')}, {_count(rows, 'row')}, "
        f"{_count(len(fits), 'collective')} fitted",
    )
    for note in measured.notes:
        say(out, f"note: {note}")
    shown = _table(
        *("collective", "ranks", "inside", "rows", "latency us", "until KiB", "from MiB"),
        *("GB/s", "peak GB/s", "error %"),
    )
    scores = []
    for table, fitted in zip(tables, fits, strict=True):
        score = score_fit(table, fitted)
        scores.append(score)
        shown.add_row(
            fitted.kind,
            str(fitted.group),
            str(fitted.inside),
            str(len(table.size)),
            *_parameters(fitted),
            f"{fitted.peak / 1e9:.4g}",
            _percent(geometric_mean(score.sigmoid)),
        )
    out.print()
    out.print(shown)
    sources = dict.fromkeys(peak_words(table, cluster) for table in tables)
    say(
        out,
        f"± and x: half of the 90 % interval; ?: nothing determines it; peak: {', '.join(sources)}",
    )
    straight = [f for f in fits if isinstance(f.parameters, Line)]
    if straight:
        say(out, f"{len(straight)} with fewer than {FEWEST_SIZES} sizes have a straight line only.")
    _decades(out, "errors of the fit, %", scores)


def evaluation_text(measured: Measured, cluster: Cluster | None) -> None:
    """Print errors on what was left out: every third size of each table, then each group."""
    out = console()
    whole = [table for table in measured.tables if not table.partial]
    scored = [table for table in whole if len(table.size) >= SCORED_SIZES]
    if not scored:
        raise ValueError(
            f"no whole table has {SCORED_SIZES} sizes to leave a third out of; measure more sizes"
        )
    scores = [score_left_out(table, cluster) for table in scored]
    for note in measured.notes:
        say(out, f"note: {note}")
    _decades(out, "every third size left out, %", scores)
    sigmoid = np.array([geometric_mean(score.sigmoid) for score in scores])
    line = np.array([geometric_mean(score.line) for score in scores])
    say(
        out,
        f"\n{len(scores)} tables: median {_percent(np.median(sigmoid))} %, "
        f"90th percentile {_percent(np.quantile(sigmoid, 0.9))} %; a straight line "
        f"{_percent(np.median(line))} and {_percent(np.quantile(line, 0.9))} %, "
        f"worse in {_percent(np.mean(sigmoid < line))} % of tables",
    )
    groups = left_out_groups(whole, cluster)
    for title, part in (
        ("between two others", [g for g in groups if g.between]),
        ("beyond the others", [g for g in groups if not g.between]),
    ):
        if part:
            errors = np.array([g.error for g in part])
            say(
                out,
                f"a group left out, {title}: {len(part)}, median error "
                f"{_percent(np.median(errors))} %, 90th percentile "
                f"{_percent(np.quantile(errors, 0.9))} %",
            )


def _decades(out: Console, title: str, scores: Sequence[Scored]) -> None:
    shown = _table(title, "sizes from", "points", "sigmoid", "line")
    for row in by_decade(scores):
        shown.add_row(
            row.kind,
            _bytes(10.0**row.decade),
            str(row.points),
            _percent(row.sigmoid),
            _percent(row.line),
        )
    kinds = dict.fromkeys(score.table.kind for score in scores)
    for kind in kinds:
        part = [score for score in scores if score.table.kind == kind]
        shown.add_row(
            kind,
            "all",
            str(sum(len(score.size) for score in part)),
            _percent(geometric_mean(np.concatenate([score.sigmoid for score in part]))),
            _percent(geometric_mean(np.concatenate([score.line for score in part]))),
            style="bold",
        )
    out.print()
    out.print(shown)


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right", no_wrap=True)
    return table


def _parameters(fitted: FittedCollective) -> list[str]:
    """Latency, both joints and bandwidth, each with its interval."""
    curve = fitted.parameters
    cells = []
    for name, unit in (
        ("latency", 1e-6),
        ("latency_bytes", 2.0**10),
        ("saturation_bytes", 2.0**20),
        ("bandwidth", 1e9),
    ):
        value = getattr(curve, name, None)
        ends: Interval = fitted.intervals.get(name)
        if value is None:
            cells.append("-")
        elif ends is None:
            cells.append(f"{value / unit:.3g}" + ("" if isinstance(curve, Line) else " ?"))
        else:
            wide = (ends[1] / ends[0]) ** 0.5 - 1
            cells.append(
                f"{value / unit:.3g} " + (f"x{1 + wide:.1f}" if wide > 1 else f"±{100 * wide:.2g}%")
            )
    return cells


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _percent(value: float | np.floating) -> str:
    return f"{100 * float(value):.1f}"


def _bytes(size: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.0f} {name}"
    return f"{size:.0f} B"
