"""Annotations of settings fields, from which command-line options are made.

    mirror: Annotated[bool, Option("Average with the prediction of the mirrored scan.")] = False

An option is declared here only: its type, its help and its default. The module imports nothing
heavy, since worker processes read settings, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from trinat.segmentation.errors import ConfigError

_DEVICE = re.compile(r"auto|cpu|mps|cuda(:[0-9]+)?")


@dataclass(frozen=True)
class Option:
    """Command-line option that is made from a field of a settings class.

    - `help` is the help text.
    - `names` are the option's names; by default the field's own name and, for a switch that is on
      by default, its opposite. With `is_argument` it is a positional argument.
    - `typed` is the type on the command line if it differs from the field's, and `default` the
      value if the option is absent. `parse` converts what was typed to the field's value.
    - `min`, `max` and `is_file` restrict the input. `metavar` is the placeholder in the help text,
      `envvar` an environment variable for the default, and `panel` the section of the help text.
    """

    help: str
    names: tuple[str, ...] = ()
    is_argument: bool = False
    typed: Any = None
    default: Any = None
    parse: Callable[[Any], Any] | None = None
    min: float | None = None
    max: float | None = None
    is_file: bool = False
    metavar: str | None = None
    envvar: str | None = None
    panel: str | None = None


# Options shared by several commands, with the same meaning and help text.

Device = Annotated[str, Option("auto, cpu, cuda or cuda:1.", envvar="TRINAT_DEVICE")]
Threads = Annotated[
    int | None, Option("Number of CPU threads.", min=1, envvar="TRINAT_THREADS")
]
TrustAffine = Annotated[
    Literal["sform", "qform", "header"] | None,
    Option("Affine to use if the header's two forms disagree."),
]
Strict = Annotated[
    bool,
    Option(
        "Stop if anything in a participants table is not understood (`trinat participants TABLE`)."
    ),
]
ModelOut = Annotated[Path, Option("Model folder to write.", names=("--out", "-o"))]
OverwriteModel = Annotated[bool, Option("Replace the model in --out.")]


def as_tuple(typed: Iterable[str] | None) -> tuple[str, ...]:
    """Return the values of an option that takes several; empty if the option is absent."""
    return tuple(typed or ())


def split_devices(text: str) -> tuple[str, ...]:
    """Split the text of --device into names of devices: cuda:0 and cuda:1 for "cuda:0,1".

    Raises ConfigError for an unknown device.
    """
    where = "--device or TRINAT_DEVICE"
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise ConfigError("is empty", where=where, remedy="give auto, cpu or cuda:0")
    kind = words[0].partition(":")[0]
    names = []
    for word in words:
        name = f"{kind}:{word}" if word.isdecimal() else word
        if not _DEVICE.fullmatch(name):
            of_several = f" in {text}" if len(words) > 1 else ""
            raise ConfigError(
                f"unknown device {name}{of_several}",
                where=where,
                remedy="give auto, cpu, cuda or cuda:0,1",
            )
        names.append(name)
    return tuple(names)
