"""Training recipes.

All settings that determine a training run, validated before any scan is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

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
# Parts before the classifier: if all are frozen, nothing is computed backward but the classifier.
TRUNK: tuple[NetworkPart, ...] = ("encoders", "bottleneck", "decoders")

# Keys of a schedule that set the length of the stage.
_LENGTHS = {"steps", "epochs"}
# Stream of random numbers, next to the recipe's seed, that selects the validation subjects.
_VALIDATION_STREAM = 3


class _Config(BaseModel):
    """Base of immutable settings; unknown keys and numbers that are not finite are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class OptimiserConfig(_Config):
    """Optimiser and its learning rates."""

    kind: Literal["adamw", "sgd"] = "adamw"  # AdamW, or SGD with momentum
    rate: float = Field(default=4e-3, gt=0)  # initial learning rate
    weight_decay: float = Field(default=1e-2, ge=0)
    momentum: float = Field(default=0.95, ge=0, lt=1)  # for sgd
    clip: float = Field(default=5.0, gt=0)  # maximum norm of the gradient
    # Discriminative learning rates: the rate of a part, as a multiple of `rate`; 0 freezes it.
    parts: Mapping[NetworkPart, Annotated[float, Field(ge=0)]] = Field(
        default_factory=dict
    )

    @field_validator("parts")
    @classmethod
    def _some_part_is_trained(
        cls, parts: Mapping[NetworkPart, float]
    ) -> Mapping[NetworkPart, float]:
        """Check that not all parts of the network are frozen."""
        if all(parts.get(part) == 0 for part in get_args(NetworkPart)):
            raise ValueError("all parts are frozen: give one a factor above 0")
        return parts


class ScheduleConfig(_Config):
    """Length of a stage, in steps or in epochs, and its learning rates."""

    kind: Literal["cosine", "steps", "constant"] = (
        "cosine"  # decay of the learning rate
    )
    steps: int | None = Field(default=None, ge=1)  # length of the stage; or
    epochs: int | None = Field(default=None, ge=1)  # length in epochs
    warmup_steps: int = Field(default=0, ge=0)  # linear increase of the rate from 0
    factor: float = Field(
        default=0.1, gt=0, le=1
    )  # kind steps: the factor of each drop
    every_epochs: int = Field(default=10, ge=1)  # kind steps: epochs between drops

    @model_validator(mode="after")
    def _one_length(self) -> ScheduleConfig:
        """Check that the length of a stage is in steps or in epochs, not both."""
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give exactly one of steps and epochs")
        return self


class SyntheticConfig(_Config):
    """Synthetic scans, made from whole-head label maps during training."""

    # a folder of label maps and priors, or a heads file
    heads: Path | Literal["phantom"]
    synthesis: SynthesisConfig = SynthesisConfig()  # settings of the synthesis
    held_out: int = Field(default=0, ge=0)  # use the last N heads for validation
    variants: tuple[
        tuple[Variant, ...], ...
    ] = ()  # add each head once more with these changes


class StoreConfig(_Config):
    """Prepared slices, and the split of their subjects."""

    path: Path
    split: Path
    augmentation: AugmentationConfig = AugmentationConfig()
    # Share of draws that are balanced by class: first a structure is drawn, all with equal
    # probability, then one of the slices that contain it. The other draws pass over all slices,
    # each at most once.
    balanced_share: float = Field(default=0.5, ge=0, le=1)
    # Threads that read ahead; with 0, slices are read when needed. The default depends on the
    # device. It is not part of a run's identity: a run may be resumed with another number.
    workers: int | None = Field(default=None, ge=0, le=64, exclude=True)


