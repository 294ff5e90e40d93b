"""``trainplan validate``: measured runs against predictions."""

from __future__ import annotations

from typing import Annotated

import typer

from search.cli import options


def validate(
    runs: Annotated[str, typer.Argument(help="A CSV, one measured run per row.")],
    role: Annotated[
        str | None, typer.Option("--role", help="Only rows of this role, for example test.")
    ] = None,
    by: Annotated[
        str, typer.Option("--by", help="Group errors by source, gpu, framework, precision, ...")
    ] = "source",
    stack: Annotated[
        str | None,
        typer.Option("--stack", help="Use this framework for every row, by name or YAML file."),
    ] = None,
    only: options.OnlyRows = None,
    cost: options.CostName = "analytic",
    log: Annotated[
        str | None,
        typer.Option("--log", help="Append the score to this file; needs a clean commit."),
    ] = None,
    json: options.JsonFile = None,
) -> int:
    """Score predictions on measured runs: errors, choices of a plan, memory, intervals.

    A file needs few columns: model (or layers, hidden, heads), gpu, n_gpus, global_batch, seq_len
    and iter_time_s; tp, pp, micro_batch and the rest where they are not 1 or the usual.
    """
    from estimator.catalog import load_stack
    from estimator.pricers import check_cost_model
    from estimator.runs import read_runs
    from search import contracts, ledger
    from search.accuracy import selected, validation
    from search.report.validation import validation_text
    from search.validate import check_role, forced, mapped_rows, priced

    file = read_runs(runs)
    used = load_stack(stack) if stack else None
    if log:
        if only:
            raise ValueError("--log is for all rows of a role; leave out --only, or --log")
        ledger.commit()
    check_cost_model(cost)
    check_role(file, role)
    chosen = selected(mapped_rows(file.runs, role=role), only or ())
    rows = priced(forced(chosen, used), cost)
    report = validation(rows, [name.strip() for name in by.split(",") if name.strip()])
    if json:
        contracts.write(contracts.validation(report), json)
    if json != "-":
        validation_text(file, report)
    if log:
        ledger.append(report, log, cost)
    return 0
