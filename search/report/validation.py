"""What ``trainplan validate`` prints: errors with their mapped share, choices, memory, the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from estimator.runs import RunsFile
from search.accuracy import (
    GroupErrors,
    Validation,
    assumptions,
    unmapped_reasons,
)
from search.report.units import console, say

LISTED = 12
"""Longest list of reasons and assumptions."""


def percent(value: float | None, sign: bool = False) -> str:
    """A share in per cent with one decimal; a dash where there is none."""
    return "-" if value is None else f"{100 * value:+.1f}" if sign else f"{100 * value:.1f}"


def validation_text(file: RunsFile, report: Validation) -> None:
    """Print the report of a file of runs."""
    out = console()
    every = report.overall
    say(
        out,
        f"{len(report.rows)} rows, {every.rows} with a measured time; of these "
        f"{every.mapped} mapped ({percent(every.mapped / every.rows if every.rows else 0)} %), "
        f"{every.configurations} of them distinct",
        style="bold",
    )
    if every.configurations:
        _errors(out, [every, *report.groups])
        say(
            out,
            f"intervals: {percent(every.coverage)} % of measured times covered, "
            f"median full width {percent(every.width)} % of the prediction",
        )
    _choices(out, report)
    _memory(out, report)
    reasons = unmapped_reasons(report.rows)
    if reasons:
        say(out, f"\nNot mapped, {sum(reasons.values())} rows:", style="bold")
        _counted(out, reasons.items())
    taken = assumptions(report.rows)
    if taken:
        say(out, "\nAssumed where the file does not say (rows; each with its value in --json):")
        _counted(out, taken.items())
    if file.unknown_columns:
        say(out, f"\nColumns not used: {', '.join(file.unknown_columns)}")


def _table(columns: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right", no_wrap=i > 0)
    return table


def _errors(out: Console, groups: Sequence[GroupErrors]) -> None:
    table = _table(
        ("time, errors in %", "rows", "mapped", "median", "mean", "p90", "bias", "noise", "covered")
    )
    by = "all"
    for group in groups:
        if group.by != by:
            by = group.by
            table.add_row(f"by {by}", *[""] * 8)
        table.add_row(
            group.key if group.by == "all" else f"  {group.key}"[:48],
            str(group.rows),
            f"{percent(group.mapped / group.rows)} %",
            percent(group.median),
            percent(group.mape),
            percent(group.p90),
            percent(group.bias, sign=True),
            percent(group.noise),
            percent(group.coverage),
        )
    out.print(table)


def _choices(out: Console, report: Validation) -> None:
    if not report.choices:
        return
    say(out, "\nChoices of a plan, all else equal (regret: time lost to the best, %)", style="bold")
    table = _table(("group", "plans", "concordance", "regret", "random", "rule of thumb"))
    for choice in report.choices:
        table.add_row(
            choice.choice_group[:60],
            str(choice.plans),
            "-" if choice.concordance is None else f"{choice.concordance:.2f}",
            percent(choice.regret),
            percent(choice.regret_random),
            percent(choice.regret_rule_of_thumb),
        )
    out.print(table)


def _memory(out: Console, report: Validation) -> None:
    if report.memory:
        say(out, "")
        table = _table(
            ("memory, errors in %", "rank", "rows", "mapped", "median", "mean", "worst", "bias")
        )
        for kind in report.memory:
            table.add_row(
                kind.kind,
                kind.rank,
                str(kind.rows),
                f"{percent(kind.mapped / kind.rows)} %",
                percent(kind.median),
                percent(kind.mape),
                percent(kind.worst, sign=True),
                percent(kind.bias, sign=True),
            )
        out.print(table)
    oom = report.oom
    left_out = f"; {oom.assumed} rows that do not say what they recomputed are left out"
    if oom.caught + oom.missed:
        say(
            out,
            f"out of memory: precision {percent(oom.precision)} %, recall {percent(oom.recall)} % "
            f"({oom.caught} caught, {oom.missed} missed, {oom.false_alarms} false alarms, "
            f"{oom.fitting} fit and ran{left_out})",
        )
    elif oom.false_alarms:
        say(
            out,
            f"out of memory: {oom.false_alarms} of {oom.false_alarms + oom.fitting} rows that ran "
            f"are predicted not to fit{left_out}",
        )


def _counted(out: Console, items: Iterable[tuple[str, int]]) -> None:
    listed = list(items)
    for text, count in listed[:LISTED]:
        say(out, f"{count:>7,}  {text}")
    if len(listed) > LISTED:
        say(out, f"         and {len(listed) - LISTED} more (in --json)")
