"""Parcels and further outputs of a group, from the ledgers next to the label maps.

Each is a section of `trinat report` with tables of its own. Corrected scans are not included: their
measures are those from before the correction.
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

# The result and the scan of a label map.
Pair = tuple[ScanResult, Scan]
_PARCELS = "parcels"
_NAMES = (_PARCELS, *FURTHER)
SECTION_TABLES = tuple(
    f"{name}{kind}.csv" for name in _NAMES for kind in ("", "_effects", "_trends")
)
# Name of the rater, in reasons for leaving out a scan or structure of an excluded grade.
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
    """Return the sections that any scan of a group has measures for; `parcels` if wanted."""
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
    """Return the section of a cohort with its linear model; none without a cohort."""
    if cohort is None:
        return []
    try:
        model = cohort.model
    except EvaluationError as error:
        # The group as a whole has enough participants for the terms that were asked for.
        return [Section(name, title, cohort, notices=(str(error),))]
    notices = () if model is None else model.notices
    return [Section(name, title, cohort, model, notices)]


def further_cohort(
    name: str,
    scans: Sequence[Scan],
    norms: Norms | None = None,
    covariates: Collection[str] | None = None,
) -> Cohort | None:
    """Return the tables of scans with columns of a further output; None if there are none."""
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
    """Return the tables of scans with volumes of parcels; None if there are none.

    `numbers` are FreeSurfer's numbers of the parcels.
    """
    if not _columns_in(scans):
        return None
    by_number = dict(sorted(numbers.items(), key=lambda item: item[1]))
    return cohort_of(scans, _scheme_of(by_number), covariates=covariates)


def _columns_in(scans: Iterable[Scan]) -> list[str]:
    """Return the names of all values of scans, each once."""
    return list(dict.fromkeys(chain.from_iterable(scan.volumes_mm3 for scan in scans)))


def further_scans(
    name: str, pairs: Iterable[Pair], excluded: Collection[str]
) -> list[Scan]:
    """Return the scans with the columns of a further output as their values.

    Scans and structures of the `excluded` grades have none.
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
    """Return the scans with the volumes of parcels; parcels of the `excluded` grades have none."""
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
    """Return a label scheme of columns with their numbers; both sides of a column are partners.

    It does not need the table of parcels or structures that the columns were made with.
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
    """Return the side of a column and its name on the other side; None and "" without a side.

    Names are such as ctx-lh-insula and lh_insula_thickness.
    """
    for separator in "-_":
        words = column.split(separator)
        for place, word in enumerate(words):
            if word in _OTHER_SIDE:
                words[place] = _OTHER_SIDE[word]
                return _SIDE_OF[word], separator.join(words)
    return None, ""
