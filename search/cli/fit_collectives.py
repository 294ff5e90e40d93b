"""``trainplan fit collectives``: parameters of collectives from measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from estimator.cluster import Cluster
    from estimator.collective_tables import Measured, MeasuredTable


def collectives(
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOGS...",
            help="Logs of nccl-tests or rccl-tests, or CSV files (collective, n_gpus, n_nodes, "
            "size_bytes, time_us).",
        ),
    ],
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Write the fitted collectives here.")
    ] = None,
    plot: Annotated[
        str | None, typer.Option("--plot", help="Write an HTML page of points, fits and joints.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", help="Where it was measured, for the peaks of its links."),
    ] = None,
    domain: Annotated[
        int | None,
        typer.Option("--domain", help="GPUs in one scale-up domain; those of a host if left out."),
    ] = None,
    collective: Annotated[
        str | None, typer.Option("--collective", help="Which, where a log does not name it.")
    ] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Fit the in-place times.")] = False,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", help="column=value: only such rows of a CSV file."),
    ] = None,
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Errors on every third size and group left out.")
    ] = False,
) -> int:
    """Fit the three-region model to measured collectives.

    Latency, transition and bandwidth of each collective and group, with 90 % intervals, and errors
    beside those of a straight line. All tables must be of one machine unless they are only
    evaluated.
    """
    from estimator.catalog import collectives_yaml, load_cluster
    from estimator.collective_tables import one_machine
    from search import collectives as fitting
    from search.files import save_all
    from search.report.fit import evaluation_text, fit_text
    from search.report.fit_plot import page

    place = load_cluster(cluster) if cluster else None
    if domain is not None and domain < 1:
        raise ValueError(f"domain={domain} must be 1 or more GPUs")
    measured = _read(logs, collective, _domain(domain, place), _pairs(where), in_place)
    if evaluate and not output and not plot:
        evaluation_text(measured, place)
        return 0
    device = one_machine(measured.tables)
    tables = fitting.pooled(measured.tables)
    fits = [fitting.fit(table, place) for table in tables]
    texts = {}
    if output:
        names = ", ".join(dict.fromkeys(table.source for table in measured.tables))
        texts[output] = collectives_yaml(fits, f"{device}: {names}" if device else names)
    if plot:
        texts[plot] = page(tables, fits, device)
    save_all({name: text.encode() for name, text in texts.items()})
    fit_text(measured, tables, fits, place)
    if evaluate:
        evaluation_text(measured, place)
    return 0


def _read(
    logs: list[str],
    kind: str | None,
    domain: int | None,
    where: Mapping[str, str],
    in_place: bool,
) -> Measured:
    """All tables of all files, with the times that were asked for."""
    from dataclasses import replace
    from pathlib import Path

    from estimator.collective_tables import Measured
    from estimator.nccl_logs import read_measured

    tables: list[MeasuredTable] = []
    notes: list[str] = []
    for log in logs:
        read = read_measured(Path(log), kind=kind, domain=domain, where=where)
        notes.extend(read.notes)
        for table in read.tables:
            if in_place:
                if table.in_place is None:
                    raise ValueError(
                        f"{table.source}: no in-place time at every size; leave out --in-place"
                    )
                table = replace(table, seconds=table.in_place)
            tables.append(table)
    if not tables:
        raise ValueError(f"nothing to fit: {'; '.join(notes) or 'no table is left'}")
    return Measured(tables=tuple(tables), notes=tuple(notes))


def _domain(given: int | None, cluster: Cluster | None) -> int | None:
    """The scale-up domain where it is not the host: as given, or a rack by the cluster."""
    if given is None and cluster is not None and cluster.scale_up_domain > cluster.gpus_per_node:
        return cluster.scale_up_domain
    return given


def _pairs(where: list[str] | None) -> dict[str, str]:
    pairs = {}
    for text in where or []:
        column, equals, value = text.partition("=")
        if not equals or not column:
            raise ValueError(f"--where {text!r} must be column=value")
        pairs[column] = value
    return pairs