class DataConfig(_Config):
    """Source of batches; with both, `synthetic_share` of each batch is synthetic."""

    synthetic: SyntheticConfig | None = None  # made during training
    store: StoreConfig | None = None  # slices of a store
    synthetic_share: float = Field(default=1.0, ge=0, le=1)  # if both sources are given
    rows: int = Field(default=192, ge=16)  # of a slice, in pixels
    columns: int = Field(default=192, ge=16)  # of a slice, in pixels
    # length of an epoch, of each view; null: every slice of the store once
    epoch_slices: int | None = Field(default=8000, ge=1)

    @property
    def trains_on_synthetic(self) -> bool:
        """True if synthetic slices are among those for training."""
        if self.store is None:
            return self.synthetic is not None
        return self.synthetic is not None and self.synthetic_share > 0

    @property
    def trains_on_store(self) -> bool:
        """True if slices of the store are among those for training, not only for validation."""
        if self.synthetic is None:
            return self.store is not None
        return self.store is not None and self.synthetic_share < 1

    @model_validator(mode="after")
    def _share_of_two_sources_is_given(self) -> DataConfig:
        """Check that a stage which adds a store to the recipe's synthetic scans uses it."""
        has_both = self.synthetic is not None and self.store is not None
        if has_both and "synthetic_share" not in self.model_fields_set:
            raise ValueError(
                "synthetic_share: say which share of the slices is synthetic, where data has both "
                "synthetic and store"
            )
        return self

    @model_validator(mode="after")
    def _passes_are_over_a_store(self) -> DataConfig:
        """Check that synthetic data has an epoch length, because its slices are all new."""
        if self.epoch_slices is None and (self.store is None or self.synthetic):
            raise ValueError(
                "epoch_slices: null is for a store without synthetic scans"
            )
        return self


class ValidationConfig(_Config):
    """Validation on whole scans after every n-th epoch; the weights with the best Dice are kept."""

    every_epochs: int = Field(default=1, ge=1)  # n: after every n-th epoch
    # stop after this many validations without a better Dice
    patience: int | None = Field(default=None, ge=1)
    # Number of participants in the part `validation` (for synthetic scans: heads) to score, drawn
    # by the recipe's seed, the same at each validation; all of them by default.
    participants: int | None = Field(default=None, ge=1)

    def choose(self, participants: Sequence[str], seed: int) -> list[int]:
        """Choose the scans to score, by index; `participants` has the participant of each scan.

        All scans of a participant are scored, or none.
        """
        places = range(len(participants))
        names = sorted(set(participants))
        if self.participants is None or self.participants >= len(names):
            return list(places)
        generator = np.random.default_rng((seed, _VALIDATION_STREAM))
        drawn = set(generator.choice(names, self.participants, replace=False).tolist())
        return [place for place in places if participants[place] in drawn]


class StageConfig(_Config):
    """One stage of a run."""

    # its folder in the run
    name: str = Field(default="train", pattern=r"^[a-z0-9-]{1,32}$")
    # Views that this stage trains; by default all views of the run. A view without an earlier
    # stage starts from the weights of another view.
    views: tuple[View, ...] | None = Field(default=None, min_length=1)
    data: DataConfig  # source of slices
    optimiser: OptimiserConfig = OptimiserConfig()
    schedule: ScheduleConfig
    loss: AnyLoss = LossConfig(balance=0.5, boundary=0.1)
    batch: int = Field(default=8, ge=1)  # slices per batch
    accumulate: int = Field(default=1, ge=1)  # batches per step
    # auto: bfloat16 if the device supports it; float16 with scaled gradients on GPUs without
    # bfloat16 (compute capability 7.0 to 7.5); else float32.
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    # decay of the moving average of weights; 0: use the weights themselves
    ema: float = Field(default=0.998, ge=0, lt=1)
    compile: bool = False  # torch.compile, for GPUs
    validation: ValidationConfig | None = None  # none: the last weights are kept
    checkpoint_every_steps: int = Field(default=500, ge=1)  # and after each epoch
    # stop after this many consecutive steps with NaN or infinite loss
    max_bad_steps: int = Field(default=20, ge=1)
    # Initial weights: a model's folder or shipped name. Ignored for views that an earlier stage
    # trains: these continue from that stage.
    start: Path | None = None


