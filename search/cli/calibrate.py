"""``trainplan calibrate``: a framework's habits, fitted to measured runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from search.cli import options


def calibrate(
    runs: Annotated[str, typer.Argument(help="A CSV, one measured run per row.")],
    output: Annotated[
        str, typer.Option("--output", "-o", help="Write the fitted stack (YAML) here.")
    ],
    stack: Annotated[
        str | None,
        typer.Option(
            "--stack",
            help="Start all rows from this framework, by name or YAML file; else each row's own.",
        ),
    ] = None,
    cost: options.CostName = "analytic",
    role: Annotated[
        str | None, typer.Option("--role", help="Only rows of this role, for example fit.")
    ] = None,
    only: options.OnlyRows = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Of the fitted stack; else its file's.")
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Of the runs that are left out in turn.")
    ] = 0,
    interval_only: Annotated[
        bool,
        typer.Option("--interval-only", help="Move no number; measure the interval it deserves."),
    ] = False,
    json: options.JsonFile = None,
) -> int:
    """Fit a stack to your runs, so that predictions are of your software and machines.

    The file has the columns of trainplan validate. A few numbers move, each from its prior: an
    overall factor; launches; what hides behind what; and so on. Those that the runs do not
    identify stay. The result goes wherever a stack does: --stack FILE.
    """
    from estimator.catalog import load_stack, stack_yaml
    from estimator.runs import read_runs
    from search import contracts
    from search.calibration import calibrate as fit
    from search.files import save_all
    from search.report.calibration import calibration_text
    from search.validate import check_role

    if output == json:
        raise ValueError(f"--output and --json both name {output}; name two files")
    file = read_runs(runs)
    check_role(file, role)
    found = fit(
        file.runs,
        stack=load_stack(stack) if stack else None,
        cost=cost,
        role=role,
        only=only or (),
        name=_name(output) if name is None else name,
        seed=seed,
        interval_only=interval_only,
    )
    texts = {output: stack_yaml(found.stack).encode()}
    if json:
        texts[json] = contracts.encode(contracts.calibration(found))
    save_all(texts)
    if "-" not in (output, json):
        calibration_text(found, output)
    return 0


def _name(output: str) -> str | None:
    """The file's name without its ending, in plain signs; none for standard output."""
    stem = re.sub(r"[^\x21-\x7e]+", "-", Path(output).stem).strip("-")
    return stem[:80] or None
