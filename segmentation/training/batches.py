"""Sources of batches: label maps, a store, or a mixture of both; and validation scans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinat.segmentation.data.augmentation import Augmenter, upload
from trinat.segmentation.data.dataset import (
    SlabLocation,
    SliceDataset,
    StoredSlice,
    balanced_order,
)
from trinat.segmentation.data.slices import quantise
from trinat.segmentation.data.splits import read_split
from trinat.segmentation.data.store import Store
from trinat.segmentation.data.transforms import SliceTransforms
from trinat.segmentation.errors import DatasetError
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


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch of training slices.

    `images` (B, C, H, W) is float32, `labels` (B, H, W) are class indices, uint8. `what` names the
    subjects and slices, for messages.
    """

    images: Tensor
    labels: Tensor
    what: str


class BatchSource(Protocol):
    """Source of batches of one view.

    It returns the same batch for the same arguments, so that a run can be resumed. `fingerprint`
    identifies the data that batches are made from: it changes if they change. `may_draw_in_thread`
    is True if `draw` may run in a thread while a CPU trains, because it does not use torch's global
    random numbers.
    """

    fingerprint: str
    may_draw_in_thread: bool = True

    def expect(self, first: int, count: int) -> None:
        """Announce slices that will be requested soon, so that they can be read ahead.

        They are the `count` slices that start with number `first`, as in `draw`. The same slices
        may be announced more than once.
        """
        return

    def draw(self, first: int, count: int, generator: torch.Generator) -> Batch:
        """Return `count` slices, starting with number `first`.

        Slices are numbered from the start of the stage. A source of stored slices finds them by
        number, and `generator` determines how they are augmented. A synthetic source makes new
        slices with `generator` alone.
        """

    def counts(self) -> Tensor:
        """Return the number of pixels of each class, (K,), for the weights of the loss."""

    def slices(self) -> int:
        """Return the number of slices in an epoch; 0 if every slice is new."""
        return 0


class SyntheticSource(BatchSource):
    """Source of synthetic slices from label maps; each slice is new."""

    # Number of background pixels in a crop around the head, as a multiple of those of the brain.
    background = 1.5

    def __init__(
        self,
        maps: HeadMaps,
        view: View,
        scheme: LabelScheme,
        config: SynthesisConfig,
        size: tuple[int, int],
        channels: int,
        device: torch.device | str = "cpu",
    ) -> None:
        """Load the label maps to `device`, where slices are made.

        `scheme` has the classes of whole volumes. Slices have `size` (rows, columns). `channels`,
        an odd number, is the number of neighbouring slices in an image, its middle slice included.
        """
        if scheme.has_unpartnered_sides:
            # In a mirrored head, a structure of one side only would lie on the other.
            config = config.model_copy(update={"mirrored": 0})
        self.view = view
        self.config = config
        self.size = size
        self.neighbours = channels // 2
        self.fingerprint = maps.fingerprint
        heads = aim(maps, scheme, device, learn_fluid=config.learn_fluid)
        self.heads = heads.seen_in(view)

    def draw(self, first: int, count: int, generator: torch.Generator) -> Batch:
        """Make new slices, which depend on the generator only.

        `count` is the number of slices; `first` is used in messages only.
        """
        images, labels = synthesise(
            self.heads,
            self.config,
            self.view,
            count,
            self.size,
            generator,
            self.neighbours,
        )
        last = first + count - 1
        what = f"synthetic {self.view.value} slices {first}-{last}"
        return Batch(images, labels, what)

    def counts(self) -> Tensor:
        """Return the number of voxels of each class in all label maps, (K,), float64.

        Background gets the number that a crop around the head would have. The weights of the loss
        are computed from these numbers.
        """
        heads = self.heads
        entries = len(heads.classes)
        voxels = torch.bincount(heads.labels.flatten(), minlength=entries)
        voxels = voxels.to(widest_float(voxels.device))
        counts = voxels.new_zeros(len(heads.scheme))
        counts.index_add_(0, heads.targets.long(), voxels)
        counts[0] = self.background * counts[1:].sum()
        return counts.cpu()


