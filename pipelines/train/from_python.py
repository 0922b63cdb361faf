"""`trinat.train`: the command `trinat train` as a Python function."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinat.pipelines.train.log import (
    METRIC_COLUMNS,
    METRICS_FILE,
    SCORE_COLUMNS,
    VALIDATIONS_FILE,
    read_rows,
)
from trinat.pipelines.train.progress import training_progress
from trinat.pipelines.train.result import CONFIG, Job, best_dice
from trinat.pipelines.train.run import (
    adapt_to_store,
    read_recipe,
    train_by_settings,
)
from trinat.pipelines.train.settings import TrainSettings
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.training.config import Recipe

if TYPE_CHECKING:
    import pandas as pd

# Callback that gets the job ("train/coronal"), the step, and the mean Dice on the validation scans.
OnScore = Callable[[str, int, float], None]


@dataclass(frozen=True)
class TrainedRun:
    """Folders of a training run and of its model, with its scores and curves.

    Attributes
    ----------
    out : path
        Folder of the run.
    model : path
        Folder of the trained model.
    """

    out: Path
    model: Path

    @cached_property
    def recipe(self) -> Recipe:
        """All settings of the run, from its config.yaml."""
        return read_recipe(str(self.out / CONFIG))

    @property
    def dice(self) -> float | None:
        """Best mean Dice on the validation scans, averaged over views.

        None if the last stage of a view has no validation.
        """
        return best_dice(self.recipe, self.out)

    @property
    def metrics(self) -> pd.DataFrame:
        """Curves of all jobs: loss, learning rate, gradient norm and slices per second by step.

        The table has a row for a step every few seconds. The column `job` has the name of the job,
        such as train/coronal.
        """
        return self._table(METRICS_FILE, METRIC_COLUMNS)

    @property
    def scores(self) -> pd.DataFrame:
        """Dice and IoU of each structure at each validation of all jobs, a row each.

        Columns: job, step, view, structure, dice, iou.
        """
        return self._table(VALIDATIONS_FILE, SCORE_COLUMNS)

    def _table(self, name: str, columns: Sequence[str]) -> pd.DataFrame:
        """Read one of the tables that each job writes (`name`), for all jobs of the run together.

        The table has these columns also without rows, after the column `job`, which has the names
        of the jobs. Columns other than job, view and structure are numbers.
        """
        import pandas as pd

        rows: list[dict[str, str]] = []
        for path in sorted(self.out.glob(f"*/*/{name}")):
            job = str(path.parent.relative_to(self.out))
            rows += [{"job": job, **row} for row in read_rows(path)]
        table = pd.DataFrame(rows, columns=["job", *columns])
        words = {"job", "view", "structure"}
        for column in set(table.columns) - words:
            table[column] = pd.to_numeric(table[column])
        return table


def as_overrides(settings: Mapping[str, Any]) -> list[str]:
    """Return settings of a recipe as texts for --set, such as "optimiser.rate=0.1".

    `settings` maps keys such as optimiser.rate to values, which are written as JSON. Characters are
    not escaped, because JSON's escapes of those beyond U+FFFF mean something else in YAML. Raises
    ConfigError for a value that no recipe can have.
    """
    overrides = []
    for key, value in settings.items():
        try:
            text = json.dumps(value, default=_plain_value, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{key}: cannot use {type(value).__name__}",
                where="settings",
                remedy="give numbers, texts, paths, lists or dictionaries of them",
            ) from error
        overrides.append(f"{key}={text}")
    return overrides


def _plain_value(value: Any) -> Any:
    """Return a number, text or list for a NumPy or torch value, a member of an enum, or a path."""
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "tolist"):
        return value.tolist()
    return os.fspath(value)


def train(
    recipe: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    store: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    view: str = "all",
    resume: bool = False,
    seconds: float | None = None,
    device: str = "auto",
    progress: bool = True,
    on_score: OnScore | None = None,
) -> TrainedRun:
    """Train the networks of a recipe in this process, as `trinat train` does.

    Parameters
    ----------
    recipe : str or path
        Name of a shipped recipe, or a YAML file.
    out : path, optional
        Folder of the run. Default: runs/NAME.
    store : path, optional
        Slice store with its split.json.
    settings : mapping, optional
        Keys of the recipe and their values: `{"optimiser.rate": 1e-3, "start": "fast"}`. Files and
        folders may be paths, and numbers those of NumPy and torch.
    view : str
        One of the recipe's views, or "all".
    resume : bool
        Continue the run in `out`.
    seconds : float, optional
        Wall-clock limit, instead of the recipe's steps or epochs.
    device : str
        "auto", "cpu", "cuda", "cuda:1" or "mps".
    progress : bool
        Show progress on stderr.
    on_score : callable, optional
        Called with job, step and mean Dice after each validation. An exception that it raises ends
        the training, which can be resumed.

    Returns
    -------
    TrainedRun
        The folders of the run and its model, its best Dice, and tables of its curves.

    Raises
    ------
    ConfigError
        If the recipe or a setting is invalid.
    DatasetError
        If the store or its split cannot be used.
    TrainingError
        If the training cannot continue, such as after many steps without a finite loss.
    LockedError
        If another process trains in the same folder.

    Examples
    --------
    >>> settings = {"schedule.steps": 2, "validation": None}
    >>> run = trinat.train("smoke", "run", settings=settings, progress=False)
    >>> int(run.metrics.step.max())
    2
    """
    if settings is None:
        settings = {}
    if not isinstance(settings, Mapping):
        raise TypeError(
            f"settings are a {type(settings).__name__}: give a dictionary of keys and values"
        )
    root = None if store is None else Path(store)
    whole = read_recipe(os.fspath(recipe), as_overrides(settings), root)
    if root is not None:
        whole = adapt_to_store(whole, root)
    folder = Path("runs") / whole.name if out is None else Path(out)
    asked = TrainSettings(view=view, resume=resume, seconds=seconds, device=device)
    with training_progress(not progress) as watcher:
        if on_score is not None:

            def score(job: Job, step: int, dice: float) -> None:
                on_score(job.name, step, dice)

            watcher = replace(watcher, score=score)
        model = train_by_settings(whole, folder, watcher, asked)
    return TrainedRun(folder, model)
