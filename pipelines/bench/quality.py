"""Find a model's limits of quality: how much the views must agree for a structure to be trusted.

Phantoms of graded difficulty are segmented; of every structure the agreement between the views,
which is known without a truth, is held against its Dice with the truth. The limits are written to
the model's own model.yaml, and a picture of all points to docs/images. Each scan's result is kept,
so that a run that was stopped goes on.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray
from scipy import ndimage

from segmentation.conform import conform
from segmentation.files import atomic_path, atomic_text
from segmentation.inference.quality import ENOUGH_MM3, tissue_contrast
from segmentation.inference.segmentation import Segmentation
from segmentation.inference.segmenter import Segmenter
from segmentation.models.checkpoint import read_info
from segmentation.models.model_info import ModelInfo, Quality
from segmentation.models.zoo import MODEL_FILE, find_model
from segmentation.phantom import phantom
from segmentation.volume import Volume

__all__ = [
    "CASES",
    "Point",
    "Scans",
    "bias",
    "cut",
    "inverted",
    "limit",
    "middle",
    "noise",
    "rates",
    "run",
]

PICTURE = Path("docs/images/quality.png")
# A structure below the first Dice has failed; below the second a person should look.
FAILED, DOUBTFUL = 0.5, 0.7
SENSITIVITY = 0.9
REAL = ("sub-01", "sub-02")
# Around the thalamus, in mm: parts of all structures, in a sixth of a whole head's time.
_FIELD_MM = (96, 112, 96)
_OFFSET_MM = (0, -8, -8)
_THALAMUS = (10, 49)
_WHITE_MATTER = (2, 41)

Floats = NDArray[np.float32]
Change = Callable[[Floats, np.random.Generator], Floats]


@dataclass(frozen=True)
class Point:
    """One structure of one scan."""

    kind: str
    case: str
    structure: str
    agreement: float  # mean Dice between views; 0 where none found it
    dice: float


def noise(share: float) -> Change:
    """Magnitude noise, of the brightness of white matter (1)."""
    return lambda image, draw: np.hypot(
        image + share * draw.standard_normal(image.shape, np.float32),
        share * draw.standard_normal(image.shape, np.float32),
    )


def bias(strength: float) -> Change:
    """A coil's gain, e^±strength from corner to corner."""

    def change(image: Floats, _: np.random.Generator) -> Floats:
        ramps = np.meshgrid(*(np.linspace(-1, 1, n) for n in image.shape), indexing="ij")
        return np.asarray(image * np.exp(strength * sum(ramps) / 3), np.float32)

    return change


def _blur(sd_mm: float) -> Change:
    return lambda image, _: np.asarray(ndimage.gaussian_filter(image, sd_mm))


def _gamma(power: float) -> Change:
    return lambda image, _: np.asarray(image**power)


def inverted(share: float) -> Change:
    """Towards the contrast of T2: tissue turned round by this share, air as dark as before."""
    return lambda image, _: np.asarray(
        np.where(image > 0.1, (1 - share) * image + share * (1.3 - image), image).clip(0)
    )


def _thick(slices_mm: int) -> Change:
    """Axial slices so thick, told as if they were thin."""

    def change(image: Floats, _: np.random.Generator) -> Floats:
        means = ndimage.uniform_filter1d(image, slices_mm, axis=2)[
            :, :, slices_mm // 2 :: slices_mm
        ]
        return np.asarray(means.repeat(slices_mm, axis=2)[:, :, : image.shape[2]])

    return change


def cut(share: float) -> Change:
    """The right part of the field lost, as in a scan that was planned badly."""

    def change(image: Floats, _: np.random.Generator) -> Floats:
        kept = image.copy()
        kept[round(image.shape[0] * (1 - share)) :] = 0
        return kept

    return change


@dataclass(frozen=True)
class Case:
    """A phantom, changed for the worse."""

    kind: str
    name: str
    seed: int
    change: Change

    def read(self) -> tuple[Volume, Volume]:
        scan, truth = middle(self.seed)
        image = self.change(scan.data, np.random.default_rng(self.seed))
        return Volume(np.asarray(image, np.float32), scan.affine), truth


