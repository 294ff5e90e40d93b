"""The command's entry. Importing it is cheap: each command imports what it needs when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from search.cli.calibrate import calibrate
from search.cli.catalog import catalog
from search.cli.estimate import estimate
from search.cli.explain import explain
from search.cli.fit import fit
from search.cli.search import search
from search.cli.simulate import simulate
from search.cli.validate import validate

app = typer.Typer(
    name="trainplan",
    help="The fastest parallel plan that fits, before GPU hours are paid for.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=False,
)
app.command()(search)
app.command()(estimate)
app.command()(explain)
app.command()(simulate)
app.command()(validate)
app.command()(calibrate)
app.add_typer(fit, name="fit")
app.add_typer(catalog, name="catalog")

OK, NOTHING_FITS, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


@app.callback(invoke_without_command=True)
def trainplan(context: typer.Context, version: bool = typer.Option(False, "--version")) -> int:
    """Pick parallelism before a training run; price one plan; see what is known by name."""
    if version:
        from search.versions import versions

        print(f"trainplan {versions()['trainplan']}")
    elif context.invoked_subcommand is None:
        print(context.get_help())
    return OK


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; bad input is one line on standard error."""
    try:
        status = app(args=arguments, prog_name="trainplan", standalone_mode=False)
    except ValueError as error:
        return _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has seen enough; leave nothing for Python to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except Exception as error:
        # Typer's usage errors share no public base class across its versions, only this method.
        if not hasattr(error, "format_message"):
            raise
        return _fail(error.format_message() or "see trainplan --help")
    return status if isinstance(status, int) else OK


def _fail(message: str) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return BAD_INPUT


def main() -> None:
    """The console script."""
    sys.exit(run())
