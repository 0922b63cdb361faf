"""Commands whose options are the fields of settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from trinat.pipelines.cli.fields import Only, with_fields
from trinat.pipelines.common.option import Option, as_tuple


@dataclass(frozen=True)
class Inner:
    mirror: Annotated[bool, Option("Average with the mirrored scan.")] = False
    picture: Annotated[bool, Option("Write a picture.")] = True
    ranges: tuple[float, ...] = (1.0,)


@dataclass(frozen=True)
class Outer:
    inputs: Annotated[
        tuple[str, ...],
        Option("Scans.", is_argument=True, typed=list[str] | None, parse=as_tuple),
    ]
    out: Annotated[Path, Option("Output folder.", names=("--out", "-o"))]
    workers: Annotated[int, Option("Number of processes.", min=1)] = 1
    inner: Inner = field(default_factory=Inner)


def called(command: Callable[..., Any] | None, line: str) -> Any:
    """Return the arguments with which a line calls a command.

    Fail with the error of a refused line.
    """
    heard: list[Any] = []

    @with_fields
    def hears(asked: Outer, quiet: bool = False) -> None:
        heard.extend([asked, quiet])

    app = typer.Typer()
    app.command()(hears if command is None else command(heard))
    result = CliRunner().invoke(app, line.split())
    assert result.exit_code == 0, result.output
    return heard


def test_fields_become_options_and_what_is_typed_settings() -> None:
    asked, quiet = called(None, "a.nii b.nii -o out --mirror --workers 2 --quiet")
    assert asked == Outer(("a.nii", "b.nii"), Path("out"), 2, Inner(mirror=True))
    assert quiet


def test_what_is_not_typed_has_the_defaults_of_the_fields() -> None:
    assert called(None, "--out o") == [Outer((), Path("o")), False]


def test_a_switch_that_is_on_has_an_opposite_and_one_that_is_off_none() -> None:
    asked, _ = called(None, "--out o --no-picture")
    assert not asked.inner.picture
    with pytest.raises(AssertionError, match="No such option: --no-mirror"):
        called(None, "--out o --no-mirror")


def test_limits_and_needs_of_fields_are_those_of_options() -> None:
    with pytest.raises(AssertionError, match="greater than or equal to 1"):
        called(None, "--out o --workers 0")
    with pytest.raises(AssertionError, match="Missing option '--out'"):
        called(None, "a.nii")


def test_a_command_may_have_some_fields_alone_under_other_names() -> None:
    def command(heard: list[Any]) -> Callable[..., None]:
        @with_fields
        def some(
            folder: Path,
            asked: Annotated[
                Callable[..., Outer], Only(Outer, "mirror", workers=("--n_cpus",))
            ],
        ) -> None:
            heard.append(asked(inputs=(), out=folder))

        return some

    (made,) = called(command, "here --mirror --n_cpus 3")
    assert made == Outer((), Path("here"), 3, Inner(mirror=True))
    with pytest.raises(AssertionError, match="No such option: --picture"):
        called(command, "here --picture")


def test_a_parameter_may_be_an_option_by_itself() -> None:
    def command(heard: list[Any]) -> Callable[..., Any]:
        @with_fields
        def hears(
            asked: Inner,
            threads: Annotated[int | None, Option("Threads.", min=1)] = None,
        ) -> None:
            heard.extend([asked, threads])

        return hears

    assert called(command, "--threads 3") == [Inner(), 3]
    assert called(command, "") == [Inner(), None]