CASES = (
    Case("clean", "clean", 1, _gamma(1)),
    Case("noise", "noise 0.05", 2, noise(0.05)),
    Case("noise", "noise 0.12", 1, noise(0.12)),
    Case("noise", "noise 0.25", 2, noise(0.25)),
    Case("bias", "bias 0.6", 1, bias(0.6)),
    Case("bias", "bias 1.2", 2, bias(1.2)),
    Case("blur", "blur 1.2 mm", 2, _blur(1.2)),
    Case("blur", "blur 2.5 mm", 1, _blur(2.5)),
    Case("contrast", "gamma 0.5", 1, _gamma(0.5)),
    Case("contrast", "gamma 2.5", 2, _gamma(2.5)),
    Case("contrast", "inverted by 0.4", 1, inverted(0.4)),
    Case("contrast", "inverted by 1", 2, inverted(1.0)),
    Case("low resolution", "slices of 4 mm", 1, _thick(4)),
    Case("low resolution", "slices of 7 mm", 2, _thick(7)),
    Case("cropped", "cut by 0.25", 2, cut(0.25)),
    Case("cropped", "cut by 0.45", 1, cut(0.45)),
)


def limit(points: Sequence[Point], dice: float, sensitivity: float = SENSITIVITY) -> float:
    """The lowest limit of agreement under which this share of structures below a Dice falls."""
    bad = sorted(point.agreement for point in points if point.dice < dice)
    if not bad:
        raise SystemExit(f"no structure has a Dice below {dice}: make the phantoms harder")
    last = bad[int(np.ceil(sensitivity * len(bad))) - 1]
    # To hundredths, and above the last that must be caught.
    return float(np.floor(last * 100 + 1) / 100)


def rates(points: Sequence[Point], dice: float, agreement: float) -> tuple[float, float]:
    """Share of structures below a Dice that a limit catches, and of the others that it alarms."""
    bad = [point.agreement < agreement for point in points if point.dice < dice]
    good = [point.agreement < agreement for point in points if point.dice >= dice]
    return float(np.mean(bad or np.nan)), float(np.mean(good or np.nan))


def run(model: str = "fast", subjects: str = "") -> None:
    """Calibrate a model's limits; real scans of a SUBJECTS_DIR are only laid over them."""
    folder = find_model(model)
    info = read_info(folder)
    scans = Scans(folder, info)
    points = [p for case in CASES for p in scans.points(case.kind, case.name, case.read)]
    real = [
        p
        for subject in (REAL if subjects else ())
        for p in scans.points("real", subject, partial(_real, Path(subjects) / subject))
    ]
    fail = limit(points, FAILED)
    look = max(fail, limit(points, DOUBTFUL))
    origin = f"scripts/bench quality: {len(points)} structures in {len(CASES)} phantoms"
    for name, dice, found in (("look", DOUBTFUL, look), ("fail", FAILED, fail)):
        caught, alarmed = rates(points, dice, found)
        told = f"{caught:.0%} of Dice < {dice} caught, {alarmed:.0%} of the others alarmed"
        origin += f"; {name} below {found:.2f}: {told}"
        if real:
            caught, alarmed = rates(real, dice, found)
            print(f"real scans, {name}: {caught:.0%} caught, {alarmed:.0%} of the others alarmed")
    print(origin)
    _write(folder, info, Quality(agreement=(look, fail), origin=origin))
    _draw(points, real, look, fail)
    print(f"written to {folder / MODEL_FILE} and {PICTURE}")


class Scans:
    """Scans segmented once; those done before by the same model are read from a folder."""

    def __init__(self, model: Path, info: ModelInfo) -> None:
        told = "".join(sorted(info.files.values())) + info.fusion.model_dump_json()
        digest = hashlib.sha256(told.encode()).hexdigest()[:16]
        self._folder = Path(tempfile.gettempdir()) / f"trinat-quality-{digest}"
        self._folder.mkdir(exist_ok=True)
        self._segmenter = cache(lambda: Segmenter.load(model))

    def points(
        self, kind: str, name: str, read: Callable[[], tuple[Volume, Volume]]
    ) -> Iterator[Point]:
        """All structures of a scan, read with its truth if it has not been done before."""
        kept = self._folder / f"{name}.json"
        if not kept.exists():
            start = time.perf_counter()
            scan, truth = read()
            found = self._segmenter().segment(scan)
            with atomic_text(kept) as file:
                file.write(json.dumps(list(_compared(found, truth))))
            contrast = tissue_contrast(found) or np.nan
            print(
                f"{name:20} {time.perf_counter() - start:5.0f} s"
                f"   white matter / cortex {contrast:.2f}",
                flush=True,
            )
        for structure, agreement, dice in json.loads(kept.read_text()):
            yield Point(kind, name, structure, agreement, dice)


