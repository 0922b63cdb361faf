"""Prepared stores of miniature subjects from every source."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from helpers.miniatures import (
    freesurfer_subject,
    head_image,
    head_labels,
    ixi_scan,
    malc_scan,
    neurite_session,
    oasis_session,
    write_nifti,
)
from trinat.pipelines.prepare.making import Summary, prepare_store
from trinat.pipelines.prepare.options import PrepareConfig
from trinat.segmentation.data.store import Store
from trinat.segmentation.space.views import View, from_slices

GRID = (64, 64, 64)


def prepare(
    source: str, root: Path, out: Path, **settings: object
) -> tuple[Summary, Store]:
    config = PrepareConfig(source=source, root=root, grid=GRID, **settings)
    return prepare_store(config, out), Store(out)


def voxels_by_class(store: Store, subject: str) -> tuple[int, ...]:
    """Return the number of voxels of each class of a subject."""
    counts = store.file(subject).class_counts(View.AXIAL)
    return tuple(counts.sum(axis=0).tolist())


def volume_of(
    store: Store, subject: str, view: View, kind: str = "labels"
) -> np.ndarray:
    """Return the slices of a view, put together to a volume."""
    file = store.file(subject)
    count = file.slice_count(view)
    slices = (
        file.labels(view, 0, count) if kind == "labels" else file.image(view, 0, count)
    )
    return np.asarray(from_slices(slices, view))


def head_in(volume: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return the part of the working grid that the box of the head fills."""
    inside = np.argwhere(volume > 0).min(axis=0) - np.argwhere(expected > 0).min(axis=0)
    return volume[
        tuple(slice(a, a + n) for a, n in zip(inside, expected.shape, strict=True))
    ]


def tissues(numbers: np.ndarray) -> np.ndarray:
    table = {4: 1, 43: 1, 3: 2, 42: 2, 17: 2, 53: 2, 2: 3, 41: 3, 16: 3}
    return np.vectorize(lambda number: table.get(number, 0))(numbers)


def build(source: str, root: Path) -> tuple[str, str, dict[str, object]]:
    """Write one miniature subject and return its id, its scheme and further settings."""
    if source == "oasis1":
        oasis_session(root / "disc1", "OAS1_0001_MR1")
        return "OAS1_0001_MR1", "tissue4", {}
    if source == "oasis1-freesurfer":
        freesurfer_subject(root / "disc1", "OAS1_0001_MR1")
        return "OAS1_0001_MR1", "quicknat33", {}
    if source == "neurite":
        neurite_session(root, "OAS1_0001_MR1")
        return "OAS1_0001_MR1", "quicknat33", {}
    if source == "ixi":
        ixi_scan(root, "IXI002-Guys-0828")
        freesurfer_subject(root / "fs", "IXI002")
        return "IXI002-Guys-0828", "quicknat33", {"subjects_dir": root / "fs"}
    if source == "malc":
        malc_scan(root, "1000", part="training")
        return "1000", "quicknat33", {}
    if source == "malc-flat":
        malc_scan(root, "1000")
        return "1000", "quicknat33", {}
    if source == "freesurfer":
        freesurfer_subject(root, "sub-01")
        return "sub-01", "quicknat33", {}
    if source == "bids":
        anat = Path("sub-01/anat")
        write_nifti(root / anat / "sub-01_T1w.nii.gz", head_image(head_labels()), "PIR")
        labels = root / "derivatives/seg" / anat / "sub-01_desc-aseg_dseg.nii.gz"
        write_nifti(labels, head_labels(), "PIR")
        return "sub-01", "quicknat33", {}
    write_nifti(root / "images/a.nii.gz", head_image(head_labels()), "SAL")
    write_nifti(root / "labels/a.nii.gz", head_labels(), "SAL")
    return "a", "quicknat33", {}
