"""The `trinat` command: one module a command, and one place where errors become exit codes.

Modules here import only what is light; the work is imported inside each command, so that
`trinat --help` never waits for torch.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import click
import typer

from pipelines.cli import doctor
from pipelines.exits import Exit, exit_code
from segmentation.errors import TrinatError

__all__ = ["app", "main"]

app = typer.Typer(
    name="trinat",
    help="Segment the human brain in T1-weighted MRI. For research, not for diagnosis.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"trinat {version('trinat')}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    pass


app.command("doctor")(doctor.command)


def main() -> NoReturn:
    """Run the command line; every failure is one line on stderr and a number from `Exit`."""
    try:
        result = app(standalone_mode=False)
        sys.exit(result if isinstance(result, int) else Exit.OK)
    except click.ClickException as error:
        error.show()
        sys.exit(Exit.USAGE)
    except (click.exceptions.Abort, KeyboardInterrupt):
        print("trinat: interrupted: run the same command again", file=sys.stderr)
        sys.exit(Exit.INTERRUPTED)
    except TrinatError as error:
        if "--debug" in sys.argv:
            raise
        print(f"trinat: {error}", file=sys.stderr)
        sys.exit(exit_code(error))
    except OSError as error:
        if "--debug" in sys.argv:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"trinat: {where}{error.strerror or error}", file=sys.stderr)
        sys.exit(Exit.ALL_FAILED)
