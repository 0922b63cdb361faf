"""One view trained within a budget of seconds, where there is a GPU for minutes and little else.

Here torch, NumPy, pydantic and PyYAML are enough. What a run leaves is a handful of files below
16 MiB: weights in the precision that ships, a state to go on from, metrics. `finish` makes a model
of them later, where the whole of trinat is installed.
"""

from __future__ import annotations

import hashlib
import io
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipelines.config import check, find_recipe, read_yaml, with_settings
from pipelines.process import prepare_training
from pipelines.trainlog import Metrics
from segmentation.errors import (
    ConfigError,
    IntegrityError,
    InterruptedRunError,
    TrainingError,
    TrinatError,
)
from segmentation.files import atomic_text, atomic_write
from segmentation.heads import load_heads, phantom_heads
from segmentation.labels import load_scheme
from segmentation.models.quicknat import QuickNat
from segmentation.training.config import Recipe
from segmentation.training.loop import StepReport, Trainer
from segmentation.training.network import ViewsNet, classes_of
from segmentation.training.sources import SyntheticSource
from segmentation.training.state import Counters, State, check_identity, seeded
from segmentation.views import View

__all__ = ["Budget", "finish", "read_recipe", "train_view"]

RUN = "run.json"
PIECE_BYTES = 15 << 20
SAVE_EVERY_SECONDS = 60.0
SPEAK_EVERY_SECONDS = 5.0
SCORED_SLICES = 256
# Settings that change how fast a run is, or where its data stand, and not what it is.
_FREE: Any = {
    "compile": True,
    "checkpoint_every_steps": True,
    "data": {"synthetic": {"heads": True}},
}


@dataclass(frozen=True)
class Budget:
    """When a process began, by `time.monotonic`, and how many seconds it may take in all."""

    began: float
    seconds: float

    @property
    def spent(self) -> float:
        return time.monotonic() - self.began

    @property
    def left(self) -> float:
        return self.seconds - self.spent

    @property
    def for_the_end(self) -> float:
        """For scores and files, when training is over."""
        return min(3 + 0.03 * self.seconds, 0.25 * self.seconds)


def read_recipe(name_or_path: str, settings: Sequence[str], heads: Path) -> Recipe:
    """A recipe of one stage, on scans drawn from `heads`, its length a budget of time."""
    path = find_recipe(name_or_path, "train")
    content = with_settings(read_yaml(path), (f"data.synthetic.heads={heads}", *settings))
    recipe = check(Recipe, content, path)
    stage = recipe.stages[0]
    if len(recipe.stages) != 1 or stage.data.store is not None:
        raise ConfigError("a budget is for one stage on drawn scans", where=path)
    if stage.start is not None or stage.distillation is not None:
        raise ConfigError("a budget is for training without `start` or `distillation`", where=path)
    # The whole budget is the unit: the share of it that is spent is the progress.
    unit = {"steps": None, "epochs": None, "seconds": 1.0}
    stage = stage.model_copy(update={"schedule": stage.schedule.model_copy(update=unit)})
    return recipe.model_copy(update={"stages": (stage,)})


def train_view(
    recipe: Recipe,
    view: View,
    out: Path,
    budget: Budget,
    device: torch.device,
    *,
    resume: bool = False,
    say: Callable[[str], None] = print,
    stop: threading.Event | None = None,
) -> dict[str, Any]:
    """Train one view into the folder `out` until the budget is spent; returns run.json's content.

    A run that was stopped goes on with what is left of its schedule in the budget given now.
    """
    out.mkdir(parents=True, exist_ok=True)
    if (out / RUN).is_file() and not resume:
        raise TrainingError("a run is there already", where=out, remedy="--resume, or another OUT")
    prepare_training(device)
    run = _Run(recipe, view, out, device, say)
    say(f"{budget.spent:.1f} s: ready on {device}, {len(run.scheme)} classes")
    run.go(budget, stop or threading.Event())
    return run.facts


