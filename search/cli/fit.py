"""``trainplan fit``: parameters of cost models from measurements."""

from __future__ import annotations

import typer

from search.cli.fit_collectives import collectives
from search.cli.fit_kernels import kernels

fit = typer.Typer(help="Fit cost models to measurements.", rich_markup_mode=None)


@fit.callback()
def group() -> None:
    """Fit cost models to measurements."""


fit.command()(collectives)
fit.command()(kernels)
