"""A training run: a recipe becomes networks, and each moment of it a file to resume from."""

from __future__ import annotations

import json
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from pipelines.batch.lock import run_lock
from pipelines.config import check, find_recipe, read_yaml, with_settings
from pipelines.process import cpu_count
from pipelines.trained import BEST, DONE, save_run, trained
from pipelines.trainlog import Metrics, append_scores
from pipelines.trainpage import write_examples, write_page
from segmentation.errors import (
    ConfigError,
    DatasetError,
    DeviceError,
    InputError,
    InterruptedRunError,
    TrainingError,
)
from segmentation.files import atomic_text
from segmentation.heads import HeadMaps, load_heads, phantom_heads
from segmentation.labels import LabelScheme, load_scheme
from segmentation.models.checkpoint import load_model, read_info
from segmentation.models.model_info import Preprocessing
from segmentation.models.quicknat import QuickNat, QuickNatConfig
from segmentation.models.zoo import find_model
from segmentation.training.config import Recipe, StageConfig, SyntheticConfig
from segmentation.training.loop import StepReport, Trainer
from segmentation.training.network import ViewsNet, classes_of, copy_matching
from segmentation.training.sources import MixedSource, Source, SyntheticSource
from segmentation.training.state import (
    check_identity,
    from_bytes,
    read_latest,
    to_bytes,
    write_state,
)
from segmentation.training.validation import Scan, Scores, synthetic_scans, validate
from segmentation.training.workers import ALONE, Workers
from segmentation.views import View

__all__ = ["Job", "Watcher", "read_recipe", "train", "usual_readers"]

CONFIG = "config.yaml"
# See segmentation/files.py, and `save_model` for the folder that becomes the model.
LEFTOVERS = ".trinat-*.tmp"
# Counted from what one reads, four give several times what a GPU is to train on.
_MOST_READERS = 4


@dataclass(frozen=True)
class Job:
    """One training: a stage for one view, or for several together."""

    stage: StageConfig
    views: tuple[View, ...]

    @property
    def name(self) -> str:
        return f"{self.stage.name}/{'-'.join(view.value for view in self.views)}"


@dataclass
class Watcher:
    """What a run tells while it goes on."""

    say: Callable[[str], None]
    step: Callable[[Job, StepReport, float], None]  # the last: progress, 0 to 1


def read_recipe(
    name_or_path: str, settings: Sequence[str] = (), *, seconds: float | None = None
) -> Recipe:
    """A recipe by name or file, with settings from the command line on top.

    `seconds` is the length of the whole run: each job gets an equal part of it.
    """
    path = find_recipe(name_or_path, "train")
    content = with_settings(read_yaml(path), settings)
    recipe = check(Recipe, content, path)
    start = recipe.stages[0].start
    if start is not None and "network" not in content:
        recipe = recipe.model_copy(update={"network": _network_of(start, recipe.views)})
    if seconds is None:
        return recipe
    share = seconds / len(plan_jobs(recipe, recipe.views))
    unmeasured = {"steps": None, "epochs": None, "seconds": share}
    stages = [
        stage.model_copy(update={"schedule": stage.schedule.model_copy(update=unmeasured)})
        for stage in recipe.stages
    ]
    return recipe.model_copy(update={"stages": tuple(stages)})


def _network_of(model: Path, views: Sequence[View]) -> QuickNatConfig:
    """What the networks of a model have in common: all but the number of their classes."""
    architectures = read_info(find_model(model)).architectures
    chosen = [architectures[view] for view in views if view in architectures]
    classes = {"classes": QuickNatConfig().classes}
    shapes = {c.model_copy(update=classes) for c in chosen or architectures.values()}
    if len(shapes) > 1:
        raise ConfigError(
            "its views have different networks",
            where=model,
            remedy="say in the recipe which `network` to train",
        )
    return shapes.pop()


def plan_jobs(recipe: Recipe, views: Sequence[View]) -> list[Job]:
    """All trainings of a run, in order: stage by stage, and view by view unless together."""
    return [
        Job(stage, group)
        for stage in recipe.stages
        for group in ([tuple(views)] if stage.together else [(view,) for view in views])
    ]


