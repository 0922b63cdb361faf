"""Dice against the number of corrected scans, in the order of `trinat next` and in random orders.

    scripts/bench learn RESULTS SCANS TRUTH CACHE [NUMBERING]

RESULTS is the --out of `trinat predict` with `fast`. Corrections are simulated: a corrected scan
gets its map of TRUTH, and all of that counts. The persons of MEASURED are not corrected; the mean
Dice is over their structures. Factors are fitted as `trinat learn` does it from few scans.

Each scan is segmented once, and each fit done once; both are kept in CACHE, so that a run that was
stopped goes on. On a machine where other work runs, set OMP_NUM_THREADS=1: threads that wait for
each other made it ten times slower.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trinat.pipelines.evaluate.user_tables import Mappings
from trinat.pipelines.learn.corrected import Corrected, find_corrected
from trinat.pipelines.learn.order import doubts_of, features_of
from trinat.pipelines.models.fit_odds import segment_all
from trinat.pipelines.models.scans_with_truth import without_odds
from trinat.pipelines.web.study import Study
from trinat.segmentation.io.files import atomic_write, write_whole
from trinat.segmentation.labels.folding import load_folding
from trinat.segmentation.models.checkpoint import Model, load_model
from trinat.segmentation.training.odds_fit import (
    DoubtfulVoxels,
    fit_odds,
    logarithms_of,
)
from trinat.segmentation.training.proposal import likeness, propose

__all__ = ["MEASURED", "Curve", "run"]

MEASURED = ("1001", "1007", "1008", "1011", "1015")
COUNTS = (1, 2, 3, 5, 10)
RANDOM_ORDERS = 10
_FITS = "fits.json"


def run(
    results: str,
    scans: str,
    truth: str,
    cache: str,
    numbering: str = "neuromorphometrics",
) -> None:
    """Segment what is not in the cache, and print the curve as far as there is time for it."""
    folder = Path(cache)
    folder.mkdir(parents=True, exist_ok=True)
    study = Study(Path(results), rater="", images=Path(scans), against=Path(truth))
    found, failures = find_corrected(study)
    for line in failures:
        print(f"not used: {line}")
    model = load_model("fast")
    mapping = Mappings(truth_numbering=load_folding(numbering))
    measured = [each for each in found if each.item.name in MEASURED]
    to_correct = [each for each in found if each.item.name not in MEASURED]
    # Those that are measured first: each fit needs all of them.
    kept = {}
    for each in [*measured, *in_proposed_order(to_correct), *to_correct]:
        kept[each.item.name] = segmented(each, model, mapping, folder)
    curve = Curve(model, kept, [each.item.name for each in measured], folder)
    report(curve, to_correct)


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


def segmented(
    scan: Corrected, model: Model, mapping: Mappings, folder: Path
) -> DoubtfulVoxels:
    """What is kept of a scan, from the cache or segmented now."""
    path = folder / f"{scan.item.name}.npz"
    if path.is_file():
        return _read(path)
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
