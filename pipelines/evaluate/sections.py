"""Sections of the page of `trinat report` for parcels, thickness, callosum and lesions.

Their values come from the run ledgers of `trinat predict`. Each section has tables of its own.
Scans whose structures were corrected by hand are included with their lesions only, because the
other values were measured before the correction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import itemgetter

from trinat.pipelines.evaluate.settings import CohortSettings
from trinat.pipelines.report.cohort import (
    VOLUMES,
    Cohort,
    Scan,
    Section,
    cohort_of,
    section_files,
)
from trinat.pipelines.study.files import ScanFile
from trinat.pipelines.study.record import CORTEX, FURTHER, unit_of
from trinat.segmentation.errors import EvaluationError
from trinat.segmentation.labels import HEMISPHERES, Side
from trinat.segmentation.labels.label import Label
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.norms import Norms

_PARCELS = "parcels"
SECTION_TABLES = tuple(
    chain.from_iterable(map(section_files, (VOLUMES, _PARCELS, *FURTHER)))
)
# Words for the rater, by grade, in the reason for leaving out a scan or structure of this grade.
QUALITY_CONTROL = {
    "reject": "quality control",
    "look": "quality control (graded look)",
    "pass": "quality control (graded pass)",
}
_OTHER_SIDE = {"lh": "rh", "rh": "lh"}
_SIDE_OF: dict[str, Side] = {short: side for side, short in HEMISPHERES.items()}


@dataclass(frozen=True)
class MeasuredScan(Scan):
    """Scan of a report whose label map, `file`, was measured."""

    file: ScanFile = field(kw_only=True)


def sections_of(
    scans: Sequence[MeasuredScan],
    settings: CohortSettings,
    norms: Norms | None,
    *,
    parcels: bool,
) -> list[Section]:
    """Return the sections of the report page for parcels, thickness, callosum and lesions.

    A section is returned only if at least one scan has its measures. `norms` are normative values
    by age and sex, with which the measures are compared; None for no comparison. The section of
    parcels is returned only if `parcels` is True.
    """
    sections = []
    titles = {name: output.title for name, output in FURTHER.items()}
    if parcels:
        titles = {_PARCELS: "Parcels of the cortex", **titles}
    for name, title in titles.items():
        cohort = cohort_of_output(
            name, scans, settings.excluded, norms, settings.covariates
        )
        if cohort is None:
            continue
        try:
            model = cohort.model
            notices = () if model is None else model.notices
        except EvaluationError as error:
            # The section goes without a comparison of groups: the whole group has enough
            # participants for these terms.
            model = None
            notices = (str(error),)
        sections.append(Section(name, title, cohort, model, notices))
    return sections


def cohort_of_output(
    name: str,
    scans: Sequence[MeasuredScan],
    excluded: Collection[str],
    norms: Norms | None = None,
    covariates: Collection[str] | None = None,
) -> Cohort | None:
    """Return the tables of the report for parcels, thickness, callosum or lesions.

    `name` is the output. Measures whose quality grade is in `excluded` are left out. `norms` are
    normative values by age and sex to compare with; None for no comparison. `covariates` are the
    terms that the user named for the linear model; None for an automatic choice. Returns None if no
    scan has a value.
    """
    found = []
    for scan in scans:
        with_measures = _with_measures(name, scan, excluded)
        if with_measures is not None:
            found.append(with_measures)
    columns = dict.fromkeys(chain.from_iterable(scan.volumes_mm3 for scan in found))
    if not columns:
        return None
    if name == _PARCELS:
        numbers = {
            parcel: measured.freesurfer
            for scan in scans
            for parcel, measured in scan.file.entry.result.parcels.items()
        }
        by_number = dict(sorted(numbers.items(), key=itemgetter(1)))
        return cohort_of(found, _scheme_of(by_number), covariates=covariates)
    places = {column: place for place, column in enumerate(columns, start=1)}
    return cohort_of(
        found,
        _scheme_of(places),
        norms=norms,
        covariates=covariates,
        metric=name,
        unit_of=unit_of,
    )


def _with_measures(
    name: str, scan: MeasuredScan, excluded: Collection[str]
) -> Scan | None:
    """Return a copy of a scan with the measures of one output in place of its volumes.

    None if the scan does not have this output. All measures are left out if the quality grade of
    the output is in `excluded`, and a parcel if its own grade is, or if the cortex of its side is
    left out; `structures_left_out` has the reasons. Measures of structures that are left out of the
    volumes are left out, too.
    """
    # Lesions stay valid if the structures were corrected by hand; other measures do not.
    if scan.file.is_by_hand and name != "lesions":
        return None
    result = scan.file.entry.result
    further = result.further().get(name)
    why: dict[str, str] = {}
    if further is not None:
        grades = {name: further.grade}
        values = result.counted_columns(name, excluded, scan.structures_left_out)
        if further.grade in excluded:
            reasons = "; ".join(further.reasons)
            why[name] = f"rejected by {QUALITY_CONTROL[further.grade]}: {reasons}"
    elif name == _PARCELS and result.parcels:
        grades = {}
        values = {}
        left_out = {
            structure: f"rejected by {QUALITY_CONTROL[grade]}"
            for structure, grade in result.structures_left_out(excluded).items()
        }
        left_out.update(scan.structures_left_out)
        for parcel, measured in result.parcels.items():
            grades[parcel] = measured.grade or ""
            reason = left_out.get(parcel) or left_out.get(CORTEX[measured.side])
            if reason:
                why[parcel] = reason
            else:
                values[parcel] = measured.mm3
    else:
        return None
    return replace(
        scan,
        volumes_mm3=values,
        uncertainty=None,
        structures_left_out=why,
        structure_grades=grades,
    )


def _scheme_of(numbers: Mapping[str, int]) -> LabelScheme:
    """Return a label scheme made from the columns of a table, such as those of thickness.

    `numbers` maps the name of each column to its number. Each column becomes a label; the columns
    of the left and right side, such as lh_insula_thickness and rh_insula_thickness, become
    partners. So no table of the parcels or structures from which the columns were made is needed.
    """
    grey = (128, 128, 128)
    place_of = {name: index for index, name in enumerate(numbers, start=1)}
    labels = [Label(0, "background", 0, None, grey, "BG", "background")]
    for name, index in place_of.items():
        side, other = _sides_of(name)
        partner = place_of.get(other)
        number = numbers[name]
        labels.append(Label(index, name, number, partner, grey, name, "", side))
    return LabelScheme("columns", tuple(labels))


def _sides_of(column: str) -> tuple[Side | None, str]:
    """Return the side of a column by its name, and the name of the column of the other side.

    For ctx-lh-insula these are "left" and "ctx-rh-insula"; for a column without a side, None and
    "". Words of a name are separated by "-" or "_".
    """
    for separator in "-_":
        words = column.split(separator)
        for place, word in enumerate(words):
            if word in _OTHER_SIDE:
                words[place] = _OTHER_SIDE[word]
                return _SIDE_OF[word], separator.join(words)
    return None, ""
