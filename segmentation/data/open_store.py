"""Datasets of torch, torchio and MONAI on a slice store, returned by `trinat.open_store`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinat.segmentation.data.dataset import SliceDataset, SliceTransform
from trinat.segmentation.data.slices import SubjectFile
from trinat.segmentation.data.splits import Part
from trinat.segmentation.data.store import Store
from trinat.segmentation.errors import ConfigError, DatasetError
from trinat.segmentation.io.limits import free_memory
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import IGNORE, LabelScheme
from trinat.segmentation.space.views import View, chosen_views, from_slices

if TYPE_CHECKING:
    import torchio

# A voxel in memory has a float32 intensity and a uint8 class.
_BYTES_PER_VOXEL = 5


def open_store(path: str | Path) -> OpenedStore:
    """Open a slice store as datasets of torch, torchio and MONAI.

    Parameters
    ----------
    path
        The folder that `trinat prepare` made.

    Returns
    -------
    OpenedStore
        Its `slices`, `subjects` and `monai` return the datasets.

    Raises
    ------
    DatasetError
        If the folder is no store, or a store of another version.

    Examples
    --------
    >>> import trinat
    >>> store = trinat.open_store("store")
    >>> image, labels = store.slices("coronal")[0]
    >>> image.shape[1:] == labels.shape
    True
    """
    return OpenedStore(Store(Path(path)))


class OpenedStore:
    """Datasets of a store. Each method takes a part of its split, or all subjects.

    Without `part`, only subjects with both an image and labels are included.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def __repr__(self) -> str:
        """Return a text with the folder and its contents."""
        views = ", ".join(view.value for view in self._store.views)
        count = len(self._store.subjects)
        return f"OpenedStore({str(self._store.root)!r}: {count} subjects, {views})"

    @property
    def scheme(self) -> LabelScheme:
        """Names and numbers of the classes of whole volumes.

        For the classes of a view's slices, use `slices(view).scheme`.
        """
        return self._store.scheme

    def slices(
        self,
        view: View | str,
        part: Part | None = None,
        neighbours: int | None = None,
        transform: SliceTransform | None = None,
    ) -> SliceDataset:
        """Return the slices of a view as a torch `Dataset`.

        Parameters
        ----------
        view : str
            "coronal", "axial" or "sagittal".
        part : str, optional
            "train", "validation" or "test". Default: all subjects.
        neighbours : int, optional
            Number of slices on each side (1 to 3) that are added as channels.
        transform : callable, optional
            Called with image and labels; returns the item.

        Returns
        -------
        SliceDataset
            An item is the image (C, H, W) float32 and the labels (H, W) uint8, which are 255 where
            a mask leaves voxels out. Only every eighth slice without a structure is an item.

        Raises
        ------
        ConfigError
            If the view or the number of neighbours is not allowed.
        DatasetError
            If the store lacks the view, the part, or an image or labels.
        IntegrityError
            If a file changed since `trinat prepare`.
        """
        chosen = chosen_views([view])
        assert chosen is not None
        beside = 0 if neighbours is None else neighbours
        if beside not in (0, 1, 2, 3):
            raise ConfigError(f"{neighbours} neighbours", remedy="choose 1, 2 or 3")
        return SliceDataset(
            self._store,
            self._names(part),
            chosen[0],
            thick=2 * beside + 1,
            transform=transform,
        )

    def subjects(self, part: Part | None = None) -> torchio.SubjectsDataset:
        """Return whole volumes as a `torchio.SubjectsDataset`; each is read when it is used.

        Parameters
        ----------
        part : str, optional
            "train", "validation" or "test". Default: all subjects.

        Returns
        -------
        torchio.SubjectsDataset
            A subject has `name`, `image` (1, X, Y, Z) float32 and `label` (1, X, Y, Z) uint8,
            with the affine of the working grid (RAS axes, 1 mm). Labels are 255 where a mask
            leaves voxels out.

        Raises
        ------
        DatasetError
            If the store lacks the part, or an image or labels, or if it has sagittal slices only
            and their labels do not tell left from right.
        IntegrityError
            If a file changed since `trinat prepare`.
        """
        import torchio

        view = self._view_of_volumes()
        found = []
        for name in self._names(part):
            path = self._store.file(name).path
            read_image = partial(_read_volume, stored=stored_image, view=view)
            read_labels = partial(_read_volume, stored=stored_labels, view=view)
            subject = torchio.Subject(
                name=name,
                image=torchio.ScalarImage(path, reader=read_image),
                label=torchio.LabelMap(path, reader=read_labels),
            )
            found.append(subject)
        return torchio.SubjectsDataset(found)

    def monai(self, part: Part | None = None) -> list[dict[str, Any]]:
        """Return whole volumes as dictionaries for MONAI's transforms and datasets.

        Parameters
        ----------
        part : str, optional
            "train", "validation" or "test". Default: all subjects.

        Returns
        -------
        list of dict
            `subject` is the name; `image` (1, X, Y, Z) float32 and `label` (1, X, Y, Z) uint8 are
            MetaTensors. Labels are 255 where a mask leaves voxels out. All are in memory: 84 MB
            per subject.

        Raises
        ------
        DatasetError
            As for `subjects`, or if memory is insufficient.
        IntegrityError
            If a file changed since `trinat prepare`.
        """
        from monai.data.meta_tensor import MetaTensor

        view = self._view_of_volumes()
        names = self._names(part)
        found = []
        for number, name in enumerate(names):
            file = self._store.file(name)
            image = stored_image(file, view)
            # The subjects that have not been read yet must fit in the free memory.
            count = len(names) - number
            needed = count * image.data.size * _BYTES_PER_VOXEL
            free = free_memory()
            if needed > free:
                raise DatasetError(
                    f"{count} volumes take {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free",
                    where=self._store.root,
                    remedy="take a part of the split, or subjects(), which reads one at a time",
                )
            labels = stored_labels(file, view)
            file.close()
            affine = torch.from_numpy(image.affine.copy())
            item = {
                "subject": name,
                "image": MetaTensor(_with_channel(image.data), affine=affine),
                "label": MetaTensor(_with_channel(labels.data), affine=affine.clone()),
            }
            found.append(item)
        return found

    def _view_of_volumes(self) -> View:
        """Return the view from which to assemble volumes; their classes are those of `scheme`."""
        view = whole_view(self._store)
        if self.scheme.seen_in(view).names != self.scheme.names:
            raise DatasetError(
                f"the labels of its {view.value} slices do not tell left from right",
                where=self._store.root,
                remedy="prepare the coronal or the axial view too",
            )
        return view

    def _names(self, part: Part | None) -> tuple[str, ...]:
        """Return the names of the subjects of a part, or of all subjects with an image and labels.

        Raises DatasetError if a subject of the part lacks one of them, or if there is no subject.
        """
        names = self._store.subjects
        if part is not None:
            names = self._store.part(part)
        stored = self._store.info.subjects
        complete = [
            name for name in names if stored[name].has_image and stored[name].has_labels
        ]
        if part is not None and len(complete) < len(names):
            lacking = next(name for name in names if name not in complete)
            raise DatasetError(
                f"subject {lacking} lacks its image or its labels",
                where=self._store.root,
                remedy="leave it out of the split",
            )
        if not complete:
            what = "no subject has both an image and labels"
            raise DatasetError(what, where=self._store.root)
        return tuple(complete)


