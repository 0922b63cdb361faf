"""Sources of batches: label maps, a store, or a mixture of both; and validation scans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinat.segmentation.data.augmentation import Augmenter, upload
from trinat.segmentation.data.dataset import (
    BalancedSampler,
    SlabLocation,
    SliceDataset,
    SliceReaders,
    StoredSlice,
    open_slices,
)
from trinat.segmentation.data.slices import quantise
from trinat.segmentation.data.splits import read_split
from trinat.segmentation.data.store import Store
from trinat.segmentation.data.transforms import SliceTransforms
from trinat.segmentation.errors import DatasetError, TrainingError
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.models.hardware import widest_float
from trinat.segmentation.space.views import View
from trinat.segmentation.synthetic.heads import HeadMaps
from trinat.segmentation.synthetic.settings import SynthesisConfig
from trinat.segmentation.synthetic.synthesis import synthesise
from trinat.segmentation.synthetic.targets import aim
from trinat.segmentation.training.config import StoreConfig, ValidationConfig
from trinat.segmentation.training.state import seeded
from trinat.segmentation.training.validation import ValidationScan

# View, first slice and number of slices.
_Request = tuple[View, int, int]


@dataclass(frozen=True, eq=False)
class Batch:
    """Images (B, C, H, W) float32, classes (B, H, W) uint8, and their origin.

    `what` names the subjects and slices, for messages.
    """

    images: Tensor
    labels: Tensor
    what: str


class BatchSource(Protocol):
    """Source that returns the same batch for the same arguments, so that a run can be resumed.

    `fingerprint` changes with the data that batches are made from. `may_draw_in_thread`: a batch
    may be drawn while a CPU trains, without using its random numbers.
    """

    fingerprint: str
    may_draw_in_thread: bool = True

    def expect(self, view: View, first: int, count: int) -> None:
        """Announce slices that will be requested soon, perhaps more than once."""
        return

    def draw(
        self,
        view: View,
        first: int,
        count: int,
        generator: torch.Generator,
    ) -> Batch:
        """Return `count` slices of a view, starting with number `first` of the slices of a job.

        A source of stored slices finds them by their numbers, and `generator` determines how they
        are augmented. A synthetic source makes new slices by `generator` alone.
        """

    def counts(self, view: View) -> Tensor:
        """Return (K,) pixels of each class, for the loss."""

    def slices(self, view: View) -> int:
        """Return the number of slices of a view in an epoch; 0 if each slice is new."""
        return 0


class SyntheticSource(BatchSource):
    """Synthetic slices from label maps; each slice is new.

    It has the views that can show the scheme: not the sagittal view for a scheme of one side.
    """

    # In a crop around the head, background covers about this many times the area of the brain.
    background = 1.5

    def __init__(
        self,
        maps: HeadMaps,
        scheme: LabelScheme,
        config: SynthesisConfig,
        size: tuple[int, int],
        channels: int,
        device: torch.device | str = "cpu",
    ) -> None:
        """Load the label maps to `device`, where slices are made.

        Slices have `size` (rows, columns), and `channels` with their neighbours, an odd number.
        """
        self.config = config
        self.size = size
        self.neighbours = channels // 2
        self.fingerprint = maps.fingerprint
        heads = aim(maps, scheme, device, learn_fluid=config.learn_fluid)
        # The label maps are on the device only once.
        self.heads = {}
        for view in View:
            if view is View.SAGITTAL and scheme.has_unpartnered_sides:
                continue
            self.heads[view] = heads.seen_in(view)

    def draw(
        self,
        view: View,
        first: int,
        count: int,
        generator: torch.Generator,
    ) -> Batch:
        """Make new slices, which depend on the generator alone and not on their numbers.

        `first` and `count` number the slices of the batch, for messages only.
        """
        images, labels = synthesise(
            self.heads[view],
            self.config,
            view,
            count,
            self.size,
            generator,
            self.neighbours,
        )
        last = first + count - 1
        return Batch(images, labels, f"synthetic {view.value} slices {first}-{last}")

    def counts(self, view: View) -> Tensor:
        """Return voxels of each class in all label maps; for background, as many as a crop has.

        (K,), float64. The weights of the loss are computed from it.
        """
        heads = self.heads[view]
        entries = len(heads.classes)
        voxels = torch.bincount(heads.labels.flatten(), minlength=entries)
        voxels = voxels.to(widest_float(voxels.device))
        counts = voxels.new_zeros(len(heads.scheme))
        counts.index_add_(0, heads.targets.long(), voxels)
        counts[0] = self.background * counts[1:].sum()
        return counts.cpu()


class MixedSource(BatchSource):
    """Synthetic and real slices: `share` of each batch is synthetic, on average.

    The number of synthetic slices in a batch follows from the slices' numbers, so that a resumed
    run has the same batches.
    """

    def __init__(self, synthetic: BatchSource, real: BatchSource, share: float) -> None:
        """Combine two sources; `share` is from 0 to 1."""
        self.synthetic = synthetic
        self.real = real
        self.share = share
        self.may_draw_in_thread = real.may_draw_in_thread
        self.fingerprint = f"{share} {synthetic.fingerprint} {real.fingerprint}"

    def expect(self, view: View, first: int, count: int) -> None:
        """Announce to each of the two sources its own part."""
        for source, start, part in self._parts(first, count):
            source.expect(view, start, part)

    def draw(
        self,
        view: View,
        first: int,
        count: int,
        generator: torch.Generator,
    ) -> Batch:
        """Return the synthetic slices first, then the real slices.

        Numbers of slices are divided in the same way in each run.
        """
        batches = [
            source.draw(view, start, part, generator)
            for source, start, part in self._parts(first, count)
        ]
        images = torch.cat([batch.images for batch in batches])
        labels = torch.cat([batch.labels for batch in batches])
        what = ", ".join(batch.what for batch in batches)
        return Batch(images, labels, what)

    def counts(self, view: View) -> Tensor:
        """Return shares of pixels, summing to 1; each source counts by its share of slices."""
        synthetic = self.synthetic.counts(view).double()
        real = self.real.counts(view).double()
        synthetic_part = self.share * synthetic / synthetic.sum()
        real_part = (1 - self.share) * real / real.sum()
        return synthetic_part + real_part

    def _parts(self, first: int, count: int) -> list[tuple[BatchSource, int, int]]:
        """Divide slices between the sources: source, number of its first slice, and count.

        Among the slices up to n, floor(share n) are synthetic: exact over time for any batch size.
        """
        before = int(self.share * first)
        synthetic = int(self.share * (first + count)) - before
        parts = [
            (self.synthetic, before, synthetic),
            (self.real, first - before, count - synthetic),
        ]
        return [part for part in parts if part[2]]


class StoreSource(BatchSource):
    """Augmented slices of a store's training part; rare structures occur more often.

    Readers return whole slices as stored, or after the transforms of TorchIO and MONAI, whose
    random numbers follow from the slice's number. Cropping and all other augmentation are done
    here, with the batch's own generator. The result is therefore independent of the number of
    readers, bit for bit.
    """

    def __init__(
        self,
        store: StoreConfig,
        views: Sequence[View],
        size: tuple[int, int],
        channels: int,
        seed: int,
        scheme: LabelScheme,
        workers: int = 0,
        processes: Executor | None = None,
    ) -> None:
        """Open slices of `views`, cut to `size` (rows, columns), with `channels` neighbours each.

        `seed` determines the order of epochs; `workers` is the number of readers. `processes` run
        the transforms of TorchIO and MONAI; without them, nothing is read ahead if there are any.
        Raises DatasetError if the store has labels of another scheme than `scheme`.
        """
        self.size = size
        self.seed = seed
        self.balanced_share = store.balanced_share
        opened = Store(store.path)
        if opened.scheme.names != scheme.names:
            raise DatasetError(
                f"holds labels of {opened.scheme.name}, not {scheme.name}",
                where=store.path,
                remedy="prepare it with those labels, or change `scheme` in the recipe",
            )
        split = read_split(store.split)
        self.fingerprint = f"{opened.fingerprint} {split.model_dump_json()}"
        self.datasets: dict[View, SliceDataset] = {}
        self.augmenters: dict[View, Augmenter] = {}
        self._transforms: _StoredTransforms | None = None
        if store.augmentation.transforms:
            transforms = SliceTransforms(store.augmentation.transforms)
            self._transforms = _StoredTransforms(transforms, seed, processes)
        if self._transforms is not None and processes is None:
            # In a thread they would use torch's random numbers while the training does.
            workers = 0
            self.may_draw_in_thread = False
        on_batches = store.augmentation.model_copy(update={"transforms": ()})
        for view in views:
            self.datasets[view] = open_slices(
                store.path, store.split, "train", view, thick=channels
            )
            seen = scheme.seen_in(view)
            self.augmenters[view] = Augmenter(on_batches, view, seen)
        # Items in the order in which they are taken, by view and epoch.
        self._orders: dict[tuple[View, int], list[int]] = {}
        # Any view will do: all have the same subjects.
        files = self.datasets[views[0]].files
        self._readers = SliceReaders(files, workers)
        # Callables that return each slice, by view, first and count.
        self._expected: dict[_Request, list[Callable[[], StoredSlice]]] = {}

    def close(self) -> None:
        """Stop reading ahead."""
        self._readers.close()

    def expect(self, view: View, first: int, count: int) -> None:
        """Have the readers read these slices ahead; a second announcement changes nothing."""
        if (view, first, count) not in self._expected:
            places = self._places(view, first, count)
            changes = None
            if self._transforms is not None:
                numbers = range(first, first + count)
                changes = [self._transforms.change(view, number) for number in numbers]
            self._expected[view, first, count] = self._readers.order(places, changes)

    def draw(
        self,
        view: View,
        first: int,
        count: int,
        generator: torch.Generator,
    ) -> Batch:
        """Return slices cut to size and augmented, which the readers may have read already.

        Slices that were not announced by `expect` are read now. Images are (B, C, H, W) of the size
        of the recipe, on the generator's device.
        """
        device = generator.device
        if device.type != "cpu":
            # Inspecting random numbers on a GPU would synchronise each time, so the CPU draws by
            # the same seed, with other numbers for each group of slices.
            seed = generator.initial_seed()
            generator = seeded("cpu", seed, list(View).index(view), first)
        self.expect(view, first, count)
        reads = self._expected.pop((view, first, count))
        slices = [read() for read in reads]
        images, labels = cut(slices, self.size, generator, device)
        images, labels = self.augmenters[view](images, labels, generator)
        places = self._places(view, first, count)
        files = self._readers.files
        names = " ".join(files.name(place) for place in places)
        return Batch(images, labels, f"{view.value} slices {names}")

    def counts(self, view: View) -> Tensor:
        """Return pixels of each class in all training slices, uncropped."""
        per_item = self.datasets[view].class_counts
        return torch.from_numpy(per_item.sum(axis=0, dtype=np.int64))

    def slices(self, view: View) -> int:
        """Return the number of training slices of a view."""
        return len(self.datasets[view])

    def _places(self, view: View, first: int, count: int) -> list[SlabLocation]:
        """Return the locations in the files of slices first..first+count-1 of a view."""
        items = [self._item(view, number) for number in range(first, first + count)]
        return [self.datasets[view].place(item) for item in items]

    def _item(self, view: View, number: int) -> int:
        """Return the item of the view's dataset for the slice of that number."""
        dataset = self.datasets[view]
        epoch, place = divmod(number, len(dataset))
        if (view, epoch) not in self._orders:
            # A batch may span two epochs; older orders are no longer needed.
            for key in [key for key in self._orders if key[1] < epoch - 1]:
                del self._orders[key]
            sampler = BalancedSampler(
                dataset, share=self.balanced_share, seed=self.seed
            )
            sampler.set_epoch(epoch)
            self._orders[view, epoch] = list(sampler)
        return self._orders[view, epoch][place]


