"""Slice stores: making one, reading random slices from it, augmenting batches of them.

The subject is the phantom at 256 x 256 x 256, written as FreeSurfer would; nothing is downloaded.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from pipelines.phantom import write_phantoms
from pipelines.prepare import PrepareConfig
from pipelines.prepare import run as prepare
from pipelines.process import cpu_count
from segmentation.data.artefacts import ARTEFACTS, add_artefact
from segmentation.data.augmentation import AugmentationConfig, Augmenter
from segmentation.data.dataset import BalancedSampler, EmptySlices, SliceDataset
from segmentation.data.loading import SliceLoader
from segmentation.data.reading import SliceReaders
from segmentation.data.slices import quantise
from segmentation.data.store import Store
from segmentation.views import View

_SLICES = 1500


def run(repetitions: str = "3") -> None:
    """Prepare a subject, then read and augment; medians of `repetitions`."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="trinat-bench-") as folder:
        store = _prepare(Path(folder), int(repetitions))
        dataset = SliceDataset(store, store.subjects, View.CORONAL, empty=EmptySlices())
        _read(dataset, int(repetitions))
        _read_ahead(dataset, store)
        _pack(store, Path(folder))
        _augment(dataset, int(repetitions))


def _median_s(repetitions: int, work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _prepare(folder: Path, repetitions: int) -> Store:
    for image, labels in write_phantoms(
        folder / "phantoms", subjects=2, seed=0, spacing_mm=(1.0, 1.0, 1.0)
    ):
        for kind, path in (("images", image), ("labels", labels)):
            target = folder / "in" / kind / image.name
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
    config = PrepareConfig(source="pairs", root=folder / "in")
    names = sorted(path.name for path in (folder / "in/images").iterdir())

    def once() -> None:
        for path in (folder / "store").glob("subjects/*.h5"):
            path.unlink()
        prepare(config, folder / "store")

    seconds = _median_s(repetitions, once) / len(names)
    store = Store(folder / "store")
    size = sum(path.stat().st_size for path in (folder / "store/subjects").iterdir())
    print(f"prepare, three views, one core   {seconds:6.2f} s a subject")
    print(f"store                            {size / len(names) / 1e6:6.1f} MB a subject")
    again_s = _median_s(3, lambda: prepare(config, folder / "store")) / len(names)
    print(f"rerun with nothing to do         {again_s * 1e3:6.1f} ms a subject")
    return store


def _read(dataset: SliceDataset, repetitions: int) -> None:
    """Uniformly random slices: item by item in this process, then the same by four workers.

    They take turns, so that what else the machine does meets both; medians over the turns.
    """
    with warnings.catch_warnings():
        # Of more workers than processors: four is what the figure is about.
        warnings.simplefilter("ignore", UserWarning)
        turns, sums = _turns(dataset, repetitions + 1)
        same = sums[:2] == _turns(dataset, 2)[1]
    # Without the first, in which files are opened, pages cached and workers started.
    alone, alone_busy, four, four_busy = (
        statistics.median(turn[n] for turn in turns[1:]) for n in range(4)
    )
    ratio = statistics.median(turn[2] / turn[0] for turn in turns[1:])
    print(
        f"random slices with labels        {alone:6.0f} a second from one process, warm "
        f"({alone_busy:.0f} a second of processor time)"
    )
    print(
        f"four workers, once started       {four:6.0f} a second on {cpu_count()} processors "
        f"({four_busy:.0f} a second of processor time), {ratio:.0%} of one process; "
        f"again the same: {'yes' if same else 'NO'}"
    )


def _turns(dataset: SliceDataset, count: int) -> tuple[list[list[float]], list[list[float]]]:
    """Each turn's slices a second, by the clock and by processor time, of one process and of four
    workers that stay; and the sums of the workers' batches."""
    sampler = BalancedSampler(dataset, share=0.0, seed=0, count=_SLICES)
    loader = SliceLoader(dataset, sampler, batch_size=8, workers=4)
    turns, sums = [], []
    for epoch in range(count):
        sampler.set_epoch(epoch)
        start, used = time.perf_counter(), time.process_time()
        for index in sampler:
            dataset[index]
        alone_s, alone_busy_s = time.perf_counter() - start, time.process_time() - used
        start, used = time.perf_counter(), _processor_s()
        sums.append([float(images[:, :, 128].sum()) for images, _ in loader])
        four_s, four_busy_s = time.perf_counter() - start, _processor_s() - used
        turns.append([_SLICES / s for s in (alone_s, alone_busy_s, four_s, four_busy_s)])
    return turns, sums


def _read_ahead(dataset: SliceDataset, store: Store, slices: int = _SLICES) -> None:
    """What a slice costs the process that trains, and those that read for it: processor time.

    Orders of eight slices, four ahead, as training gives them; each slice is copied once.
    """
    order = np.random.default_rng(0).integers(len(dataset), size=slices + 16)
    places = [dataset.place(int(index)) for index in order]
    batches = [places[first : first + 8] for first in range(0, len(places), 8)]
    for workers in (0, 1, 2):
        readers = SliceReaders(dataset.files, workers, where=store.root)
        # The first two open the files.
        orders = deque(readers.order(batch) for batch in batches[:2])
        while orders:
            readers.take(orders.popleft())
        start, here, all_s = time.perf_counter(), time.process_time(), _processor_s()
        for batch in (*batches[2:], *[None] * 4):
            if batch is not None:
                orders.append(readers.order(batch))
            if len(orders) > 4 or batch is None:
                for one in readers.take(orders.popleft()):
                    one.image.codes.copy(), one.labels.copy()
        seconds = time.perf_counter() - start
        here, all_s = time.process_time() - here, _processor_s() - all_s
        print(
            f"read ahead by {workers} workers          {slices / seconds:6.0f} a second; "
            f"{here / slices * 1e6:.0f} us of the process that trains, "
            f"{(all_s - here) / slices * 1e6:.0f} us of workers"
        )
        readers.close()


def _processor_s() -> float:
    """Used so far by this process and its workers; theirs as Linux tells it."""
    files = (Path(f"/proc/{worker.pid}/schedstat") for worker in active_children())
    nanoseconds = sum(int(file.read_text().split()[0]) for file in files if file.exists())
    return time.process_time() + nanoseconds * 1e-9


def _pack(store: Store, folder: Path) -> None:
    """What other ways to store the same slices would cost."""
    conformed = _scan(store)
    chosen = quantise(conformed)
    full = conformed.max() / 65535
    gzip: dict[str, Any] = {"compression": "gzip", "compression_opts": 1, "shuffle": True}
    ways: tuple[tuple[str, Any, float, dict[str, Any]], ...] = (
        ("4,096 levels, gzip-1 (chosen)", chosen.codes, chosen.scale, gzip),
        ("4,096 levels, lzf (bytes vary)", chosen.codes, chosen.scale, {"compression": "lzf"}),
        ("65,536 levels, gzip-1", np.rint(conformed / full).astype(np.uint16), full, gzip),
        ("half float, gzip-1", conformed.astype(np.float16), 1.0, gzip),
        ("float32, gzip-1", conformed, 1.0, gzip),
        ("float32, lzf", conformed, 1.0, {"compression": "lzf"}),
        ("4,096 levels, not packed", chosen.codes, chosen.scale, {}),
    )
    print("image slices, by how they are stored (random single reads, warm)")
    for name, array, scale, packing in ways:
        path = folder / "packing.h5"
        start = time.perf_counter()
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=array, chunks=(1, *array.shape[1:]), **packing)
        written_s = time.perf_counter() - start
        read_s = _read_seconds(path)
        error = np.abs(array.astype(np.float32) * np.float32(scale) - conformed).max()
        megabytes = path.stat().st_size / 1e6
        print(
            f"  {name:31} {read_s * 1e6:5.0f} us a slice  {megabytes:5.1f} MB"
            f"  written in {written_s:.2f} s  largest error {error:.1e}"
        )
        path.unlink()


