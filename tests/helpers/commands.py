"""The command line in the process of the test, which saves starting Python and importing torch."""

from __future__ import annotations

from typer.testing import CliRunner

from trinat.pipelines.cli import app
from trinat.pipelines.common.exits import Exit


def trinat(*words: object) -> str:
    """Run a command and return its output; its errors are raised."""
    result = CliRunner().invoke(
        app, [str(word) for word in words], standalone_mode=False
    )
    if result.exception is not None:
        raise result.exception
    assert result.return_value in (None, Exit.OK), result.output
    return result.output
