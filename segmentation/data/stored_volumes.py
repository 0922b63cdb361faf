"""Whole volumes of a store's subjects, put together again from the slices of one view."""

from __future__ import annotations

from trinat.segmentation.data.slices import SubjectFile
from trinat.segmentation.data.store import Store
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.space.views import View, from_slices


def whole_view(store: Store) -> View:
    """The view to put volumes together from: not the sagittal one, where there is another.

    Sagittal slices have both sides as one class.
    """
    for view in store.views:
        if view is not View.SAGITTAL:
            return view
    return View.SAGITTAL


def stored_image(file: SubjectFile, view: View) -> Volume:
    """Intensities on the working grid, float32 (X, Y, Z)."""
    slices = file.image(view, 0, file.slice_count(view))
    return Volume(from_slices(slices, view), file.affine)


def stored_labels(file: SubjectFile, view: View) -> Volume:
    """Class indices on the working grid, uint8 (X, Y, Z); those that are seen in the view."""
    slices = file.labels(view, 0, file.slice_count(view))
    return Volume(from_slices(slices, view), file.affine)
