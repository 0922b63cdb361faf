"""The `trinat` command: one module a command, and one place where errors become exit codes.

Modules here import only what is light; the work is imported inside each command, so that
`trinat --help` never waits for torch.
"""

from __future__ import annotations

import io
import sys
from typing import NoReturn

import typer

from pipelines.cli import (
    bundle,
    calibrate,
    data,
    demo,
    doctor,
    evaluate,
    export,
    fuse_weights,
    import_weights,
    merge,
    models,
    phantom,
    predict,
    prepare,
    report,
    runs,
    split,
    train,
)
from pipelines.cli.lists import ListOptions
from pipelines.common.exits import Exit, exit_code
from segmentation.errors import TrinatError, one_line, reason_of

__all__ = ["app", "main", "run"]

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
    debug: bool = typer.Option(
        False, "--debug", help="Show the traceback of an error; may stand anywhere."
    ),
) -> None:
    pass


app.command("bundle")(bundle.command)
app.command("calibrate")(calibrate.command)
app.command("demo")(demo.command)
app.command("doctor")(doctor.command)
app.command("evaluate", cls=ListOptions)(evaluate.command)
app.command("export")(export.command)
app.command("fuse-weights")(fuse_weights.command)
app.command("import-weights")(import_weights.command)
app.command("merge")(merge.command)
app.command("models")(models.command)
app.command("phantom")(phantom.command)
app.command("predict")(predict.command)
app.command("prepare", cls=ListOptions)(prepare.command)
app.command("report")(report.command)
app.command("split")(split.command)
app.command("runs")(runs.command)
app.command("train")(train.command)
app.add_typer(data.app, name="data")


def main() -> NoReturn:
    run(app)


def run(app: typer.Typer) -> NoReturn:
    """Run a command line; every failure is one line on stderr and a number from `Exit`."""
    # A name that the terminal's encoding cannot show is shown escaped.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # Taken wherever it stands: whoever asks for it has just typed the rest of the line.
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        result = app(arguments, standalone_mode=False)
    except typer.TyperException as error:
        sys.exit(_usage(error))
    except typer.Abort:
        sys.exit(_say("interrupted", Exit.INTERRUPTED))
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        sys.exit(_failure(error))
    if result == _TYPER_INTERRUPTED:
        sys.exit(_say("interrupted", Exit.INTERRUPTED))
    sys.exit(result if isinstance(result, int) else Exit.OK)


# What typer's non-standalone mode returns after Ctrl-C.
_TYPER_INTERRUPTED = 130


def _usage(error: typer.TyperException) -> Exit:
    """Say what is wrong and where help is; a bare `trinat` has shown its help already."""
    message = error.format_message().strip().rstrip(".")
    if not message:
        return Exit.USAGE
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "trinat"
    return _say(f"{message}: see {command} --help", Exit.USAGE)


def _failure(error: Exception) -> Exit:
    """Say in one line what ended a command."""
    if isinstance(error, TrinatError):
        return _say(str(error), exit_code(error))
    told = reason_of(error)
    report = "; report what --debug prints" if told.endswith("a fault of trinat") else ""
    return _say(f"{told}{report}", Exit.ALL_FAILED)


def _say(message: str, code: Exit) -> Exit:
    print(f"trinat: {one_line(message)}", file=sys.stderr)
    return code
