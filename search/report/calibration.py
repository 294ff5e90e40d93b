"""What ``trainplan calibrate`` prints: scalars, errors before and after, the worst runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from search.calibration import FEW, Calibrated, Errors, FittedRun, ScalarFit
from search.left_out import LEAVE_ONE_OUT
from search.report.units import console, say, seconds
from search.report.validation import percent

WORST = 5
NAMED_PARTS = 3
UNUSUAL = 2.5
"""Spreads of its prior from which a fitted scalar is worth a look."""


def calibration_text(found: Calibrated, target: str) -> None:
    """Print the report of a fit and where it was written."""
    out = console()
    say(
        out,
        f"{found.stack.name}: {found.base.name} fitted to {found.rows} runs, {len(found.runs)} of "
        f"them distinct, cost {found.cost}",
        style="bold",
    )
    _scalars(out, found.scalars)
    _errors(out, found)
    _verdict(out, found)
    _worst(out, found.runs)
    if found.unmapped:
        say(out, f"\nNot used, {sum(found.unmapped.values())} rows:", style="bold")
        for reason, count in found.unmapped.items():
            say(out, f"{count:>7,}  {reason}")
    say(out, f"\nWritten to {target}; use it with --stack {target}.")


def _table(columns: Sequence[str], words: Sequence[int] = (0,)) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i in words else "right", no_wrap=True)
    return table


def _scalars(out: Console, scalars: Sequence[ScalarFit]) -> None:
    table = _table(("scalar", "before", "after", "+- %", "prior", "+- %", "state"), (0, 6))
    for one in scalars:
        table.add_row(
            one.name,
            f"{one.before:.4g}",
            f"{one.value:.4g}",
            f"{100 * one.sd:.0f}",
            f"{one.prior:.4g}",
            f"{100 * one.prior_sd:.0f}",
            one.state,
        )
    out.print(table)
    for one in scalars:
        if one.bound is not None:
            say(
                out,
                f"{one.name} ran to its bound of {one.bound:.4g}: a fault of the model or of the "
                f"runs, so it stays at {one.before:.4g}. Check {one.suspects}.",
                style="bold",
            )
        elif one.spreads > UNUSUAL:
            say(
                out,
                f"{one.name} lies {one.spreads:.1f} times its usual spread from where stacks "
                f"usually are. Check {one.suspects}.",
                style="bold",
            )


def _pair(errors: Errors | None) -> tuple[str, str]:
    if errors is None:
        return "-", "-"
    return percent(errors.median), percent(errors.mean)


def _errors(out: Console, found: Calibrated) -> None:
    say(out, "")
    several = found.left_out is not None
    columns = ["errors in %, median and mean", "runs", "before", "", "after", "", "left out", ""]
    table = _table([*columns, "source left out", ""] if several else columns)

    def row(name: str, runs: int, *errors: Errors | None) -> None:
        cells = [cell for one in errors for cell in _pair(one)]
        table.add_row(name, str(runs), *(cells if several else cells[:6]))

    everything = (found.before, found.after, found.crossed, found.left_out)
    row("all", len(found.runs), *everything)
    if len(found.sources) > 1:
        for one in found.sources:
            errors = (one.before, one.after, one.crossed, one.left_out)
            row(f"  {one.source}"[:40], one.configurations, *errors)
    out.print(table)


def _verdict(out: Console, found: Calibrated) -> None:
    how = "each run" if len(found.runs) <= LEAVE_ONE_OUT else f"each of {found.folds} parts"
    if len(found.runs) < FEW:
        say(out, f"With fewer than {FEW} distinct runs only in_situ moves.")
    if found.crossed is None:
        say(out, "With one distinct run nothing can be left out: what the fit is worth is open.")
        return
    if found.refused is not None:
        say(
            out,
            f"A fit does not help: on runs left out of it the median error is "
            f"{percent(found.refused.median)} %, and without one {percent(found.before.median)} %. "
            "No number moved; the interval is that of the stack as it is.",
            style="bold",
        )
    elif found.helps:
        say(out, f"left out: {how} predicted by a fit to the others.")
    width = percent(found.stack.uncertainty)
    say(out, f"Interval around a step time from now on: +-{width} % (80 % of runs).")


def _worst(out: Console, runs: Sequence[FittedRun]) -> None:
    worst = sorted(runs, key=lambda one: -abs(_residual(one)))[:WORST]
    say(out, "\nFurthest off (predicted over measured - 1, %), and their largest parts (%):")
    table = _table(("run", "measured", "before", "after", "left out"))
    for one in worst:
        first = one.configuration.rows[0]
        assert first.mapped is not None
        table.add_row(
            (first.run.row_id or "unnamed")[:24],
            f"{seconds(one.configuration.seconds)} s",
            *(percent(_relative(each), sign=True) for each in (one.before, one.after, one.crossed)),
        )
    out.print(table)
    for one in worst:
        first = one.configuration.rows[0]
        assert first.mapped is not None
        say(
            out,
            f"  {first.run.row_id or 'unnamed'}: {first.mapped.model.name}, "
            f"{first.mapped.cluster.gpus} GPUs, {first.mapped.plan}: {_largest(one.parts)}",
        )


def _residual(one: FittedRun) -> float:
    return one.after if one.crossed is None else one.crossed


def _relative(residual: float | None) -> float | None:
    return None if residual is None else math.expm1(residual)


def _largest(parts: Mapping[str, float]) -> str:
    total = sum(parts.values())
    named = sorted(parts.items(), key=lambda item: -item[1])[:NAMED_PARTS]
    return ", ".join(f"{part} {percent(value / total)}" for part, value in named if value)
