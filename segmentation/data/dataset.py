"""Slices of a store as a torch dataset, and their order in training.

`SliceDataset` indexes the slices and their locations (`SlabLocation`), `SubjectFiles` reads them,
and `balanced_order` determines their order in training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from trinat.segmentation.data.slices import FILES, Quantised, SubjectFile
from trinat.segmentation.data.store import Store
from trinat.segmentation.errors import ConfigError, DatasetError
from trinat.segmentation.labels.scheme import IGNORE, LabelScheme
from trinat.segmentation.space.views import View

_THICKNESSES = (1, 3, 5, 7)
# Every eighth of the slices without a label is an item, in the order of the volume, so that
# background outside the brain is learnt, too.
_KEEP_EVERY = 8

# Maximum number of files kept open: opening a file costs as much as reading two slices.
_OPEN_FILES = 256


# Called with image (C, H, W) and labels (H, W); returns both in the form in which they are used in
# training.
SliceTransform = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class SlabLocation(NamedTuple):
    """Location of a slab: a slice of one view of one subject's file, with its neighbours.

    `file` is the index of the subject in the list that the dataset was made of. `middle` is the
    index of the middle slice in `view`. `thick` is the number of slices in the slab, including the
    middle one.
    """

    file: int
    view: View
    middle: int
    thick: int


class StoredSlice(NamedTuple):
    """Stored data of a slab: intensities as 16-bit codes, and the labels of the middle slice.

    A slab is a slice and its neighbours. `image` (C, H, W) has the codes of C slices, and `labels`
    (H, W) are class indices. `counted` (H, W) is True where the labels are used in training; None
    if all labels are used.
    """

    image: Quantised
    labels: NDArray[np.uint8]
    counted: NDArray[np.bool_] | None = None

    @property
    def targets(self) -> NDArray[np.uint8]:
        """Training targets, (H, W): the labels, with IGNORE where they are not used in training."""
        if self.counted is None:
            return self.labels
        return np.where(self.counted, self.labels, np.uint8(IGNORE))


class SubjectFiles:
    """Cache of open files of subjects, indexed by the subject's number in `files`.

    A file is opened when a slice of it is first requested. When too many are open, the file that
    was opened first is closed. Each process opens its own files, because an open HDF5 file cannot
    be shared after a fork.
    """

    def __init__(self, files: Sequence[SubjectFile]) -> None:
        self._files = tuple(files)
        self._open: dict[int, None] = {}

    def __getitem__(self, number: int) -> SubjectFile:
        """Return the file of subject `number` and keep it open.

        If too many files are open, the file that was opened first is closed.
        """
        with FILES:
            if number not in self._open:
                if len(self._open) >= _OPEN_FILES:
                    oldest = next(iter(self._open))
                    del self._open[oldest]
                    self._files[oldest].close()
                self._open[number] = None
        return self._files[number]

    def read(self, place: SlabLocation) -> StoredSlice:
        """Read a slice with its neighbours at `place`, and labels and mask of the middle slice."""
        file = self[place.file]
        labels = file.labels(place.view, place.middle, place.middle + 1)
        image = file.slab(place.view, place.middle, place.thick)
        counted = file.counted(place.view, place.middle, place.middle + 1)
        return StoredSlice(image, labels[0], None if counted is None else counted[0])

    def name(self, place: SlabLocation) -> str:
        """Return "subject:slice" for messages, with the number of the middle slice."""
        subject = self._files[place.file].path.stem
        return f"{subject}:{place.middle}"


class SliceDataset(Dataset[tuple[Tensor, Tensor]]):
    """Dataset of image slices (C, H, W) float32, C = `thick`, and their labels (H, W) uint8.

    Labels that are not used in training are IGNORE. Beyond the ends of the volume the neighbours
    are background. An item depends on its index alone, not on the worker that reads it. All slices
    with a label are items, and so is every eighth of the slices of a volume without a label.

    Attributes, for M items and K classes: `subject_of` (M,) is the index of the item's subject in
    `subjects`, `slice_of` (M,) is its slice number, and `class_counts` (M, K) is its number of
    voxels per class.
    """

    def __init__(
        self,
        store: Store,
        subjects: Sequence[str],
        view: View,
        *,
        thick: int = 1,
        transform: SliceTransform | None = None,
    ) -> None:
        """Index the slices in the subjects' files.

        `thick` is the number of slices in an item: the middle one and its neighbours. `transform`,
        if given, is called with image and labels and returns the item. Raises ConfigError for a
        thickness that is not 1, 3, 5 or 7, and DatasetError if the store lacks the view, or a
        subject its image or labels.
        """
        if thick not in _THICKNESSES:
            remedy = f"choose one of {_THICKNESSES}"
            raise ConfigError(f"slices cannot be {thick} thick", remedy=remedy)
        if view not in store.views:
            raise DatasetError(f"holds no {view.value} slices", where=store.root)
        self.view = view
        self.thick = thick
        self.transform = transform
        self.scheme: LabelScheme = store.scheme.seen_in(view)
        self.subjects = tuple(subjects)
        self.files = SubjectFiles([store.file(subject) for subject in subjects])
        if not self.subjects:
            raise DatasetError("no subject to take slices from", where=store.root)
        subject_of: list[NDArray[np.int32]] = []
        slice_of: list[NDArray[np.int32]] = []
        counts: list[NDArray[np.uint32]] = []
        for number, name in enumerate(self.subjects):
            entry = store.info.subjects[name]
            if not (entry.has_image and entry.has_labels):
                lacking = "labels" if entry.has_image else "image"
                raise DatasetError(
                    f"subject {name} has no {lacking}",
                    where=store.root,
                    remedy="leave it out of the split",
                )
            file = self.files[number]
            per_slice = file.class_counts(view)
            file.close()
            # Choose all slices with a label, and every eighth of the slices without one.
            is_chosen = np.asarray(per_slice[:, 1:].any(axis=1))
            # Slices in which no voxel is used in training have counts of 0, and are left out.
            is_background = ~is_chosen & (per_slice[:, 0] > 0)
            without_label = np.flatnonzero(is_background)
            is_chosen[without_label[::_KEEP_EVERY]] = True
            chosen = np.flatnonzero(is_chosen)
            subject_of.append(np.full(len(chosen), number, np.int32))
            slice_of.append(chosen.astype(np.int32))
            counts.append(per_slice[chosen])
        self.subject_of = np.concatenate(subject_of)
        self.slice_of = np.concatenate(slice_of)
        self.class_counts = np.concatenate(counts)

    def __len__(self) -> int:
        return len(self.slice_of)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        stored = self.files.read(self.place(index))
        image = torch.from_numpy(stored.image.values())
        labels = torch.from_numpy(stored.targets)
        if self.transform is None:
            return image, labels
        return self.transform(image, labels)

    def place(self, index: int) -> SlabLocation:
        """Return file, view and slice number of the item `index`, as `files.read` expects them."""
        file = int(self.subject_of[index])
        middle = int(self.slice_of[index])
        return SlabLocation(file, self.view, middle, self.thick)


def balanced_order(
    class_counts: NDArray[np.uint32], share: float, seed: int, epoch: int
) -> list[int]:
    """Return the items to draw in an epoch, in order; items with rare classes come more often.

    `class_counts` (M, K) are the voxels of each class in each of M items. A `share` of the M draws
    is balanced by class: a foreground class is drawn first and then one of the items that contain
    it, so that the amygdala is seen as often as the cortex. The other draws pass over all items,
    each at most once.
    """
    count = len(class_counts)
    rng = np.random.default_rng((seed, epoch))
    order = rng.permutation(count)
    # For each foreground class that occurs: the indices of the items that contain it.
    holders = [np.flatnonzero(voxels) for voxels in class_counts[:, 1:].T]
    holders = [items for items in holders if len(items)]
    if holders:
        replaced = rng.random(count) < share
        classes = rng.integers(len(holders), size=count)
        position = rng.random(count)
        for index in np.flatnonzero(replaced):
            items = holders[classes[index]]
            order[index] = items[int(position[index] * len(items))]
    chosen: list[int] = order.tolist()
    return chosen
