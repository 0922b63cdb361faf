"""A recipe: everything that decides what a training run does, checked before any scan is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from trinat.segmentation.data.augmentation import AugmentationConfig
from trinat.segmentation.labels import DEFAULT_SCHEME
from trinat.segmentation.models.architectures import PUBLISHED, Architecture
from trinat.segmentation.models.losses import AnyLoss, LossConfig
from trinat.segmentation.models.model_info import Contrast, Name, Precision
from trinat.segmentation.space.views import View
from trinat.segmentation.synthetic.heads import Variant
from trinat.segmentation.synthetic.settings import SynthesisConfig

NetworkPart = Literal["encoders", "bottleneck", "decoders", "classifier"]
# That show the curves of a training.
Service = Literal["tensorboard", "wandb", "mlflow"]

# Keys of a schedule that say how long the stage lasts.
_LENGTHS = {"steps", "epochs"}
# Beside the seed of a recipe: the random numbers that draw who validates.
_VALIDATION_STREAM = 3


class _Config(BaseModel):
    """Settings that do not change, of which no key is ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class OptimiserConfig(_Config):
    """The optimiser and its rates."""

    kind: Literal["adamw", "sgd"] = "adamw"  # AdamW, or SGD with momentum
    rate: float = Field(default=4e-3, gt=0)  # learning rate at the start
    weight_decay: float = Field(default=1e-2, ge=0)
    momentum: float = Field(default=0.95, ge=0, lt=1)  # of sgd
    clip: float = Field(default=5.0, gt=0)  # largest norm of the gradient
    # Discriminative rates: a part's own, as a multiple of `rate`; 0 freezes it.
    parts: Mapping[NetworkPart, float] = Field(default_factory=dict)


class ScheduleConfig(_Config):
    """How long a stage lasts, by steps or by epochs, and its rates."""

    kind: Literal["cosine", "steps", "constant"] = "cosine"  # how the rate falls
    steps: int | None = Field(default=None, ge=1)  # length of the stage; or
    epochs: int | None = Field(default=None, ge=1)  # length in epochs
    warmup_steps: int = Field(default=0, ge=0)  # the rate rises over these
    factor: float = Field(default=0.1, gt=0, le=1)  # kind steps: what each drop leaves
    every_epochs: int = Field(default=10, ge=1)  # kind steps

    @model_validator(mode="after")
    def _one_length(self) -> ScheduleConfig:
        """A stage's length is in steps or in epochs, not both."""
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give exactly one of steps and epochs")
        return self


class SyntheticConfig(_Config):
    """Synthetic scans, made from whole-head label maps during training."""

    # a folder of label maps and priors, or a heads file
    heads: Path | Literal["phantom"]
    synthesis: SynthesisConfig = SynthesisConfig()  # how scans are made
    held_out: int = Field(default=0, ge=0)  # the last N heads validate
    variants: tuple[tuple[Variant, ...], ...] = ()  # each head once more, with these


class StoreConfig(_Config):
    """Prepared slices, and the split of their subjects."""

    path: Path
    split: Path
    augmentation: AugmentationConfig = AugmentationConfig()
    # Share of the draws that are balanced: a structure first, each alike, then one of the slices
    # that show it. The others are a pass: each slice once.
    balanced_share: float = Field(default=0.5, ge=0, le=1)
    # Threads that read ahead; 0: nothing is. The default depends on the device.
    # Not part of a run's identity: it may be resumed with another number.
    workers: int | None = Field(default=None, ge=0, le=64, exclude=True)


class DataConfig(_Config):
    """Where batches come from; with both sources, `synthetic_share` of each batch is synthetic."""

    synthetic: SyntheticConfig | None = None  # made during training
    store: StoreConfig | None = None  # slices of a store
    synthetic_share: float = Field(default=1.0, ge=0, le=1)  # where there are both
    rows: int = Field(default=192, ge=16)  # of a slice, in pixels
    columns: int = Field(default=192, ge=16)  # of a slice, in pixels
    # length of an epoch, of each view; null: every slice of the store once
    epoch_slices: int | None = Field(default=8000, ge=1)

    @model_validator(mode="after")
    def _share_of_two_sources_is_given(self) -> DataConfig:
        """A stage that adds a store to a recipe's synthetic scans would else never look at it."""
        has_both = self.synthetic is not None and self.store is not None
        if has_both and "synthetic_share" not in self.model_fields_set:
            raise ValueError(
                "synthetic_share: say which share of the slices is synthetic, where data has both "
                "synthetic and store"
            )
        return self

    @model_validator(mode="after")
    def _passes_are_over_a_store(self) -> DataConfig:
        """Synthetic slices are all new: they have no number that could be gone through."""
        if self.epoch_slices is None and (self.store is None or self.synthetic):
            raise ValueError(
                "epoch_slices: null is for a store without synthetic scans"
            )
        return self


class ValidationConfig(_Config):
    """Whole scans after every n-th epoch; the weights with the best Dice are kept."""

    every_epochs: int = Field(default=1, ge=1)  # n: after every n-th epoch
    # validations without a better Dice
    patience: int | None = Field(default=None, ge=1)
    # How many persons of the part `validation` (of synthetic scans: heads) are scored, drawn by the
    # recipe's seed, the same at each validation; if not given, all of them.
    persons: int | None = Field(default=None, ge=1)

    def choose(self, persons: Sequence[str], seed: int) -> list[int]:
        """Choose the scans to score, by their places; `persons` has the person of each scan.

        All scans of a person are scored, or none.
        """
        places = range(len(persons))
        names = sorted(set(persons))
        if self.persons is None or self.persons >= len(names):
            return list(places)
        generator = np.random.default_rng((seed, _VALIDATION_STREAM))
        drawn = set(generator.choice(names, self.persons, replace=False).tolist())
        return [place for place in places if persons[place] in drawn]


