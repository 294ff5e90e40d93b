"""What each piece of physics is worth: errors of published runs with one piece taken away.

Run as ``python tests/bench/ablation.py RUNS.csv [--role fit]``. Nothing is refitted, so a piece
whose loss the in-situ factor could take up shows larger here than it would then. Prints, for each
piece, the median, mean and 90th percentile of the error, and the source whose mean rises most.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from estimator import pricers
from estimator.catalog import load_stack
from estimator.cost.roofline import Roofline, roofline
from estimator.runs import read_runs
from estimator.stack import Stack
from search.accuracy import GroupErrors, group_errors
from search.validate import Scored, forced, mapped_rows, priced

Change = Callable[[Stack], Stack]
Constants = Callable[[Roofline], Roofline]


def without(**fields: Any) -> Change:
    """The stack with these habits in place of its own."""
    return lambda stack: replace(stack, **fields)


def fusing(*names: str) -> Change:
    """The stack as if these ran as one kernel."""
    return lambda stack: replace(stack, fused=stack.fused | set(names))


def uncalibrated(stack: Stack) -> Stack:
    """The stack before it was fitted to runs."""
    return load_stack(stack.name, calibrated=False)


STACKS: dict[str, Change] = {
    "everything in place": lambda stack: stack,
    "fits of stacks to runs": uncalibrated,
    "in-situ factor": lambda stack: replace(stack, in_situ=dict.fromkeys(stack.in_situ, 1.0)),
    "launches of layers": without(launch_forward=0.0, launch_backward=0.0, launch_experts=0.0),
    "constant per step": without(step_seconds=0.0),
    "stragglers": without(straggler_per_doubling=0.0),
    "norms operation by operation": fusing("norm"),
    "rotary positions operation by operation": fusing("rope"),
    "other unfused kernels": fusing("bias_activation", "softmax", "cross_entropy", "norm_residual"),
    "traffic of main gradients": without(gradient_accumulation_traffic=0.0),
    "quantized inputs gathered as such": without(casts_before_gather=False),
    "overlap of sends": without(overlap_p2p=False),
    "overlap of tensor parallelism": without(overlap_tp=False, async_tp_backward=False),
    "overlap of gradients": without(overlap_grad=False, overlap_param=False),
    "interference of zero=3": without(interference_zero3=0.0),
    "recompute of no more than is needed": without(recompute_style="modules"),
    "tokens sent once per domain": without(deduplicated_dispatch=False),
}


def full_waves(constants: Roofline) -> Roofline:
    """Attention as if every kernel filled its device."""
    kernels = {
        name: replace(kernel, wave=0.0, wave_backward=0.0)
        for name, kernel in constants.attention.items()
    }
    return replace(constants, attention=kernels)


CONSTANTS: dict[str, Constants] = {
    "occupancy of attention": full_waves,
    "saturation of products": lambda one: replace(one, saturation_flops=0.0),
    "few rows of an expert": lambda one: replace(one, grouped_rows=0.0, grouped_rows_weight=0.0),
}


def scored(rows: list[Scored], change: Change) -> list[Scored]:
    """Rows priced with their stacks changed."""
    answer = [row for row in rows if row.mapped is None]
    names = {row.mapped.stack.name for row in rows if row.mapped is not None}
    for name in sorted(names):
        own = [row for row in rows if row.mapped is not None and row.mapped.stack.name == name]
        answer += forced(own, change(load_stack(name)))
    return priced(answer, "analytic")


def line(piece: str, rows: list[Scored], before: dict[str, GroupErrors]) -> dict[str, GroupErrors]:
    """Print one piece; the errors by source."""
    whole = group_errors(rows, "all")[0]
    by_source = {group.key: group for group in group_errors(rows, "source")}
    worst, rise = "", 0.0
    for source, group in by_source.items():
        mape, known = group.mape, before.get(source)
        if mape is None or known is None or known.mape is None:
            continue
        if mape - known.mape > rise:
            worst, rise = source, mape - known.mape
    assert whole.median is not None and whole.mape is not None and whole.p90 is not None
    numbers = " / ".join(f"{100 * x:.1f}" for x in (whole.median, whole.mape, whole.p90))
    print(f"| {piece} | {numbers} | {f'{worst} +{100 * rise:.1f}' if worst else '-'} |", flush=True)
    return by_source


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--role", default="fit")
    arguments = parser.parse_args()
    rows = mapped_rows(read_runs(arguments.runs).runs, role=arguments.role)
    print(
        "| without | median / mean / p90 % | mean of a source rises most, points |\n|---|--:|---|"
    )
    before: dict[str, GroupErrors] = {}
    for piece, change in STACKS.items():
        found = line(piece, scored(rows, change), before)
        before = before or found
    for piece, constants in CONSTANTS.items():
        pricers.roofline = lambda device, f=constants: f(roofline(device))  # type: ignore[attr-defined, misc]
        line(piece, scored(rows, lambda stack: stack), before)
    pricers.roofline = roofline  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
