"""trinat report: volumes of a folder of label maps without manual labels, as tables and a page.

volumes.csv has the volumes of all structures, and how unusual each is in the group. The page also
shows failures, and pictures of the most unusual scans. If there are run ledgers of trinat predict
next to the label maps, they add grades, uncertainty, and the structures that the model predicts.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

import pandas as pd

from trinat.pipelines.common.exits import Exit, batch_exit
from trinat.pipelines.common.text import count
from trinat.pipelines.evaluate.measuring import MapVolumes, measure_volumes
from trinat.pipelines.evaluate.norms_table import (
    read_norms,
    refuse_other_model,
)
from trinat.pipelines.evaluate.sections import (
    QUALITY_CONTROL,
    SECTION_TABLES,
    MeasuredScan,
    sections_of,
)
from trinat.pipelines.evaluate.settings import CohortSettings
from trinat.pipelines.evaluate.shown_scans import cohort_pictures
from trinat.pipelines.jobs.lock import claimed, keep_only, refuse_foreign
from trinat.pipelines.jobs.progress import BatchProgress, no_progress
from trinat.pipelines.predict.changes import courses_in, participants_in
from trinat.pipelines.report.changes import Changes, Course, compare_changes
from trinat.pipelines.report.cohort import (
    VOLUMES,
    Section,
    cohort_of,
    differing_participants,
    facts_of,
)
from trinat.pipelines.report.cohort_page import cohort_drawings, cohort_page
from trinat.pipelines.report.harmonised import refuse_unharmonisable
from trinat.pipelines.report.measurements import write_table
from trinat.pipelines.report.page import provenance
from trinat.pipelines.study.entry import Entry, taught_by_models
from trinat.pipelines.study.files import (
    ScanFile,
    corrected_among,
    corrected_before_last_run,
    segmented_together,
    two_maps_of_a_scan,
    years_of,
)
from trinat.pipelines.study.participants import Facts
from trinat.pipelines.study.participants_check import match_participants, shared_ages
from trinat.pipelines.study.ratings import (
    Rating,
    agreement_table,
    read_given,
    rejected_structures,
    rejections,
    use_of_ratings,
)
from trinat.pipelines.study.record import measured_in
from trinat.pipelines.study.study import Study
from trinat.segmentation.data.identity import clash_among
from trinat.segmentation.errors import ConfigError, EvaluationError
from trinat.segmentation.io.files import write_whole
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.metrics.counted import made_by
from trinat.segmentation.metrics.definitions import NOT_PREDICTED
from trinat.segmentation.metrics.norms import LISTED, MEASURED, Norms

_log = logging.getLogger(__name__)

_TABLES = (
    *SECTION_TABLES,
    "left_out.csv",
    "adjustment.csv",
    "harmonisation.csv",
    "raters.csv",
)
_OUTPUTS = (*_TABLES, "figures", "report.html")


@dataclass(frozen=True)
class Known:
    """Label maps of a report, with the tables that are read before anything is measured.

    `study` has the run ledgers next to the label maps, and `files` are the label maps, as
    `Study.checked` returns them. `scheme` is the label scheme to measure with. `norms` are the
    normative values by age and sex from the user's table; None if no table was given. `ratings` are
    the judgements of people from ratings.tsv. `table` is the path of the participants table, and
    `remarks` say how it was read. `scans` are the scans to measure, still without volumes; those
    of unfit label maps are not among them.
    """

    study: Study
    scheme: LabelScheme
    norms: Norms | None
    ratings: list[Rating]
    files: list[ScanFile]
    table: Path
    remarks: tuple[str, ...]
    scans: list[MeasuredScan]

    @property
    def facts(self) -> pd.DataFrame:
        """Subject, age, sex, site and group of each scan that is not left out."""
        rows = [vars(scan) for scan in self.scans if not scan.left_out]
        columns = ["subject", "age", "sex", "site", "group"]
        return pd.DataFrame(rows, columns=columns).astype({"age": float})


@dataclass(frozen=True)
class MeasuredGroup:
    """All measured label maps of a report, with the tables and run ledgers that describe them.

    `known` has the label maps, their run ledgers and the tables that the user named. `scans` are
    the scans whose label maps could be measured, including those that are left out. `in_part` are
    structures that raters rejected but that are included in a measured volume, as a part of another
    structure: each is (SHA-256 of the label map, name of the structure). `failures` has a tuple
    (name, reason) for each scan without volumes. `digests` are the SHA-256 of the label maps.
    `heads_from` is the source of the intracranial volumes, `MEASURED` or `LISTED`.
    """

    known: Known
    scans: Sequence[MeasuredScan]
    in_part: Collection[tuple[str, str]]
    failures: Sequence[tuple[str, str]]
    digests: frozenset[str]
    heads_from: str

    @property
    def counted(self) -> list[MeasuredScan]:
        """Scans that are not left out."""
        return [scan for scan in self.scans if not scan.left_out]


def report_cohort(
    settings: CohortSettings,
    *,
    progress: BatchProgress = no_progress,
) -> Exit:
    """Measure all label maps of a group, and write the tables and the page of `trinat report`.

    `progress(result, done, total)` is called after each label map. Failures are logged and listed
    in the page. Raises EvaluationError if no label map is left (all failed or are left out), if
    volumes are to be adjusted and too few scans have an intracranial volume, or if volumes are to
    be harmonised and sites have too few participants, and ConfigError for options that contradict
    each other. Returns the exit status.
    """
    started = datetime.now(UTC)
    if settings.adjust == "proportion" and "icv" in (settings.covariates or ()):
        raise ConfigError(
            "--covariates icv with --adjust proportion: the proportion is adjusted for it already",
            remedy="leave out one of the two",
        )
    refuse_foreign(settings.out, _OUTPUTS)
    known = read_known(settings)
    if settings.harmonise is not None:
        refuse_unharmonisable(known.facts)
    group = measure_group(settings, known, progress)
    study = known.study
    if known.norms is not None and settings.reference is not None:
        models = [entry.model for entry in study.entries]
        refuse_other_model(known.norms, settings.reference, models)
    cohort = cohort_of(
        group.scans,
        known.scheme,
        settings.adjust,
        harmonising=settings.harmonise is not None,
        norms=known.norms,
        covariates=settings.covariates,
    )
    # Found once for all sections: this looks for the file of each scan.
    longitudinal = {
        folder: participants_in(entries, folder)
        for folder, entries in study.folders.items()
    }
    facts_of_participants = facts_of(cohort.frame)
    several_sites = differing_participants(cohort.frame, "site")
    sections = []
    for section in (
        Section.of_volumes(cohort),
        *sections_of(
            group.counted,
            settings,
            known.norms,
            parcels=not known.scheme.has_parcels,
        ),
    ):
        courses = []
        # Participants without lesions have no change in percent, and would be in no comparison.
        if section.name != "lesions":
            courses = _courses(group, longitudinal, settings.excluded, section.name)
        changes = None
        if courses:
            try:
                changes = compare_changes(
                    courses, facts_of_participants, settings.covariates, several_sites
                )
            except EvaluationError as error:
                # Few participants may have several scans; the comparison of all scans holds.
                changes = Changes(None, (f"Changes were not compared: {error}.",))
        sections.append(replace(section, changes=changes))
    with claimed(settings.out, _OUTPUTS, within=["figures"]):
        written = _write_tables(settings.out, sections)
        facts = provenance(started, settings.command, known.scheme.name)
        facts["predictions"] = str(settings.predictions)
        if len(study.models) > 1:
            number = len(study.models)
            facts["models"] = f"{number}: volumes of different models differ"
        if settings.ratings:
            facts["ratings"] = use_of_ratings(
                known.ratings, group.digests, group.in_part
            )
            agreement = agreement_table(known.ratings, group.digests)
            write_table(settings.out / "raters.csv", agreement)
            written.append("raters.csv")
            _log.info("%s", facts["ratings"])
        corrected = corrected_among(known.files, lesions=not settings.uncorrected)
        if corrected:
            facts["corrections"] = corrected
        taught = taught_by_models(study.entries)
        if taught:
            facts["training"] = " ".join(taught)
        _write_page(settings, group, facts, sections)
        keep_only(settings.out, _TABLES, written)
    return batch_exit(done=len(group.scans), failed=len(group.failures))


def measure_group(
    settings: CohortSettings, known: Known, progress: BatchProgress
) -> MeasuredGroup:
    """Measure the volumes in all label maps; log each scan that fails or is left out, and why.

    `progress(result, done, total)` is called after each label map. Raises EvaluationError if no
    label map could be measured, or if all scans are left out.
    """
    study = known.study
    fit = [scan.file for scan in known.scans]
    volumes = measure_volumes(
        fit, settings.labels, settings.trust_affine, settings.jobs, progress
    )
    scans, in_part = _with_volumes(volumes, known, settings.excluded)

    # Label maps that are unfit or could not be read, and scans without a label map.
    gone = (
        "its label map is missing: run trinat predict again, or remove the participant "
        "(docs/questions.md)"
    )
    failures = [
        *((file.name, file.unfit) for file in known.files if file.unfit),
        *((each.file.name, each.failure) for each in volumes if each.failure),
        *((entry.case, entry.reason) for entry in study.failed),
        *((case, gone) for case in study.without_label_map),
    ]
    for name, reason in failures:
        _log.warning("%s: %s", name, reason)
    if not scans:
        raise EvaluationError(
            f"none of {len(known.files)} label maps could be measured; the first: {failures[0][1]}",
            where=settings.predictions,
        )
    if all(scan.left_out for scan in scans):
        raise EvaluationError(
            f"every scan is left out; the first, {scans[0].name}: {scans[0].left_out}",
            where=settings.predictions,
            remedy="look at them with trinat view; --include-rejected takes what is graded reject",
        )
    for scan in scans:
        if scan.left_out:
            _log.info("%s: left out, %s", scan.name, scan.left_out)
    if len(study.models) > 1:
        _log.warning("results of %d models, whose volumes differ", len(study.models))
    scans, source, one_kind = _with_heads_of_one_kind(scans)
    for remark in filter(None, (one_kind, corrected_before_last_run(fit))):
        _log.warning("%s", remark)
        known = replace(known, remarks=(*known.remarks, remark))
    digests = frozenset(each.sha256 for each in volumes)
    return MeasuredGroup(known, scans, in_part, failures, digests, source)


def read_known(settings: CohortSettings) -> Known:
    """Read the label scheme and the tables of a report; find, match and check the label maps.

    No voxel is read, so that a user learns of mistakes at once. Equal names of participants in
    several folders, several label maps of one scan, and the number of corrections are logged.
    Raises ConfigError for the label scheme of lesions, and if a table that the user has named does
    not exist. Raises DatasetError if the participants table has none of the participants of these
    label maps.
    """
    scheme = load_scheme(settings.labels)
    if scheme.kind == "lesions":
        raise ConfigError(
            f"--labels {settings.labels} is for trinat evaluate",
            remedy="leave it out: results of trinat predict --lesions have a section on lesions",
        )
    norms = None
    if settings.reference is not None:
        norms = read_norms(settings.reference, scheme)
    ratings = read_given(settings.ratings)

    study = Study(settings.predictions)
    files = study.label_maps(kind=scheme.kind, corrected=not settings.uncorrected)
    table = settings.participants or settings.predictions / "participants.tsv"
    matched = match_participants(
        table,
        {(file.name, file.participant): file.parsed.folders for file in files},
        strict=settings.strict,
        is_given=settings.participants is not None,
        together=segmented_together(files),
    )
    clash = clash_among(file.participant for file in files)
    if clash:
        _log.warning("%s", clash)
    twice = two_maps_of_a_scan(files)
    if twice:
        _log.warning("%s: each map counts as a scan", twice)
    remarks = matched.table.notes + matched.remarks
    shared = shared_ages(matched, years_of(files))
    if shared:
        _log.warning("%s: %s", table.name, shared)
        remarks = (*remarks, shared)
    checked = study.checked(files, lesions=not settings.uncorrected)
    corrected = corrected_among(checked, lesions=not settings.uncorrected)
    if corrected:
        _log.info("%s", corrected)
    scans = [
        _scan_of(file, matched.of(file.name, file.participant), settings.excluded)
        for file in checked
        if not file.unfit
    ]
    return Known(study, scheme, norms, ratings, checked, table, remarks, scans)


def _scan_of(
    file: ScanFile, participant: Facts, excluded: Collection[str]
) -> MeasuredScan:
    """Return the scan of a label map before its volumes are measured.

    It has the facts about the `participant` and the grades of the run ledger. A scan whose quality
    grade is in `excluded` has the reason in `left_out`.
    """
    result = file.judged
    uncertainty = {
        structure: variation
        for structure, variation in result.volume_cv.items()
        if variation is not None
    }
    return MeasuredScan(
        file=file,
        subject=file.participant,
        session=file.session,
        volumes_mm3={},
        sex=participant.sex or "",
        age=participant.age,
        site=participant.site,
        grade=result.grade,
        notes="; ".join(result.remarks),
        structure_grades=result.structure_grades,
        uncertainty=uncertainty or None,
        group=participant.group,
        family=participant.family or "",
        heads_mm3={
            MEASURED: result.intracranial_mm3,
            LISTED: participant.intracranial_mm3,
        },
        left_out=result.why_left_out(excluded),
    )


def _with_volumes(
    measured: Iterable[MapVolumes], known: Known, excluded: Collection[str]
) -> tuple[list[MeasuredScan], set[tuple[str, str]]]:
    """Add the measured volumes to the scans, with the reasons for what is left out of them.

    `measured` has the volumes of each of `known.scans`, in their order. Structures that raters
    rejected, whose quality grade is in `excluded`, or that the model does not predict and no
    rater painted, get no volume. Label maps that could not be measured are dropped.

    The second result has the structures that raters rejected but that are included in a volume, as
    a part of another structure: each is (SHA-256 of the label map, name of the structure).
    """
    scheme = known.scheme
    rejected = rejections(known.ratings)
    rated = rejected_structures(known.ratings)
    chosen = []
    in_part = set()
    for scan, volumes in zip(known.scans, measured, strict=True):
        if volumes.failure:
            continue
        rejected_here = rejected.get(volumes.sha256, {})
        judged = scan.file.judged
        names = measured_in(scheme, judged.volumes_mm3, judged.parcels)
        made = made_by(names, rated, scheme)
        if scan.file.is_by_hand:
            # Raters also paint structures that the model does not predict.
            unpainted = tuple(
                name for name in made.not_predicted if not volumes.volumes_mm3.get(name)
            )
            made = replace(made, not_predicted=unpainted)
        graded = {
            name: QUALITY_CONTROL[grade]
            for name, grade in judged.structures_left_out(excluded).items()
        }
        structures = made.left_out(scheme, {**graded, **rejected_here})
        volumes_mm3 = {
            structure: volume_mm3
            for structure, volume_mm3 in volumes.volumes_mm3.items()
            if structure not in structures
        }
        # Structures that the model does not predict are not listed for each scan.
        why_structures = {
            structure: why
            for structure, why in structures.items()
            if why != NOT_PREDICTED
        }
        why_scan = scan.left_out
        if "" in rejected_here:
            why_scan = f"rejected by {rejected_here['']}"
        with_volumes = replace(
            scan,
            volumes_mm3=volumes_mm3,
            left_out=why_scan,
            structures_left_out=why_structures,
        )
        chosen.append(with_volumes)
        if "" not in rejected_here:
            for structure in made.rejected_but_measured(scheme, rejected_here):
                in_part.add((volumes.sha256, structure))

    # If several scans have the same name, the names of their files are used.
    times = Counter(scan.name for scan in chosen)
    for number, scan in enumerate(chosen):
        if times[scan.name] > 1:
            chosen[number] = replace(scan, session=scan.file.name)
    return chosen, in_part


def _with_heads_of_one_kind(
    scans: Sequence[MeasuredScan],
) -> tuple[list[MeasuredScan], str, str]:
    """Give all scans intracranial volumes of one source: measured, or of the participants table.

    The two are not comparable. The source that more scans have is used, and the measured one if
    both are known for equally many; scans without it have none. Also returns the source, and a
    warning if a scan has only a volume of the other source; else "".
    """
    heads = [scan.heads_mm3 for scan in scans if not scan.left_out]
    measured = sum(of_scan[MEASURED] is not None for of_scan in heads)
    listed = sum(of_scan[LISTED] is not None for of_scan in heads)
    if measured >= listed:
        source, other = MEASURED, LISTED
        used = "measured ones"
        unused = "one of the participants table"
    else:
        source, other = LISTED, MEASURED
        used = "those of the participants table"
        unused = "a measured one"
    chosen = [replace(scan, intracranial_mm3=scan.heads_mm3[source]) for scan in scans]
    lost = sum(
        of_scan[source] is None and of_scan[other] is not None for of_scan in heads
    )
    if not lost:
        return chosen, source, ""
    warning = (
        f"intracranial volumes are {used}; {unused} is not comparable, and is not used for "
        f"{count(lost, 'scan')} with no other"
    )
    return chosen, source, warning


def _courses(
    group: MeasuredGroup,
    longitudinal: Mapping[Path, Mapping[str, Sequence[Entry]]],
    excluded: Collection[str],
    section: str,
) -> list[Course]:
    """Return the values over time of the measures in a section, without what the report leaves out.

    Scans whose label map was corrected by hand have none: values over time are those of the
    prediction. `longitudinal` has the participants that were segmented longitudinally, in
    each output folder, as `participants_in` returns them. `section` is the name of the section,
    such as volumes or thickness.
    """
    output = "" if section == VOLUMES else section
    scans = [scan for scan in group.counted if not scan.file.is_by_hand]
    courses = []
    for folder, participants in longitudinal.items():
        of_folder = {
            scan.file.entry.case: scan for scan in scans if scan.file.folder == folder
        }
        counting = {case: scan.structures_left_out for case, scan in of_folder.items()}
        for course in courses_in(participants, excluded, output, counting):
            # The report may have put the folder in front of the participant's name.
            participant = of_folder[course.cases[0]].subject
            courses.append(replace(course, participant=participant))
    return courses


def _write_tables(out: Path, sections: Sequence[Section]) -> list[str]:
    """Write volumes.csv and the other tables of the report that are not empty to the folder `out`.

    Returns the names of the files.
    """
    cohort = sections[0].cohort
    # A row for each scan that is left out, and for each structure left out of another scan.
    left_out = [
        (scan.subject, scan.session, "", scan.grade, scan.left_out)
        for scan in cohort.left_out
    ]
    for scan in chain.from_iterable(section.cohort.scans for section in sections):
        left_out += [
            (
                scan.subject,
                scan.session,
                structure,
                scan.structure_grades.get(structure, ""),
                why,
            )
            for structure, why in scan.structures_left_out.items()
        ]
    columns = ["subject", "session", "structure", "grade", "reason"]
    tables = {}
    for section in sections:
        tables.update(section.tables)
    if left_out:
        tables["left_out.csv"] = pd.DataFrame(left_out, columns=columns)
    if cohort.adjustment is not None and len(cohort.adjustment.coefficients):
        coefficients = cohort.adjustment.coefficients
        tables["adjustment.csv"] = coefficients.reset_index(names="structure")
    if cohort.harmonisation is not None:
        tables["harmonisation.csv"] = cohort.harmonisation.effects
    for name, table in tables.items():
        write_table(out / name, table)
    return list(tables)


def _write_page(
    settings: CohortSettings,
    group: MeasuredGroup,
    facts: Mapping[str, str],
    sections: Sequence[Section],
) -> None:
    """Write report.html and its figures to the output folder of the `settings`.

    `facts` maps titles to texts for the section on provenance, such as the command and the date.
    """
    known = group.known
    drawings = cohort_drawings(sections)
    keep_only(settings.out, ["figures"], [])
    for drawing in drawings:
        drawing.save(settings.out / "figures")
    pictures = cohort_pictures(settings, group.scans, known.scheme, sections[0].cohort)
    page = cohort_page(
        sections,
        drawings,
        pictures,
        facts,
        failures=group.failures,
        remarks=[(known.table.name, line) for line in known.remarks],
    )
    write_whole(settings.out / "report.html", page)
