"""trinat evaluate --repeat: scan-rescan agreement of labels and predictions.

The agreement of the labels of two scans of one participant limits what can be measured with these
labels. All maps of a pair of scans are registered in the same way
(`segmentation/metrics/repeat.py`). pairs.csv has every pair of scans, repeat.csv every value,
structures.csv the means over participants.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from trinat.pipelines.common.exits import Exit, batch_exit
from trinat.pipelines.evaluate.gather import (
    find_predictions,
    made_of_model,
    mappings_of,
    one_each,
)
from trinat.pipelines.evaluate.measuring import KILLED, as_classes, read_labels
from trinat.pipelines.evaluate.settings import EvaluationSettings
from trinat.pipelines.evaluate.user_tables import Mappings
from trinat.pipelines.jobs.lock import claimed, keep_only, refuse_foreign
from trinat.pipelines.jobs.pool import run_isolated
from trinat.pipelines.jobs.process import cpu_count
from trinat.pipelines.report.measurements import write_table
from trinat.pipelines.report.page import provenance
from trinat.pipelines.report.repeat import (
    LABELS,
    OTHER_LABELS,
    PREDICTIONS,
    over_participants,
    repeat_page,
)
from trinat.pipelines.study.cases import Case
from trinat.pipelines.study.files import (
    ScanFile,
    corrected_among,
    find_files,
    find_images,
)
from trinat.pipelines.study.grouping import participants_of
from trinat.pipelines.study.pairing import pair_files
from trinat.pipelines.study.results import Results
from trinat.segmentation.data.sources.base import without_suffix
from trinat.segmentation.errors import ConfigError, EvaluationError, TrinatError
from trinat.segmentation.io.files import write_whole
from trinat.segmentation.io.orientation import TrustAffine
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels import Csf
from trinat.segmentation.labels.folding import FoldingTable
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.metrics.counted import Made

if TYPE_CHECKING:
    from trinat.segmentation.metrics.repeat import LaidMap, TwoScans

__all__ = ["evaluate_repeat"]

_log = logging.getLogger(__name__)

_OUTPUTS = ("pairs.csv", "repeat.csv", "structures.csv", "report.html")
# Columns of pairs.csv that describe the registration of two scans.
_FACTS = ("likeness", "turned_deg", "shifted_mm", "stretch_percent")
# Options that cannot be combined with --repeat.
_NOT_HERE = ("ratings", "resample", "show_heads", "latex", "csv")


@dataclass(frozen=True)
class _Scan:
    """One scan with its label maps.

    `labels` is the label map from the dataset, if there is one; `predictions` are by name of the
    model.
    """

    image: ScanFile
    labels: ScanFile | None
    predictions: Mapping[str, ScanFile]

    @property
    def has_map(self) -> bool:
        """True if the scan has labels or a prediction."""
        return self.labels is not None or bool(self.predictions)


@dataclass(frozen=True)
class _Task:
    """Two scans of a participant, with everything that a worker process needs to compare them.

    `scheme` is the name or file of the label scheme. By name of the model, `mappings` has the
    meaning of label numbers, and `made` says how the model made its predictions. `labels_csf` is
    the definition of CSF in the labels.
    """

    participant: str
    first: _Scan
    second: _Scan
    scheme: str
    trust_affine: TrustAffine | None
    mappings: Mapping[str, Mappings]
    made: Mapping[str, Made]
    labels_csf: Csf


@dataclass(frozen=True)
class _Done:
    """Result of comparing two scans.

    `rows` are the rows of repeat.csv, and `facts` the columns of pairs.csv that describe the
    registration. `failure` is the reason if the scans could not be compared, else "".
    """

    task: _Task
    rows: Sequence[Mapping[str, Any]] = ()
    facts: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""

    @property
    def subject(self) -> str:
        """Name of the pair in the progress report."""
        return self.task.participant


def evaluate_repeat(
    settings: EvaluationSettings,
    *,
    progress: Callable[[_Done, int, int], object] = lambda result, done, total: None,
) -> Exit:
    """Compare the maps of every two scans of each participant, and write the tables and the page.

    `progress(result, done, total)` is called after each pair of scans. Pairs that failed, and files
    that were matched by a guess, are logged. Raises EvaluationError if nothing can be compared.
    """
    started = datetime.now(UTC)
    for option in _NOT_HERE:
        if getattr(settings, option):
            name = option.replace("_", "-")
            raise ConfigError(f"--{name} is not for --repeat", remedy="leave it out")
    if settings.images is None:
        raise ConfigError(
            "--repeat needs the scans, by which maps are laid on one another",
            remedy="give --images",
        )
    refuse_foreign(settings.out, _OUTPUTS)
    scheme = load_scheme(settings.labels)
    results = {model: Results(place) for model, place in settings.models.items()}
    scans, unfit = _find_scans(settings, scheme, results)
    tasks, alone = _plan_tasks(settings, scheme, scans, results)

    failed = []
    fit = []
    for task in tasks:
        reasons = [
            f"{file.shown}: {unfit[file.path]}"
            for scan in (task.first, task.second)
            for file in scan.predictions.values()
            if file.path in unfit
        ]
        if reasons:
            failed.append(_Done(task, failure=reasons[0]))
        else:
            fit.append(task)
    done = failed + run_isolated(
        _measure,
        fit,
        settings.jobs or cpu_count(),
        killed=lambda task: _Done(task, failure=f"{KILLED}: try fewer --jobs"),
        finished=progress,
    )
    for result in done:
        if result.failure:
            _log.warning("%s: %s", result.subject, result.failure)
    corrected = corrected_among(
        [file for scan in scans for file in scan.predictions.values()]
    )
    if corrected:
        _log.info("%s", corrected)

    with claimed(settings.out, _OUTPUTS):
        pairs = _pairs_table(done, alone)
        write_table(settings.out / "pairs.csv", pairs)
        measured = [row for result in done for row in result.rows]
        if not measured:
            keep_only(settings.out, _OUTPUTS, ["pairs.csv"])
            raise EvaluationError(
                f"none of {len(done)} pairs of scans could be compared; the first: "
                f"{done[0].failure}",
                where=settings.out / "pairs.csv",
            )
        frame = pd.DataFrame(measured)
        write_table(settings.out / "repeat.csv", frame)
        means = over_participants(frame, scheme)
        write_table(settings.out / "structures.csv", means)
        written = ["pairs.csv", "repeat.csv", "structures.csv"]
        if not settings.tables_only:
            facts = provenance(started, settings.command, scheme.name)
            facts["scans"] = str(settings.images)
            facts["labels of the scans"] = str(settings.truth or "none")
            for model, place in settings.models.items():
                facts[f"predictions of {model}"] = str(place)
            if corrected:
                facts["corrections"] = corrected
            page = repeat_page(means, frame, pairs, scheme, facts)
            write_whole(settings.out / "report.html", page)
            written.append("report.html")
        keep_only(settings.out, _OUTPUTS, written)
    failures = sum(bool(result.failure) for result in done)
    return batch_exit(done=len(done) - failures, failed=failures)


def _find_scans(
    settings: EvaluationSettings,
    scheme: LabelScheme,
    results: Mapping[str, Results],
) -> tuple[list[_Scan], dict[Path, str]]:
    """Find the scans with their label maps and predictions.

    The second result has the reason for each prediction that cannot be measured.
    """
    assert settings.images is not None
    labels: list[ScanFile] = []
    if settings.truth is not None:
        labels = find_files(settings.truth, parcels=scheme.has_parcels)
    found, unfit = find_predictions(settings, scheme, results)
    maps = {"": labels, **found}
    every_map = [file.path for files in maps.values() for file in files]
    images = find_images(settings.images, every_map)
    # The label map of each image, by model ("" for labels) and image.
    map_of: dict[str, dict[Path, ScanFile]] = {}
    for maker, files in maps.items():
        pairing = pair_files(images, files, guess=True)
        for guess in pairing.guesses:
            _log.warning("check it: %s", guess)
        map_of[maker] = {pair.truth.path: pair.prediction for pair in pairing.pairs}
    scans = []
    for image in images:
        predictions = {
            model: map_of[model][image.path]
            for model in settings.models
            if image.path in map_of[model]
        }
        scans.append(_Scan(image, map_of[""].get(image.path), predictions))
    return scans, unfit


def _plan_tasks(
    settings: EvaluationSettings,
    scheme: LabelScheme,
    scans: Sequence[_Scan],
    results: Mapping[str, Results],
) -> tuple[list[_Task], list[tuple[str, str, str]]]:
    """Plan a comparison of every two scans of each participant.

    The second result has the scans that cannot be compared with another: participant, scan, reason.
    """
    mappings = mappings_of(settings)
    csf_pred = one_each(settings.csf_pred, settings.models, "--csf-pred")
    made = {}
    for model, of_model in results.items():
        made[model] = made_of_model(
            of_model, scheme, settings.not_predicted, csf_pred.get(model)
        )
    labels_csf = settings.csf
    if labels_csf is None and settings.truth is not None:
        labels_csf = Results(settings.truth).csf

    assert settings.images is not None
    by_id = {_id_of(scan.image, settings.images): scan for scan in scans}
    cases = [Case(name, scan.image.path, name) for name, scan in by_id.items()]
    tasks = []
    alone = []
    for participant in participants_of(cases, None, settings.sessions_table):
        with_map: list[_Scan] = []
        for case in participant.scans:
            scan = by_id[case.id]
            if scan.has_map:
                with_map.append(scan)
            else:
                alone.append(
                    (participant.name, case.id, "no label map and no prediction")
                )
        if len(with_map) == 1:
            alone.append(
                (
                    participant.name,
                    with_map[0].image.name,
                    "the participant has no other scan",
                )
            )
        for first, second in combinations(with_map, 2):
            task = _Task(
                participant.name,
                first,
                second,
                settings.labels,
                settings.trust_affine,
                mappings,
                made,
                # CSF of the labels is a small region unless the options or a ledger say otherwise.
                labels_csf or "region",
            )
            tasks.append(task)
    if not tasks:
        raise EvaluationError(
            f"no participant has two scans with label maps or predictions, of {len(scans)} scans",
            where=settings.images,
            remedy="give a table with the columns scan and participant as --sessions",
        )
    return tasks, alone


def _id_of(image: ScanFile, images: Path) -> str:
    """Return the name by which `trinat predict` identifies a scan.

    It is the path below the folder `images` without the file extension, or the name of the folder
    for a subject of FreeSurfer.
    """
    stem = without_suffix(image.path)
    if not image.name.endswith(stem) or not images.is_dir():
        return image.name  # a subject of FreeSurfer, named by its folder
    return (image.path.parent.relative_to(images) / stem).as_posix()


def _measure(task: _Task) -> _Done:
    """Compare the maps of two scans.

    An error in their files is recorded as the failure of the outcome.
    """
    # Imported here because it imports torch.
    from trinat.segmentation.metrics.repeat import two_scans

    try:
        images = [
            Volume.read(scan.image.path, trust_affine=task.trust_affine)
            for scan in (task.first, task.second)
        ]
        both = two_scans(*images)
        rows = _compare(task, both)
    except (TrinatError, OSError) as error:
        return _Done(task, failure=str(error))
    return _Done(task, rows, {fact: getattr(both, fact) for fact in _FACTS})


def _compare(task: _Task, both: TwoScans) -> list[dict[str, Any]]:
    """Return the rows of repeat.csv for two scans.

    Three comparisons are made: labels with labels, predictions with predictions, and the
    predictions of either scan with the labels of the other. There is a row for each structure of
    each two maps that are compared. `both` is the space to which all maps are resampled.
    """
    scheme = load_scheme(task.scheme)
    scans = (task.first, task.second)
    numbered = next(iter(task.mappings.values()))
    of_labels = (numbered.truth, numbered.truth_numbering)
    labels = [
        _resampled_map(task, scan.labels, of_labels, both, number)
        for number, scan in enumerate(scans)
    ]
    rows = []
    rows += _comparison_rows(task, "", LABELS, (0, 1), labels, labels, {})
    for model, mappings in task.mappings.items():
        of_model = (mappings.prediction, mappings.prediction_numbering)
        predictions = [
            _resampled_map(task, scan.predictions.get(model), of_model, both, number)
            for number, scan in enumerate(scans)
        ]
        made = task.made[model]
        left_out = made.left_out(scheme)
        rows += _comparison_rows(
            task, model, PREDICTIONS, (0, 1), predictions, predictions, left_out
        )
        left_out = made.left_out(scheme, truth_csf=task.labels_csf)
        for places in ((0, 1), (1, 0)):
            rows += _comparison_rows(
                task, model, OTHER_LABELS, places, predictions, labels, left_out
            )
    return rows


def _resampled_map(
    task: _Task,
    file: ScanFile | None,
    numbers: tuple[Mapping[int, int], FoldingTable | None],
    both: TwoScans,
    number: int,
) -> LaidMap | None:
    """Read a label map of one scan and resample it to the space of both scans; None without a file.

    `number` says whose map it is: 0 for the first scan, 1 for the second. `numbers` are the mapping
    of label numbers to FreeSurfer numbers, and the table of the map's numbering.
    """
    from trinat.segmentation.metrics.repeat import lay

    if file is None:
        return None
    scheme = load_scheme(task.scheme)
    labels = read_labels(file, task.trust_affine)
    classes = as_classes(labels, file, scheme, *numbers)
    indices = Volume(classes, labels.affine, labels.codes)
    return lay(indices, scheme, both.space, number)


def _comparison_rows(
    task: _Task,
    model: str,
    comparison: str,
    places: tuple[int, int],
    maps: Sequence[LaidMap | None],
    others: Sequence[LaidMap | None],
    left_out: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Return the rows of repeat.csv that compare a map of one scan with a map of the other scan.

    `maps` and `others` are the two kinds of map to compare, such as predictions and labels; for one
    kind, both are the same list. Each has a map for each of the two scans, None if it is missing.
    `places` are the indices of the scans: the map at places[0] of `maps` is compared with the map
    at places[1] of `others`. There are no rows if one of these is missing, and none for structures
    in `left_out`.
    """
    from trinat.segmentation.metrics.repeat import agreement

    first = maps[places[0]]
    second = others[places[1]]
    if first is None or second is None:
        return []
    scans = (task.first, task.second)
    names = [scans[place].image.name for place in places]
    found = agreement(first, second)
    rows = []
    for label in load_scheme(task.scheme).labels[1:]:
        if label.name in left_out:
            continue
        rows.append(
            {
                "participant": task.participant,
                "first": names[0],
                "second": names[1],
                "model": model,
                "comparison": comparison,
                "structure": label.name,
                "fs_id": label.fs_id,
                "dice": found.dice[label.index],
                "first_mm3": first.volumes_mm3[label.index],
                "second_mm3": second.volumes_mm3[label.index],
                "difference_percent": found.difference_percent[label.index],
            }
        )
    return rows