def store_scans(
    store: Path,
    split: Path,
    view: View,
    validation: ValidationConfig,
    seed: int,
) -> Iterator[ValidationScan]:
    """Yield whole scans of a split's validation part, chosen by `validation` with the seed.

    Each is read when it is requested, and its file is closed then.
    """
    opened = Store(store)
    subjects = opened.part("validation", split)
    participant_of = {entry.subject: entry.participant for entry in opened.metadata}
    participants = [participant_of[subject] for subject in subjects]
    for place in validation.choose(participants, seed):
        subject = subjects[place]
        file = opened.file(subject)
        count = file.slice_count(view)
        images = torch.from_numpy(file.image(view, 0, count))
        labels = torch.from_numpy(file.labels(view, 0, count))
        mask = file.counted(view, 0, count)
        counted = None if mask is None else torch.from_numpy(mask)
        file.close()
        yield ValidationScan(subject, images, labels, counted)


def cut(
    slices: Sequence[StoredSlice],
    size: tuple[int, int],
    generator: torch.Generator,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Crop around the labels at a random position, or pad with background, to `size`.

    Subjects may differ in shape. Returns images (B, C, H, W) and labels (B, H, W) on the device;
    the generator is on the CPU.
    """
    batch = len(slices)
    drawn = torch.rand((batch, 2), generator=generator)
    pinned = device.type == "cuda"
    channels = len(slices[0].image.codes)
    shape = (batch, channels, *size)
    codes = torch.empty(shape, dtype=torch.uint16, pin_memory=pinned)
    shape_of_labels = (batch, *size)
    labels = torch.zeros(shape_of_labels, dtype=torch.uint8, pin_memory=pinned)
    for stored, shares, image, truth in zip(
        slices, drawn.tolist(), codes.numpy(), labels.numpy(), strict=True
    ):
        _fill(image, truth, stored, shares)
    scales = [stored.image.scale for stored in slices]
    zeros = [stored.image.zero for stored in slices]
    images = _to_float(codes.to(device, non_blocking=True), scales, zeros)
    return images, labels.to(device, non_blocking=True)


def _fill(
    image: NDArray[np.uint16],
    labels: NDArray[np.uint8],
    stored: StoredSlice,
    shares: tuple[float, float],
) -> None:
    """Fill zeroed image (C, H, W) and labels (H, W) with a window of a stored slice.

    `shares` give the position of the window, down and across; outside of the slice is background.
    """
    height, width = labels.shape
    down, across = shares
    rows = _window(np.any(stored.labels, axis=1), height, down)
    columns = _window(np.any(stored.labels, axis=0), width, across)
    inside = stored.targets[rows, columns]
    height_inside, width_inside = inside.shape
    labels[:height_inside, :width_inside] = inside
    image[...] = stored.image.zero
    image[:, :height_inside, :width_inside] = stored.image.codes[:, rows, columns]


def _to_float(codes: Tensor, scales: Sequence[float], zeros: Sequence[int]) -> Tensor:
    """Convert codes (B, C, H, W) to values, each by its own scale and zero, on their device.

    The operations are those of `Quantised.values`, so that the results are identical bit for bit.
    """

    def per_slice(numbers: Sequence[float]) -> Tensor:
        values = torch.tensor(numbers, dtype=torch.float32)
        return upload(values, codes.device).view(-1, 1, 1, 1)

    images = codes.float()
    if any(zeros):
        images -= per_slice(zeros)
    images *= per_slice(scales)
    return images


def _window(labelled: NDArray[np.bool_], want: int, share: float) -> slice:
    """Return a window of `want` positions of an axis that covers all that is `labelled`, if it can.

    If it cannot, it lies within the labelled part. `share`, from 0 to below 1, chooses among the
    possible windows; an axis may be too short.
    """
    have = len(labelled)
    places = np.flatnonzero(labelled)
    low = 0
    high = have
    if len(places):
        low = int(places[0])
        high = int(places[-1]) + 1
    latest = max(0, have - want)
    from_low = min(low, latest)
    up_to_high = min(max(0, high - want), latest)
    first = min(from_low, up_to_high)
    last = max(from_low, up_to_high)
    start = first + int(share * (last + 1 - first))
    return slice(start, start + want)


class _StoredTransforms:
    """Transforms of each slice of a training; random numbers follow from the slice's number."""

    def __init__(
        self,
        transforms: SliceTransforms,
        seed: int,
        processes: Executor | None,
    ) -> None:
        """Set up with the run's `seed`; without `processes`, the readers change the slices."""
        self.transforms = transforms
        self.seed = seed
        self.processes = processes

    def change(self, view: View, number: int) -> Callable[[StoredSlice], StoredSlice]:
        """Return the change of slice `number` of a view, counted from the start of the run."""
        parts = (self.seed, list(View).index(view), number)
        seed = int(np.random.SeedSequence(parts).generate_state(1)[0])
        if self.processes is None:
            return partial(transformed, self.transforms, seed)
        return partial(_elsewhere, self.processes, self.transforms, seed)


def transformed(
    transforms: SliceTransforms, seed: int, stored: StoredSlice
) -> StoredSlice:
    """Return a slice after the transforms, quantised again.

    A slice that the transforms leave alone stays identical bit for bit.
    """
    image = torch.from_numpy(stored.image.values())
    labels = torch.from_numpy(stored.targets)
    changed, classes = transforms(image, labels, seed)
    if changed is image:
        return stored
    return StoredSlice(quantise(changed.contiguous().numpy()), classes.numpy())


def _elsewhere(
    processes: Executor,
    transforms: SliceTransforms,
    seed: int,
    stored: StoredSlice,
) -> StoredSlice:
    """Run `transformed` in one of the processes; raise TrainingError if one of them has died."""
    try:
        return processes.submit(transformed, transforms, seed, stored).result()
    except BrokenExecutor as error:
        raise TrainingError(
            "a process that transforms slices died, perhaps for want of memory",
            remedy="set data.store.workers to a smaller number, or to 0",
        ) from error
