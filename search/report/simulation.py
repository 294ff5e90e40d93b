"""One simulated step: parts beside the closed form, each stage, the pipeline in letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from estimator.estimate import TIME_PARTS
from search.report.parts import verdict
from search.report.units import PLAIN_WIDTH, console, gib, say, seconds, share
from spaces import Problem

if TYPE_CHECKING:
    from estimator.simulate import Simulation

MOST_STAGES = 16
"""Rows of stages; of more, those in between are left out."""


def simulation_text(problem: Problem, value: Simulation) -> None:
    """Print what a simulated step consists of and where it waits."""
    from estimator.simulate.timeline import picture

    out = console()
    step, closed = value.estimate, value.closed_form
    say(out, f"{problem.model.name} on {problem.cluster.name}: {step.plan}")
    say(out, verdict(problem, step), style="bold")
    change = step.step_seconds / closed.step_seconds - 1
    naive = value.naive_seconds / step.step_seconds - 1
    say(
        out,
        f"step {seconds(step.step_seconds)} s on the critical path; closed form "
        f"{seconds(closed.step_seconds)} s ({_signed(change)} to it); without synchronisation "
        f"{seconds(value.naive_seconds)} s ({_signed(naive)} of the path)",
    )
    out.print(_parts(value))
    out.print(_stages(value))
    late = ", late weight gradients A-J" if value.work.weight.any() else ""
    say(out, f"forward 0-9, backward a-j{late} by micro-batch, U optimizer, . idle")
    width = min(out.width, PLAIN_WIDTH) - 10
    for rank, line in enumerate(picture(value, width)):
        say(out, f"{rank:>8}  {line}")
    if value.built.ranks > rank + 1:
        say(out, f"          (and {value.built.ranks - rank - 1} more ranks)")


def _signed(ratio: float) -> str:
    return f"{100 * ratio:+.1f}%"


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for i, name in enumerate(names):
        table.add_column(name, justify="right" if i else "left")
    return table


def _parts(value: Simulation) -> Table:
    table = _table("time", "simulated s", "share", "closed form s")
    step, closed = value.estimate, value.closed_form
    for part in TIME_PARTS:
        if step.time[part] or closed.time[part]:
            table.add_row(
                part,
                f"{step.time[part]:.4f}",
                share(step.time[part], step.step_seconds),
                f"{closed.time[part]:.4f}",
            )
    return table


def _stages(value: Simulation) -> Table:
    """A row per stage, of the first rank of each."""
    table = _table("stage", "idle s", "idle", "peak GiB", "closed form GiB")
    idle = value.idle["compute"]
    count = len(value.memory)
    for stage, memory in enumerate(value.memory):
        if MOST_STAGES - 2 <= stage < count - 2 and count > MOST_STAGES:
            continue
        rank = value.first_rank(stage)
        table.add_row(
            str(stage),
            f"{idle[rank]:.4f}",
            share(float(idle[rank]), value.makespan),
            gib(memory.peak),
            gib(value.closed_form_bytes[stage]),
        )
    return table
