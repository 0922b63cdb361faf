"""What corrected scans teach: Dice of persons who were not corrected.

    scripts/bench learn factors RESULTS SCANS TRUTH CACHE
    scripts/bench learn training RESULTS SCANS TRUTH CACHE COUNT ...
    scripts/bench learn protocol RESULTS SCANS TRUTH CACHE

RESULTS is the --out of `trinat predict` with `fast`, TRUTH has label maps with the numbers of
Neuromorphometrics. Corrections are simulated. The persons of MEASURED are not corrected; the mean
Dice is over their structures.

- `factors`: factors alone, for each number of corrected scans, in the order of `trinat next` and in
  random orders. A corrected scan gets its map of TRUTH, and all of that counts.
- `training`: all of `trinat learn` with so many scans, in the order of `trinat next`, and its time.
- `protocol`: two scans in which only the hippocampus was corrected, to other borders than those of
  TRUTH ([_protocol.py](_protocol.py)).

Each scan is segmented once, and each fit done once; both are kept in CACHE, so that a run that was
stopped goes on. On a machine where other work runs, set OMP_NUM_THREADS=1: threads that wait for
each other made it ten times slower.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

import numpy as np

from benches._protocol import measure_protocols
from trinat.pipelines.evaluate.user_tables import Mappings
from trinat.pipelines.learn.corrected import Corrected, find_corrected
from trinat.pipelines.learn.learning import learn
from trinat.pipelines.learn.settings import LearnSettings
from trinat.pipelines.models.fit_odds import segment_all
from trinat.pipelines.models.scans_with_truth import without_odds
from trinat.pipelines.study.next_scans import (
    doubts_of,
    features_of,
    likeness,
    propose,
)
from trinat.pipelines.study.study import Study
from trinat.segmentation.io.files import atomic_write, write_whole
from trinat.segmentation.labels.folding import load_folding
from trinat.segmentation.models.checkpoint import Model, load_model
from trinat.segmentation.training.odds_fit import (
    DoubtfulVoxels,
    fit_odds,
    logarithms_of,
)

__all__ = ["MEASURED", "NUMBERING", "Curve", "run"]

NUMBERING = "neuromorphometrics"
MEASURED = ("1001", "1007", "1008", "1011", "1015")
COUNTS = (1, 2, 3, 5, 10)
RANDOM_ORDERS = 10
_FITS = "fits.json"


def run(
    part: str, results: str, scans: str, truth: str, cache: str, *counts: str
) -> None:
    """Segment what is not in the cache, and print figures as far as there is time for them."""
    folder = Path(cache)
    folder.mkdir(parents=True, exist_ok=True)
    study = Study(Path(results), rater="", images=Path(scans), against=Path(truth))
    found, failures = find_corrected(study)
    for line in failures:
        print(f"not used: {line}")
    measured = [each for each in found if each.item.name in MEASURED]
    to_correct = [each for each in found if each.item.name not in MEASURED]
    if part == "protocol":
        measure_protocols(
            study, in_proposed_order(to_correct)[:2], measured, NUMBERING, folder
        )
    elif part == "training":
        for number in counts:
            taught = in_proposed_order(to_correct)[: int(number)]
            print(trained_with(study, taught, measured, folder), flush=True)
    else:
        model = load_model("fast")
        # Those that are measured first: each fit needs all of them.
        kept = {}
        for each in [*measured, *in_proposed_order(to_correct)]:
            kept[each.item.name] = segmented(each, model, folder)
        curve = Curve(model, kept, [each.item.name for each in measured], folder)
        report(curve, to_correct)


def trained_with(
    study: Study,
    taught: Sequence[Corrected],
    measured: Sequence[Corrected],
    cache: Path,
) -> str:
    """What `trinat learn` makes of some scans: Dice of those that are measured, and the time."""
    name = f"own-{len(taught)}"
    labels = cache / f"{name}-labels"
    labels.mkdir(exist_ok=True)
    for each in taught:
        link = labels / f"{each.item.name}.nii.gz"
        link.unlink(missing_ok=True)
        link.symlink_to(each.labels.resolve())
    settings = LearnSettings(
        results=study.folder,
        out=cache / name,
        labels=labels,
        numbering=NUMBERING,
        images=study.images,
        overwrite=True,
    )
    began = monotonic()
    learnt = learn(settings, print)
    minutes = (monotonic() - began) / 60
    print("\n".join(learnt.lines))
    dice = np.mean(list(dice_of(load_model(settings.out), measured).values()))
    return f"{len(taught)} scans corrected: {dice:.4f}, after {minutes:.1f} min"


def dice_of(model: Model, scans: Sequence[Corrected]) -> dict[str, float]:
    """The mean Dice over structures of each scan, by its name."""
    pairs = [each.pair for each in scans]
    mapping = Mappings(truth_numbering=load_folding(NUMBERING))
    used, found, failed = segment_all(
        model, pairs, mapping, device="cpu", trust_affine=None, say=print
    )
    assert not failed, failed
    own = logarithms_of(model.info.fusion.class_odds, model.scheme)
    fixed = without_odds(load_model("fast"))
    return {
        pair.truth.name: scan.mean_dice(own, fixed)
        for pair, scan in zip(used, found, strict=True)
    }


def report(curve: Curve, to_correct: Sequence[Corrected]) -> None:
    """Print a line for each number of corrected scans, as soon as it is known."""
    names = [each.item.name for each in to_correct]
    proposed = [each.item.name for each in in_proposed_order(to_correct)]
    orders = [
        np.random.default_rng(seed).permutation(names).tolist()
        for seed in range(RANDOM_ORDERS)
    ]
    print(f"proposed order: {' '.join(proposed)}")
    print(f"none corrected: {curve.dice([]):.4f}", flush=True)
    print("scans  proposed  random: mean  lowest  highest", flush=True)
    for count in COUNTS:
        own = curve.dice(proposed[:count])
        others = [curve.dice(order[:count]) for order in orders]
        print(
            f"{count:5}  {own:8.4f}  {np.mean(others):12.4f}  {min(others):6.4f}  "
            f"{max(others):7.4f}",
            flush=True,
        )


def in_proposed_order(scans: Sequence[Corrected]) -> list[Corrected]:
    """The scans as `trinat next` proposes them, while each that it names is corrected."""
    items = [each.item for each in scans]
    proposals = propose(
        likeness(features_of(items)),
        doubts_of(items),
        [each.person for each in scans],
        [],
        len(scans),
    )
    return [scans[proposal.scan] for proposal in proposals]


class Curve:
    """Mean Dice of the measured scans with factors that were fitted to others, each fit once."""

    def __init__(
        self,
        model: Model,
        scans: dict[str, DoubtfulVoxels],
        measured: Sequence[str],
        folder: Path,
    ) -> None:
        self._model = model
        self._scans = scans
        self._measured = measured
        self._path = folder / _FITS
        self._known: dict[str, float] = {}
        if self._path.is_file():
            self._known = json.loads(self._path.read_text())

    def dice(self, corrected: Sequence[str]) -> float:
        """With factors fitted to these scans, in whatever order; without any, the model's own."""
        key = " ".join(sorted(corrected))
        if key not in self._known:
            self._known[key] = self._fitted(corrected)
            write_whole(self._path, json.dumps(self._known, indent=1))
        return self._known[key]

    def _fitted(self, corrected: Sequence[str]) -> float:
        fixed = without_odds(self._model)
        odds = self._model.info.fusion.class_odds
        if corrected:
            scans = [self._scans[name] for name in corrected]
            odds = fit_odds(scans, self._model.scheme, fixed)
        logarithms = logarithms_of(odds, self._model.scheme)
        of_scans = [
            self._scans[name].mean_dice(logarithms, fixed) for name in self._measured
        ]
        return float(np.mean(of_scans))


