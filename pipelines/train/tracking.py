"""Curves of a training for services that show them: TensorBoard, Weights & Biases, MLflow.

Each is an adapter of one small interface, `Tracker`, and an extra of the installation. A recipe
names them (`tracking: [wandb]`). What they get is in metrics.csv and validations.csv, too: where a
service fails in the midst of a training, its curves end and the training goes on.

Services may be read by others. They get no folder of this disk, and Weights & Biases does not add
the name of the host, the command line, the repository or what is printed, as it does by default.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from pydantic_core import to_jsonable_python

from trinat.segmentation.errors import ConfigError, InterruptedRunError
from trinat.segmentation.io.files import read_text, write_whole
from trinat.segmentation.training.config import Recipe, Service

# In a job's folder: what its runs are called at the services, so that a resumed one goes on there.
_RUNS = "tracking.json"
_EXTRAS = {"tensorboard": "tracking", "wandb": "wandb", "mlflow": "mlflow"}
# How a job ended, in MLflow's words. A job that was stopped can be resumed.
End = Literal["FINISHED", "FAILED", "KILLED"]


class Tracker(Protocol):
    """A service that keeps the curves of a job."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add a point to each of some curves."""

    def close(self, end: End) -> None:
        """Note how the job ended, and send what was not sent yet."""


class _TensorBoard:
    """Events in the job's folder."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # It hides what an earlier attempt wrote after `step`.
        self._writer: Any = SummaryWriter(str(folder / "events"), purge_step=step + 1)

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, end: End) -> None:
        self._writer.close()


class _WeightsAndBiases:
    """A run of the project that has the recipe's name."""

    def __init__(self, folder: Path, recipe: Recipe, known: str | None) -> None:
        import wandb

        self._run: Any = wandb.init(
            project=recipe.name,
            name=_title(folder),
            id=known,
            resume="allow",
            dir=folder,
            config=_settings_of(recipe),
            reinit="create_new",
            settings=wandb.Settings(
                host="",
                console="off",
                disable_git=True,
                save_code=False,
                x_disable_meta=True,
            ),
        )
        self.id = str(self._run.id)

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self, end: End) -> None:
        self._run.finish(exit_code=0 if end == "FINISHED" else 1)


class _MLflow:
    """A run of the experiment that has the recipe's name."""

    def __init__(self, folder: Path, recipe: Recipe, known: str | None) -> None:
        from mlflow import MlflowClient

        self._client: Any = MlflowClient()
        if known is None:
            experiment = self._client.get_experiment_by_name(recipe.name)
            number = (
                self._client.create_experiment(recipe.name)
                if experiment is None
                else experiment.experiment_id
            )
            run = self._client.create_run(number, run_name=_title(folder))
            known = run.info.run_id
            self._client.log_dict(known, _settings_of(recipe), "recipe.json")
        else:
            self._client.update_run(known, status="RUNNING")
        self.id = str(known)

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._client.log_metric(self.id, name, value, step=step)

    def close(self, end: End) -> None:
        self._client.set_terminated(self.id, status=end)


def _title(folder: Path) -> str:
    """A job's run, stage and view, as its folders are called: own/train/coronal."""
    return "/".join(folder.resolve().parts[-3:])


def _settings_of(recipe: Recipe) -> Any:
    """All settings of a recipe, without the folders of its files."""
    return to_jsonable_python(_without_folders(recipe.model_dump()))


def _without_folders(value: Any) -> Any:
    """The same, nested as it is, with the last part of each path."""
    if isinstance(value, Path):
        return value.name
    if isinstance(value, Mapping):
        return {key: _without_folders(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folders(one) for one in value]
    return value


class Trackers:
    """The services that a recipe names, for one job; without any it does nothing.

    They are open within a `with` block, and learn how it ended.
    """

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        step: int,
        say: Callable[[str], None],
    ) -> None:
        """`step` is the one that the job goes on from; `say` gets a line where a service fails.

        ConfigError where a service is not installed, or refuses to begin.
        """
        self._say = say
        self._open: dict[Service, Tracker] = {}
        runs: dict[str, str] = {}
        path = folder / _RUNS
        if path.is_file():
            runs = json.loads(read_text(path))
        for service in services_of(recipe):
            try:
                tracker = _begin(service, folder, recipe, step, runs.get(service))
            except ImportError:
                remedy = f"install trinat[{_EXTRAS[service]}]"
                raise ConfigError(
                    f"tracking by {service} needs it installed", remedy=remedy
                ) from None
            except Exception as error:
                # Services have errors of their own, for a network, a key, a disk.
                remedy = "see its documentation, or leave it out of `tracking`"
                raise ConfigError(
                    f"{service} cannot begin: {_first_line(error)}", remedy=remedy
                ) from error
            self._open[service] = tracker
            if isinstance(tracker, _WeightsAndBiases | _MLflow):
                runs[service] = tracker.id
        if runs:
            write_whole(path, json.dumps(runs, indent=1))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add a point to each of some curves, at all services."""
        for service, tracker in list(self._open.items()):
            try:
                tracker.log(values, step)
            except Exception as error:
                # Hours of training are worth more than their curves at a service.
                del self._open[service]
                self._say(
                    f"{service} gets no more curves: {_first_line(error)}; the training goes on"
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end: End = "FINISHED"
        if isinstance(error, InterruptedRunError | KeyboardInterrupt):
            end = "KILLED"
        elif error is not None:
            end = "FAILED"
        for service, tracker in self._open.items():
            try:
                tracker.close(end)
            except Exception as refusal:
                self._say(f"{service}: {_first_line(refusal)}")


def services_of(recipe: Recipe) -> Sequence[Service]:
    """The services that a recipe names; `events` is its older word for TensorBoard."""
    services = list(recipe.tracking)
    if recipe.events and "tensorboard" not in services:
        services.insert(0, "tensorboard")
    return services


def _begin(
    service: Service, folder: Path, recipe: Recipe, step: int, known: str | None
) -> Tracker:
    """Open a service; `known` is what the job's run is called there, if it has one."""
    if service == "wandb":
        return _WeightsAndBiases(folder, recipe, known)
    if service == "mlflow":
        return _MLflow(folder, recipe, known)
    return _TensorBoard(folder, step)


def _first_line(error: Exception) -> str:
    """What an error says in one line."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