def _scan(store: Store) -> Any:
    """Coronal slices of a subject, float32, with the noise of a resampled scan."""
    values = store.file(store.subjects[0]).codes(View.CORONAL).values()
    noise = np.random.default_rng(0).normal(0, 0.01, values.shape).astype(np.float32)
    return np.where(values > 0, np.clip(values + noise, 0, 2), 0).astype(np.float32)


def _read_seconds(path: Path) -> float:
    with h5py.File(path, rdcc_nbytes=0) as file:
        dataset = file["x"]
        order = np.random.default_rng(0).integers(40, 216, 400).tolist()

        def all_of_them() -> None:
            for number in order:
                dataset[number]

        return _median_s(3, all_of_them) / len(order)


def _augment(dataset: SliceDataset, repetitions: int) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    middle = len(dataset) // 2
    images, labels = (
        torch.stack(part).to(device)
        for part in zip(*(dataset[middle + n] for n in range(8)), strict=True)
    )
    generator = torch.Generator().manual_seed(0)

    def timed(config: AugmentationConfig) -> float:
        augment = Augmenter(config, View.CORONAL, dataset.scheme)

        def once() -> None:
            augment(images, labels, generator)
            if device == "cuda":
                torch.cuda.synchronize()

        once()
        return _median_s(5 * repetitions, once) / len(images) * 1e3

    off = dict.fromkeys(
        ("flip", "affine", "elastic", "gain", "bias", "gamma", "blur", "low_resolution", "noise"),
        0.0,
    )
    print(f"augmentation of batches of 8 slices on {device}, one thread: ms a slice")
    print(f"  as configured by default   {timed(AugmentationConfig()):6.2f}")
    for kind in off:
        alone = AugmentationConfig.model_validate(off | {kind: 1.0})
        print(f"  {kind + ', always':26} {timed(alone):6.2f}")
    one = images[0].cpu()
    for artefact in ARTEFACTS:
        add_artefact(one, artefact, 0)
        seconds = _median_s(5, lambda a=artefact: add_artefact(one, a, 0))  # type: ignore[misc]
        print(f"  {artefact + ', on request':26} {seconds * 1e3:6.2f}")
    print(f"  MONAI's affine, elastic    {_monai_ms(images[0].cpu(), labels[0].cpu()):6.2f}")


def _monai_ms(image: torch.Tensor, labels: torch.Tensor) -> float:
    """The same deformation by MONAI's dictionary transforms, slice by slice."""
    from monai.transforms import Compose, Rand2DElasticd

    keys = ("image", "labels")
    transform = Compose(
        [
            Rand2DElasticd(
                keys,
                spacing=(32, 32),
                magnitude_range=(1, 2.5),
                prob=1.0,
                rotate_range=0.2,
                scale_range=0.15,
                shear_range=0.08,
                translate_range=12,
                mode=("bilinear", "nearest"),
                padding_mode="zeros",
            )
        ]
    )
    item = {"image": image, "labels": labels[None].float()}
    transform(item)
    return _median_s(9, lambda: transform(item)) * 1e3
