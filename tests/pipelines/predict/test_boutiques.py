"""The Boutiques descriptor of trinat-bids has the arguments and options of the command."""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer

from trinat.pipelines.cli.bids import command
from trinat.pipelines.cli.options import HELP, ListOptions

FILE = Path(__file__).parents[3] / "containers/trinat-bids.boutiques.json"
# Options that a platform does not need.
LEFT_OUT = {"--version", "--skip_bids_validation"}


@pytest.fixture(scope="module")
def descriptor() -> dict[str, Any]:
    return json.loads(FILE.read_text())


def parameters() -> list[Any]:
    app = typer.Typer(add_completion=False)
    app.command(cls=ListOptions, context_settings=HELP)(command)
    return typer.main.get_command(app).params


def _said(option: Any) -> str:
    """Return the option to type; for a switch that is on by default, the name that turns it off."""
    if option.default is True:
        return option.secondary_opts[0]
    return option.opts[0]


def test_options_are_those_of_the_command(descriptor: dict[str, Any]) -> None:
    told = {
        each["command-line-flag"]: each
        for each in descriptor["inputs"]
        if "command-line-flag" in each
    }
    options = {_said(p): p for p in parameters() if p.param_type_name == "option"}
    assert set(told) == set(options) - LEFT_OUT
    for name, each in told.items():
        option = options[name]
        assert (each["type"] == "Flag") == bool(option.is_flag), name


def test_arguments_stand_first_in_their_order(descriptor: dict[str, Any]) -> None:
    keys = re.findall(r"\[\w+\]", descriptor["command-line"])
    assert keys == [each["value-key"] for each in descriptor["inputs"]]
    names = [p.name for p in parameters() if p.param_type_name == "argument"]
    assert [each["id"] for each in descriptor["inputs"][:3]] == names
    assert descriptor["tool-version"] == version("trinat")