class MixedSource(BatchSource):
    """Source of batches that contain synthetic and real slices.

    On average, `share` of the slices is synthetic. How many are synthetic in a batch is computed
    from the numbers of its slices, so that a resumed run has the same batches.
    """

    def __init__(self, synthetic: BatchSource, real: BatchSource, share: float) -> None:
        """Combine two sources; `share` is from 0 to 1."""
        self.synthetic = synthetic
        self.real = real
        self.share = share
        self.may_draw_in_thread = real.may_draw_in_thread
        self.fingerprint = f"{share} {synthetic.fingerprint} {real.fingerprint}"

    def expect(self, first: int, count: int) -> None:
        """Announce the slices to the source that has them."""
        for source, start, part in self._parts(first, count):
            source.expect(start, part)

    def draw(self, first: int, count: int, generator: torch.Generator) -> Batch:
        """Return a batch with its synthetic slices first, then its real ones."""
        batches = [
            source.draw(start, part, generator)
            for source, start, part in self._parts(first, count)
        ]
        images = torch.cat([batch.images for batch in batches])
        labels = torch.cat([batch.labels for batch in batches])
        what = ", ".join(batch.what for batch in batches)
        return Batch(images, labels, what)

    def counts(self) -> Tensor:
        """Return the share of pixels of each class in a batch, (K,), on average; they sum to 1."""
        synthetic = self.synthetic.counts().double()
        real = self.real.counts().double()
        synthetic_part = self.share * synthetic / synthetic.sum()
        real_part = (1 - self.share) * real / real.sum()
        return synthetic_part + real_part

    def _parts(self, first: int, count: int) -> list[tuple[BatchSource, int, int]]:
        """Divide the slices of a batch between the two sources.

        Return for each source that has any: the source, the number of its first slice, and the
        number of slices. Among the first n slices of a run, floor(share n) are synthetic. So the
        share is right over time for any batch size.
        """
        before = int(self.share * first)
        synthetic = int(self.share * (first + count)) - before
        parts = [
            (self.synthetic, before, synthetic),
            (self.real, first - before, count - synthetic),
        ]
        return [part for part in parts if part[2]]


