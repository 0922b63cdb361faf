"""The command line: one line on stderr and the right exit status for every failure."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from trinat.pipelines.cli import app, run
from trinat.pipelines.cli.options import say_next
from trinat.pipelines.common.exits import Exit, batch_exit, exit_code
from trinat.segmentation import errors


class Ended(NamedTuple):
    returncode: object
    stdout: str
    stderr: str


Trinat = Callable[..., Ended]


@pytest.fixture
def trinat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Trinat:
    """Return a function that runs a command line in the process of the test."""

    def call(*arguments: str, app: Any = app) -> Ended:
        monkeypatch.setattr(sys, "argv", ["trinat", *arguments])
        with pytest.raises(SystemExit) as ended:
            run(app)
        return Ended(ended.value.code, *capsys.readouterr())

    return call


def raising(error: Exception) -> typer.Typer:
    """Return an app whose only command raises an error."""
    app = typer.Typer()

    @app.command()
    def only() -> None:
        raise error

    return app


def command(
    line: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Return a command line whose only command is this line of Python."""
    code = (
        "import typer\nfrom trinat.pipelines.cli import run\n"
        "app = typer.Typer(pretty_exceptions_enable=False)\n"
        f"@app.command()\ndef only():\n    {line}\nrun(app)"
    )
    return python(code, *arguments, **environment)


def python(
    code: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_an_unknown_command_is_one_line_and_a_usage_error(trinat: Trinat) -> None:
    done = trinat("segmnt")
    assert done.returncode == Exit.USAGE
    assert done.stderr.startswith("trinat: No such command 'segmnt': see ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "", "--out", "out"],
        ["predict", "a.nii", "--out", ""],
        ["predict", "a.nii", "--out="],
        ["predict", "a.nii", "--out", "out", "--model", ""],
    ],
)
def test_an_empty_argument_is_refused(trinat: Trinat, words: list[str]) -> None:
    # Without the commands themselves.
    assert trinat(*words, app=lambda *_, **__: Exit.OK).returncode == Exit.USAGE


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--out", "o"], "INPUTS are missing"),
        (["a.nii", "--store", "s", "--out", "o"], "INPUTS and --store"),
    ],
)
def test_predict_takes_inputs_or_a_store(words: list[str], what: str) -> None:
    with pytest.raises(errors.ConfigError) as refused:
        CliRunner().invoke(app, ["predict", *words], catch_exceptions=False)
    assert refused.value.what.startswith(what)


def test_a_choice_that_there_is_not_is_named_without_the_words_of_a_library(
    trinat: Trinat,
) -> None:
    done = trinat("labels", "--format", "pdf")
    assert done.returncode == Exit.USAGE
    assert done.stderr.startswith(
        "trinat: Invalid value for '--format': 'pdf' is not one of 'freesurfer', "
    )


def test_no_arguments_show_the_help_and_fail(trinat: Trinat) -> None:
    done = trinat()
    assert done.returncode == Exit.USAGE
    assert "Usage" in done.stdout


def test_helps_fit_a_terminal_of_80_columns_and_lose_no_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    whole = get_command(app)
    commands = dict(whole.commands)  # type: ignore[attr-defined]
    commands.update(commands["data"].commands)
    for name, command in [("trinat", whole), *commands.items()]:
        context = command.make_context(name, [], resilient_parsing=True)
        lines = command.get_help(context).splitlines()
        assert max(map(len, lines)) <= 80, name
        words = " ".join(line.strip() for line in lines)
        assert "bool" not in words
        for parameter in command.params:
            of_parameter = getattr(parameter, "help", None) or ""
            assert " ".join(of_parameter.split()) in words, (name, parameter.name)


def test_the_list_of_commands_has_groups_and_whole_sentences(
    trinat: Trinat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    printed = trinat("--help").stdout
    train = (
        "Train:\n"
        "  train  Train one network per view from a recipe; a run can be resumed at any\n"
        "         point.\n"
        "  runs   "
    )
    assert train in printed
    assert "..." not in printed.split("[ARGS]...")[1]


def test_short_names_of_options_are_the_same_everywhere(trinat: Trinat) -> None:
    commands = dict(get_command(app).commands)  # type: ignore[attr-defined]
    several = [*commands.pop("data").commands.values(), *commands.values()]
    assert len(several) == 27
    for one in several:
        options = {option: given.opts for given in one.params for option in given.opts}
        assert "-o" in options.get("--out", ["-o"]), one.name
        assert "-q" in options.get("--quiet", ["-q"]), one.name
        assert "-j" in options.get("--jobs", ["-j"]), one.name
    for arguments in (["-h"], ["predict", "-h"], ["data", "get", "-h"]):
        assert "Usage: " in trinat(*arguments).stdout


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.ConfigError("x"), 2),
        (errors.FormatError("x"), 4),
        (errors.LockedError("x"), 5),
        (errors.IntegrityError("x"), 6),
        (errors.InterruptedRunError("x"), 75),
    ],
)
def test_each_kind_of_error_has_its_status(
    error: errors.TrinatError, status: int
) -> None:
    assert exit_code(error) == status


