"""Accuracy of the grades: good scans, and scans damaged in known ways.

    scripts/bench damages DATA CACHE [MODEL]

DATA has `freesurfer/` and `malc/`. Each case is segmented once and kept in CACHE, so that after
a change of the limits all cases are graded again within minutes. The limits in
`segmentation/inference/checks/limits.py` were chosen with the cases for choosing; the figures of
docs/quality.md come from the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benches._damage_cache import Case, Heads, Stored, all_cases, fill, read_stored
from benches._damage_kinds import KINDS
from trinat.segmentation.grid import Grid
from trinat.segmentation.inference.checks.evidence import Evidence
from trinat.segmentation.inference.checks.limits import Limits
from trinat.segmentation.inference.quality import Grade, grade, limits_of
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.checkpoint import load_model
from trinat.segmentation.models.zoo import find_model

# A scan should not pass if its mean Dice with the labels of the good scan is below this.
_WRONG = 0.85
_SHOWN_REASONS = 2


@dataclass(frozen=True)
class Graded:
    case: Case
    dice: float
    verdict: Grade


def run(data: str, folder: str, model: str = "fast") -> None:
    """Segment the cases that are not in the cache, and print how all cases are graded."""
    heads = Heads(Path(data))
    cache = Path(folder)
    cache.mkdir(parents=True, exist_ok=True)
    cases = all_cases(heads.malc)
    fill(cases, heads, cache, model)
    report(cases, cache, model)


def report(cases: Sequence[Case], cache: Path, model: str) -> None:
    """Print the cached cases with their grades, and the shares that docs/quality.md states."""
    limits = limits_of(load_model(find_model(model)).info)
    graded = []
    for case in cases:
        path = cache / f"{case.name}.npz"
        if path.exists():
            stored = read_stored(path)
            verdict = grade(evidence_of(stored), limits_for(case, limits))
            graded.append(Graded(case, stored.mean_dice if case.kind else 1.0, verdict))
            _say_case(graded[-1])
    for is_for_choosing, title in ((True, "for choosing"), (False, "not for choosing")):
        print(f"\n{title}")
        _say_shares(
            [one for one in graded if one.case.is_for_choosing == is_for_choosing]
        )


def limits_for(case: Case, limits: Limits) -> Limits:
    """Return limits without those that any part of a head exceeds: it is small, cut and uneven."""
    if not case.is_part:
        return limits
    return replace(
        limits,
        smallest_brain_mm3=(0.0, 0.0),
        symmetry=(0.0, 0.0),
        sided_mm3=np.inf,
        cut_mm2=(np.inf, np.inf),
    )


def evidence_of(stored: Stored) -> Evidence:
    scan = Grid(stored.scan_shape, stored.scan_affine)
    volumes = {name: count * scan.voxel_mm3 for name, count in stored.voxels.items()}
    scheme = load_scheme("quicknat33")
    return Evidence(
        stored.image, stored.indices, scan, scheme, volumes, stored.agreement
    )


def _say_case(one: Graded) -> None:
    reasons = "; ".join(one.verdict.reasons[:_SHOWN_REASONS])
    more = len(one.verdict.reasons) - _SHOWN_REASONS
    if more > 0:
        reasons += f"; {more} more"
    print(
        f"{one.verdict.name:6}  {one.dice:.3f}  {one.case.name}: {reasons}", flush=True
    )


def _say_shares(graded: Sequence[Graded]) -> None:
    good = [one for one in graded if one.case.kind is None and not one.case.is_part]
    print(f"{'good scans':22} {_counted(good)}")
    damaged = [one for one in graded if one.case.kind is not None]
    for kind in KINDS:
        ours = [one for one in damaged if one.case.kind is kind]
        by_strength = []
        for strength in kind.strengths:
            here = [one for one in ours if one.case.strength == strength]
            by_strength.append(f"{strength:g}: {_counted(here)}")
        print(f"{kind.name:22} {kind.unit:16} {'   '.join(by_strength)}")
    for title, wrong in (
        (f"Dice below {_WRONG}", True),
        (f"Dice from {_WRONG}", False),
    ):
        print(
            f"{title:22} {_counted([one for one in damaged if (one.dice < _WRONG) == wrong])}"
        )


def _counted(graded: Sequence[Graded]) -> str:
    """Return the counts of pass, look and reject as text."""
    counts = Counter(one.verdict.name for one in graded)
    return f"{counts['pass']} / {counts['look']} / {counts['reject']}"
