"""Study as the viewer shows it: the JSON of its pages, label tables, ratings and drafts.

Label maps are hashed one by one, when a scan is viewed or one of its ratings is listed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import numpy as np

from trinat.pipelines.study.corrections import Correction, list_correction
from trinat.pipelines.study.files import ScanFile
from trinat.pipelines.study.naming import (
    CORRECTIONS,
    FOLD,
    LABEL_TABLES,
    LAYERS,
    WORK,
    Product,
)
from trinat.pipelines.study.ratings import (
    RATINGS,
    VERDICTS,
    Rating,
    agreement_table,
    read_ratings,
    save_rating,
)
from trinat.pipelines.study.record import GRADES, ScanResult
from trinat.pipelines.study.study import Study, digest
from trinat.segmentation.errors import InputError, TrinatError
from trinat.segmentation.io.files import cell_text, read_rows
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels import DEFAULT_SCHEME
from trinat.segmentation.labels.scheme import load_scheme

# Number of quantiles to which a structure's volumes are reduced, so that the page of 100,000 scans
# is small.
_QUANTILES = 101
_COLOR = re.compile(r"#[0-9A-Fa-f]{6}")


@dataclass(frozen=True)
class Structure:
    """Row of a label table: number, name and colour of a structure."""

    number: int  # in label maps
    name: str
    abbreviation: str
    color: str  # as #RRGGBB


# The structure in masks of lesions; its name is that of their volume in the tables.
LESIONS = Structure(1, "White-matter-lesions", "WML", "#FF3B30")


@dataclass(frozen=True, kw_only=True)
class ViewedStudy(Study):
    """Study that is shown in the viewer.

    `rater` is the name under which ratings and corrections are saved. `labels` is the name of the
    label scheme (numbers, names and colours of structures) of a folder without a label table.
    """

    rater: str
    labels: str = DEFAULT_SCHEME

    @property
    def corrector(self) -> str:
        """Name under which corrections are saved."""
        return self.rater

    def drafts(self, scan: ScanFile) -> Path:
        """Return the folder of correction drafts, which is shared by all scans."""
        return self.folder / WORK / "drafts"

    def on_draft_saved(self, scan: ScanFile) -> None:
        """Record that a draft was saved; a folder of results needs no record."""

    def on_correction_saved(self, scan: ScanFile, correction: Correction) -> None:
        """Record that a correction was saved."""
        lock = self.folder / WORK / "lock.corrections"
        list_correction(self.folder / CORRECTIONS, scan.case, correction, lock=lock)

    @cached_property
    def structures(self) -> list[Structure]:
        """Structures in the label maps, with number, name and colour; without background."""
        structures = self._structures_in_tables()
        if not structures:
            # Without a label table, the files have FreeSurfer's numbers.
            for label in load_scheme(self.labels).labels[1:]:
                structures.append(
                    Structure(
                        label.fs_id, label.name, label.abbreviation, label.hex_color
                    )
                )
        return structures

    @cached_property
    def layers(self) -> dict[str, list[Structure]]:
        """Cortical parcels, parts of the corpus callosum and lesions: number, name and colour.

        Keys are "parcels", "callosum" and "lesions"; a key is missing if there is no table of its
        labels, or no map of lesions.
        """
        found = {layer: self._structures_in_tables(layer) for layer in LAYERS}
        if any(scan.entry.result.lesions is not None for scan in self.scans):
            found["lesions"] = [LESIONS]
        return {layer: structures for layer, structures in found.items() if structures}

    def _structures_in_tables(self, layer: str = "") -> list[Structure]:
        """Read the label table of the folder, or else of the first output folder in it with one.

        `layer` is as for `structures_in`. The list is empty without a table.
        """
        folders = dict.fromkeys([self.folder, *(scan.folder for scan in self.scans)])
        tables = (structures_in(folder, layer) for folder in folders)
        return next(filter(None, tables), [])

    def __getitem__(self, number: int) -> ScanFile:
        """Return a scan by its position in the list; raise InputError if there is none."""
        if not 0 <= number < len(self.scans):
            raise InputError("no such scan in this study")
        return self.scans[number]

    def overview(self) -> dict[str, object]:
        """Return all that the viewer's list of scans shows, as JSON values.

        - `title` is the name of the folder, and `against` that of the folder to compare with, ""
          without.
        - `scans` has a row for each scan, as `scan_rows` returns them.
        - `structures` has each structure with its volumes in all scans. `layers` has the same for
          cortical parcels ("parcels"), parts of the corpus callosum ("callosum") and "lesions".
        - `grades` and `verdicts` are the possible grades and ratings, `rater` and `corrector` the
          names under which ratings and corrections are saved, and `raters` is the number of raters.
        """
        ratings = self.ratings()
        against = ""
        if self.against:
            against = self.against.resolve().name
        return {
            "title": self.folder.resolve().name,
            "grades": GRADES,
            "rater": self.rater,
            "corrector": self.corrector,
            "raters": len({rating["rater"] for rating in ratings}),
            "against": against,
            "verdicts": VERDICTS,
            "structures": self._structure_rows(self.structures),
            "layers": {
                layer: self._structure_rows(structures)
                for layer, structures in self.layers.items()
            },
            "scans": self.scan_rows(ratings),
        }

    def scan_rows(
        self, ratings: Sequence[Mapping[str, object]]
    ) -> list[dict[str, object]]:
        """Return a row for each scan of the viewer's list, as JSON values.

        `ratings` are all ratings of the study, as `ratings` returns them. A row has the number of
        the scan, its name, grade and reasons, the agreement of its views, and the current rater's
        own rating of the whole scan (None without one). `there` is True if there is a label map of
        structures; `layers` names the other label maps.
        """
        own_ratings = {}
        for rating in ratings:
            if rating["mine"] and not rating["structure"]:
                own_ratings[rating["scan"]] = rating
        rows = []
        for number, scan in enumerate(self.scans):
            row: dict[str, object] = {"number": number}
            row |= _facts(scan)
            row["agreement"] = scan.entry.result.mean_agreement
            row["there"] = scan.labels is not None
            row["layers"] = list(scan.layers)
            row["rating"] = own_ratings.get(scan.case)
            rows.append(row)
        return rows

    def _structure_rows(
        self, structures: Sequence[Structure]
    ) -> list[dict[str, object]]:
        """Return each structure with its volumes in mm³ in all scans, as JSON values.

        More than 101 volumes are reduced to 101 quantiles; `count` is the number of scans. Rejected
        scans and rejected structures are omitted.
        """
        volumes: dict[str, list[float]] = defaultdict(list)
        for scan in self.scans:
            counted = scan.entry.result.counted_volumes(layers=True)
            for name, volume in counted.items():
                volumes[name].append(volume)
        rows = []
        for structure in structures:
            row = asdict(structure)
            of_study = sorted(volumes[structure.name])
            row["count"] = len(of_study)
            if len(of_study) > _QUANTILES:
                of_study = np.quantile(of_study, np.linspace(0, 1, _QUANTILES)).tolist()
            row["volumes"] = of_study
            rows.append(row)
        return rows

    def detail(self, scan: ScanFile) -> dict[str, object]:
        """Return all that the viewer's page of one scan shows, as JSON values.

        `result` has the numbers of the segmentation, `sha256` the hash of the label map, and
        `ratings` the ratings of the scan. `scan`, `entropy`, `mask` and `against` are True if there
        is such a file. `counted` names the structures that group statistics use.
        """
        ratings = [rating for rating in self.ratings() if rating["scan"] == scan.case]
        return {
            **_facts(scan),
            "result": self._result_shown(scan).as_json(),
            "sha256": digest(scan.newest_labels),
            "scan": self.image(scan) is not None,
            "entropy": scan.output(Product.ENTROPY) is not None,
            "mask": scan.output(Product.BRAIN_MASK) is not None,
            "against": self.other(scan) is not None,
            "ratings": ratings,
            "counted": list(scan.entry.result.counted_volumes(layers=True)),
        }

    def _result_shown(self, scan: ScanFile) -> ScanResult:
        """Return the numbers of a scan; the predicted ones if corrected lesions are unreadable."""
        try:
            return self.result(scan)
        except TrinatError:
            return scan.entry.result

    def refuse_other_numbers(self, scan: ScanFile, labels: Volume) -> None:
        """Raise InputError if a corrected label map has numbers that its label table lacks.

        `labels` is the label map that is shown for the scan. If a later run has written results
        with other numbers, the table names structures that the correction does not have.
        """
        correction = scan.correction
        if correction is None or not correction.is_of_earlier_run:
            return
        known = [0, *(structure.number for structure in structures_in(scan.folder))]
        if len(known) > 1 and not np.isin(labels.data, known).all():
            raise InputError(
                "its correction has the label numbers of an earlier run",
                where=scan.case,
                remedy="run trinat predict with the --format that it had, or delete the correction",
            )

    def rate(
        self,
        scan: ScanFile,
        structure: str,
        rating: str,
        remark: str,
        sha256: str,
    ) -> None:
        """Save the rater's verdict on a scan, or on one structure of it.

        `structure` is "" for the whole scan. `rating` is one of `VERDICTS`, or "" to withdraw the
        verdict. `sha256` is the hash of the label map that the rater saw. InputError is raised if
        the label map has changed since, or if the study has no such structure.
        """
        if not sha256 or digest(scan.newest_labels) != sha256:
            what = "has changed since it was shown"
            raise InputError(what, where=scan.case, remedy="reload")
        known = [each.name for each in self.structures]
        if structure and structure not in known:
            raise InputError(f"no structure {structure!r} in this study")
        saved = Rating(
            scan=scan.case,
            structure=structure,
            rating=rating,
            remark=" ".join(remark.split()),
            rater=self.rater,
            rated=datetime.now(UTC).isoformat(timespec="seconds"),
            sha256=sha256,
        )
        lock = self.folder / WORK / "lock.ratings"
        save_rating(self.folder / RATINGS, saved, lock=lock)

    def ratings(self) -> list[dict[str, object]]:
        """Return all ratings of the results as JSON values, with the fields of `Rating`.

        In addition, `mine` is True for ratings by this rater, and `stale` if the label map has
        changed since the rating.
        """
        # The table has the names of scans and raters without characters that are not printable.
        scans = {cell_text(scan.case): scan for scan in self.scans}
        rows = []
        for rating in read_ratings(self.folder / RATINGS):
            row = asdict(rating)
            row["mine"] = rating.rater == cell_text(self.rater)
            row["stale"] = True
            if rating.scan in scans:
                scan = scans[rating.scan]
                row["scan"] = scan.case
                row["stale"] = digest(scan.newest_labels) != rating.sha256
            rows.append(row)
        return rows

    def raters(self) -> list[dict[str, object]]:
        """Return how well each pair of raters agrees, as rows of `agreement_table` in JSON values.

        An undefined kappa is None. Stale ratings do not count.
        """
        ratings = read_ratings(self.folder / RATINGS)
        rated = {rating.scan for rating in ratings}
        seen = {
            digest(scan.newest_labels)
            for scan in self.scans
            if cell_text(scan.case) in rated
        }
        table = agreement_table(ratings, seen).astype(object)
        known = table.where(table.notna(), None)
        rows = known.values.tolist()
        return [dict(zip(known.columns, row, strict=True)) for row in rows]


def _facts(scan: ScanFile) -> dict[str, object]:
    """Return name, grade and reasons (`why`) of a scan for the viewer's list, as JSON values.

    The grade of a scan without a grade is its status, such as "failed".
    """
    return {"name": scan.case, "grade": scan.entry.grade, "why": scan.entry.why}


def structures_in(folder: Path, layer: str = "") -> list[Structure]:
    """Read the structures in the label table of a folder or of its first fold.

    The list is empty without a table. With `layer` "parcels" or "callosum", the table of cortical
    parcels or of parts of the corpus callosum is read. Background is omitted, and so are rows with
    an unusable number or colour. Lesions have no table.
    """
    if layer not in LABEL_TABLES:
        return []
    _, plain, in_bids = LABEL_TABLES[layer]
    of_folds = sorted(folder.glob(FOLD.format(f"*/{plain}")))
    tables = [folder / plain, folder / in_bids, *of_folds]
    table = next((path for path in tables if path.is_file()), None)
    if table is None:
        return []
    structures = []
    for row in read_rows(table, required=("index", "name", "color")):
        number = row["index"]
        color = row["color"]
        if not number.isdecimal() or number == "0":
            continue
        if not _COLOR.fullmatch(color):
            continue
        abbreviation = row.get("abbreviation", "")
        structures.append(Structure(int(number), row["name"], abbreviation, color))
    return structures
