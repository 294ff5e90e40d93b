"""The ranked table of a search, and why it came out so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from estimator.estimate import Estimate
from estimator.plan import ALIASES, NAMES, Plan
from search.contracts import budget_of
from search.misses import Miss
from search.report.parts import budget_line, margin_words, parts_line
from search.report.units import console, gib, large, say, seconds, share
from search.rules_of_thumb import Baseline
from search.study import Ranked, Recommendation
from spaces import rule_text

ALWAYS = ("dp", "tp", "pp", "micro_batch")
"""Plan fields that are columns even where all rows agree."""
SHORT = {long: short for short, long in ALIASES.items()} | {
    "recompute_layers": "layers",
    "first_stage_layers": "first",
    "last_stage_layers": "last",
}


def recommendation_text(
    result: Recommendation, gpus_needed: int | None = None, rules: Sequence[Baseline] = ()
) -> None:
    """Print the answer of a search.

    Args:
        result: The answer.
        gpus_needed: Where nothing fits: the number of GPUs on which something does, if known.
        rules: What rules of thumb would pick instead.
    """
    out = console()
    problem = result.problem
    workload = problem.workload
    say(
        out,
        f"{problem.model.name} on {problem.cluster.name} with {problem.stack.name}: "
        f"{workload.global_batch} sequences of {workload.sequence} tokens, {workload.precision}",
    )
    if result.ranked:
        if result.fidelity == "simulated":
            say(out, "finalists were simulated task by task and are ranked by that")
        _ranking(out, result.ranked)
        _best(out, result)
        if rules:
            best = result.ranked[0].estimate
            say(out, "rules of thumb: " + ", ".join(_rule_words(rule, best) for rule in rules))
        _ties(out, result.ranked)
    _counts(out, result)
    if not result.ranked:
        say(out, "\nNothing fits.", style="bold")
    if result.nearest_misses and not result.ranked:
        _misses(out, result.nearest_misses, gpus_needed)


def _ranking(out: Console, rows: Sequence[Ranked]) -> None:
    plans = [row.estimate.plan for row in rows]
    shown = [name for name in NAMES if name in ALWAYS or _differ(plans, name)]
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("#", "tie", *(SHORT.get(name, name) for name in shown)):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("step s", "interval", "tokens/s", "MFU", "GiB"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("limited by", no_wrap=True)
    for row in rows:
        value = row.estimate
        table.add_row(
            str(row.rank),
            chr(ord("a") + row.tie_group - 1) if row.tie_group <= 26 else str(row.tie_group),
            *(_cell(name, getattr(value.plan, name)) for name in shown),
            seconds(value.step_seconds),
            f"{seconds(value.low_seconds)}-{seconds(value.high_seconds)}",
            large(value.tokens_per_second),
            share(value.mfu, 1),
            gib(value.peak_bytes),
            row.limited_by,
        )
    out.print()
    out.print(table)
    default = Plan()
    same = [
        f"{SHORT.get(name, name)}={_cell(name, getattr(plans[0], name))}"
        for name in NAMES
        if name not in shown and getattr(plans[0], name) != getattr(default, name)
    ]
    if same:
        say(out, f"all rows: {', '.join(same)}")


def _differ(plans: Sequence[Plan], name: str) -> bool:
    return len({getattr(plan, name) for plan in plans}) > 1


def _cell(name: str, value: Any) -> str:
    """A plan's value as short as a column allows."""
    if value is None:
        return "-"
    if name == "order":
        return str(value).removeprefix("tp-cp-ep-")
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _best(out: Console, result: Recommendation) -> None:
    best = result.ranked[0].estimate
    say(out, f"\nBest plan: {best.plan}", style="bold")
    say(out, f"  time    {parts_line(best.time, best.step_seconds)}")
    hidden = {part: value for part, value in best.hidden.items() if value > 0}
    if hidden:
        say(out, f"  hidden  {parts_line(hidden, best.step_seconds)} (beside compute)")
    say(
        out,
        f"  memory  {parts_line(best.memory, best.peak_bytes)}; "
        f"{gib(best.peak_bytes)} of {gib(best.capacity_bytes)} GiB{margin_words(result.problem)}",
    )
    line = budget_line(budget_of(result.problem, best))
    if line:
        say(out, f"  budget  {line}")


def _rule_words(rule: Baseline, best: Estimate) -> str:
    """How much slower than the best plan a rule of thumb is."""
    over = rule.over(best)
    if over is None:
        return f"{rule.name} gives no plan that runs and fits"
    if over < 0.995:  # constraints or sampling kept the search from looking there
        return f"{rule.name} {1 / over:.2f}x faster, outside what was searched"
    return f"{rule.name} {over:.2f}x slower" if over >= 1.005 else f"{rule.name} as fast"


def _ties(out: Console, rows: Sequence[Ranked]) -> None:
    tied = [row for row in rows if row.tie_group == 1]
    if len(tied) == 1:
        return
    least = min(tied, key=lambda row: (row.estimate.peak_bytes, row.rank))
    need = f"needs the least memory ({gib(least.estimate.peak_bytes)} GiB)"
    say(
        out,
        f"\n#1 to #{tied[-1].rank} tie: no two of them can be told apart. Measure them; "
        + (f"#1 also {need}." if least.rank == 1 else f"or take #{least.rank}, which {need}."),
    )


def _counts(out: Console, result: Recommendation) -> None:
    looked = "" if result.evaluated == result.legal else f", {result.evaluated:,} looked at"
    say(
        out,
        f"\n{result.considered:,} plans considered, {result.legal:,} legal{looked}, "
        f"{result.fitting:,} fit. Left out:",
    )
    width = max((len(f"{count:,}") for count in result.left_out.values()), default=0)
    for code, count in sorted(result.left_out.items(), key=lambda item: -item[1]):
        say(out, f"  {count:>{width},}  {code}: {rule_text(code)}")


def _misses(out: Console, misses: Sequence[Miss], gpus_needed: int | None) -> None:
    say(out, "Nearest misses:")
    for miss in misses:
        over = f"{gib(miss.excess_bytes)} GiB ({miss.excess_bytes:,.0f} bytes) over"
        change = f"; fits with {miss.change}" if miss.change else ""
        say(out, f"  {miss.plan}: {over}{change}")
    if gpus_needed is None:
        say(out, "More GPUs alone do not help; change the batch, the sequence or what is fixed.")
    else:
        say(out, f"The same job has plans that fit on {gpus_needed} GPUs.")
