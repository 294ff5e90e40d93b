"""Numbers as people read them, and the console they are printed on."""

from __future__ import annotations

import os
import sys

from rich.console import Console

GIB = 1 << 30
DAY = 86400.0
PLAIN_WIDTH = 110
"""Columns of output that goes to a file or a pipe."""


def console() -> Console:
    """Standard output: colour and the terminal's width there, plain text elsewhere."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return Console(highlight=False, markup=False, emoji=False)
    return Console(highlight=False, markup=False, emoji=False, width=PLAIN_WIDTH)


def say(out: Console, text: str, style: str | None = None) -> None:
    """Print a line: wrapped on a terminal, whole in a file or a pipe."""
    out.print(text, style=style, soft_wrap=not out.is_terminal)


def gib(value: float) -> str:
    """Bytes in GiB."""
    return f"{value / GIB:.1f}"


def share(part: float, whole: float) -> str:
    """A part of a whole in per cent."""
    return f"{100 * part / whole:.1f}%" if whole else "-"


def seconds(value: float) -> str:
    """Seconds with three significant digits or more."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}" if value < 1 else f"{value:.2f}"


def large(value: float) -> str:
    """A large count with a decimal prefix."""
    for size, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"
