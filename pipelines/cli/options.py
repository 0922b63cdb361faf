"""Options that several commands share, with one meaning and one help text each."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from trinat.pipelines.predict.outcome import Outcome

HELP = {"help_option_names": ["-h", "--help"]}


def show_version(wanted: bool) -> None:
    """Print the version and exit, if that is wanted."""
    if wanted:
        from importlib.metadata import version

        typer.echo(f"trinat {version('trinat')}")
        raise typer.Exit


# Of trinat itself, before the command's name.

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
LogLevel = Annotated[
    Literal["quiet", "normal", "debug"],
    typer.Option(
        help="quiet: --quiet, for every command that has it; debug: --debug; anywhere in the line."
    ),
]

# Of several commands.

Device = Annotated[
    str, typer.Option(envvar="TRINAT_DEVICE", help="auto, cpu, cuda or cuda:1.")
]
FillNonfinite = Annotated[
    bool, typer.Option("--fill-nonfinite", help="Replace NaN and infinite voxels by 0.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Model = Annotated[
    str,
    typer.Option(
        help="Name of a shipped model (see trinat models), or a model folder. "
        "Default: quicknat on GPUs once it is shipped, otherwise fast."
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print results and failures only.")
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Stop if anything in a table of persons is not understood (`trinat people TABLE`).",
    ),
]
Timings = Annotated[
    bool, typer.Option("--timings", help="Print where wall and processor time went.")
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, envvar="TRINAT_THREADS", help="Number of CPU threads."),
]
TrustAffine = Annotated[
    Literal["sform", "qform", "header"] | None,
    typer.Option(help="Affine to use if the header's two forms disagree."),
]
StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        help="Slice store with a split: sets label scheme, views and files.",
    ),
]
Folds = Annotated[
    bool,
    typer.Option(
        "--folds",
        help="Cross-validation: all splits that trinat split --kfold made, one after the other.",
    ),
]
Part = Annotated[
    Literal["train", "validation", "test"],
    typer.Option("--part", help="Part of the split of --store."),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Replace files that trinat did not write; keep a copy (.bak).",
    ),
]
Uncertainty = Annotated[
    int,
    typer.Option(
        "--uncertainty",
        min=0,
        help="Number of dropout samples to estimate uncertainty from.",
    ),
]
Stats = Annotated[bool, typer.Option("--stats", help="Write aseg.stats for each scan.")]
Entropy = Annotated[bool, typer.Option("--entropy", help="Write entropy maps.")]
Probabilities = Annotated[
    bool, typer.Option("--probabilities", help="Write probability maps.")
]
BrainMask = Annotated[
    bool, typer.Option(help="Write a mask of what lies inside the skull.")
]
Longitudinal = Annotated[
    bool,
    typer.Option(
        "--longitudinal",
        help="Segment the scans of each person together; write changes.tsv and changes.html.",
    ),
]
IncludeRejected = Annotated[
    bool,
    typer.Option(
        "--include-rejected",
        help="Take results of the grade reject into group means, tests and changes, which leave "
        "them out by default.",
    ),
]
Exclude = Annotated[
    Literal["look"] | None,
    typer.Option(
        "--exclude",
        help="Leave out results of the grade look, too.",
    ),
]
Suffix = Annotated[
    str,
    typer.Option(
        help="Suffix of the scans to take of a BIDS dataset, such as T2w, FLAIR or PDw. Scans "
        "other than T1w need a model such as any."
    ),
]
Out = Annotated[Path, typer.Option("--out", "-o", help="Output folder.")]
Workers = Annotated[
    int, typer.Option(min=1, help="Number of processes; each loads the model.")
]
ModelOut = Annotated[Path, typer.Option("--out", "-o", help="Model folder to write.")]
OverwriteModel = Annotated[
    bool, typer.Option("--overwrite", help="Replace the model in --out.")
]


def say_next(*words: str | Path) -> None:
    """Print the command that goes on from here, ready to be typed."""
    line = shlex.join([called_as(), *(str(word) for word in words)])
    typer.echo(f"next: {line}")


def called_as() -> str:
    """What to type for `trinat` in this shell: its path, if the shell does not find its name."""
    own = Path(sys.argv[0])
    found = shutil.which("trinat")
    if own.name != "trinat" or not own.is_file():
        return "trinat"
    if found is not None and own.samefile(found):
        return "trinat"
    return os.path.relpath(own.resolve())


def say_merged(outcome: Outcome, out: Path) -> None:
    """Print what a merged folder holds, and where its page is."""
    typer.echo(f"{outcome.done} done, {outcome.failed} failed: {out / 'report.html'}")


def say_nothing(line: str) -> None:
    """What shows the progress of a quiet command."""


class ListOptions(TyperCommand):
    """Takes several values in a row, `--views coronal axial`, as well as `--views` twice.

    For commands whose list options are followed by no positional argument.
    """

    # `ctx` is of a class that typer keeps private.
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the name of a list option before each further value, and parse that."""
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