def train(
    recipe: Recipe,
    out: Path,
    watcher: Watcher,
    *,
    views: Sequence[View] | None = None,
    resume: bool = False,
    device: str = "cpu",
    workers: Workers = ALONE,
    told_to_stop: Callable[[], bool] = lambda: False,
) -> Path:
    """Train all of a recipe's jobs in the folder `out`; returns the folder of the model.

    Of several processes the leader alone reads and writes there, and tells the others.
    """
    chosen = tuple(view for view in recipe.views if views is None or view in views)
    if not chosen:
        raise ConfigError(f"the recipe {recipe.name} trains none of these views")
    target, jobs = _device(device), plan_jobs(recipe, chosen)
    with ExitStack() as stack:
        signalled = stack.enter_context(_signals())
        if workers.leads:
            out.mkdir(parents=True, exist_ok=True)
            stack.enter_context(run_lock(out / ".lock"))
            _clear(out, *(out / job.name for job in jobs))
            _look_ahead(job.stage for job in jobs if not (out / job.name / DONE).is_file())
            _claim(recipe, out, resume=resume)
        for job in jobs:
            run = _JobRun(recipe, job, out, watcher, target, workers)
            if not run.is_done:
                run.go(lambda: signalled.is_set() or told_to_stop())
        model = out / "model"
        saved = workers.share(lambda: save_run(recipe, out, model, watcher.say))
        watcher.say(f"{model}: {', '.join(saved)} of {recipe.name}")
    return model


