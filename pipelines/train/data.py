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
    StoreConfig,
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
    source: BatchSource
    with ExitStack() as opened:
        if data.synthetic is not None:
            synthetic, scans = _open_synthetic(
                recipe, stage, data.synthetic, view, scheme, device
            )
            source = synthetic
        if data.store is not None:
            readers = data.store.workers
            if readers is None:
                readers = usual_readers(device, cpu_count())
            real, scans = _open_store(recipe, stage, data.store, view, scheme, readers)
            opened.callback(real.close)
            source = real
            if data.synthetic is not None:
                source = MixedSource(synthetic, real, data.synthetic_share)
        yield source, scans


def _open_synthetic(
    recipe: Recipe,
    stage: StageConfig,
    config: SyntheticConfig,
    view: View,
    scheme: LabelScheme,
    device: torch.device,
) -> tuple[SyntheticSource, Scans]:
    """Open the source of synthetic slices; also return a function for the validation scans.

    Slices are synthesised from label maps of heads when they are requested; the label maps stay on
    the device. The validation scans are made from the heads that are held out. Raises ConfigError
    if all heads are to be held out.
    """
    heads = config.heads
    maps = phantom_heads(2) if heads == "phantom" else load_heads(Path(heads))
    # The last heads are held out for validation. If none are, new scans of the training heads are
    # used.
    count = len(maps.labels)
    if config.held_out >= count:
        raise ConfigError(
            f"held_out ({config.held_out}) must be less than the number "
            f"of heads ({count})"
        )
    seen = unseen = maps
    if config.held_out:
        first = count - config.held_out
        seen = maps.part(slice(0, first))
        unseen = maps.part(slice(first, count))
    source = SyntheticSource(
        with_variants(seen, config.variants),
        scheme,
        config.synthesis,
        (stage.data.rows, stage.data.columns),
        recipe.network.channels,
        device,
    )

    def scans() -> Iterator[ValidationScan]:
        """Return new synthetic scans of the held-out heads, the same at each validation.

        There are none if the stage does not validate.
        """
        if stage.validation is None:
            return iter(())
        names = [str(head) for head in range(len(unseen.labels))]
        chosen = stage.validation.choose(names, recipe.seed)
        return synthetic_scans(
            unseen, chosen, scheme, config.synthesis, view, recipe.seed
        )

    return source, scans


def _open_store(
    recipe: Recipe,
    stage: StageConfig,
    config: StoreConfig,
    view: View,
    scheme: LabelScheme,
    readers: int,
) -> tuple[StoreSource, Scans]:
    """Open the training slices of a store; also return a function for the validation scans.

    `readers` is the number of threads that read ahead.
    """
    source = StoreSource(
        config,
        (view,),
        (stage.data.rows, stage.data.columns),
        recipe.network.channels,
        recipe.seed,
        scheme,
        readers,
    )

    def scans() -> Iterator[ValidationScan]:
        """Return the scans of the store for validation; none if the stage does not validate."""
        if stage.validation is None:
            return iter(())
        return store_scans(
            config.path, config.split, view, stage.validation, recipe.seed
        )

    return source, scans


def usual_readers(device: torch.device, cores: int) -> int:
    """Return the default number of threads that read slices ahead.

    A GPU is idle while a slice is read. On a CPU reading is one or two hundredths of a step, and a
    reader would take time from training.
    """
    if device.type == "cpu":
        return 0
    return max(1, min(_MOST_READERS, cores - 1))