@pytest.mark.parametrize(
    ("done", "failed", "status"), [(3, 0, 0), (0, 0, 0), (2, 1, 3), (0, 2, 4)]
)
def test_a_batch_tells_some_failures_from_all(
    done: int, failed: int, status: int
) -> None:
    assert batch_exit(done=done, failed=failed) == status


def test_an_error_names_file_problem_and_remedy_in_one_line() -> None:
    error = errors.FormatError(
        "is 4D\nreally", where=Path("a\nb.nii"), remedy="give one volume"
    )
    assert str(error) == "a\\nb.nii: is 4D\\nreally: give one volume"


def test_an_error_survives_pickling_whole() -> None:
    import pickle

    error = errors.GeometryError("sheared", where="a.nii", remedy="mend it")
    error.add_note("its traceback")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is errors.GeometryError
    assert str(again) == "a.nii: sheared: mend it"
    assert again.__notes__ == ["its traceback"]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            OSError(13, "Permission denied", "a\nb"),
            "a\\nb: Permission denied: check path and",
        ),
        (
            OSError(28, "No space left on device", "a"),
            "a: No space left on device: free some",
        ),
        (MemoryError(), "out of memory: close other programs"),
        (
            ModuleNotFoundError("No module named x"),
            "No module named x: trinat doctor shows",
        ),
        (ValueError("three\nlines\nlong"), "ValueError: three: a fault of trinat"),
    ],
)
def test_whatever_ends_a_command_is_one_line(
    trinat: Trinat, error: Exception, line: str
) -> None:
    done = trinat(app=raising(error))
    assert done.stderr.startswith(f"trinat: {line}")
    assert done.stderr.count("\n") == 1
    assert done.returncode == Exit.ALL_FAILED


def test_debug_shows_the_traceback_wherever_it_stands(trinat: Trinat) -> None:
    with pytest.raises(ValueError, match="odd"):
        trinat("--debug", app=raising(ValueError("odd")))
    assert trinat("phantom", "--debug", "--help").returncode == Exit.OK
    assert trinat("--debug", "phantom", "--help").returncode == Exit.OK


def test_a_name_that_the_terminal_cannot_show_is_escaped() -> None:
    done = command("typer.echo('a\\udcff')", PYTHONIOENCODING="utf-8:strict")
    assert (done.stdout, done.stderr) == ("a\\udcff\n", "")


def test_a_command_goes_on_when_nobody_reads_its_output() -> None:
    closed = "r, w = os.pipe(); os.close(r); os.dup2(w, 1); os.dup2(w, 2)"
    said = "typer.echo('a'); typer.echo('b', err=True); print('c', flush=True)"
    assert command(f"import os; {closed}; {said}; return 7").returncode == 7


def test_a_shell_is_told_what_completes_a_word() -> None:
    words = {
        "_TRINAT_COMPLETE": "complete_bash",
        "COMP_WORDS": "trinat pre",
        "COMP_CWORD": "1",
    }
    code = "import sys; sys.argv = ['trinat']; from trinat.pipelines.cli import main; main()"
    assert python(code, **words).stdout.split() == ["predict", "prepare"]


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        (
            "TRINAT_DEVICE",
            "gpu",
            "trinat: --device or TRINAT_DEVICE: unknown device gpu: ",
        ),
        (
            "TRINAT_THREADS",
            "x",
            "trinat: Invalid value for '--threads' (env var: 'TRINAT_THREADS')",
        ),
    ],
)
def test_a_cluster_sets_device_and_threads(
    trinat: Trinat,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    said: str,
) -> None:
    monkeypatch.setenv(variable, value)
    done = trinat("predict", "no.nii.gz", "--out", "out")
    assert done.returncode == Exit.USAGE
    assert done.stderr.startswith(said)


def test_a_cluster_sets_the_device_of_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINAT_DEVICE", "gpu")
    words = ["train", "smoke", "--out", str(tmp_path / "run")]
    with pytest.raises(errors.DeviceError):
        CliRunner().invoke(app, words, catch_exceptions=False)


@pytest.mark.parametrize("own", [None, "ACTIVE"])
def test_waiting_threads_leave_processors_to_others_unless_the_user_chose(
    own: str | None,
) -> None:
    # libgomp reads it once, when torch is imported.
    code = """
        import atexit, os, sys
        from trinat.pipelines.cli import main
        atexit.register(lambda: print("torch" in sys.modules, os.environ["OMP_WAIT_POLICY"]))
        main()
    """
    result = python(
        dedent(code), "--version", **{"OMP_WAIT_POLICY": own} if own else {}
    )
    assert result.stdout.splitlines()[-1] == f"False {own or 'PASSIVE'}"


def test_the_next_command_is_one_that_the_shell_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    script = tmp_path / ".venv/bin/trinat"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(script), "demo"])
    monkeypatch.setenv("PATH", "/usr/bin")
    say_next("predict", "my scan.nii.gz")
    assert (
        capsys.readouterr().out == "next: .venv/bin/trinat predict 'my scan.nii.gz'\n"
    )
    monkeypatch.setenv("PATH", str(script.parent))
    say_next("doctor")
    assert capsys.readouterr().out == "next: trinat doctor\n"