class _JobRun:
    """One job at work in its folder."""

    def __init__(
        self,
        recipe: Recipe,
        job: Job,
        out: Path,
        watcher: Watcher,
        device: torch.device,
        workers: Workers,
    ) -> None:
        self.recipe, self.job, self.out, self.watcher = recipe, job, out, watcher
        self.device, self.workers = device, workers
        self.folder = out / job.name
        self.scheme = load_scheme(recipe.scheme)

    @property
    def is_done(self) -> bool:
        return self.workers.share((self.folder / DONE).is_file)

    def go(self, stop: Callable[[], bool]) -> None:
        if self.workers.leads:
            self.folder.mkdir(parents=True, exist_ok=True)
        with _open_data(self.recipe, self.job, self.scheme, self.device, self.workers.count) as (
            source,
            scans,
        ):
            self._train(source, scans, stop)

    def _train(
        self, source: Source, scans: Callable[[View], Iterator[Scan]], stop: Callable[[], bool]
    ) -> None:
        leads = self.workers.leads
        self._check_same(source)
        trainer = Trainer(
            self.recipe,
            self.job.stage,
            self.job.views,
            self._start(),
            source,
            self.device,
            self.workers,
            self._teachers(),
        )
        identity = {
            "stage": self.job.stage.model_dump(mode="json"),
            "network": self.recipe.network.model_dump(mode="json"),
            "scheme": self.recipe.scheme,
            "seed": self.recipe.seed,
            "views": [view.value for view in self.job.views],
            "processes": self.workers.count,
            "data": source.fingerprint,
        }
        if self.job.stage.precision == "bf16" and not trainer.bf16:
            self.watcher.say(f"{self.device} does not compute in bfloat16: float32 is used")
        if leads:
            self._resume(trainer, identity)
        self._begin_alike(trainer)
        writer = (
            Metrics(
                self.folder,
                trainer.counters.step,
                events=self.recipe.events,
                mlflow=self.recipe.mlflow,
                settings=identity,
            )
            if leads
            else None
        )
        saved_at, told = trainer.counters.step, False
        # A run that was killed when its patience had ended does not begin anew to be patient.
        over = self._out_of_patience(trainer)
        if trainer.counters.validation_due:
            over = self._rest(trainer, scans, identity, writer, stop)
        while trainer.progress < 1 and not over:
            try:
                report = trainer.step()
            except (DatasetError, InputError):
                # What cannot be read can be mended; the steps before are not lost.
                if leads and trainer.counters.step > saved_at:
                    write_state(self.folder, trainer.state(identity))
                raise
            if trainer.not_compiled and not told:
                told = True
                self.watcher.say(f"trains without being compiled: {trainer.not_compiled}")
            self.watcher.step(self.job, report, trainer.progress)
            if writer is not None:
                writer.add(report, last=trainer.progress >= 1)
            # All processes stop at the same step, or those left would wait for ever.
            stopped = self.workers.largest(float(stop())) > 0
            at_rest = trainer.progress >= 1 or report.step % trainer.epoch_steps == 0
            trainer.counters.validation_due = at_rest and self._is_validated_at(trainer)
            due = report.step - saved_at >= self.job.stage.checkpoint_every_steps
            if leads and (due or at_rest or stopped):
                # Before validation, which takes minutes: whoever is killed in it loses no step.
                write_state(self.folder, trainer.state(identity))
                saved_at = report.step
            if stopped and (trainer.progress < 1 or trainer.counters.validation_due):
                # Whoever ends first may take the others along: not before the state is written.
                self.workers.share(lambda: None)
                raise self._interruption(trainer)
            if at_rest:
                over = self._rest(trainer, scans, identity, writer, stop)
        if leads:
            with atomic_text(self.folder / DONE) as file:
                json.dump(asdict(trainer.counters), file)

    def _check_same(self, source: Source) -> None:
        """Machines that train together must have the same data."""
        if self.workers.share(lambda: source.fingerprint) != source.fingerprint:
            raise DatasetError(
                f"process {self.workers.rank} does not have the data that process 0 has",
                remedy="give all machines the same files",
            )

    def _resume(self, trainer: Trainer, identity: dict[str, Any]) -> None:
        state, problems = read_latest(self.folder)
        before = (
            "the state before it is taken" if state else "no sound one is left, all begins anew"
        )
        for problem in problems:
            self.watcher.say(f"{problem}: {before}")
        if state is None:
            return
        check_identity(state.identity, identity, self.folder)
        trainer.load(state)
        self.watcher.say(f"{self.job.name}: goes on at step {state.counters.step}")

    def _begin_alike(self, trainer: Trainer) -> None:
        """All processes start where the leader does: a disk may show each another state."""
        if self.workers.count == 1:
            return
        state = self.workers.share(lambda: to_bytes(trainer.state({})))
        if not self.workers.leads:
            trainer.load(from_bytes(state))

    def _start(self) -> ViewsNet:
        """A network with its first weights: of the stage before, of a model, or drawn."""
        torch.manual_seed(self.recipe.seed)
        network = ViewsNet(
            self.recipe.network,
            {view: len(classes_of(view, self.scheme)) for view in self.job.views},
        )
        # The others get theirs from the leader.
        for view in self.job.views if self.workers.leads else ():
            beginning = self._weights_to_start_from(view)
            if beginning is None:
                continue
            source, theirs = beginning
            ours = classes_of(view, self.scheme)
            kept, anew = copy_matching(network, view, source, theirs, ours)
            if self.job.stage.start is not None:
                more = f"; anew begin {', '.join(anew)}" if anew else ""
                self.watcher.say(
                    f"{self.job.name}: {view.value} starts with the model's weights for "
                    f"{kept} of {len(ours)} classes{more}"
                )
        return network

    def _teachers(self) -> dict[View, QuickNat]:
        """Networks whose probabilities are learnt: they must know these labels and these slices."""
        if self.job.stage.distillation is None:
            return {}
        where = self.job.stage.distillation.teacher
        model = load_model(find_model(where), self.job.views)
        if model.scheme.names != self.scheme.names or model.info.preprocessing != Preprocessing():
            raise ConfigError(
                "teaches other labels, or from scans made ready otherwise", where=where
            )
        for view, teacher in model.networks.items():
            if teacher.config.classes != len(classes_of(view, self.scheme)):
                raise ConfigError(f"has other {view.value} classes than are trained", where=where)
            if teacher.config.channels > self.recipe.network.channels:
                raise ConfigError(
                    f"looks at {teacher.config.channels} slices at a time",
                    where=where,
                    remedy=f"set network.channels to {teacher.config.channels} or more",
                )
        return dict(model.networks)

    def _weights_to_start_from(self, view: View) -> tuple[QuickNat, LabelScheme] | None:
        """A network, and its classes."""
        if self.job.stage.start is not None:
            model = load_model(find_model(self.job.stage.start))
            # A view that the model lacks starts from another.
            other = view if view in model.networks else next(iter(model.networks))
            return model.networks[other], model.classes_of(other)
        index = self.recipe.stages.index(self.job.stage)
        if index == 0:
            return None
        say = self.watcher.say
        network = trained(self.recipe, self.recipe.stages[index - 1], view, self.out, say)
        return network, classes_of(view, self.scheme)

    def _is_validated_at(self, trainer: Trainer) -> bool:
        """Whether the recipe has the weights scored at the end of this epoch, or of the job."""
        config = self.job.stage.validation
        epoch = trainer.counters.step // trainer.epoch_steps
        return config is not None and (trainer.progress >= 1 or epoch % config.every_epochs == 0)

    def _interruption(self, trainer: Trainer) -> InterruptedRunError:
        return InterruptedRunError(
            f"stopped at step {trainer.counters.step}; its state is saved",
            where=self.folder,
            remedy="the same command with --resume goes on",
        )

    def _rest(
        self,
        trainer: Trainer,
        scans: Callable[[View], Iterator[Scan]],
        identity: dict[str, Any],
        writer: Metrics | None,
        stop: Callable[[], bool],
    ) -> bool:
        """Between epochs: score the weights where it is time to, and draw the page.

        True where patience is at its end. The state that was saved before says what is due.
        """
        over = False
        if trainer.counters.validation_due:
            stopped, over = self.workers.share(
                lambda: self._validate(trainer, scans, identity, writer, stop)
            )
            if stopped:
                raise self._interruption(trainer)
            trainer.counters.validation_due = False
        if self.workers.leads:
            write_page(self.folder, self.job.name, self.scheme)
        return over

    def _validate(
        self,
        trainer: Trainer,
        scans: Callable[[View], Iterator[Scan]],
        identity: dict[str, Any],
        writer: Metrics | None,
        stop: Callable[[], bool],
    ) -> tuple[bool, bool]:
        """Score the weights: whether that was stopped, and whether patience is at its end."""
        try:
            scores = {
                view: self._score(trainer, view, scans(view), stop) for view in self.job.views
            }
        except InterruptedRunError:
            return True, False
        counters = trainer.counters
        mean = float(np.mean([s.mean_dice for s in scores.values()]))
        for view, score in scores.items():
            scheme = classes_of(view, self.scheme)
            write_examples(self.folder, counters.step, view.value, score.examples, scheme)
        append_scores(self.folder, counters.step, scores, self.scheme)
        if writer is not None:
            writer.add_scores(scores, counters.step)
        self.watcher.say(f"{self.job.name}: step {counters.step}, Dice {mean:.3f}")
        counters.validation_due = False
        # A mean of nothing is no number: it is neither the best nor to be beaten.
        if np.isfinite(mean) and (counters.best is None or mean > counters.best):
            counters.best, counters.best_step = mean, counters.step
            counters.validations_since_best = 0
            write_state(self.folder, trainer.state(identity), name=BEST)
        else:
            counters.validations_since_best += 1
        write_state(self.folder, trainer.state(identity))
        return False, self._out_of_patience(trainer)

    def _out_of_patience(self, trainer: Trainer) -> bool:
        config = self.job.stage.validation
        if config is None or config.patience is None:
            return False
        return trainer.counters.validations_since_best >= config.patience

    def _score(
        self, trainer: Trainer, view: View, scans: Iterator[Scan], stop: Callable[[], bool]
    ) -> Scores:
        network = trainer.best_weights.extract(view).to(self.device)

        def heed(*_: object) -> None:
            if stop():
                raise self._interruption(trainer)

        # A whole scan may take longer than a cluster waits: a few slices do not.
        network.register_forward_pre_hook(heed)
        return validate(
            network,
            scans,
            len(classes_of(view, self.scheme)),
            self.recipe.network.channels,
            self.device,
            bf16=trainer.bf16,
        )


