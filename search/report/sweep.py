"""A sweep as a table: one line per value."""

from __future__ import annotations

from rich.table import Table

from estimator.plan import ALIASES
from search.report.units import console, gib, large, say, seconds, share
from search.sweep import Point, Swept


def sweep_text(swept: Swept) -> None:
    """Print the best plan at each value and what the values are worth."""
    out = console()
    problem, sweep = swept.problem, swept.sweep
    say(
        out,
        f"{problem.model.name} on {problem.cluster.name} with {problem.stack.name}: "
        f"best plan by {sweep.field}",
    )
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for name in (sweep.field.rpartition(".")[2], "step s", "tokens/s", "against", "MFU", "GiB"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("limited by", "best plan"):
        table.add_column(name, overflow="fold")
    answered = [point for point in swept.points if point.best is not None]
    for point in swept.points:
        table.add_row(point.text, *_cells(point, answered[0] if answered else point))
    out.print()
    out.print(table)
    for point in swept.points:
        if point.reason:
            say(out, f"{point.text}: {point.reason}")
    if answered:
        say(out, f"\n{_worth(swept, answered)}")


def _cells(point: Point, first: Point) -> tuple[str, ...]:
    """What stands behind a value; ``against`` is tokens per second over the first answer's."""
    if point.best is None or first.best is None:
        return ("-",) * 7
    value = point.best.estimate
    return (
        seconds(value.step_seconds),
        large(value.tokens_per_second),
        f"{value.tokens_per_second / first.best.estimate.tokens_per_second:.2f}x",
        share(value.mfu, 1),
        gib(value.peak_bytes),
        point.best.limited_by,
        _short(str(value.plan)),
    )


def _short(plan: str) -> str:
    """A plan as it is typed."""
    for short, name in ALIASES.items():
        plan = plan.replace(f"{name}=", f"{short}=")
    return plan


def _worth(swept: Swept, answered: list[Point]) -> str:
    rates = [point.best.estimate.tokens_per_second for point in answered if point.best]
    fastest = answered[rates.index(max(rates))]
    slowest = answered[rates.index(min(rates))]
    gain = max(rates) / min(rates)
    plans = len({str(point.best.estimate.plan) for point in answered if point.best})
    name = swept.sweep.field
    if gain < 1.005:
        return f"{name} makes no difference here."
    which = "one plan is the best at all of them" if plans == 1 else f"{plans} different plans win"
    return f"Fastest at {name}={fastest.text}, {gain:.2f}x the tokens/s of {slowest.text}; {which}."
