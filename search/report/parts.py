"""The parts of one plan's cost, or of two side by side."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from estimator.estimate import MEMORY_PARTS, TIME_PARTS, Estimate
from search.contracts import budget_of
from search.objective import limited_by
from search.report.units import DAY, console, gib, large, say, seconds, share
from spaces import Problem

SMALL = 0.0005
"""Shares below this are not listed."""


def parts_line(parts: Mapping[str, float], whole: float) -> str:
    """Parts from large to small with their shares of the whole."""
    listed = sorted(parts.items(), key=lambda item: -item[1])
    return ", ".join(
        f"{part} {share(value, whole)}" for part, value in listed if value > SMALL * whole
    )


def budget_line(budget: Mapping[str, float | None] | None) -> str | None:
    """Days and dollars to the token budget."""
    if budget is None or budget["tokens"] is None or budget["seconds"] is None:
        return None
    line = f"{large(budget['tokens'])} tokens take {budget['seconds'] / DAY:.1f} days"
    dollars = budget["dollars"]
    return line + (f" and ${dollars:,.0f}" if dollars is not None else " (no price known)")


def margin_words(problem: Problem) -> str:
    """What is kept of the device's memory beyond the capacity, in brackets."""
    margin = problem.cluster.memory_margin
    return f" ({share(margin, 1)} of the device kept free)" if margin else ""


def estimate_text(problem: Problem, value: Estimate) -> None:
    """Print what a plan costs, part by part."""
    out = console()
    say(out, f"{problem.model.name} on {problem.cluster.name}: {value.plan}")
    say(out, verdict(problem, value), style="bold")
    say(
        out,
        f"step {seconds(value.step_seconds)} s "
        f"({seconds(value.low_seconds)} to {seconds(value.high_seconds)}), "
        f"{large(value.tokens_per_second)} tokens/s, MFU {share(value.mfu, 1)}, "
        f"limited by {limited_by(value)}",
    )
    line = budget_line(budget_of(problem, value))
    if line:
        say(out, line)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("time", "seconds", "share", "hidden s", "memory", "GiB", "share"):
        table.add_column(name, justify="left" if name in ("time", "memory") else "right")
    for row in range(max(len(TIME_PARTS), len(MEMORY_PARTS))):
        left = [""] * 4
        if row < len(TIME_PARTS):
            part = TIME_PARTS[row]
            hidden = value.hidden.get(part, 0.0)
            left = [
                part,
                f"{value.time[part]:.4f}",
                share(value.time[part], value.step_seconds),
                f"{hidden:.4f}" if hidden else "",
            ]
        right = [""] * 3
        if row < len(MEMORY_PARTS):
            part = MEMORY_PARTS[row]
            right = [part, gib(value.memory[part]), share(value.memory[part], value.peak_bytes)]
        table.add_row(*left, *right)
    out.print(table)
    say(out, f"origin: {origin_line(value)}")


def origin_line(value: Estimate) -> str:
    """Where the parts that take time are from, parts of one origin together."""
    parts: dict[str, list[str]] = {}
    for part in TIME_PARTS:
        if value.time[part] > 0 or value.hidden.get(part, 0.0) > 0:
            parts.setdefault(value.origin[part], []).append(part)
    return "; ".join(f"{', '.join(named)} {origin}" for origin, named in parts.items())


def verdict(problem: Problem, value: Estimate) -> str:
    """Whether the plan fits, with the bytes that say so."""
    over = value.peak_bytes - value.capacity_bytes
    if value.fits:
        narrowly = value.high_bytes > value.capacity_bytes
        return (
            f"fits{', perhaps' if narrowly else ''}: {gib(value.peak_bytes)} "
            f"({gib(value.low_bytes)} to {gib(value.high_bytes)}) of "
            f"{gib(value.capacity_bytes)} GiB{margin_words(problem)}"
        )
    return (
        f"does not fit: {gib(value.peak_bytes)} GiB is {gib(over)} GiB ({over:,.0f} bytes) over "
        f"the {gib(value.capacity_bytes)} GiB{margin_words(problem)}"
    )


def comparison_text(problem: Problem, one: Estimate, other: Estimate) -> None:
    """Print two plans part by part: what the second changes against the first."""
    out = console()
    say(out, f"{problem.model.name} on {problem.cluster.name}")
    for letter, value in (("A", one), ("B", other)):
        say(out, f"{letter}  {value.plan}\n   {verdict(problem, value)}")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("part", "A", "B", "B - A"):
        table.add_column(name, justify="left" if name == "part" else "right")
    for part in TIME_PARTS:
        _compare(table, f"{part} s", one.time[part], other.time[part], 1.0, 4)
    _compare(table, "step s", one.step_seconds, other.step_seconds, 1.0, 4, style="bold")
    for part in MEMORY_PARTS:
        _compare(table, f"{part} GiB", one.memory[part], other.memory[part], 1 << 30, 2)
    _compare(table, "peak GiB", one.peak_bytes, other.peak_bytes, 1 << 30, 2, style="bold")
    out.print(table)
    say(out, _judgement(one, other))


def _compare(
    table: Table,
    name: str,
    one: float,
    other: float,
    unit: float,
    digits: int,
    style: str | None = None,
) -> None:
    if one or other:
        one, other = one / unit, other / unit
        cells = (f"{one:.{digits}f}", f"{other:.{digits}f}", f"{other - one:+.{digits}f}")
        table.add_row(name, *cells, style=style)


def _judgement(one: Estimate, other: Estimate) -> str:
    fast, slow, name = (
        (one, other, "A") if one.step_seconds <= other.step_seconds else (other, one, "B")
    )
    gain = share(slow.step_seconds - fast.step_seconds, slow.step_seconds)
    if slow.low_seconds <= fast.high_seconds:
        return f"{name} is {gain} faster, within the model's error: measure both."
    part = max(TIME_PARTS, key=lambda p: slow.time[p] - fast.time[p])
    return f"{name} is {gain} faster, most of it in {part}."