class StoreSource(BatchSource):
    """Source of augmented slices from the training part of a store.

    Slices with rare structures are drawn more often. Readers return whole slices as stored. The
    transforms of TorchIO and MONAI change them first, with random numbers that are computed from
    the number of the slice. Cropping and all other augmentation follow, with the generator of the
    batch. Therefore the result does not depend on the number of readers, bit for bit.
    """

    def __init__(
        self,
        store: StoreConfig,
        view: View,
        size: tuple[int, int],
        channels: int,
        seed: int,
        scheme: LabelScheme,
        workers: int = 0,
    ) -> None:
        """Open the slices of a view.

        Slices are cropped to `size` (rows, columns). `channels`, an odd number, is the number of
        neighbouring slices in an image, its middle slice included. `seed` determines the order of
        the slices in each epoch. `scheme` has the classes of whole volumes. `workers` is the number
        of threads that read ahead; with 0, slices are read when they are drawn. Raises DatasetError
        if the store has labels of another scheme.
        """
        self.view = view
        self.size = size
        self.seed = seed
        opened = Store(store.path)
        if opened.scheme.names != scheme.names:
            raise DatasetError(
                f"holds labels of {opened.scheme.name}, not {scheme.name}",
                where=store.path,
                remedy="prepare it with those labels, or change `scheme` in the recipe",
            )
        split = read_split(store.split)
        subjects = opened.part("train", store.split)
        self.fingerprint = f"{opened.fingerprint} {split.model_dump_json()}"
        self._transforms = SliceTransforms(store.augmentation.transforms)
        # In a thread, the transforms would use torch's global random numbers at the same time as
        # training.
        self.may_draw_in_thread = not self._transforms
        on_batches = store.augmentation.model_copy(update={"transforms": ()})
        self.dataset = SliceDataset(opened, subjects, view, thick=channels)
        self.augmenter = Augmenter(on_batches, view, scheme.seen_in(view))
        # Dataset items in the order in which they are drawn in an epoch. A batch may span two
        # epochs, and later batches are announced meanwhile.
        counts = self.dataset.class_counts
        order = partial(balanced_order, counts, store.balanced_share, seed)
        self._order = lru_cache(maxsize=3)(order)
        # zlib releases the GIL while it decompresses, which takes most of the time of a reader, so
        # the thread that trains is hardly delayed.
        self._readers: ThreadPoolExecutor | None = None
        if workers:
            self._readers = ThreadPoolExecutor(workers, "reader")
        # For each request (number of the first slice, number of slices), a callable for each slice
        # that waits for its reader and returns it.
        self._expected: dict[tuple[int, int], list[Callable[[], StoredSlice]]] = {}

    def close(self) -> None:
        """Stop reading ahead, and cancel pending reads."""
        if self._readers is not None:
            self._readers.shutdown(cancel_futures=True)

    def expect(self, first: int, count: int) -> None:
        """Have the readers read these slices ahead; repeating an announcement has no effect."""
        if (first, count) in self._expected:
            return
        places = self._slab_locations(first, count)
        read = self.dataset.files.read
        reads: list[Callable[[], StoredSlice]]
        if self._readers is None:
            reads = [partial(read, place) for place in places]
        else:
            reads = [self._readers.submit(read, place).result for place in places]
        self._expected[first, count] = reads

    def draw(self, first: int, count: int, generator: torch.Generator) -> Batch:
        """Return a batch of slices, cropped and augmented, on the device of the generator.

        They are the `count` slices from number `first` on. Those that were not announced by
        `expect` are read now. Images are (B, C, H, W).
        """
        device = generator.device
        if device.type != "cpu":
            # Reading random numbers back from a GPU would synchronise each time, so they are drawn
            # on the CPU from the same seed, with other numbers for each group of slices.
            seed = generator.initial_seed()
            generator = seeded("cpu", seed, list(View).index(self.view), first)
        self.expect(first, count)
        reads = self._expected.pop((first, count))
        slices = [
            self._transformed(number, read())
            for number, read in enumerate(reads, first)
        ]
        images, labels = cut(slices, self.size, generator, device)
        images, labels = self.augmenter(images, labels, generator)
        places = self._slab_locations(first, count)
        names = " ".join(self.dataset.files.name(place) for place in places)
        return Batch(images, labels, f"{self.view.value} slices {names}")

    def counts(self) -> Tensor:
        """Return the number of pixels of each class in all training slices, uncropped, (K,)."""
        per_item = self.dataset.class_counts
        return torch.from_numpy(per_item.sum(axis=0, dtype=np.int64))

    def slices(self) -> int:
        """Return the number of training slices."""
        return len(self.dataset)

    def _transformed(self, number: int, stored: StoredSlice) -> StoredSlice:
        """Return a stored slice after the transforms of TorchIO and MONAI, quantised again.

        `number` counts the slices from the start of the stage; the random numbers are computed from
        it, so that they are the same in each run. A slice that no transform changes stays identical
        bit for bit.
        """
        if not self._transforms:
            return stored
        parts = (self.seed, list(View).index(self.view), number)
        seed = int(np.random.SeedSequence(parts).generate_state(1)[0])
        image = torch.from_numpy(stored.image.values())
        labels = torch.from_numpy(stored.targets)
        changed, classes = self._transforms(image, labels, seed)
        if changed is image:
            return stored
        return StoredSlice(quantise(changed.contiguous().numpy()), classes.numpy())

    def _slab_locations(self, first: int, count: int) -> list[SlabLocation]:
        """Return the locations in the files of slices first..first+count-1 of the stage."""
        locations = []
        for number in range(first, first + count):
            epoch, place = divmod(number, len(self.dataset))
            item = self._order(epoch)[place]
            locations.append(self.dataset.place(item))
        return locations


def store_scans(
    store: StoreConfig, view: View, validation: ValidationConfig, seed: int
) -> Iterator[ValidationScan]:
    """Yield whole scans from the validation part of a store's split.

    `validation` chooses them, with `seed`. Each scan is read when it is requested, and its file is
    closed before the next one.
    """
    opened = Store(store.path)
    subjects = opened.part("validation", store.split)
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
    """Crop slices to `size`, or pad them with background.

    The window is at a random position around the labels. Subjects may differ in shape. Return
    images (B, C, H, W) and labels (B, H, W) on `device`; `generator` is on the CPU.
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
    """Copy a window of a stored slice into an image (C, H, W) and zeroed labels (H, W), in place.

    `shares`, each from 0 to below 1, choose the position of the window down and across. Pixels
    outside of the slice are background.
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
    """Convert quantised images (B, C, H, W) to float32, on their device.

    A value is (code - zero) * scale; `scales` and `zeros` have both numbers of each slice. The
    operations are those of `Quantised.values`, so that the results are identical bit for bit.
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
    """Choose a window of `want` positions along an axis.

    `labelled` says which positions of the axis have labels. The window covers all of these if it is
    long enough; otherwise it lies within their range. `share`, from 0 to below 1, chooses among the
    possible windows. The window may extend beyond a short axis.
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