@cache
def middle(seed: int) -> tuple[Volume, Volume]:
    return _cut_out(*phantom(seed))


def _cut_out(scan: Volume, truth: Volume) -> tuple[Volume, Volume]:
    """Part of a head around the thalamus, white matter at 1, and its truth."""
    centre = np.argwhere(np.isin(truth.data, _THALAMUS)).mean(axis=0) + _OFFSET_MM
    box = tuple(
        slice(max(0, round(c - n / 2)), round(c + n / 2))
        for c, n in zip(centre, _FIELD_MM, strict=True)
    )
    white = np.median(scan.data[np.isin(truth.data, _WHITE_MATTER)])
    affine = scan.affine.copy()
    affine[:3, 3] += affine[:3, :3] @ [side.start for side in box]
    image = scan.data[box].astype(np.float32) / np.float32(white)
    return Volume(image, affine), Volume(truth.data[box], affine)


def _real(subject: Path) -> tuple[Volume, Volume]:
    scan = Volume.read(subject / "mri/T1.mgz")
    truth = Volume.read(subject / "mri/aseg.mgz", labels=True)
    # In RAS axes, as phantoms are, so that the same field is cut out.
    ras = conform(scan)
    return _cut_out(ras.volume, conform(truth, labels=True, plan=ras.plan).volume)


def _compared(found: Segmentation, truth: Volume) -> Iterator[tuple[str, float, float]]:
    assert found.agreement is not None
    given = found.scheme.from_freesurfer(truth.data)
    count = len(found.scheme)
    pairs = np.bincount(
        given.ravel().astype(np.int64) * count + found.indices.data.ravel(), minlength=count**2
    ).reshape(count, count)
    for label in found.scheme.labels[1:]:
        k = label.index
        if label.name in found.not_predicted or pairs[k].sum() * found.voxel_mm3 < ENOUGH_MM3:
            continue
        dice = 2 * pairs[k, k] / (pairs[k].sum() + pairs[:, k].sum())
        yield label.name, float(np.nan_to_num(found.agreement[k])), float(dice)


def _write(folder: Path, info: ModelInfo, quality: Quality) -> None:
    content = info.model_copy(update={"quality": quality}).model_dump(mode="json")
    with atomic_text(folder / MODEL_FILE) as file:
        file.write(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def _draw(points: Sequence[Point], real: Sequence[Point], look: float, fail: float) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.add_subplot()
    axes.axvspan(0, fail, color="#a40000", alpha=0.08, lw=0)
    axes.axvspan(fail, look, color="#c98a00", alpha=0.10, lw=0)
    for dice, limit_ in ((FAILED, fail), (DOUBTFUL, look)):
        axes.axhline(dice, color="0.6", lw=0.8, ls="--")
        axes.axvline(limit_, color="0.3", lw=0.8)
    for kind in dict.fromkeys(point.kind for point in points):
        of = [point for point in points if point.kind == kind]
        axes.scatter([p.agreement for p in of], [p.dice for p in of], s=16, alpha=0.75, label=kind)
    if real:
        axes.scatter(
            [p.agreement for p in real],
            [p.dice for p in real],
            s=26,
            marker="D",
            facecolors="none",
            edgecolors="black",
            label="real scans",
        )
    for text, low, high in (("fail", 0, fail), ("look", fail, look), ("pass", look, 1)):
        axes.text((low + high) / 2, 1.02, text, ha="center", va="bottom", fontsize=11)
    axes.set(
        xlim=(0, 1),
        ylim=(0, 1),
        xlabel="agreement: mean Dice between the three views",
        ylabel="Dice with the truth",
    )
    figure.legend(loc="outside right upper", fontsize=9)
    with atomic_path(PICTURE) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