class _Run:
    """A trainer, its data and its files."""

    def __init__(
        self,
        recipe: Recipe,
        view: View,
        out: Path,
        device: torch.device,
        say: Callable[[str], None],
    ) -> None:
        self.recipe, self.view, self.out, self.device, self.say = recipe, view, out, device, say
        self.stage = recipe.stages[0]
        scheme = load_scheme(recipe.scheme)
        self.scheme = classes_of(view, scheme)
        synthetic = self.stage.data.synthetic
        assert synthetic is not None
        heads = synthetic.heads
        maps = phantom_heads(2) if heads == "phantom" else load_heads(Path(heads))
        held = synthetic.held_out
        if held >= len(maps.labels):
            raise ConfigError(f"held_out is {held}, and there are {len(maps.labels)} heads")

        def source(part: slice) -> SyntheticSource:
            size = (self.stage.data.rows, self.stage.data.columns)
            channels = recipe.network.channels
            return SyntheticSource(
                maps.part(part), scheme, synthetic.synthesis, size, channels, device
            )

        self.heads = len(maps.labels) - held
        self.seen = source(slice(None, -held or None))
        # With none kept apart, scores are for the same heads, drawn anew.
        self.unseen = source(slice(-held, None)) if held else self.seen
        self.identity = {
            "stage": self.stage.model_dump(mode="json", exclude=_FREE),
            "network": recipe.network.model_dump(mode="json"),
            "scheme": recipe.scheme,
            "seed": recipe.seed,
            "view": view.value,
            "data": self.seen.fingerprint,
        }
        self.trainer = self._build(compiled=self.stage.compile)
        self.scores: dict[str, Any] = {}
        self.facts: dict[str, Any] = {}
        self._resume()

    def _build(self, *, compiled: bool) -> Trainer:
        torch.manual_seed(self.recipe.seed)
        network = ViewsNet(self.recipe.network, {self.view: len(self.scheme)})
        stage = self.stage.model_copy(update={"compile": compiled})
        return Trainer(self.recipe, stage, (self.view,), network, self.seen, self.device)

    def _resume(self) -> None:
        if not (self.out / RUN).is_file():
            return
        facts = read_run(self.out)
        content = b"".join(_read_checked(self.out, name, facts) for name in facts["state"])
        loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        check_identity(facts["identity"], self.identity, self.out)
        groups = {key: loaded[key] for key in ("network", "average", "optimiser")}
        self.trainer.load(State(Counters(**facts["counters"]), self.identity, **groups))
        self.say(f"goes on at step {self.trainer.counters.step}, {self.share:.0%} done")

    @property
    def share(self) -> float:
        """Of the schedule that is done."""
        return self.trainer.counters.seconds

    def go(self, budget: Budget, stop: threading.Event) -> None:
        metrics = Metrics(self.out, self.trainer.counters.step, events=False)
        done, first = self.share, self.trainer.counters.step
        reserve, longest = budget.for_the_end, 0.0
        start = saved = spoken = time.monotonic()
        end = budget.began + budget.seconds
        while self.share < 1 and not stop.is_set():
            began = time.monotonic()
            report = self._step(first)
            now = time.monotonic()
            if report.step == first + 1:
                # Compiling takes place in the first step, and is no progress.
                start = now
                self.say(f"{budget.spent:.1f} s: first step took {now - began:.1f} s")
                if now > end - reserve:
                    # The compiler took it all; it has its work done when the run goes on.
                    self.trainer.counters.seconds = done
                    break
            else:
                # One that took long, for a compiler's sake, is not what the next will take.
                longest = max(now - began, 0.9 * longest)
            time_left = end - reserve - longest - start
            share = (now - start) / time_left if time_left > 0 else 1.0
            # By the clock, whatever the trainer counted itself.
            self.trainer.counters.seconds = min(1.0, done + (1 - done) * share)
            metrics.add(report, last=self.share >= 1)
            if now - spoken > SPEAK_EVERY_SECONDS:
                spoken = now
                rate = (report.step - first - 1) * report.slices / max(now - start, 1e-9)
                self.say(
                    f"{budget.spent:.0f} s, {self.share:.0%}: step {report.step}, "
                    f"loss {report.loss:.3f}, {rate:.1f} slices/s"
                )
            if now - saved > SAVE_EVERY_SECONDS:
                self.save(budget)
                saved = time.monotonic()
                # A slow disk needs its time at the end, too.
                reserve = max(reserve, 3 * (saved - now))
        # What must not be lost first, then scores, as many as there is time for.
        self.save(budget)
        if self.share < 1:
            raise InterruptedRunError(
                f"stopped at step {self.trainer.counters.step}; its state is saved",
                where=self.out,
                remedy="the same command with --resume goes on",
            )
        self.scores = self._score(budget)
        self._write_facts(budget)
        self.say(f"{budget.spent:.1f} s of {budget.seconds:.0f}: {self.out} is complete")

    def _step(self, first: int) -> StepReport:
        """One step; a compiler that fails in the first is done without."""
        compiled = self.trainer.stage.compile and self.trainer.counters.step == first
        if not compiled:
            return self.trainer.step()
        try:
            report = self.trainer.step()
        except TrinatError:
            raise
        except Exception as error:
            # Not one that the trainer does without by itself: on the way back, or of a GPU's own.
            self.say(f"goes on without torch.compile: {type(error).__name__}: {error}"[:300])
            self.trainer = self._build(compiled=False)
            self._resume()
            return self.trainer.step()
        if self.trainer.not_compiled:
            self.say(f"goes on without torch.compile: {self.trainer.not_compiled}"[:300])
        return report

    @torch.inference_mode()
    def _score(self, budget: Budget) -> dict[str, Any]:
        """Dice of the weights that ship, by structure, on slices that were never drawn before."""
        network = self.trainer.best_weights.extract(self.view).to(self.device).eval()
        classes = len(self.scheme)
        joint = torch.zeros(classes * classes, dtype=torch.int64, device=self.device)
        slices, longest = 0, 0.0
        while slices < SCORED_SLICES and budget.left > budget.for_the_end / 2 + 2 * longest:
            began = time.monotonic()
            generator = seeded(self.device, self.recipe.seed, 3, slices)
            batch = self.unseen.draw(self.view, slices, self.stage.batch, generator)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.trainer.bf16):
                predicted = network(batch.images.to(self.device)).argmax(1)
            pairs = batch.labels.to(self.device).long() * classes + predicted
            joint += torch.bincount(pairs.flatten(), minlength=classes * classes)
            slices += len(predicted)
            # A number is asked for: without it the clock would run ahead of the device.
            joint[0].item()
            longest = max(longest, time.monotonic() - began)
        table = joint.view(classes, classes).double().cpu()
        total = table.sum(0) + table.sum(1)
        dice = {
            name: round(float(2 * table[k, k] / total[k]), 4)
            for k, name in enumerate(self.scheme.names)
            if k and total[k] > 0
        }
        mean = round(sum(dice.values()) / len(dice), 4) if dice else None
        self.say(f"drawn slices: {slices}, mean Dice {mean}")
        return {"slices": slices, "mean_dice": mean, "dice": dice}

    def save(self, budget: Budget) -> None:
        """Weights and state, then run.json, which names them; what it named before goes last."""
        trainer = self.trainer
        step = trainer.counters.step
        weights = _half(trainer.best_weights.extract(self.view), self.recipe.stored)
        state = trainer.state(self.identity)
        groups = {
            key: {name: tensor.detach().cpu() for name, tensor in getattr(state, key).items()}
            for key in ("network", "average", "optimiser")
        }
        # Moments need their range more than their digits, and half of the room brings the state
        # and what else a run needs below what may be carried to another machine.
        groups["optimiser"] = {
            name: tensor.bfloat16() if tensor.ndim else tensor
            for name, tensor in groups["optimiser"].items()
        }
        content = _saved(groups)
        contents = {f"weights-{step:07d}.pt": _saved(weights)}
        for number, first in enumerate(range(0, len(content), PIECE_BYTES)):
            name = f"state-{step:07d}.{number:02d}"
            contents[name] = content[first : first + PIECE_BYTES]
        for name, data in contents.items():
            with atomic_write(self.out / name) as file:
                file.write(data)
        self.facts = {
            "format": 1,
            "recipe": self.recipe.model_dump(mode="json"),
            "identity": self.identity,
            "view": self.view.value,
            "counters": asdict(trainer.counters),
            "heads": self.heads,
            "slices": step * self.stage.batch * self.stage.accumulate,
            "weights": f"weights-{step:07d}.pt",
            "state": [name for name in contents if name.startswith("state-")],
            "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()},
            "compiled": trainer.stage.compile and not trainer.not_compiled,
            "device": _name(self.device),
            "torch": torch.__version__,
        }
        self._write_facts(budget)
        for pattern in ("weights-*.pt", "state-*.[0-9][0-9]"):
            for path in self.out.glob(pattern):
                if path.name not in contents:
                    path.unlink()

    def _write_facts(self, budget: Budget) -> None:
        self.facts |= {"scores": self.scores, "wall_seconds": round(budget.spent, 2)}
        with atomic_text(self.out / RUN) as file:
            json.dump(self.facts, file, indent=1)


