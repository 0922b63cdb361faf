"""Pictures of a cohort's most unusual scans, for its page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trinat.pipelines.evaluate.pairing import pair_files
from trinat.pipelines.scans.files import ScanFile, find_images
from trinat.segmentation.errors import TrinatError
from trinat.segmentation.io.orientation import TrustAffine
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.report.case_view import far_from_brain
from trinat.segmentation.report.cohort import Cohort, Scan
from trinat.segmentation.report.pictures import draw_mosaic, encoded

_MOST_PICTURES = 12
# Scans are shown by grade first; those that passed or have no grade come last.
_RANKS = {"reject": 0, "look": 1}
_LAST_RANK = 2


def cohort_pictures(
    cohort: Cohort,
    scans: Sequence[Scan],
    files: Sequence[ScanFile],
    scheme: LabelScheme,
    images: Path | None,
    trust_affine: TrustAffine | None,
) -> list[tuple[str, str, bytes]]:
    """Title, text and PNG for each of the most unusual scans that can be shown.

    `scans` are those that the cohort was made of, what it leaves out among them, and `files` their
    label maps. A picture is the one that was made with the prediction, or a new one where `images`
    has the scan.
    """
    image_of = _find_images(files, images)
    pictures = []
    for place in _most_unusual(cohort, scans)[:_MOST_PICTURES]:
        file = files[place]
        scan = scans[place]
        png = _picture_of_prediction(file.path)
        if png is None and file.name in image_of:
            png = _new_picture(image_of[file.name], file.path, scheme, trust_affine)
        if png:
            text = scan.left_out or scan.notes or scan.grade
            pictures.append((scan.name, text, png))
    return pictures


def _find_images(files: Sequence[ScanFile], images: Path | None) -> dict[str, Path]:
    """The scan of each label map that has one there, by the map's name."""
    if images is None:
        return {}
    found = find_images(images, [file.path for file in files])
    pairing = pair_files(files, found)
    return {pair.truth.name: pair.prediction.path for pair in pairing.pairs}


def _most_unusual(cohort: Cohort, scans: Sequence[Scan]) -> list[int]:
    """Places of all scans, by grade and then by the largest distance."""
    # What is left out has none: it is not held against the group.
    largest_z = np.zeros(len(scans))
    counted = [place for place, scan in enumerate(scans) if not scan.left_out]
    largest_z[counted] = np.nan_to_num(cohort.largest_z())

    def order(place: int) -> tuple[int, float]:
        """Smaller for scans that come first."""
        rank = _RANKS.get(scans[place].grade, _LAST_RANK)
        return rank, -largest_z[place]

    return sorted(range(len(scans)), key=order)


def _picture_of_prediction(labels: Path) -> bytes | None:
    """The picture beside a label map that `trinat predict` wrote, if there is one."""
    stem, ending, _ = labels.name.rpartition("_dseg")
    path = labels.with_name(f"{stem}_qc.png")
    if ending and path.is_file():
        return path.read_bytes()
    return None


def _new_picture(
    image: Path,
    labels: Path,
    scheme: LabelScheme,
    trust_affine: TrustAffine | None,
) -> bytes | None:
    """A mosaic on the working grid, black away from the brain; None for a scan that is unfit."""
    from trinat.segmentation.space.conform import conform

    try:
        scan = conform(Volume.read(image, trust_affine=trust_affine))
        label_map = Volume.read(labels, labels=True, trust_affine=trust_affine)
        numbers = conform(label_map, labels=True, plan=scan.plan).volume
    except (TrinatError, OSError):
        return None
    classes = Volume(scheme.from_freesurfer(numbers.data), numbers.affine)
    gray = np.where(far_from_brain(classes.data > 0), 0, scan.volume.data)
    brain = Volume(gray, scan.volume.affine)
    return encoded(draw_mosaic(brain, classes, scheme), "PNG")
