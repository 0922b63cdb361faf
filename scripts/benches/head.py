"""Figures for docs/notes/volumes.md: brain mask and intracranial volume against truths.

`scripts/bench head [MODEL [SUBJECTS_DIR]]`, for a model with `csf: intracranial`. Phantoms have a
truth of all fluid inside the skull. Subjects have FreeSurfer's eTIV, which is an estimate by
registration, no measurement; so volumes are compared after one common factor.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trinat.segmentation.inference.prediction import find_inside
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.segmenter import Segmenter
from trinat.segmentation.synthetic.phantom import phantom

# As voxels of scanners are; the last head is turned by 20 degrees.
PHANTOMS = (
    (11, {}),
    (12, {}),
    (13, {"spacing_mm": (0.9, 0.9, 1.2)}),
    (14, {"oblique_deg": 20.0}),
)
_CSF = 24
_SCANS = ("mri/T1.mgz", "mri/brainmask.mgz")


def run(model: str = "fast", subjects_dir: str | None = None) -> None:
    """Measure a model on phantoms and, if a folder is given, on FreeSurfer's subjects."""
    segmenter = Segmenter(model)
    _measure_phantoms(segmenter)
    if subjects_dir is not None:
        _measure_subjects(segmenter, Path(subjects_dir))


def _measure_phantoms(segmenter: Segmenter) -> None:
    """Print the difference of the volume, and Dice of mask and CSF, for each phantom."""
    print("phantom  truth (mm³)  found (mm³)  difference  mask Dice  CSF Dice")
    for seed, geometry in PHANTOMS:
        scan, truth = phantom(seed, csf="intracranial", **geometry)
        found = segmenter.segment(scan)
        inside = true_mask(truth)
        true_mm3 = inside.sum() * truth.grid.voxel_mm3
        mask = found.brain_mask().data
        mm3 = found.intracranial_volume
        shown = found.measures_note
        if mm3 is not None:
            shown = f"{mm3:11.0f}  {100 * (mm3 / true_mm3 - 1):+9.2f}%"
        csf = _dice(truth.data == _CSF, found.labels.data == _CSF)
        dice = _dice(inside, mask)
        print(f"{seed:7d}  {true_mm3:11.0f}  {shown}  {dice:9.4f}  {csf:8.4f}")


def true_mask(truth: Volume) -> np.ndarray:
    """What lies inside the skull by the truth, by the same rules; axes need not be the world's."""
    scheme = load_scheme("quicknat33")
    classes = scheme.from_freesurfer(truth.data)
    return find_inside(Volume(classes, truth.affine), scheme)


def _measure_subjects(segmenter: Segmenter, root: Path) -> None:
    """Print each subject's eTIV and intracranial volume, and how well the two agree."""
    print("subject  eTIV (mm³)  found (mm³)  ratio")
    pairs = []
    for folder in sorted(root.iterdir()):
        true_mm3 = etiv_mm3(folder)
        scan = next(
            (folder / name for name in _SCANS if (folder / name).is_file()), None
        )
        if true_mm3 is None or scan is None:
            continue
        found = segmenter.segment(scan)
        mm3 = found.intracranial_volume
        if mm3 is None:
            print(f"{folder.name}  {true_mm3:10.0f}  {found.measures_note}")
            continue
        print(f"{folder.name}  {true_mm3:10.0f}  {mm3:11.0f}  {mm3 / true_mm3:.3f}")
        pairs.append((true_mm3, mm3))
    if len(pairs) < 2:
        return
    etiv, found_mm3 = np.array(pairs).T
    factor = (found_mm3 * etiv).sum() / (found_mm3**2).sum()
    difference = np.abs(found_mm3 * factor / etiv - 1).mean()
    correlation = np.corrcoef(etiv, found_mm3)[0, 1]
    print(
        f"common factor {factor:.3f}, mean difference {difference:.2%}, "
        f"correlation {correlation:.3f}"
    )


def etiv_mm3(folder: Path) -> float | None:
    """eTIV of a subject's aseg.stats; None without one."""
    path = folder / "stats" / "aseg.stats"
    if not path.is_file():
        return None
    for line in path.read_text().splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 5 and fields[1] == "eTIV":
            return float(fields[3])
    return None


def _dice(one: np.ndarray, other: np.ndarray) -> float:
    """Dice of two masks of one shape."""
    return float(2 * (one & other).sum() / (one.sum() + other.sum()))
