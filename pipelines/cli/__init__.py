"""The `trinat` command: one module per task, and a single place that turns errors into exit codes.

Modules here import only what is light; each command imports its implementation, so that
`trinat --help` does not wait for torch.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import typer

from trinat.pipelines.cli import (
    data,
    evaluate,
    models,
    options,
    predict,
    serve,
    train,
)
from trinat.pipelines.cli.options import HELP, Command, Group, Json, ListOptions
from trinat.pipelines.common.exits import Exit, exit_code
from trinat.segmentation.errors import ConfigError, TrinatError, one_line, reason_of

app = typer.Typer(
    name="trinat",
    help="Segment the human brain in T1-weighted MRI. For research, not for diagnosis.",
    context_settings=HELP,
    pretty_exceptions_enable=False,
    cls=Group,
    rich_markup_mode=None,
)


@app.callback()
def _root(
    version: options.Version = False,
    debug: options.Debug = False,
) -> None:
    pass


def doctor(json_: Json = False) -> int:
    """Print Python, torch, GPU, memory and packages, and any problem with them.

    Example: trinat doctor
    """
    from trinat.pipelines.doctor import diagnose

    return diagnose(as_json=json_)


# Commands by purpose, in the order of the help.
_PANELS = {
    "Segment": (
        predict.predict,
        predict.merge,
        serve.view,
        serve.serve_,
        serve.web,
        predict.demo,
    ),
    "Evaluate and report": (
        evaluate.evaluate,
        evaluate.report,
        evaluate.norms,
        evaluate.participants,
    ),
    "Data": (data.prepare, data.suspects, data.split, data.phantom, models.labels),
    "Train": (train.train, train.runs, train.learn),
    "Models": (
        models.models,
        models.bundle,
        models.fit,
        models.export,
        models.import_weights,
    ),
    "Installation": (doctor,),
}
# Commands whose options take several values in a row.
_WITH_LISTS = (evaluate.evaluate, data.prepare)
for _panel, _commands in _PANELS.items():
    for _command in _commands:
        app.command(
            _command.__name__.strip("_").replace("_", "-"),
            cls=ListOptions if _command in _WITH_LISTS else Command,
            rich_help_panel=_panel,
        )(_command)
app.add_typer(data.app, name="data", rich_help_panel="Data")


def main() -> NoReturn:
    """Run the command `trinat`."""
    run(app)


def run(app: typer.Typer) -> NoReturn:
    """Run a command line; every failure is one line on stderr and an exit status of `Exit`."""
    # Must be set before torch is imported. Threads that wait for each other by spinning take
    # processors from the threads they wait for: 13 times slower if other work runs
    # (docs/notes/speed.md).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _open_closed_streams()
    _outlive_readers()
    # Escape characters that the terminal's encoding cannot represent.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    words = sys.argv[1:]
    # --debug may appear anywhere: usually it is appended to a line that was just typed.
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        _refuse_empty(words)
        name = Path(sys.argv[0]).stem
        if name == "__main__":
            name = "trinat"  # python -m trinat
        result = app(words, prog_name=name, standalone_mode=False)
    except typer.TyperException as error:
        # Typer prefixes the text of a ValueError as pydantic does.
        message = error.format_message().replace(" Value error,", "")
        message = message.strip().rstrip(".")
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "trinat"
        sys.exit(_say(f"{message}: see {command} --help", Exit.USAGE))
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(_say("interrupted", Exit.INTERRUPTED))
    except Exception as error:
        if debug:
            raise
        if isinstance(error, TrinatError):
            sys.exit(_say(str(error), exit_code(error)))
        reason = reason_of(error)
        if reason.endswith("of trinat"):
            reason += "; please report the output of --debug"
        sys.exit(_say(reason, Exit.ALL_FAILED))
    if result == _TYPER_INTERRUPTED:
        sys.exit(_say("interrupted", Exit.INTERRUPTED))
    sys.exit(result if isinstance(result, int) else Exit.OK)


def _refuse_empty(words: Iterable[str]) -> None:
    """Raise ConfigError for an empty argument, such as `--out ""` or `--out=`.

    It usually comes from an unset variable of the shell, and would name the current folder or
    choose a default.
    """
    remedy = "set the variable of the shell that it comes from, or leave it out"
    before = "trinat"
    for word in words:
        if not word:
            raise ConfigError(f"the argument after {before} is empty", remedy=remedy)
        if re.fullmatch("--[a-z_-]+=", word):
            raise ConfigError(f"{word} is empty", remedy=remedy)
        before = word


def _open_closed_streams() -> None:
    """Open standard streams that are closed, for example by `2>&-`.

    Otherwise messages would go into the first file that is opened.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
            is_closed = getattr(sys, name) is None
        except OSError:
            is_closed = True
        if is_closed:
            descriptor = os.open(os.devnull, os.O_RDWR)
            # Inherited by child processes.
            os.set_inheritable(descriptor, True)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(descriptor, mode))


class _Output(io.FileIO):
    """Standard output stream that discards everything once its reader has ended.

    A long run must not end because nobody reads its messages any more.
    """

    def write(self, content: Any, /) -> int:
        """Write bytes to the stream; after that its descriptor may be that of os.devnull."""
        try:
            return super().write(content)
        except BrokenPipeError:
            with Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), self.fileno())
            return super().write(content)


def _outlive_readers() -> None:
    """Replace stdout and stderr by streams that still work after their readers have ended."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        # Tests may have replaced the stream by one without a descriptor.
        if stream is not getattr(sys, f"__{name}__"):
            continue
        stream.flush()
        raw = _Output(stream.fileno(), "w", closefd=False)
        buffered = io.BufferedWriter(raw)
        replaced = io.TextIOWrapper(
            buffered,
            stream.encoding,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, replaced)


# Return value of typer's non-standalone mode after Ctrl-C.
_TYPER_INTERRUPTED = 130


def _say(message: str, code: Exit) -> Exit:
    """Print a message on stderr and return `code`."""
    typer.echo(f"trinat: {one_line(message)}", err=True)
    return code
