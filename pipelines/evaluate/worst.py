"""The scans with the lowest Dice, with their voxels, for the report's viewer."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from trinat.pipelines.evaluate.gather import EvaluationSettings
from trinat.pipelines.evaluate.measuring import AlignedPair, Done, read_pair, scan_of
from trinat.pipelines.evaluate.pairing import pair_files
from trinat.pipelines.scans.files import ScanFile
from trinat.segmentation.errors import TrinatError
from trinat.segmentation.inference.checks.evidence import some
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.common_grid import on_grid_of

if TYPE_CHECKING:
    from trinat.segmentation.report.evaluation import Case


def worst_cases(
    settings: EvaluationSettings,
    scheme: LabelScheme,
    frame: pd.DataFrame,
    measured: Sequence[Done],
    images: Sequence[ScanFile],
) -> tuple[list[Case], list[str]]:
    """The five lowest scans, and notices for the reader of the report.

    `frame` has the values of all pairs. A scan whose image is missing or unfit is shown without
    it, and a notice says so.
    """
    from trinat.segmentation.report.summary import worst_scans

    tasks = {}
    for result in measured:
        scan = tuple(scan_of(result.task).values())
        tasks[scan] = result.task
    image_of, notices = _find_images(measured, images)
    cases = []
    for row in worst_scans(frame).to_dict("records"):
        task = tasks[row["subject"], row["session"], row["model"]]
        pair = read_pair(task)
        image = None
        file = image_of.get(task.pair.truth.name)
        if file is not None:
            try:
                image = _read_image(file, pair.truth, settings)
            except (TrinatError, OSError) as error:
                notices.append(f"shown without its scan: {error}")
        rejected = task.rejected.get(pair.facts["prediction_sha256"], {})
        left_out = task.made.left_out(scheme, rejected, truth_csf=task.truth_csf)
        case = _case(row, pair, image, scheme, left_out, show_head=settings.show_heads)
        cases.append(case)
    return cases, notices


def _find_images(
    measured: Sequence[Done], images: Sequence[ScanFile]
) -> tuple[dict[str, ScanFile], list[str]]:
    """The image of each true label map that has one, by its name; a notice if some have none."""
    truths = {}
    for result in measured:
        truth = result.task.pair.truth
        truths[truth.name] = truth
    pairing = pair_files(truths.values(), images)
    image_of = {pair.truth.name: pair.prediction for pair in pairing.pairs}
    missing = len(pairing.truths_alone)
    notices = []
    if images and missing:
        notices.append(
            f"{missing} of {len(truths)} scans have no image to be shown on."
        )
    return image_of, notices


def _read_image(file: ScanFile, truth: Volume, settings: EvaluationSettings) -> Volume:
    """A scan on the grid of its true label map."""
    image = Volume.read(file.path, axes=file.axes, trust_affine=settings.trust_affine)
    return on_grid_of(image, truth)[0]


def _case(
    row: Mapping[Hashable, Any],
    pair: AlignedPair,
    image: Volume | None,
    scheme: LabelScheme,
    left_out: Collection[str],
    *,
    show_head: bool,
) -> Case:
    """One scan, ready to be shown; `row` is its line of `worst_scans`.

    Structures that are `left_out` are not compared.
    """
    from trinat.segmentation.report.case_view import view_case
    from trinat.segmentation.report.evaluation import Case
    from trinat.segmentation.report.page import short_name

    scan = f"{row['subject']} {row['session']}".strip()
    structure = row["worst_structure"]
    if np.array_equal(pair.true, pair.predicted):
        text = "No voxel differs."
    else:
        worst = f"{short_name(structure)} ({row['worst_value']:.2f})"
        text = f"Lowest Dice: {worst}. The first slices shown pass through most of its errors."
    if left_out:
        names = some([short_name(name) for name in left_out])
        text += f" Not compared, and in no error: {names}."
    view = view_case(
        Volume(pair.true, pair.truth.affine),
        Volume(pair.predicted, pair.truth.affine),
        scheme,
        image=image,
        focus=scheme.names.index(structure),
        show_head=show_head,
        not_compared=[scheme.names.index(name) for name in left_out],
    )
    title = f"{scan}, {row['model']}: mean Dice {row['value']:.3f}"
    alt = f"Truth, prediction and errors of {scan} in three planes"
    return Case(title, text, alt, view)