class StageConfig(_Config):
    """One stage of a run. With `together`, one network learns all views at once."""

    # its folder in the run
    name: str = Field(default="train", pattern=r"^[a-z0-9-]{1,32}$")
    together: bool = False  # one network learns all views
    # Views that this stage trains; if not given, all of the run. A view that no stage before has
    # trained starts from another's weights.
    views: tuple[View, ...] | None = Field(default=None, min_length=1)
    data: DataConfig  # where slices come from
    optimiser: OptimiserConfig = OptimiserConfig()
    schedule: ScheduleConfig
    loss: AnyLoss = LossConfig(balance=0.5, boundary=0.1)
    batch: int = Field(default=8, ge=1)  # slices at a time
    accumulate: int = Field(default=1, ge=1)  # batches to a step
    # auto: bfloat16 where the device computes in it; float16, its gradients scaled, on GPUs that do
    # not (compute capability 7.0 to 7.5); else float32.
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    # 0: validate and ship the weights themselves
    ema: float = Field(default=0.998, ge=0, lt=1)
    compile: bool = False  # torch.compile, for GPUs
    # On several GPUs norms see the whole batch and not their part of it: 27 synchronisations more
    # in a forward pass, at each of which a compiled network breaks in two.
    sync_norms: bool = False
    validation: ValidationConfig | None = None  # none: the last weights are kept
    checkpoint_every_steps: int = Field(default=500, ge=1)  # and after each epoch
    max_bad_steps: int = Field(default=20, ge=1)  # in a row, of NaN or infinite loss
    # Weights to start from: a model's folder or shipped name, or, by default, the stage before.
    start: Path | None = None


class Recipe(_Config):
    """A run: one network per view, in one or more stages."""

    name: str = Field(pattern=r"^[a-z0-9-]{1,64}$")  # the name of the model too
    scheme: str = DEFAULT_SCHEME  # a label scheme
    network: Architecture = PUBLISHED  # of each view
    seed: int = Field(default=0, ge=0, lt=2**31)  # of every random number
    views: tuple[View, ...] = tuple(View)  # a network for each
    # Of the weights in the model folder that a run leaves; training itself keeps 32 bits.
    stored: Precision = "float32"
    contrast: Contrast = "T1"  # of the scans that the model is for
    # Whether the networks of the model see scans like T2 and PD with bright and dark reversed, so
    # that tissues have the order of T1. Training shows scans as they are.
    reverse_contrast: bool = False
    # Of a model that learns from stripped scans: the shipped model that strips whole heads for it.
    stripped_by: Name | None = None
    tracking: tuple[Service, ...] = ()  # services that get the curves, too
    # On a GPU, the same bits from the same seed, at some cost; on processors they always are.
    deterministic: bool = False
    stages: tuple[StageConfig, ...] = Field(min_length=1)  # one after the other

    @field_validator("views")
    @classmethod
    def _each_view_once(cls, views: tuple[View, ...]) -> tuple[View, ...]:
        """A view has one network."""
        if not views or len(set(views)) < len(views):
            raise ValueError("name each view once")
        return views

    @model_validator(mode="before")
    @classmethod
    def _stages_inherit(cls, values: Any) -> Any:
        """Keys of a stage in the recipe itself apply to all stages, which may override them."""
        if not isinstance(values, Mapping):
            return values
        stages = values.get("stages") or [{}]
        if not isinstance(stages, list | tuple):
            return values
        if not all(isinstance(stage, Mapping | StageConfig) for stage in stages):
            return values

        # What neither the recipe nor a stage has stays with the recipe, which refuses it.
        recipe: dict[str, Any] = {}
        shared: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        for key, value in values.items():
            if key in cls.model_fields:
                recipe[key] = value
            elif key in StageConfig.model_fields:
                shared[key] = value
            else:
                rest[key] = value
        recipe["stages"] = []
        for stage in stages:
            # A stage that is checked stays as it is.
            if not isinstance(stage, StageConfig):
                stage = _merged(shared, stage)
            recipe["stages"].append(stage)
        recipe.update(rest)
        return recipe

    @model_validator(mode="after")
    def _reverses_for_any_contrast(self) -> Recipe:
        """A model for T1 alone has nothing to reverse."""
        if self.reverse_contrast and self.contrast != "any":
            raise ValueError("reverse_contrast: only with contrast: any")
        return self

    @model_validator(mode="after")
    def _stage_names_differ(self) -> Recipe:
        """Stages have a folder each, by name, and train views of the recipe alone."""
        names = [stage.name for stage in self.stages]
        if len(set(names)) < len(names):
            raise ValueError("two stages have the same name")
        for stage in self.stages:
            if stage.views and not set(stage.views) <= set(self.views):
                raise ValueError(
                    f"stage {stage.name} trains a view that the recipe does not name"
                )
        return self


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`, mapping by mapping.

    A stage's own length replaces the shared one; a loss of another kind replaces the shared loss.
    """
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        if not isinstance(value, Mapping) or not isinstance(below, Mapping):
            result[key] = value
            continue
        if key == "schedule" and value.keys() & _LENGTHS:
            below = {name: old for name, old in below.items() if name not in _LENGTHS}
        if key == "loss":
            kind = below.get("kind", LossConfig().kind)
            if value.get("kind", kind) != kind:
                below = {}
        result[key] = _merged(below, value)
    return result