def read_run(folder: Path) -> dict[str, Any]:
    """What run.json of a folder says."""
    try:
        facts: dict[str, Any] = json.loads((folder / RUN).read_text("utf-8"))
    except FileNotFoundError:
        raise TrainingError(f"no run here ({RUN} is missing)", where=folder) from None
    except ValueError as error:
        raise IntegrityError("is damaged", where=folder / RUN) from error
    return facts


def finish(runs: Sequence[Path], model: Path, *, licence: str = "") -> list[View]:
    """A model folder, what inference takes, from the runs of one view each."""
    from segmentation.models.checkpoint import save_model
    from segmentation.models.model_info import Description, Training

    facts = {View(read_run(folder)["view"]): (folder, read_run(folder)) for folder in runs}
    if len(facts) < len(runs):
        raise ConfigError("two runs are of the same view", remedy="give one run of each view")
    recipes = [Recipe.model_validate(fact["recipe"]) for _, fact in facts.values()]
    recipe = recipes[0]
    for other in recipes[1:]:
        if (other.network, other.scheme) != (recipe.network, recipe.scheme):
            raise ConfigError("runs are of different networks or labels", where=model)
    networks = {view: _read_network(*facts[view]) for view in View if view in facts}
    card = model / "MODEL_CARD.md"
    told = card.read_text("utf-8") if card.is_file() else ""
    heads = max(fact["heads"] for _, fact in facts.values())
    save_model(
        model,
        Description(
            name=recipe.name,
            labels=recipe.scheme,
            # Label maps for synthesis have no CSF of their own to teach.
            not_predicted=tuple(n for n in load_scheme(recipe.scheme).names if n == "CSF"),
            training=Training(
                data=f"synthetic scans drawn from label maps of {heads} heads",
                licence=licence,
                recipe=recipe.name,
                slices_seen=sum(fact["slices"] for _, fact in facts.values()),
            ),
            metrics={
                "dice_on_drawn_slices": {
                    view.value: fact["scores"].get("mean_dice") for view, (_, fact) in facts.items()
                }
            },
        ),
        networks,
        precision=recipe.stored,
        overwrite=True,
    )
    if told:
        # Written by hand: what it says of data and use still holds.
        with atomic_text(card) as file:
            file.write(told)
    return list(networks)


def _read_network(folder: Path, facts: Mapping[str, Any]) -> QuickNat:
    recipe, view = Recipe.model_validate(facts["recipe"]), View(facts["view"])
    content = _read_checked(folder, facts["weights"], facts)
    weights = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    classes = len(classes_of(view, load_scheme(recipe.scheme)))
    network = QuickNat(recipe.network.model_copy(update={"classes": classes}))
    network.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    return network.eval()


def _read_checked(folder: Path, name: str, facts: Mapping[str, Any]) -> bytes:
    """A file's bytes, the very ones whose checksum was written down."""
    path = folder / name
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise IntegrityError("is missing", where=path, remedy="copy all files of the run") from None
    if hashlib.sha256(content).hexdigest() != facts["sha256"][name]:
        raise IntegrityError("is torn or damaged: its checksum does not fit", where=path)
    return content


def _half(network: QuickNat, precision: str) -> dict[str, Tensor]:
    """Weights as a model folder stores them: convolutions in half precision, the rest as it is."""
    halved = precision == "float16"
    return {
        name: (tensor.half() if halved and tensor.ndim == 4 else tensor).detach().cpu().contiguous()
        for name, tensor in network.state_dict().items()
    }


def _saved(tensors: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    return buffer.getvalue()


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
