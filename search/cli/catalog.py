"""``trainplan catalog``: what is known by name, and whether a file of yours is well formed."""

from __future__ import annotations

from typing import Annotated

import typer

from search.cli import options

catalog = typer.Typer(
    help="List models, devices, clusters or stacks; check a file.", rich_markup_mode=None
)


@catalog.command("models")
def models(json: options.JsonFile = None) -> int:
    """Models by name, with their parameters and shapes."""
    return _list("models", json)


@catalog.command("devices")
def devices(json: options.JsonFile = None) -> int:
    """Devices by name, with their peaks and memory."""
    return _list("devices", json)


@catalog.command("clusters")
def clusters(json: options.JsonFile = None) -> int:
    """Clusters by name; any device also makes one, as device:gpus."""
    return _list("clusters", json)


@catalog.command("stacks")
def stacks(json: options.JsonFile = None) -> int:
    """Frameworks by name, with what they allow."""
    return _list("stacks", json)


@catalog.command("check")
def check(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="YAML files to check.")],
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            help="model, device, cluster, stack or collectives; told from the file if left out.",
        ),
    ] = None,
) -> int:
    """Check files of yours as the other commands would read them."""
    from search.report.catalog import check_file

    for file in files:
        print(check_file(file, kind))
    return 0


def _list(kind: str, json: str | None) -> int:
    from search import contracts
    from search.report.catalog import catalog_text, entries

    found = {kind: entries(kind)}
    if json:
        contracts.write(contracts.catalog(**found), json)
    if json != "-":
        catalog_text(kind, found[kind])
    return 0
