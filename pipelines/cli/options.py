"""Options shared by several commands, with the same meaning and help text."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.common.option import Option
from trinat.pipelines.predict.settings import FILES
from trinat.segmentation.errors import ConfigError

if TYPE_CHECKING:
    from trinat.pipelines.predict.recorder import Outcome
    from trinat.pipelines.predict.settings import PredictRequest

HELP = {"help_option_names": ["-h", "--help"]}
# Maximum length of a command's help in the list of commands, in characters.
_UNCUT = 1000


def show_version(wanted: bool) -> None:
    """Print the version and exit, if `wanted`."""
    if wanted:
        from importlib.metadata import version

        typer.echo(f"trinat {version('trinat')}")
        raise typer.Exit


# Version of trinat; comes before the command's name.

Version = Annotated[
    bool,
    typer.Option(
        "--version",
        callback=show_version,
        is_eager=True,
        help="Print the version and exit.",
    ),
]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug", help="Show the traceback of an error; accepted anywhere in the line."
    ),
]

# Shared by several commands.

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print results and failures only.")
]
Timings = Annotated[
    bool, typer.Option("--timings", help="Print where wall and processor time went.")
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Replace files that trinat did not write, or that were changed since.",
    ),
]


@dataclass(frozen=True)
class OfStore:
    """Options that select scans of a slice store, in place of files."""

    store: Annotated[
        Path | None,
        Option("Slice store with a split: sets label scheme, views and files."),
    ] = None
    part: Annotated[
        Literal["train", "validation", "test"],
        Option("Part of the split of --store."),
    ] = "test"
    folds: Annotated[
        bool,
        Option(
            "Cross-validation: all splits that trinat split --kfold made, one after the other.",
        ),
    ] = False


@dataclass(frozen=True)
class LeftOut:
    """Options that say which quality grades are excluded from the statistics of a group."""

    include_rejected: Annotated[
        bool,
        Option(
            "Take results of the grade reject into group means, tests and changes, which leave "
            "them out by default.",
        ),
    ] = False
    exclude: Annotated[
        Literal["look"] | None,
        Option("Leave out results of the grade look, too."),
    ] = None

    def grades(self) -> tuple[str, ...]:
        """Return the quality grades to exclude, such as ("reject",); () for none.

        Raises ConfigError if both options are given.
        """
        from trinat.pipelines.study.record import EXCLUDED_GRADES

        if self.include_rejected and self.exclude is not None:
            raise ConfigError(
                f"--include-rejected and --exclude {self.exclude} contradict each other",
                remedy="leave one of them out",
            )
        if self.include_rejected:
            return ()
        if self.exclude is not None:
            return (*EXCLUDED_GRADES, self.exclude)
        return EXCLUDED_GRADES


@dataclass(frozen=True)
class ComparedWith:
    """Option for a table of norms (centiles by age and sex), shown beside the volumes of a scan."""

    reference: Annotated[
        Path | None,
        Option(
            "Table of `trinat norms`, for percentiles on the pages.",
            is_file=True,
            panel=FILES,
        ),
    ] = None

    def apply_to(self, request: PredictRequest) -> PredictRequest:
        """Return the request with the norms of the table; unchanged if no table is given.

        Raises ConfigError for norms of another model.
        """
        if self.reference is None:
            return request
        from trinat.pipelines.evaluate.norms_table import read_norms, refuse_other_model
        from trinat.segmentation.io.files import sha256_of
        from trinat.segmentation.models.zoo import MODEL_FILE, find_model, read_scheme

        model = find_model(request.model)
        norms = read_norms(self.reference, read_scheme(model))
        refuse_other_model(norms, self.reference, [sha256_of(model / MODEL_FILE)])
        return replace(request, output=replace(request.output, reference=norms))


def say_next(*words: str | Path) -> None:
    """Print the next command, ready to be copied."""
    line = shlex.join([program_name(), *(str(word) for word in words)])
    typer.echo(f"next: {line}")


def program_name() -> str:
    """Return how to call `trinat` in this shell: its name, or its path if the name is not found."""
    own = Path(sys.argv[0])
    found = shutil.which("trinat")
    if own.name != "trinat" or not own.is_file():
        return "trinat"
    if found is not None and own.samefile(found):
        return "trinat"
    return os.path.relpath(own.resolve())


def say_merged(outcome: Outcome, out: Path) -> None:
    """Print how many scans are done and failed in a merged folder, and the path of its page."""
    typer.echo(f"{outcome.done} done, {outcome.failed} failed: {out / 'report.html'}")


class Group(TyperGroup):
    """Group of commands by purpose, each with the untruncated first sentence of its help.

    Rich's panels leave only sixteen characters for the help in a terminal with 80 columns.
    """

    # Typer keeps the classes of contexts and formatters private.
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse a command line; without any arguments print the help and exit with status 2."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            raise typer.Exit(Exit.USAGE)
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section per panel, in the order of the commands."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            panel = getattr(command, "rich_help_panel", None) or "Commands"
            row = (name, command.get_short_help_str(_UNCUT))
            sections.setdefault(panel, []).append(row)
        for panel, rows in sections.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


class Command(TyperCommand):
    """Command whose help groups options by panel."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write one section per panel; options without a panel come first."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            panel = getattr(parameter, "rich_help_panel", None)
            if parameter.param_type_name == "argument":
                panel = panel or "Arguments"
            sections.setdefault(panel or "Options", []).append(record)
        for panel in sorted(sections, key=lambda name: name != "Arguments"):
            with formatter.section(panel):
                formatter.write_dl(sections[panel])


class ListOptions(Command):
    """Command whose options accept several values in a row: `--views coronal axial`.

    `--views` twice works as well. For commands whose list options are not followed by positional
    arguments.
    """

    # Typer keeps the class of `ctx` private.
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse a command line in which the values of a list option follow its name in a row.

        The name of the option is repeated before each further value, as typer requires it.
        """
        several: set[str] = set()
        for parameter in self.params:
            if getattr(parameter, "multiple", False):
                several.update(parameter.opts)
        spread: list[str] = []
        current = ""
        for word in args:
            is_option = word.startswith("-") and not word.lstrip("-").isdigit()
            if is_option:
                current = word if word in several else ""
            elif current and spread[-1] != current:
                spread.append(current)
            spread.append(word)
        return super().parse_args(ctx, spread)
