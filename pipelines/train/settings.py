"""Settings of `trinat train`, besides recipe and store; its options are these fields."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from trinat.pipelines.common.option import Option, as_tuple
from trinat.segmentation.errors import ConfigError


@dataclass(frozen=True)
class TrainSettings:
    """Settings of a training besides the recipe and the store.

    - `view` is one of the recipe's views, or "all". `fold` is the number of the only fold of the
      store's cross-validation to train; None if no single fold was named.
    - `start` (a model) and `overrides` (such as "stages.0.batch=4") change the recipe. `out` is the
      folder of the run.
    - `seconds` is a limit of wall-clock time, in place of the recipe's steps or epochs.
    """

    view: Annotated[
        str,
        Option(
            "View to train, or all views of the recipe.",
            typed=Literal["coronal", "axial", "sagittal", "all"],
        ),
    ] = "all"
    fold: Annotated[
        int | None,
        Option(
            "One fold of the cross-validation, as one job of several; with --view one view of "
            "it.",
            min=0,
        ),
    ] = None
    start: Annotated[
        str | None,
        Option("Model to start from: name of a shipped model, or a folder."),
    ] = None
    overrides: Annotated[
        tuple[str, ...],
        Option(
            "Override a recipe setting, such as stages.0.batch=4; repeatable.",
            names=("--set",),
            typed=list[str] | None,
            parse=as_tuple,
        ),
    ] = ()
    out: Annotated[
        Path | None, Option("Run folder. Default: runs/NAME.", names=("--out", "-o"))
    ] = None
    resume: Annotated[bool, Option("Continue the run in --out.")] = False
    device: Annotated[
        str, Option("auto, cpu, cuda, cuda:1 or mps.", envvar="TRINAT_DEVICE")
    ] = "auto"
    seconds: Annotated[
        float | None,
        Option(
            "Train for this wall time instead of the recipe's steps or epochs; "
            "with --resume, for the rest of the schedule.",
            min=1,
        ),
    ] = None

    def __post_init__(self) -> None:
        """Raise ConfigError for a time limit that is NaN or infinite."""
        if self.seconds is not None and not math.isfinite(self.seconds):
            raise ConfigError(
                f"{self.seconds} seconds is not a time limit",
                remedy="give a finite number",
            )
