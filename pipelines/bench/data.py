"""Slice stores: making one, reading random slices from it, augmenting batches of them.

The subject is the phantom at 256 x 256 x 256, written as FreeSurfer would; nothing is downloaded.
"""

from __future__ import annotations

import tempfile
import time
from collections import deque
from pathlib import Path
from typing import get_args

import numpy as np
import torch

from pipelines.bench._steps import processor_s, seconds
from pipelines.data.phantom import write_phantoms
from pipelines.data.prepare import PrepareConfig
from pipelines.data.prepare import run as prepare
from segmentation.data.augmentation import Artefact, AugmentationConfig, Augmenter, add_artefact
from segmentation.data.dataset import SliceDataset
from segmentation.data.reading import SliceReaders
from segmentation.data.store import Store
from segmentation.space.views import View

_SLICES = 1500
_KINDS = ("flip", "affine", "elastic", "gain", "bias", "gamma", "blur", "low_resolution", "noise")


def run(repetitions: str = "3") -> None:
    """Prepare two subjects, then read and augment; medians of `repetitions`."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="trinat-bench-") as folder:
        store = _prepare(Path(folder), int(repetitions))
        dataset = SliceDataset(store, store.subjects, View.CORONAL)
        _read_ahead(dataset, store)
        _augment(dataset, int(repetitions))


def _prepare(folder: Path, repetitions: int) -> Store:
    for kind in ("images", "labels"):
        (folder / "in" / kind).mkdir(parents=True)
    for image, labels in write_phantoms(
        folder / "phantoms", subjects=2, seed=0, spacing_mm=(1.0, 1.0, 1.0)
    ):
        image.rename(folder / "in/images" / image.name)
        labels.rename(folder / "in/labels" / image.name)
    config = PrepareConfig(source="pairs", root=folder / "in")

    def once() -> None:
        for path in (folder / "store").glob("subjects/*.h5"):
            path.unlink()
        prepare(config, folder / "store")

    made_s = seconds(once, repetitions) / 2
    store = Store(folder / "store")
    size = sum(path.stat().st_size for path in (folder / "store/subjects").iterdir())
    again_s = seconds(lambda: prepare(config, folder / "store"), repetitions) / 2
    print(f"prepare, three views, one core   {made_s:6.2f} s a subject")
    print(f"store                            {size / 2e6:6.1f} MB a subject")
    print(f"rerun with nothing to do         {again_s * 1e3:6.1f} ms a subject")
    return store


def _read_ahead(dataset: SliceDataset, store: Store) -> None:
    """What a slice costs the process that trains, and those that read for it: processor time.

    Orders of eight slices, four ahead, as training gives them; each slice is copied once.
    """
    order = np.random.default_rng(0).integers(len(dataset), size=_SLICES + 16)
    places = [dataset.place(int(index)) for index in order]
    batches = [places[first : first + 8] for first in range(0, len(places), 8)]
    for workers in (0, 1, 2):
        readers = SliceReaders(dataset.files, workers, where=store.root)
        # The first two open the files.
        orders = deque(readers.order(batch) for batch in batches[:2])
        while orders:
            readers.take(orders.popleft())
        start, here, all_s = time.perf_counter(), time.process_time(), processor_s()
        for batch in (*batches[2:], *[None] * 4):
            if batch is not None:
                orders.append(readers.order(batch))
            if len(orders) > 4 or batch is None:
                for one in readers.take(orders.popleft()):
                    one.image.codes.copy(), one.labels.copy()
        taken_s = time.perf_counter() - start
        here, all_s = time.process_time() - here, processor_s() - all_s
        print(
            f"read ahead by {workers} workers          {_SLICES / taken_s:6.0f} a second; "
            f"{here / _SLICES * 1e6:.0f} us of the process that trains, "
            f"{(all_s - here) / _SLICES * 1e6:.0f} us of workers"
        )
        readers.close()


def _augment(dataset: SliceDataset, repetitions: int) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    middle = len(dataset) // 2
    images, labels = (
        torch.stack(part).to(device)
        for part in zip(*(dataset[middle + n] for n in range(8)), strict=True)
    )
    generator = torch.Generator().manual_seed(0)

    def timed_ms(config: AugmentationConfig) -> float:
        augment = Augmenter(config, View.CORONAL, dataset.scheme)

        def once() -> None:
            augment(images, labels, generator)
            if device == "cuda":
                torch.cuda.synchronize()

        return seconds(once, 5 * repetitions) / len(images) * 1e3

    print(f"augmentation of batches of 8 slices on {device}, one thread: ms a slice")
    print(f"  as configured by default   {timed_ms(AugmentationConfig()):6.2f}")
    for kind in _KINDS:
        alone = AugmentationConfig.model_validate(dict.fromkeys(_KINDS, 0.0) | {kind: 1.0})
        print(f"  {kind + ', always':26} {timed_ms(alone):6.2f}")
    one = images[0].cpu()
    for artefact in get_args(Artefact):
        took_s = seconds(lambda a=artefact: add_artefact(one, a, 0))  # type: ignore[misc]
        print(f"  {artefact + ', on request':26} {took_s * 1e3:6.2f}")
