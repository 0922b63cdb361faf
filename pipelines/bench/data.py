"""Slice stores: making one, reading random slices from it, augmenting batches of them.

The subject is the phantom at 256 x 256 x 256, written as FreeSurfer would; nothing is downloaded.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from pipelines.bench._steps import seconds
from pipelines.data.phantom import write_phantoms
from pipelines.data.prepare import PrepareConfig
from pipelines.data.prepare import run as prepare
from segmentation.data.augmentation import AugmentationConfig, Augmenter
from segmentation.data.dataset import SliceDataset
from segmentation.data.reading import SliceReaders
from segmentation.data.store import Store
from segmentation.space.views import View

_SLICES = 1500


def run(repetitions: str = "3") -> None:
    """Prepare two subjects, then read and augment; medians of `repetitions`."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="trinat-bench-") as folder:
        store = _prepare(Path(folder), int(repetitions))
        dataset = SliceDataset(store, store.subjects, View.CORONAL)
        _read(dataset, store)
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


def _read(dataset: SliceDataset, store: Store) -> None:
    """Orders of eight slices, as training gives them; each slice is copied once."""
    order = np.random.default_rng(0).integers(len(dataset), size=_SLICES + 16)
    places = [dataset.place(int(index)) for index in order]
    batches = [places[first : first + 8] for first in range(0, len(places), 8)]
    readers = SliceReaders(dataset.files, 0, where=store.root)
    for number, batch in enumerate(batches):
        if number == 2:  # the first two open the files
            start = time.perf_counter()
        for one in readers.take(readers.order(batch)):
            one.image.codes.copy(), one.labels.copy()
    taken_s = time.perf_counter() - start
    readers.close()
    print(f"random slices, one process       {_SLICES / taken_s:6.0f} a second")


def _augment(dataset: SliceDataset, repetitions: int) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    middle = len(dataset) // 2
    images, labels = (
        torch.stack(part).to(device)
        for part in zip(*(dataset[middle + n] for n in range(8)), strict=True)
    )
    generator = torch.Generator().manual_seed(0)

    augment = Augmenter(AugmentationConfig(), View.CORONAL, dataset.scheme)

    def once() -> None:
        augment(images, labels, generator)
        if device == "cuda":
            torch.cuda.synchronize()

    taken_ms = seconds(once, 5 * repetitions) / len(images) * 1e3
    print(f"augmentation by default, {device:4}    {taken_ms:6.2f} ms a slice")
