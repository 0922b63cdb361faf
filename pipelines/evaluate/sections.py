"""Sections of `trinat report` for parcels, thickness, callosum and lesions, from run ledgers.

Each section has tables of its own. Corrected scans are not included, because their measures are
from before the correction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from trinat.pipelines.evaluate.settings import CohortSettings
from trinat.pipelines.report.cohort import Cohort, Scan, Section, cohort_of
from trinat.pipelines.study.record import FURTHER, ScanResult, unit_of
from trinat.segmentation.errors import EvaluationError
from trinat.segmentation.labels import HEMISPHERES, Side
from trinat.segmentation.labels.label import Label
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.norms import Norms

# A label map's entry in the run ledger, and its scan.
Pair = tuple[ScanResult, Scan]
_PARCELS = "parcels"
_NAMES = (_PARCELS, *FURTHER)
SECTION_TABLES = tuple(
    f"{name}{kind}.csv"
    for name in _NAMES
    for kind in ("", "_effects", "_trends", "_change_effects")
)
# Words for the rater, by grade, in the reason for leaving out a scan or structure of this grade.
QUALITY_CONTROL = {
    "reject": "quality control",
    "look": "quality control (graded look)",
    "pass": "quality control (graded pass)",
}
_OTHER_SIDE = {"lh": "rh", "rh": "lh"}
_SIDE_OF: dict[str, Side] = {short: side for side, short in HEMISPHERES.items()}


def sections_of(
    pairs: Sequence[Pair],
    settings: CohortSettings,
    norms: Norms | None,
    *,
    parcels: bool,
) -> list[Section]:
    """Return the sections for which any scan has measures.

    Sections are those of parcels, thickness, callosum and lesions. `pairs` has the ledger entry and
    the scan of each label map. `norms` are compared with the measures, if given. `parcels` is True
    if the section of parcels is wanted.
    """
    sections = []
    if parcels:
        scans = _with_parcels(pairs, settings.excluded)
        numbers = {
            name: parcel.freesurfer
            for result, _ in pairs
            for name, parcel in result.parcels.items()
        }
        cohort = _cohort_of_parcels(scans, numbers, settings.covariates)
        sections += _section(_PARCELS, "Parcels of the cortex", cohort)
    for name, further in FURTHER.items():
        scans = further_scans(name, pairs, settings.excluded)
        cohort = further_cohort(name, scans, norms, settings.covariates)
        sections += _section(name, further.title, cohort)
    return sections


def _section(name: str, title: str, cohort: Cohort | None) -> list[Section]:
    """Return the section of a cohort with its linear model, in a list; an empty list for None."""
    if cohort is None:
        return []
    try:
        model = cohort.model
    except EvaluationError as error:
        # An error ends the section only, because the whole group has enough participants for these
        # terms.
        return [Section(name, title, cohort, notices=(str(error),))]
    notices = () if model is None else model.notices
    return [Section(name, title, cohort, model, notices)]


def further_cohort(
    name: str,
    scans: Sequence[Scan],
    norms: Norms | None = None,
    covariates: Collection[str] | None = None,
) -> Cohort | None:
    """Return the tables of a group for one output: thickness, callosum or lesions.

    `name` is the output. `scans` are its scans, as `further_scans` returns them: their values are
    the measures of this output instead of volumes. `norms` are compared with the values;
    `covariates` are the terms that the user named for the linear model, None for an automatic
    choice. Returns None if no scan has a value.
    """
    columns = _columns_in(scans)
    if not columns:
        return None
    numbers = {column: place for place, column in enumerate(columns, start=1)}
    return cohort_of(
        scans,
        _scheme_of(numbers),
        norms=norms,
        covariates=covariates,
        metric=name,
        unit_of=unit_of,
    )


def _cohort_of_parcels(
    scans: Sequence[Scan],
    numbers: Mapping[str, int],
    covariates: Collection[str] | None,
) -> Cohort | None:
    """Return the cohort of scans whose values are the volumes of parcels; None without values.

    `numbers` are the FreeSurfer numbers of the parcels, by name.
    """
    if not _columns_in(scans):
        return None
    by_number = dict(sorted(numbers.items(), key=lambda item: item[1]))
    return cohort_of(scans, _scheme_of(by_number), covariates=covariates)


def _columns_in(scans: Iterable[Scan]) -> list[str]:
    """Return the names of all values of the scans, each once."""
    return list(dict.fromkeys(chain.from_iterable(scan.volumes_mm3 for scan in scans)))


def further_scans(
    name: str, pairs: Iterable[Pair], excluded: Collection[str]
) -> list[Scan]:
    """Return copies of the scans with the measures of one output in place of the volumes.

    `name` is the output: thickness, callosum or lesions. Scans without this output are dropped.
    Values of the `excluded` grades are left out, with the reason.
    """
    scans = []
    for result, scan in pairs:
        further = result.further().get(name)
        if further is None:
            continue
        why = {}
        if further.grade in excluded:
            reasons = "; ".join(further.reasons)
            why[name] = f"rejected by {QUALITY_CONTROL[further.grade]}: {reasons}"
        scans.append(
            replace(
                scan,
                volumes_mm3=result.counted_columns(name, excluded),
                uncertainty=None,
                structures_left_out=why,
                structure_grades={name: further.grade},
            )
        )
    return scans


def _with_parcels(pairs: Iterable[Pair], excluded: Collection[str]) -> list[Scan]:
    """Return copies of the scans whose values are the volumes of parcels.

    Scans without parcels are dropped. Parcels of the `excluded` grades are left out, with the
    reason.
    """
    scans = []
    for result, scan in pairs:
        if not result.parcels:
            continue
        left_out = result.structures_left_out(excluded)
        volumes_mm3 = {}
        why = {}
        grades = {}
        for name, parcel in result.parcels.items():
            grades[name] = parcel.grade or ""
            if name in left_out:
                why[name] = f"rejected by {QUALITY_CONTROL[left_out[name]]}"
            else:
                volumes_mm3[name] = parcel.mm3
        scans.append(
            replace(
                scan,
                volumes_mm3=volumes_mm3,
                uncertainty=None,
                structures_left_out=why,
                structure_grades=grades,
            )
        )
    return scans


def _scheme_of(numbers: Mapping[str, int]) -> LabelScheme:
    """Return a label scheme whose labels are columns, with these numbers.

    The columns of the left and right side are partners. So no table of the parcels or structures
    from which the columns were made is needed.
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
    """Return the side of a column, and the name of the same column for the other side.

    None and "" for a column without a side. Examples of names are ctx-lh-insula and
    lh_insula_thickness.
    """
    for separator in "-_":
        words = column.split(separator)
        for place, word in enumerate(words):
            if word in _OTHER_SIDE:
                words[place] = _OTHER_SIDE[word]
                return _SIDE_OF[word], separator.join(words)
    return None, ""
