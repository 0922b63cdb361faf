"""Figures for docs/notes/volumes.md: which `csf_odds` gives a model the right intracranial volume.

`scripts/bench fluid MODEL [SUBJECTS_DIR ...]`, for a model with `csf: intracranial`. Views are
fused once for each head, and CSF gets each of the odds in turn. Phantoms have a truth of all fluid
inside the skull. FreeSurfer's eTIV is an estimate by registration, no measurement: of subjects the
ratio to it is printed, for whole heads alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from benches.head import PHANTOMS, etiv_mm3, true_mask
from trinat.segmentation.data.sources.freesurfer import find_image
from trinat.segmentation.inference.checks.evidence import Evidence
from trinat.segmentation.inference.fusion import multiply_csf_odds
from trinat.segmentation.inference.measuring import measure
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.measures import INTRACRANIAL
from trinat.segmentation.models.checkpoint import load_model
from trinat.segmentation.synthetic.phantom import phantom

ODDS = (0.25, 0.35, 0.45, 0.6, 0.8, 1.0)


def run(model: str, *subjects_dirs: str) -> None:
    """Print a row of ratios of found to true volume for each head, and the means."""
    loaded = load_model(model)
    fusion = loaded.info.fusion.model_copy(update={"csf_odds": 1.0})
    info = loaded.info.model_copy(update={"fusion": fusion})
    predictor = Predictor(replace(loaded, info=info))
    print("head", *(f"{odds:6.2f}" for odds in ODDS))
    truths = {"phantoms": _phantoms()}
    for subjects_dir in subjects_dirs:
        truths[subjects_dir] = _subjects(Path(subjects_dir))
    for kind, heads in truths.items():
        rows = []
        for name, scan, true_mm3 in heads:
            volumes_mm3 = volumes_by_odds(predictor, scan)
            if None in volumes_mm3:
                continue
            ratios = np.array(volumes_mm3, float) / true_mm3
            print(name, *(f"{ratio:6.3f}" for ratio in ratios), flush=True)
            rows.append(ratios)
        if rows:
            means = np.mean(rows, axis=0)
            print(f"mean of {len(rows)}, {kind}:", *(f"{mean:6.3f}" for mean in means))


def volumes_by_odds(predictor: Predictor, scan: Volume) -> list[float | None]:
    """The intracranial volume of a scan with each of the ODDS; None where there is none."""
    conformed = predictor.prepare(scan)
    image = predictor.on_device(conformed)
    region, fused, maps = predictor.find_and_fuse(image)
    plan = conformed.plan.cropped(region.box)
    volumes_mm3 = []
    for odds in ODDS:
        probabilities = fused.fused.clone()
        multiply_csf_odds(probabilities, fused.scheme, odds)
        predictor.weigh(probabilities, plan)
        found = predictor.conclude(conformed, region, probabilities, maps)
        evidence = Evidence.of(found)
        volumes_mm3.append(measure(found, evidence).mm3[INTRACRANIAL.column])
    return volumes_mm3


def _phantoms() -> Iterator[tuple[str, Volume, float]]:
    """Each phantom, and the volume inside its skull."""
    for seed, geometry in PHANTOMS:
        scan, truth = phantom(seed, csf="intracranial", **geometry)
        yield f"phantom {seed}", scan, true_mask(truth).sum() * truth.grid.voxel_mm3


def _subjects(root: Path) -> Iterator[tuple[str, Volume, float]]:
    """Each subject of FreeSurfer that has an eTIV, and that."""
    for folder in sorted(root.iterdir()):
        etiv = etiv_mm3(folder)
        place = find_image(folder, "T1") or find_image(folder)
        if etiv is not None and place is not None:
            yield folder.name, Volume.read(place), etiv
