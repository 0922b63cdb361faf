"""trinat report: a folder of label maps without a truth, as tables and as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from trinat.pipelines.common.exits import Exit, batch_exit
from trinat.pipelines.common.lock import claimed, refuse_foreign
from trinat.pipelines.common.process import cpu_count, isolated
from trinat.pipelines.common.ratings import (
    agreement_table,
    read_given,
    rejected_structures,
    rejections,
    use_of_ratings,
)
from trinat.pipelines.common.scanfiles import ScanFile, find_files
from trinat.pipelines.evaluate.pairing import pair_files
from trinat.pipelines.predict.entry import taught_by_models
from trinat.pipelines.predict.ledger import entries_in
from trinat.pipelines.predict.stale import unfit_results
from trinat.segmentation.data.sources.base import Facts, facts_of, read_participants
from trinat.segmentation.errors import ConfigError, EvaluationError, TrinatError
from trinat.segmentation.io.files import read_rows, write_whole
from trinat.segmentation.io.orientation import TrustAffine
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.metrics.counted import made_by
from trinat.segmentation.report.case_view import far_from_brain
from trinat.segmentation.report.cohort import (
    Cohort,
    Range,
    Scan,
    cohort_of,
)
from trinat.segmentation.report.cohort_page import cohort_drawings, cohort_page
from trinat.segmentation.report.measurements import write_table
from trinat.segmentation.report.page import provenance
from trinat.segmentation.report.pictures import draw_mosaic, encoded

_MOST_PICTURES = 12


@dataclass(frozen=True)
class Settings:
    predictions: Path
    out: Path
    labels: str = "quicknat33"
    participants: Path | None = None
    reference: Path | None = None
    images: Path | None = None
    trust_affine: TrustAffine | None = None
    jobs: int | None = None
    ratings: Path | None = None
    command: str = ""


@dataclass(frozen=True)
class _Measured:
    file: ScanFile
    volumes_mm3: Mapping[str, float] | None
    failure: str = ""
    sha256: str = ""

    @property
    def subject(self) -> str:
        return self.file.name


_KILLED = "its process was killed (out of memory?): use fewer --jobs"
_OUTPUTS = ("volumes.csv", "raters.csv", "figures", "report.html")
# A file, the scheme of its labels, and what to trust of its orientation.
_Task = tuple[ScanFile, str, TrustAffine | None]


def report(
    settings: Settings,
    *,
    progress: Callable[[_Measured, int, int], object] = lambda result, done, total: (
        None
    ),
    say: Callable[[str], None] = lambda line: None,
) -> Exit:
    """Measure every label map, write volumes.csv and the page; failures are in the page.

    `progress(result, done, total)` is called after each map, `say` with a line for each failure.
    """
    started = datetime.now(UTC)
    refuse_foreign(settings.out, _OUTPUTS)
    scheme = load_scheme(settings.labels)
    ranges = read_ranges(settings.reference, scheme) if settings.reference else []
    table = settings.participants or settings.predictions / "participants.tsv"
    if settings.participants and not table.is_file():
        raise ConfigError("no such table", where=table)
    people = read_participants(table)
    ratings = read_given(settings.ratings)
    rejected = rejections(ratings)
    found = find_files(settings.predictions)
    folder = settings.predictions
    unfit = unfit_results(
        folder if folder.is_dir() else folder.parent, [file.path for file in found]
    )
    files = [file for file in found if file.path not in unfit]
    measured = isolated(
        _measure,
        [(file, settings.labels, settings.trust_affine) for file in files],
        settings.jobs or cpu_count(),
        killed=lambda task: _Measured(task[0], None, _KILLED),
        finished=progress,
        torch_threads=None,
    )
    told = list(entries_in(settings.predictions))
    entries = [entry for _, entry in told]
    results = {
        folder / name: entry.result for folder, entry in told for name in entry.outputs
    }
    rated = rejected_structures(ratings)
    in_part: set[tuple[str, str]] = (
        set()
    )  # rejected, but measured as a part of another structure
    sound: list[ScanFile] = []
    scans: list[Scan] = []
    for result in measured:
        bad = rejected.get(result.sha256, {})
        if "" in bad:
            say(f"{result.subject}: left out, rejected by {bad['']}")
        elif not result.failure:
            sound.append(result.file)
            facts = results.get(result.file.path, {})
            made = made_by(facts.get("volumes_mm3", ()), rated, scheme)
            left_out = made.left_out(scheme, bad)
            scans.append(_scan(result, left_out, people, facts))
            for structure in made.measured_though_rejected(scheme, bad):
                in_part.add((result.sha256, structure))
    failures = [(file.name, unfit[file.path]) for file in found if file.path in unfit]
    failures += [(r.subject, r.failure) for r in measured if r.failure]
    failures += [
        (entry.case, entry.reason) for entry in entries if entry.status == "failed"
    ]
    for name, reason in failures:
        say(f"{name}: {reason}")
    if not scans:
        raise EvaluationError(
            f"none of {len(found)} label maps could be measured; the first: "
            f"{failures[0][1] if failures else 'rejected'}",
            where=settings.predictions,
        )
    count = Counter(scan.name for scan in scans)
    distinct = [
        # Scans of equal names are named after their files.
        replace(scan, session=file.name) if count[scan.name] > 1 else scan
        for scan, file in zip(scans, sound, strict=True)
    ]
    cohort = cohort_of(distinct, scheme, ranges)
    with claimed(settings.out, _OUTPUTS, within=["figures"]):
        write_table(settings.out / "volumes.csv", cohort.frame.drop(columns="scan"))
        drawings = cohort_drawings(cohort)
        for drawing in drawings:
            drawing.save(settings.out / "figures")
        done = provenance(started, settings.command, scheme.name)
        done["predictions"] = str(settings.predictions)
        if settings.ratings:
            done["ratings"] = use_of_ratings(
                ratings, {result.sha256 for result in measured}, in_part
            )
            write_table(settings.out / "raters.csv", agreement_table(ratings))
            say(done["ratings"])
        if taught := taught_by_models(entries):
            done["training"] = " ".join(taught)
        pictures = _pictures(cohort, sound, scheme, settings)
        page = cohort_page(cohort, drawings, pictures, done, failures=failures)
        write_whole(settings.out / "report.html", page)
        return batch_exit(done=len(scans), failed=len(failures))


def read_ranges(path: Path, scheme: LabelScheme) -> list[Range]:
    """Columns structure (name or FreeSurfer number), low_mm3, high_mm3; maybe sex, age_from,
    age_to."""
    by_number = {str(label.fs_id): label.name for label in scheme.labels}
    ranges = []
    for line, row in enumerate(
        read_rows(path, required=("structure", "low_mm3", "high_mm3")), 2
    ):
        name = by_number.get(row["structure"], row["structure"])
        if name not in scheme.names:
            raise ConfigError(f"line {line}: {scheme.name} has no {name!r}", where=path)
        try:
            low_high = float(row["low_mm3"]), float(row["high_mm3"])
            ages = (
                float(row.get("age_from") or -np.inf),
                float(row.get("age_to") or np.inf),
            )
            limits = Range(name, *low_high, row.get("sex", "")[:1].upper(), *ages)
        except ValueError:
            raise ConfigError(
                f"line {line}: not a number among the limits", where=path
            ) from None
        if not limits.low_mm3 <= limits.high_mm3:
            raise ConfigError(f"line {line}: low_mm3 is above high_mm3", where=path)
        ranges.append(limits)
    return ranges


def _measure(task: _Task) -> _Measured:
    """Volumes of the structures that are there; 0 for one of the scheme's that is not."""
    file, scheme_name, trust_affine = task
    scheme = load_scheme(scheme_name)
    try:
        labels = Volume.read(file.path, labels=True, trust_affine=trust_affine)
        indices = scheme.from_freesurfer(
            labels.data, spacing_mm=labels.spacing_mm, where=file.path
        )
    except (TrinatError, OSError) as error:
        return _Measured(file, None, str(error))
    counts = np.bincount(indices.ravel(), minlength=len(scheme))
    volumes = {
        label.name: float(counts[label.index] * labels.grid.voxel_mm3)
        for label in scheme.labels[1:]
    }
    return _Measured(file, volumes, sha256=labels.source_sha256 or "")


