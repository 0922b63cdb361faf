"""What a field of settings says of itself, so that a command line can be made of it.

    mirror: Annotated[bool, Option("Average with the prediction of the mirrored scan.")] = False

This is the one place where an option is declared: its type, its help and its default. Imports
nothing heavy, since worker processes read settings, too.
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
    """How a field is asked for on a command line.

    - `names` is what is typed for it; by default its own name, and for a switch that is on the
      opposite, too. With `is_argument` it has a place and no name.
    - `typed` is the type of what is typed, where it is another than the field's, and `default` what
      stands for nothing typed; `parse` makes the field's value of it.
    - `min` to `is_file` limit what can be typed. `panel` is the part of the help it stands in.
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


# Options of several commands, with one meaning and one help text each.

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
        "Stop if anything in a table of persons is not understood (`trinat people TABLE`)."
    ),
]
ModelOut = Annotated[Path, Option("Model folder to write.", names=("--out", "-o"))]
OverwriteModel = Annotated[bool, Option("Replace the model in --out.")]


def as_tuple(typed: Iterable[str] | None) -> tuple[str, ...]:
    """The words that were typed for an option that takes several; none where it was not typed."""
    return tuple(typed or ())


def split_devices(text: str) -> tuple[str, ...]:
    """The device names of "cuda:0,cuda:1", or of its short form "cuda:0,1"."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise ConfigError("--device is empty", remedy="give auto, cpu or cuda:0")
    kind = words[0].partition(":")[0]
    names = []
    for word in words:
        name = f"{kind}:{word}" if word.isdecimal() else word
        if not _DEVICE.fullmatch(name):
            what = f"--device {text}: unknown device {name}"
            raise ConfigError(what, remedy="give auto, cpu, cuda or cuda:0,1")
        names.append(name)
    return tuple(names)
