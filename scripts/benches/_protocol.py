"""Corrections of one structure alone, by a protocol that draws it otherwise than the truth does.

The protocols are made by code: the hippocampus of the truth with one more voxel all round, with one
less, or a voxel higher. A voxel that is hippocampus no more becomes what is nearest. In results the
hippocampus is corrected accordingly, and saved as the page saves it; `trinat learn` makes a model
of them. Measured persons have the truth with the protocol's hippocampus.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trinat.pipelines.evaluate.user_tables import Mappings
from trinat.pipelines.learn.corrected import Corrected
from trinat.pipelines.learn.learning import learn
from trinat.pipelines.learn.settings import LearnSettings
from trinat.pipelines.models.fit_odds import segment_all
from trinat.pipelines.models.scans_with_truth import without_odds
from trinat.pipelines.study.corrections import Session, save_correction
from trinat.pipelines.study.naming import WORK
from trinat.pipelines.study.study import Study
from trinat.segmentation.errors import EvaluationError
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.folding import load_folding
from trinat.segmentation.metrics.overlap import dice
from trinat.segmentation.models.checkpoint import Model, load_model
from trinat.segmentation.training.odds_fit import DoubtfulVoxels, logarithms_of

__all__ = ["PROTOCOLS", "measure_protocols", "redrawn"]

Mask = NDArray[np.bool_]
Values = NDArray[np.float64]

# Left and right, in FreeSurfer's numbers.
_HIPPOCAMPI = (17, 53)


def _larger(mask: Mask) -> Mask:
    return np.asarray(ndimage.binary_dilation(mask))


def _smaller(mask: Mask) -> Mask:
    return np.asarray(ndimage.binary_erosion(mask))


def _higher(mask: Mask) -> Mask:
    """A voxel up, on the axes of these scans: left, front, up."""
    return np.roll(mask, 1, axis=2)


PROTOCOLS: Mapping[str, Callable[[Mask], Mask]] = {
    "larger": _larger,
    "smaller": _smaller,
    "higher": _higher,
}


def measure_protocols(
    study: Study,
    taught: Sequence[Corrected],
    measured: Sequence[Corrected],
    numbering: str,
    cache: Path,
) -> None:
    """Print, for each protocol, what `trinat learn` makes of corrections of some scans."""
    start = load_model("fast")
    hippocampi = [start.scheme.names.index(name) for name in _names(start)]
    others = sorted(
        set(range(len(start.scheme))) - set(hippocampi) - set(without_odds(start))
    )
    print("protocol  hippocampus before  after  other structures: least  mean gain")
    for name, protocol in PROTOCOLS.items():
        folder = cache / f"protocol-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        results = folder / "results"
        results.mkdir(parents=True)
        shutil.copy(study.folder / "run.jsonl", results)
        shutil.copy(study.folder / "labels.tsv", results)
        for each in taught:
            _correct(each, start, numbering, protocol, results)
        truths = []
        for each in measured:
            truth = _truth(each, start, numbering)
            data = redrawn(truth.data, protocol)
            path = folder / f"{each.item.name}.nii.gz"
            replace(truth, data=data).write(path, labels=True)
            truths.append(replace(each, labels=path))

        out = folder / "own"
        settings = LearnSettings(
            results=results, out=out, images=study.images, method="factors"
        )
        try:
            print("\n".join(learn(settings, print).lines))
        except EvaluationError as error:
            print(f"{name}: no model: {error}")
            continue
        # Factors change no network: one segmentation is that of both models.
        pairs = [each.pair for each in truths]
        _, found, failed = segment_all(
            start, pairs, Mappings(), device="cpu", trust_affine=None, say=print
        )
        assert not failed, failed
        before = _dice_by_structure(found, start)
        after = _dice_by_structure(found, load_model(out))
        gain = after - before
        print(
            f"{name:8}  {before[hippocampi].mean():18.3f}  {after[hippocampi].mean():5.3f}"
            f"  {gain[others].min():+23.4f}  {gain[others].mean():+9.4f}",
            flush=True,
        )


def redrawn(
    numbers: NDArray[np.integer], protocol: Callable[[Mask], Mask]
) -> NDArray[np.int16]:
    """A label map (X, Y, Z) in FreeSurfer's numbers, with both hippocampi of a protocol."""
    is_hippocampus = np.isin(numbers, _HIPPOCAMPI)
    nearest = ndimage.distance_transform_edt(
        is_hippocampus, return_distances=False, return_indices=True
    )
    # What each voxel is, or is nearest to, without the hippocampus.
    changed: NDArray[np.int16] = numbers[tuple(nearest)].astype(np.int16)
    for number in _HIPPOCAMPI:
        changed[protocol(numbers == number)] = number
    return changed


def _correct(
    scan: Corrected,
    model: Model,
    numbering: str,
    protocol: Callable[[Mask], Mask],
    results: Path,
) -> None:
    """Save a copy of a result, and its correction, in which the hippocampus is the protocol's.

    Where the result alone has hippocampus, the person who corrects it knows what is right.
    """
    assert scan.item.labels is not None
    result = results / scan.item.labels.name
    shutil.copy(scan.item.labels, result)
    found = Volume.read(result, labels=True)
    wanted = redrawn(_truth(scan, model, numbering).data, protocol)
    either = np.isin(found.data, _HIPPOCAMPI) | np.isin(wanted, _HIPPOCAMPI)
    data = np.where(either, wanted, found.data)
    names = {label.fs_id: label.name for label in model.scheme.labels}
    del names[0]
    save_correction(
        result,
        replace(found, data=data),
        Session(by="bench", at="2026-11-27T00:00:00+00:00", minutes=0),
        builds_on=sha256_of(result),
        names=names,
        lock=results / WORK / "lock.corrections",
    )


def _truth(scan: Corrected, model: Model, numbering: str) -> Volume:
    """The truth of a scan in FreeSurfer's numbers, as far as the model's scheme has them."""
    truth = Volume.read(scan.labels, labels=True)
    folding = load_folding(numbering)
    classes = model.scheme.from_freesurfer(
        truth.data, fold=folding, spacing_mm=truth.spacing_mm
    )
    return replace(truth, data=model.scheme.to_freesurfer(classes))


def _names(model: Model) -> list[str]:
    """The structures that are corrected, as the model names them."""
    return [label.name for label in model.scheme.labels if label.fs_id in _HIPPOCAMPI]


def _dice_by_structure(scans: Sequence[DoubtfulVoxels], model: Model) -> Values:
    """The mean Dice of each class over scans, (K,), with the factors of a model."""
    own = logarithms_of(model.info.fusion.class_odds, model.scheme)
    return np.asarray(np.mean([dice(scan.joint(own)) for scan in scans], axis=0))
