"""Corrected scans of a results folder."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from trinat.pipelines.models.scans_with_truth import ScanWithTruth
from trinat.pipelines.study.corrections import is_correction
from trinat.pipelines.study.files import ScanFile, find_files
from trinat.pipelines.study.study import Study
from trinat.segmentation.errors import EvaluationError
from trinat.segmentation.io.files import absolute

_CORRECT = "correct one with `trinat view`, or give --labels"


@dataclass(frozen=True, kw_only=True)
class Corrected(ScanWithTruth):
    """A scan in the results, with its corrected label map or mask of lesions.

    `scan` is the scan in the results, whose case is the `name` here. `structures` are the names of
    the structures that a rater has changed in the viewer; None for an imported label map, in which
    every voxel counts.
    """

    scan: ScanFile
    structures: frozenset[str] | None


def find_corrected(study: Study) -> tuple[list[Corrected], list[str]]:
    """Return the corrected scans of a study, and a message for each correction that cannot be used.

    If the `kind` of the study is "lesions", these are scans whose mask of lesions was corrected.

    If the study was opened with a folder of other label maps (`study.against`), these are taken as
    the corrected label maps; otherwise the corrections painted in the viewer, or put next to the
    results by another program. A scan that has several results is taken once. Raises
    EvaluationError if nothing was corrected.
    """
    found = []
    failures = []
    used = set()
    case_of: dict[str, str] = {}
    for scan in study.scans:
        labels = None
        structures = None
        correction = scan.correction
        if study.kind == "lesions":
            correction = scan.lesion_correction
        if study.against is not None:
            labels = study.other(scan)
        elif correction is not None:
            labels = correction.path
            why = correction.why_unfit(scan.entry.input_sha256)
            if correction.sidecar is not None and not why:
                structures = frozenset(correction.sidecar.structures)
                if not correction.sidecar.changed_voxels:
                    why = "its correction changes nothing"
            if why:
                failures.append(f"{scan.case}: {why}")
                continue
        if labels is None:
            continue
        used.add(labels)
        image = study.image(scan)
        why = _why_not_learnt(study, scan, image)
        segmented = scan.entry.input_sha256
        if segmented in case_of:
            why = f"is the same scan as {case_of[segmented]}, which is used"
        if image is None or why:
            failures.append(f"{scan.case}: {why}")
            continue
        if segmented:
            case_of[segmented] = scan.case
        corrected = Corrected(
            scan.participant,
            scan.case,
            image,
            labels,
            scan=scan,
            structures=structures,
        )
        found.append(corrected)
    failures.extend(_without_result(study, used))
    if not found and not failures:
        raise EvaluationError("has no corrections", where=study.folder, remedy=_CORRECT)
    return found, failures


def _why_not_learnt(study: Study, scan: ScanFile, image: Path | None) -> str:
    """Return why the image of a corrected scan cannot be learnt from; "" if it can.

    `image` is the path of the image; None if it is missing, was changed, or is DICOM.
    """
    # In another folder the same scan may be compressed differently.
    if study.images is None and scan.entry.is_scan_changed(scan.folder):
        return "its scan was changed since it was segmented"
    if image is None:
        if scan.entry.is_in_zip or (scan.folder / scan.entry.scan).is_dir():
            return (
                "its scan is a DICOM series, from which trinat cannot learn: convert it to NIfTI, "
                "segment it again and correct that result"
            )
        return "its scan has been moved: give its folder with --images"
    return ""


def _without_result(study: Study, used: Collection[Path]) -> list[str]:
    """Return a message for each corrected label map that belongs to no result.

    `used` are the paths of those that do. The scan of a correction may have failed in a later run.
    """
    if study.against is not None:
        return [
            f"{file.name}: no result belongs to its scan"
            for file in find_files(study.against, kind=study.kind)
            if file.path not in used
        ]
    if study.kind == "lesions":
        return []
    results = {absolute(scan.labels) for scan in study.scans if scan.labels}
    left = [
        file
        for file in study.label_maps()
        if is_correction(file.path) and absolute(file.result) not in results
    ]
    return [f"{file.name}: {file.unfit}" for file in study.checked(left) if file.unfit]
