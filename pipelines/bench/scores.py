"""Dice of a model on real heads with FreeSurfer's labels, as rows for docs/models.md.

    scripts/bench scores MODEL SUBJECTS_DIR [--subjects sub-01,sub-02] [--raw] [--json FILE]

Each head is segmented once, from T1.mgz or else brainmask.mgz, and held against aseg.mgz: fused,
and each view by itself. With --raw it is segmented again as a scanner would have given it, which
is to cost no more than 0.03. Nothing of the heads is written but these figures.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from nibabel.affines import apply_affine
from numpy.typing import NDArray

from pipelines.calibrate import bias, noise
from pipelines.process import prepare_process
from segmentation.data.freesurfer import find_image, find_labels
from segmentation.files import atomic_text
from segmentation.inference.segmentation import Segmentation
from segmentation.inference.segmenter import Segmenter
from segmentation.labels import LabelScheme
from segmentation.metrics.grid import on_grid_of
from segmentation.metrics.overlap import dice, joint_histogram, side_swap
from segmentation.models.checkpoint import Model
from segmentation.resample import GridMap, resample_image, resample_labels
from segmentation.views import View
from segmentation.volume import Volume

__all__ = ["Score", "made_raw", "run", "score", "tables"]

FUSED, RAW = "fused", "raw again"
# aseg has CSF where it happened to be found, not where it is.
LEFT_OUT = ("CSF",)
# A usual T1 scan: a few voxels short of the field, so that none of the head is lost.
RAW_MM = (0.94, 0.94, 1.2)
RAW_AXES = (-1.0, -1.0, 1.0)  # LPS
# From corner to corner of the field; over the brain about e^±0.2, 40 % from end to end.
RAW_BIAS = 0.6
RAW_NOISE = 0.03  # of the brightness of white matter
RAW_WHITE = 500.0
ALLOWED_LOSS = 0.03
_WHITE_MATTER = (2, 41)


@dataclass(frozen=True)
class Score:
    """One label map against the truth; `swapped` is None where structures have no sides."""

    dice: dict[str, float]  # NaN where neither has the structure
    swapped: float | None  # the largest share of a structure's overlap with the other side's label

    @property
    def mean(self) -> float:
        return _mean(self.dice.values())


Scores = dict[str, Score]  # by "fused", a view's name, or "raw again"


def run(*arguments: str) -> None:
    given = _parse(arguments)
    prepare_process(given.threads)
    views = tuple(View(name) for name in given.views.split(",") if name) or None
    segmenter = Segmenter.load(given.model, views=views, device=given.device)
    found: dict[str, Scores] = {}
    for name in _names(given.subjects_dir, given.subjects):
        start = time.perf_counter()
        scan, truth = _read(given.subjects_dir / name)
        found[name] = _scores(segmenter, scan, truth, raw=given.raw)
        told = ", ".join(f"{column} {s.mean:.4f}" for column, s in found[name].items())
        print(f"{name}: {told}, {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        if given.json:
            # After each head: a run that is stopped has told what it knows.
            _write(given.json, given.model, found)
    print("\n".join(tables(found, segmenter.model.scheme)))


def score(
    truth: NDArray[Any], found: NDArray[Any], scheme: LabelScheme, left_out: Sequence[str]
) -> Score:
    """Of two maps of class indices, (X, Y, Z)."""
    joint = joint_histogram(truth, found, len(scheme))
    kept = [x.index for x in scheme.labels[1:] if x.name not in left_out]
    values, swapped = dice(joint), side_swap(joint, scheme.partner_permutation)[kept]
    return Score(
        {scheme.names[k]: float(values[k]) for k in kept},
        None if np.isnan(swapped).all() else float(np.nanmax(swapped)),
    )


def made_raw(scan: Volume, truth: Volume, seed: int = 0) -> tuple[Volume, Volume]:
    """A conformed head as a scanner gives it, shaded, noisy, in LPS; and its truth there."""
    faces = product(*((-0.5, n - 0.5) for n in scan.shape))
    corners = apply_affine(scan.affine, np.array(list(faces)))
    low, high = corners.min(0), corners.max(0)
    x, y, z = (int((b - a) / mm + 1e-6) for a, b, mm in zip(low, high, RAW_MM, strict=True))
    affine = np.diag([*np.multiply(RAW_AXES, RAW_MM), 1.0])
    affine[:3, 3] = (low + high) / 2 - affine[:3, :3] @ (np.array([x, y, z]) - 1) / 2
    to = GridMap.between(scan.affine, affine, (x, y, z))
    white = np.median(scan.data[np.isin(truth.data, _WHITE_MATTER)])
    image = resample_image(scan.data, to) / np.float32(white)
    draw = np.random.default_rng(seed)
    for change in (bias(RAW_BIAS), noise(RAW_NOISE)):
        image = change(image, draw)
    return (
        Volume(np.rint(image * RAW_WHITE).astype(np.int16), affine),
        Volume(resample_labels(truth.data, to), affine),
    )


def tables(found: Mapping[str, Scores], scheme: LabelScheme) -> list[str]:
    """Lines of Markdown: means of each scan, sides, and Dice of each structure."""
    columns = list(next(iter(found.values())))
    lines = [
        _row("scan", *(_titled(name, found) for name in columns)),
        _row(*["---"] * (1 + len(columns))),
        *(_row(name, *(f"{s[c].mean:.3f}" for c in columns)) for name, s in found.items()),
        _row("mean", *(f"{_mean(s[c].mean for s in found.values()):.3f}" for c in columns)),
        "",
        "Largest share of a structure's overlap that carries the other side's label: "
        + ", ".join(
            f"{c} {max(s[c].swapped or 0 for s in found.values()):.4f}"
            for c in columns
            if all(s[c].swapped is not None for s in found.values())
        )
        + ".",
    ]
    if RAW in columns:
        losses = {name: s[FUSED].mean - s[RAW].mean for name, s in found.items()}
        worst = max(losses, key=losses.__getitem__)
        lines.append(
            f"Made raw again, heads lose {np.mean(list(losses.values())):.4f} in the mean and "
            f"{losses[worst]:.4f} at most ({worst}); allowed are {ALLOWED_LOSS}."
        )
    return [*lines, "", *_by_structure(found, scheme)]


def _by_structure(found: Mapping[str, Scores], scheme: LabelScheme) -> list[str]:
    """Both sides together, the best first; then each side."""
    columns = [c for c in (FUSED, RAW) if c in next(iter(found.values()))]
    known = next(iter(found.values()))[FUSED].dice
    means = {c: {n: _mean(s[c].dice[n] for s in found.values()) for n in known} for c in columns}
    merged = scheme.merged
    shared = {x.name: merged.scheme.names[merged.to_merged[x.index]] for x in scheme.labels}
    sides: dict[str, list[str]] = {}
    for name in known:
        # Where sagittal slices alone were looked at, structures have no sides already.
        sides.setdefault(shared.get(name, name), []).append(name)
    both = {
        c: {m: float(np.mean([means[c][n] for n in names])) for m, names in sides.items()}
        for c in columns
    }
    rows = sorted(both[FUSED], key=both[FUSED].__getitem__, reverse=True)
    titles = ["Dice" if c == FUSED else RAW for c in columns]
    return [
        _row("structure (both sides)", *titles, "left, right"),
        _row(*["---"] * (2 + len(columns))),
        *(
            _row(
                m,
                *(f"{both[c][m]:.2f}" for c in columns),
                ", ".join(f"{means[FUSED][n]:.2f}" for n in sides[m]) if len(sides[m]) > 1 else "",
            )
            for m in rows
        ),
    ]


def _scores(segmenter: Segmenter, scan: Volume, truth: Volume, *, raw: bool) -> Scores:
    found = segmenter.segment(scan)
    scores: Scores = {}
    for view in found.maps if len(found.maps) > 1 else ():
        labels = found.of_view(view).data
        scores[view.value] = _score(
            segmenter.model, truth, labels, merged=segmenter.model.is_merged(view)
        )
    scores[FUSED] = _fused(segmenter.model, found, truth)
    if raw:
        del found
        scan, truth = made_raw(scan, truth)
        scores[RAW] = _fused(segmenter.model, segmenter.segment(scan), truth)
    return scores


def _fused(model: Model, found: Segmentation, truth: Volume) -> Score:
    return _score(model, truth, found.indices.data, merged=found.scheme is not model.scheme)


def _score(model: Model, truth: Volume, found: NDArray[Any], *, merged: bool) -> Score:
    scheme = model.scheme
    classes = scheme.from_freesurfer(truth.data, spacing_mm=truth.spacing_mm)
    never = {*LEFT_OUT, *model.info.not_predicted}
    if not merged:
        return score(classes, found, scheme, tuple(never))
    to, names = scheme.merged.to_merged, scheme.merged.scheme.names
    left_out = tuple(names[to[x.index]] for x in scheme.labels if x.name in never)
    return score(to[classes].astype(np.uint8), found, scheme.merged.scheme, left_out)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench scores", description=__doc__)
    parser.add_argument("model")
    parser.add_argument("subjects_dir", type=Path, metavar="SUBJECTS_DIR")
    parser.add_argument("--subjects", default="", help="some of them: sub-01,sub-02")
    parser.add_argument("--views", default="", help="segment with some of coronal,axial,sagittal")
    parser.add_argument("--raw", action="store_true", help="also made raw again: twice the time")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="auto")
    return parser.parse_args(arguments)


def _names(root: Path, chosen: str) -> list[str]:
    names = [name for name in chosen.split(",") if name]
    names = names or sorted(path.parent.parent.name for path in root.glob("*/mri/aseg.mgz"))
    if not names:
        raise SystemExit(f"{root}: no subject with mri/aseg.mgz here")
    return names


def _read(subject: Path) -> tuple[Volume, Volume]:
    """The head, and FreeSurfer's labels voxel by voxel on it."""
    image = find_image(subject, "T1") or find_image(subject, "brainmask")
    labels = find_labels(subject, "aseg")
    if image is None or labels is None:
        raise SystemExit(f"{subject}: wants mri/aseg.mgz, and mri/T1.mgz or mri/brainmask.mgz")
    scan = Volume.read(image)
    return scan, on_grid_of(Volume.read(labels, labels=True), scan)[0]


def _write(path: Path, model: str, found: Mapping[str, Scores]) -> None:
    heads = {
        name: {
            column: {
                "mean": s.mean,
                "swapped": s.swapped,
                "dice": {k: None if math.isnan(v) else v for k, v in s.dice.items()},
            }
            for column, s in scores.items()
        }
        for name, scores in found.items()
    }
    with atomic_text(path) as file:
        file.write(json.dumps({"model": model, "heads": heads}, indent=1) + "\n")


def _titled(column: str, found: Mapping[str, Scores]) -> str:
    """A view that cannot tell sides says so."""
    merged = all(scores[column].swapped is None for scores in found.values())
    return f"{column} (merged structures)" if merged else column


def _mean(values: Iterable[float]) -> float:
    """Over those that are numbers."""
    return float(np.nanmean(list(values)))


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