def _pairs_table(
    done: Sequence[_Done], alone: Sequence[tuple[str, str, str]]
) -> pd.DataFrame:
    """Return the table of all pairs of scans, compared or failed, and of the scans without a pair.

    `alone` are the scans without a pair: participant, scan and reason. Columns: participant, first,
    second (the two scans), status (measured, failed, left out), note, and four on their
    registration: likeness (correlation of the aligned scans), turned_deg, shifted_mm,
    stretch_percent (difference in size).
    """
    rows: list[dict[str, Any]] = []
    for result in done:
        task = result.task
        missing: dict[str, list[str]] = defaultdict(list)
        for scan in (task.first, task.second):
            if scan.labels is None:
                missing["labels"].append(scan.image.name)
            for model in task.mappings:
                if model not in scan.predictions:
                    missing[f"prediction of {model}"].append(scan.image.name)
        lacks = [f"no {what} of {' and '.join(of)}" for what, of in missing.items()]
        rows.append(
            {
                "participant": task.participant,
                "first": task.first.image.name,
                "second": task.second.image.name,
                "status": "failed" if result.failure else "measured",
                "note": result.failure or "; ".join(lacks),
                **{fact: round(value, 3) for fact, value in result.facts.items()},
            }
        )
    for participant, name, why in alone:
        rows.append(
            {
                "participant": participant,
                "first": name,
                "status": "left out",
                "note": why,
            }
        )
    columns = ["participant", "first", "second", "status", "note", *_FACTS]
    table = pd.DataFrame(rows, columns=columns)
    texts = columns[: -len(_FACTS)]
    table[texts] = table[texts].fillna("")
    return table