def _scan(
    result: _Measured,
    left_out: Collection[str],
    people: Mapping[str, Facts],
    facts: Mapping[str, Any],
) -> Scan:
    """Of structures that count; `facts` are those of the ledger."""
    file = result.file
    person = facts_of(people, file.subject)
    volumes = result.volumes_mm3 or {}
    doubts = {k: v for k, v in facts.get("volume_cv", {}).items() if v is not None}
    return Scan(
        file.subject,
        file.scan,
        {k: v for k, v in volumes.items() if k not in left_out},
        sex=person.sex or "",
        age=person.age,
        site=person.site,
        grade=facts.get("grade", ""),
        notes="; ".join([*facts.get("reasons", ()), *facts.get("notes", ())]),
        uncertainty=doubts or None,
    )


def _pictures(
    cohort: Cohort, files: Sequence[ScanFile], scheme: LabelScheme, settings: Settings
) -> list[tuple[str, str, bytes]]:
    """Of the most unusual scans: the picture made with the prediction, or one drawn now."""
    grades = {"reject": 0, "look": 1}
    unusual = cohort.largest_z()
    order = sorted(
        range(len(files)),
        key=lambda n: (
            grades.get(cohort.scans[n].grade, 2),
            -np.nan_to_num(unusual[n]),
        ),
    )
    images: dict[str, Path] = {}
    if settings.images:
        pairing = pair_files(files, find_files(settings.images, suffix="T1w"))
        images = {pair.truth.name: pair.prediction.path for pair in pairing.pairs}
    pictures = []
    for n in order[:_MOST_PICTURES]:
        file, scan = files[n], cohort.scans[n]
        stem, ending, _ = file.path.name.rpartition("_dseg")
        drawn, png = file.path.with_name(f"{stem}_qc.png"), None
        if ending and drawn.is_file():
            png = drawn.read_bytes()
        elif file.name in images:
            png = _drawn_picture(
                images[file.name], file.path, scheme, settings.trust_affine
            )
        if png:
            pictures.append((scan.name, scan.notes or scan.grade, png))
    return pictures


def _drawn_picture(
    image: Path, labels: Path, scheme: LabelScheme, trust_affine: TrustAffine | None
) -> bytes | None:
    """A mosaic on the working grid; None where the scan cannot be read."""
    from trinat.segmentation.space.conform import conform

    try:
        scan = conform(Volume.read(image, trust_affine=trust_affine))
        drawn = Volume.read(labels, labels=True, trust_affine=trust_affine)
        numbers = conform(drawn, labels=True, plan=scan.plan).volume
    except (TrinatError, OSError):
        return None
    indices = Volume(scheme.from_freesurfer(numbers.data), numbers.affine)
    gray = np.where(far_from_brain(indices.data > 0), 0, scan.volume.data)
    brain = Volume(gray, scan.volume.affine)
    return encoded(draw_mosaic(brain, indices, scheme), "PNG")