def segmented(scan: Corrected, model: Model, folder: Path) -> DoubtfulVoxels:
    """What is kept of a scan, from the cache or segmented now."""
    path = folder / f"{scan.item.name}.npz"
    if path.is_file():
        return _read(path)
    mapping = Mappings(truth_numbering=load_folding(NUMBERING))
    _, (kept,), _ = segment_all(
        model, [scan.pair], mapping, device="cpu", trust_affine=None, say=print
    )
    arrays = {"truth": kept.truth, "decided": kept.decided}
    for rank, classes in enumerate(kept.classes):
        arrays[f"classes{rank}"] = classes
        arrays[f"logarithms{rank}"] = kept.logarithms[rank]
    with atomic_write(path) as target:
        np.savez(target, **arrays)  # type: ignore[arg-type]
    return kept


def _read(path: Path) -> DoubtfulVoxels:
    with zipfile.ZipFile(path) as archive:
        ranks = sum(name.startswith("classes") for name in archive.namelist())
    with np.load(path) as arrays:
        return DoubtfulVoxels(
            truth=arrays["truth"],
            classes=[arrays[f"classes{rank}"] for rank in range(ranks)],
            logarithms=[arrays[f"logarithms{rank}"] for rank in range(ranks)],
            decided=arrays["decided"],
        )