def _read_volume(
    path: str | Path, stored: Callable[[SubjectFile, View], Volume], view: View
) -> tuple[Tensor, NDArray[np.float64]]:
    """Read a subject's array (1, X, Y, Z) and affine (4, 4), in the form that torchio requires.

    `stored` is `stored_image` or `stored_labels`; `view` is the view whose slices are read.
    """
    file = SubjectFile(Path(path))
    volume = stored(file, view)
    file.close()
    return _with_channel(volume.data), volume.affine


def _with_channel(voxels: NDArray[Any]) -> Tensor:
    """Return voxels (X, Y, Z) as a tensor (1, X, Y, Z)."""
    return torch.from_numpy(np.ascontiguousarray(voxels))[None]


def whole_view(store: Store) -> View:
    """Return the view from which to assemble whole volumes.

    The sagittal view is the last choice, because its labels do not distinguish left from right.
    """
    for view in store.views:
        if view is not View.SAGITTAL:
            return view
    return View.SAGITTAL


def stored_image(file: SubjectFile, view: View) -> Volume:
    """Assemble a subject's image from a view's slices: float32 (X, Y, Z), RAS axes, 1 mm."""
    slices = file.image(view, 0, file.slice_count(view))
    return Volume(from_slices(slices, view), file.affine)


def stored_labels(file: SubjectFile, view: View) -> Volume:
    """Assemble a subject's labels from a view's slices: uint8 (X, Y, Z), with RAS axes and 1 mm.

    They are class indices in the scheme of the view, and IGNORE in voxels that are not used in
    training.
    """
    count = file.slice_count(view)
    slices = file.labels(view, 0, count)
    counted = file.counted(view, 0, count)
    if counted is not None:
        slices[~counted] = IGNORE
    return Volume(from_slices(slices, view), file.affine)
