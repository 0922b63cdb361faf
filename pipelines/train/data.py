"""Sources of batches and of validation scans for a training job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from trinat.pipelines.jobs.process import cpu_count
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.space.views import View
from trinat.segmentation.synthetic.heads import (
    HeadMaps,
    load_heads,
    phantom_heads,
    with_variants,
)
from trinat.segmentation.training.batches import (
    BatchSource,
    MixedSource,
    StoreSource,
    SyntheticSource,
    store_scans,
)
from trinat.segmentation.training.config import (
    Recipe,
    StageConfig,
    SyntheticConfig,
)
from trinat.segmentation.training.validation import ValidationScan, synthetic_scans

# Four readers give several times the slices that a GPU trains on.
_MOST_READERS = 4

# Function that returns the validation scans.
Scans = Callable[[], Iterator[ValidationScan]]


@contextmanager
def open_data(
    recipe: Recipe,
    stage: StageConfig,
    view: View,
    scheme: LabelScheme,
    device: torch.device,
) -> Iterator[tuple[BatchSource, Scans]]:
    """Open the training data of a stage: a source of batches, and its scans for validation.

    Yields two things: the source of batches for `view`, and a function that returns an iterator
    over the validation scans. If a stage has synthetic scans and a slice store, batches contain
    slices of both, and the validation scans are from the store. Slices are read ahead within the
    block.

    Raises ConfigError if the stage has no data, and the errors of opening the data.
    """
    data = stage.data
    if data.synthetic is None and data.store is None:
        remedy = "give data.synthetic or data.store"
        raise ConfigError("data has neither synthetic nor store", remedy=remedy)
    size = (data.rows, data.columns)
    channels = recipe.network.channels
    source: BatchSource
    with ExitStack() as opened:
        if data.synthetic is not None:
            seen, unseen = _divided_heads(data.synthetic)
            synthesis = data.synthetic.synthesis
            source = synthetic = SyntheticSource(
                with_variants(seen, data.synthetic.variants),
                view,
                scheme,
                synthesis,
                size,
                channels,
                device,
            )
        if data.store is not None:
            readers = data.store.workers
            if readers is None:
                readers = usual_readers(device, cpu_count())
            source = real = StoreSource(
                data.store, view, size, channels, recipe.seed, scheme, readers
            )
            opened.callback(real.close)
            if data.synthetic is not None:
                source = MixedSource(synthetic, real, data.synthetic_share)

        def scans() -> Iterator[ValidationScan]:
            """Return the validation scans; none if the stage does not validate.

            Synthetic scans are the same at each validation.
            """
            if stage.validation is None:
                return iter(())
            if data.store is not None:
                return store_scans(data.store, view, stage.validation, recipe.seed)
            names = [str(head) for head in range(len(unseen.labels))]
            chosen = stage.validation.choose(names, recipe.seed)
            return synthetic_scans(unseen, chosen, scheme, synthesis, view, recipe.seed)

        yield source, scans


def _divided_heads(config: SyntheticConfig) -> tuple[HeadMaps, HeadMaps]:
    """Load the heads for training and those for validation.

    The last heads are held out for validation. If none are, validation scans are made from the
    heads for training. ConfigError is raised if no head is left for training.
    """
    heads = config.heads
    maps = phantom_heads(2) if heads == "phantom" else load_heads(Path(heads))
    if not config.held_out:
        return maps, maps
    first = len(maps.labels) - config.held_out
    if first <= 0:
        raise ConfigError(
            f"held_out ({config.held_out}) must be less than the number "
            f"of heads ({len(maps.labels)})"
        )
    return maps.part(slice(0, first)), maps.part(slice(first, None))


def usual_readers(device: torch.device, cores: int) -> int:
    """Return the default number of threads that read slices ahead.

    A GPU is idle while a slice is read. On a CPU reading is one or two hundredths of a step, and a
    reader would take time from training.
    """
    if device.type == "cpu":
        return 0
    return max(1, min(_MOST_READERS, cores - 1))
