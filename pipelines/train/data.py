"""Where the batches of a training job come from, and the scans that validate it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from trinat.pipelines.common.process import cpu_count
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.models.hardware import count_gpus
from trinat.segmentation.space.views import View
from trinat.segmentation.synthetic.heads import load_heads, phantom_heads, with_variants
from trinat.segmentation.training.batches import (
    MixedSource,
    Source,
    StoreSource,
    SyntheticSource,
    store_scans,
)
from trinat.segmentation.training.config import Recipe, StageConfig
from trinat.segmentation.training.validation import Scan, synthetic_scans

# Four readers give several times the slices that a GPU trains on.
_MOST_READERS = 4


@contextmanager
def open_data(
    recipe: Recipe,
    stage: StageConfig,
    views: tuple[View, ...],
    scheme: LabelScheme,
    device: torch.device,
    processes: int,
) -> Iterator[tuple[Source, Callable[[View], Iterator[Scan]]]]:
    """A source of batches for these views, and the scans that validate each."""
    data, channels = stage.data, recipe.network.channels
    size = (data.rows, data.columns)
    sources: list[Source] = []
    scans: Callable[[View], Iterator[Scan]] = lambda view: iter(())  # noqa: E731
    limit = stage.validation.scans if stage.validation else 0
    if data.synthetic is not None:
        heads = data.synthetic.heads
        maps = phantom_heads(2) if heads == "phantom" else load_heads(Path(heads))
        held = data.synthetic.held_out
        if held >= len(maps.labels):
            raise ConfigError(f"held_out is {held}, and there are {len(maps.labels)} heads")
        seen = with_variants(maps.part(slice(None, -held or None)), data.synthetic.variants)
        # Where no heads are held out: new scans of the same heads.
        unseen = maps.part(slice(-held, None)).part(slice(None, limit or 1))
        synthesis = data.synthetic.synthesis
        sources.append(SyntheticSource(seen, scheme, synthesis, size, channels, device))
        scans = lambda view: synthetic_scans(unseen, scheme, synthesis, view, recipe.seed)  # noqa: E731
    if data.store is not None:
        store = data.store
        readers = store.workers
        if readers is None:
            sharing = max(1, min(processes, count_gpus()))
            readers = usual_readers(device, cpu_count() // sharing)
        real = StoreSource(store, views, size, channels, recipe.seed, scheme, readers)
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
    """Threads that read slices ahead, where the recipe gives no number.

    A GPU is idle while a slice is read. On a CPU reading is one or two hundredths of a step, and a
    reader would take time from training.
    """
    return 0 if device.type == "cpu" else max(1, min(_MOST_READERS, cores - 1))