class Recipe(_Config):
    """A training run: one network per view, in one or more stages."""

    name: str = Field(pattern=r"^[a-z0-9-]{1,64}$")  # also the name of the model
    scheme: str = DEFAULT_SCHEME  # a label scheme
    network: Architecture = PUBLISHED  # of each view
    seed: int = Field(default=0, ge=0, lt=2**31)  # seed of all random numbers
    views: tuple[View, ...] = tuple(View)  # one network for each
    # Precision of the weights in the model folder; training itself uses 32 bits.
    stored: Precision = "float32"
    contrast: Contrast = "T1"  # contrast of the scans that the model is for
    # True if the model's networks expect scans like T2 and PD with reversed brightness, so that
    # tissues have the order of T1. Training uses scans as they are.
    reverse_contrast: bool = False
    # For a model that learns from stripped scans: the shipped model that strips whole heads for
    # it.
    stripped_by: Name | None = None
    tensorboard: bool = False  # also write the curves for TensorBoard
    # Reproduce the same bits from the same seed on a GPU, at some cost; CPUs always do.
    deterministic: bool = False
    stages: tuple[StageConfig, ...] = Field(min_length=1)  # one after the other

    def views_of(self, stage: StageConfig) -> tuple[View, ...]:
        """Return the views that a stage trains: its own, or all views of the recipe."""
        return stage.views or self.views

    def start_of(self, stage: StageConfig, view: View) -> Path | None:
        """Return the model whose weights a stage starts a view from; None if there is none.

        A view that an earlier stage trains goes on from that stage, even if this stage has `start`.
        """
        before = self.stages[: self.stages.index(stage)]
        if any(view in self.views_of(each) for each in before):
            return None
        return stage.start

    @field_validator("views")
    @classmethod
    def _each_view_once(cls, views: tuple[View, ...]) -> tuple[View, ...]:
        """Check that no view is listed twice, because a view has one network."""
        if not views or len(set(views)) < len(views):
            raise ValueError("name each view once")
        return views

    @model_validator(mode="before")
    @classmethod
    def _stages_inherit(cls, values: Any) -> Any:
        """Copy stage keys of the recipe itself to all stages."""
        return cls.merge_stages(values)

    @classmethod
    def merge_stages(cls, values: Any) -> Any:
        """Move stage keys of the recipe itself to all stages, which may override them.

        Values that are no recipe are returned as they are.
        """
        if not isinstance(values, Mapping):
            return values
        stages = values.get("stages") or [{}]
        if not isinstance(stages, list | tuple):
            return values
        if not all(isinstance(stage, Mapping | StageConfig) for stage in stages):
            return values

        # Keys that belong to neither the recipe nor a stage stay here, so that they are
        # refused.
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
            # A validated stage is left unchanged.
            if not isinstance(stage, StageConfig):
                stage = _merged(shared, stage)
            recipe["stages"].append(stage)
        recipe.update(rest)
        return recipe

    @model_validator(mode="after")
    def _reverses_for_any_contrast(self) -> Recipe:
        """Check that contrast is only reversed in training for any contrast, not for T1 alone."""
        if self.reverse_contrast and self.contrast != "any":
            raise ValueError("reverse_contrast: only with contrast: any")
        return self

    @model_validator(mode="after")
    def _starts_are_used(self) -> Recipe:
        """Check that no stage has a `start` of its own that all its views ignore.

        It may repeat the `start` of an earlier stage, because stages share keys.
        """
        for number, stage in enumerate(self.stages):
            earlier = [each.start for each in self.stages[:number]]
            starts = [self.start_of(stage, view) for view in self.views_of(stage)]
            is_used = any(start is not None for start in starts)
            if stage.start is not None and stage.start not in earlier and not is_used:
                raise ValueError(
                    f"stage {stage.name} cannot start from {stage.start}: its views continue "
                    "from an earlier stage"
                )
        return self

    @model_validator(mode="after")
    def _stage_names_differ(self) -> Recipe:
        """Check that stages differ in name, which is a folder, and use views of the recipe."""
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
    """Merge the keys of a stage, `over`, into those that all stages share, `base`.

    Nested mappings are merged key by key. If a stage has a length of its own, in steps or epochs,
    it replaces the shared length. A loss of another kind replaces the shared loss as a whole.
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
