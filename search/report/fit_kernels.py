"""What ``trainplan fit kernels`` prints: what was fitted, and errors where nothing was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.table import Table

from estimator.samples import Samples
from search.kernels import Score
from search.report.units import console, say


def fit_text(samples: Samples, form: str, path: str, held_out: Sequence[str]) -> None:
    """Say what the parameters were fitted on, and what was left out and why."""
    out = console()
    used = [name for name in samples.device.tolist() if name not in held_out]
    say(out, f"{form}: fitted on {len(used)} of {len(samples)} samples, written to {path}")
    for device, rows in sorted(Counter(used).items()):
        say(out, f"  {device}: {rows}")
    for device in held_out:
        say(out, f"  {device}: held out")
    for rule, rows in samples.excluded.items():
        say(out, f"  left out by rule {rule}: {rows}")


def evaluation_text(scores: Sequence[Score]) -> None:
    """One row an operator, device and split: errors in per cent."""
    out = console()
    table = Table(box=None, padding=(0, 1))
    for name in ("split", "device", "operator", "phase", "dtype"):
        table.add_column(name)
    for name in ("rows", "mean", "median", "p90", "bias"):
        table.add_column(name, justify="right")
    for score in scores:
        operator = score.kind if score.name in ("", score.kind) else f"{score.kind} {score.name}"
        table.add_row(
            *(score.split, score.device, operator, score.phase, score.dtype, str(score.rows)),
            *(f"{100 * v:.1f}" for v in (score.mean, score.median, score.p90)),
            f"{100 * score.bias:+.1f}",
        )
    out.print(table)
    say(out, "errors in % of the measured time; bias is the median of signed errors")
