"""What one pass of a module costs, kind by kind and operator by operator."""

from __future__ import annotations

import numpy as np
from rich.table import Table

from estimator.operators import Operators
from search.module import ModuleEstimate
from search.report.units import console, large, say, seconds, share

LISTED = 10
"""Operators that are shown one by one."""


def module_text(value: ModuleEstimate) -> None:
    """Print what a module costs."""
    out = console()
    total = float(value.seconds.sum())
    say(
        out,
        f"{value.name} on {value.device.name}: {large(value.trace.parameters)} parameters, "
        f"{large(float(value.ops.count.sum()))} kernels{' (chains fused)' if value.fused else ''}",
    )
    passes = f"forward {seconds(value.forward_seconds)} s"
    if value.trace.in_backward.any():
        passes += f", backward {seconds(value.backward_seconds)} s: {seconds(total)} s"
    say(out, f"{passes}, without the optimizer", style="bold")
    out.print(_kinds_table(value, total))
    out.print(_slowest_table(value, total))
    shares = [
        f"{share(float(value.seconds[value.origin == origin].sum()), total)} {origin}"
        for origin in np.unique(value.origin).tolist()
    ]
    say(out, f"Priced by {value.cost}: {', '.join(shares)}")
    if value.trace.unrecognised:
        unknown = ", ".join(f"{name} x{n}" for name, n in value.trace.unrecognised.items())
        say(out, f"Not recognised, counted as copies of what they read and write: {unknown}")
    if value.trace.assumed:
        asked = ", ".join(f"{name}() x{n}" for name, n in value.trace.assumed.items())
        say(out, f"Asked of tensors that have no values, all() taken to hold, any() not: {asked}")


def _table(*columns: str, left: tuple[str, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right")
    return table


def _kinds_table(value: ModuleEstimate, total: float) -> Table:
    table = _table("kind", "kernels", "seconds", "share", "FLOP", "bytes", left=("kind",))
    for row in value.kinds():
        table.add_row(
            row["kind"],
            str(row["calls"]),
            seconds(row["seconds"]),
            share(row["seconds"], total),
            large(row["flops"]),
            large(row["bytes"]),
        )
    return table


def _slowest_table(value: ModuleEstimate, total: float) -> Table:
    left = ("operator", "pass", "size", "dtype")
    table = _table("operator", "pass", "size", "dtype", "runs", "seconds", "share", left=left)
    for row in value.slowest(LISTED).tolist():
        table.add_row(
            str(value.ops.name[row]),
            "backward" if value.trace.in_backward[row] else "forward",
            shape_words(value.ops, row),
            str(value.ops.dtype[row]),
            str(int(value.ops.count[row])),
            seconds(float(value.seconds[row])),
            share(float(value.seconds[row]), total),
        )
    return table


def shape_words(ops: Operators, row: int) -> str:
    """The size of one operator as people write it."""
    size = {
        name: int(getattr(ops, name)[row]) for name in ("batch", "m", "n", "k", "heads", "kv_heads")
    }
    if ops.kind[row] == "attention":
        causal = " causal" if ops.causal[row] else ""
        return (
            f"{size['batch']} x {size['heads']}/{size['kv_heads']} heads x "
            f"{size['m']} x {size['n']} x {size['k']}{causal}"
        )
    if ops.kind[row] in ("linear", "bmm"):
        batch = f"{size['batch']} x " if size["batch"] > 1 else ""
        return f"{batch}{size['m']} x {size['n']} x {size['k']}"
    return f"{size['m']} x {size['n']}"