@contextmanager
def _open_data(
    recipe: Recipe, job: Job, scheme: LabelScheme, device: torch.device, processes: int
) -> Iterator[tuple[Source, Callable[[View], Iterator[Scan]]]]:
    """Where batches come from, and the scans that validate."""
    data, channels = job.stage.data, recipe.network.channels
    size = (data.rows, data.columns)
    sources: list[Source] = []
    scans: Callable[[View], Iterator[Scan]] = lambda view: iter(())  # noqa: E731
    limit = job.stage.validation.scans if job.stage.validation else 0
    if data.synthetic is not None:
        maps = _read_heads(data.synthetic)
        held = data.synthetic.held_out
        if held >= len(maps.labels):
            raise ConfigError(f"held_out is {held}, and there are {len(maps.labels)} heads")
        seen, unseen = maps.part(slice(None, -held or None)), maps.part(slice(-held or None, None))
        if not held:
            # Nothing is kept apart: the same heads, drawn anew.
            unseen = maps
        unseen = unseen.part(slice(None, limit or 1))
        synthesis = data.synthetic.synthesis
        sources.append(SyntheticSource(seen, scheme, synthesis, size, channels, device))
        scans = lambda view: synthetic_scans(unseen, scheme, synthesis, view, recipe.seed)  # noqa: E731
    if data.store is not None:
        from segmentation.training.stores import StoreSource, store_scans

        store = data.store
        readers = store.workers
        if readers is None:
            sharing = max(1, min(processes, torch.cuda.device_count()))
            readers = usual_readers(device, cpu_count() // sharing)
        real = StoreSource(store, job.views, size, channels, recipe.seed, scheme, readers)
        sources.append(real)
        scans = lambda view: store_scans(store.path, store.split, view, limit)  # noqa: E731
    if not sources:
        raise ConfigError("data names no source", remedy="give data.synthetic or data.store")
    source = sources[0]
    if len(sources) == 2:
        source = MixedSource(sources[0], sources[1], data.synthetic_share)
    try:
        yield source, scans
    finally:
        if data.store is not None:
            real.close()


def usual_readers(device: torch.device, cores: int) -> int:
    """Processes that read slices ahead, where the recipe gives no number.

    A GPU stands still while a slice is read. On a CPU that is a hundredth of a step or two, and a
    reader would take its time from those that train.
    """
    return 0 if device.type == "cpu" else max(1, min(_MOST_READERS, cores - 1))


def _read_heads(config: SyntheticConfig) -> HeadMaps:
    return phantom_heads(2) if config.heads == "phantom" else load_heads(Path(config.heads))


def _claim(recipe: Recipe, out: Path, *, resume: bool) -> None:
    """Write the resolved recipe down; refuse to mix two runs in one folder."""
    path = out / CONFIG
    content = recipe.model_dump(mode="json")
    if path.is_file() and not resume:
        raise TrainingError(
            "a run is there already", where=out, remedy="go on with --resume, or give another --out"
        )
    if path.is_file():
        stored = read_yaml(path)
        check_identity(stored, content, out)
        return
    with atomic_text(path) as file:
        yaml.safe_dump(content, file, sort_keys=False)


def _clear(*folders: Path) -> None:
    """Remove what a killed process left half-written; nobody else writes while the run is ours."""
    for folder in folders:
        for left in (*folder.glob(LEFTOVERS), *folder.glob(f"examples/{LEFTOVERS}")):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def _look_ahead(stages: Iterable[StageConfig]) -> None:
    """Say now what a stage will lack, and not after the hours of those before it."""
    for stage in stages:
        if stage.start is not None:
            find_model(stage.start)
        if stage.distillation is not None:
            find_model(stage.distillation.teacher)
        synthetic, store = stage.data.synthetic, stage.data.store
        if (
            synthetic is not None
            and isinstance(synthetic.heads, Path)
            and not synthetic.heads.exists()
        ):
            load_heads(synthetic.heads)  # Raises.
        if store is not None:
            from segmentation.data.splits import read_split
            from segmentation.data.store import Store

            Store(store.path)
            if not read_split(store.split).validation and stage.validation is not None:
                raise DatasetError(
                    "has nobody who validates",
                    where=store.split,
                    remedy="share some out (trinat split --ratios 8 1 1), or --set validation=null",
                )


def _device(name: str) -> torch.device:
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise DeviceError("there is no CUDA device", where=name, remedy="use --device cpu")
    return torch.device(name)


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """Set the event at SIGTERM, SIGUSR1 (from clusters) or Ctrl-C."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    signals = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
    before = [signal.signal(number, lambda *_: stop.set()) for number in signals]
    try:
        yield stop
    finally:
        for number, old in zip(signals, before, strict=True):
            signal.signal(number, old)
