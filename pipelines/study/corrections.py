"""Corrected label maps: their names beside results, what is said of them, how they are saved.

A correction is three files beside the label map that `trinat predict` wrote, which stays as it is:

- `NAME_desc-corrected_dseg.nii.gz`, the whole label map after the correction, on the same grid and
  with the same numbers. In a BIDS dataset `desc-corrected` stands in the place of `desc-trinat`.
- `NAME_desc-corrected_mask.nii.gz`, 1 where a person changed the label. It stays true when a later
  run replaces the result.
- `NAME_desc-corrected_dseg.json`: who, when, how long, what was changed, and of which result.

A label map of this name alone, from another program, is a correction, too. What its JSON says holds
only for the map and the mask whose hashes it has: where one of them is of another saving, the
changed voxels are those that differ from the result.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    ValidationError,
)
from pydantic.alias_generators import to_pascal

from trinat.pipelines.jobs.lock import run_lock
from trinat.pipelines.study.discovery import is_scan, stem_ends, walk
from trinat.pipelines.study.naming import CORRECTED, Product
from trinat.segmentation.data.sources.base import without_suffix
from trinat.segmentation.errors import (
    GeometryError,
    InputError,
    IntegrityError,
    OutputError,
    reason_of,
)
from trinat.segmentation.io.files import (
    not_written,
    read_rows,
    read_text,
    sha256_of,
    spreadsheet_safe,
    sync,
    write_tsv,
    write_whole,
)
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels import DEFAULT_SCHEME
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.metrics.common_grid import on_grid_of

_LABELS = f"_{Product.LABELS.suffix}"
_TRINAT = f"_desc-{Product.LABELS.own_entities['desc']}"
# How names of maps of parcels end, in a folder of files and in a BIDS dataset.
_PARCELS = (
    f"_{Product.PARCELS.plain}",
    f"_seg-{Product.PARCELS.own_entities['seg']}{_LABELS}",
)
_COLUMNS = (
    "scan",
    "corrected",
    "changed_voxels",
    "minutes",
    "sessions",
    "by",
    "at",
    "sha256",
    "result_sha256",
)
_PATIENCE_S = 5.0
# Of a folder in which a saving is prepared.
_STAGED = (".trinat-correction-", ".tmp")


class _Stated(BaseModel):
    """A part of the JSON, whose keys are written as BIDS writes them: CorrectedBy."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_pascal, populate_by_name=True
    )


class Session(_Stated):
    """One saving: by whom, when (ISO 8601, UTC), and after how many minutes of work."""

    by: str
    at: str
    minutes: NonNegativeFloat


class Facts(_Stated):
    """What the JSON beside a corrected label map says.

    `sha256` is of the corrected label map, `mask_sha256` of its mask of changed voxels,
    `result_sha256` of the result that was corrected, and `scan_sha256` of the scan that this is of
    ("" if that is not known). `structures` has the voxels of each structure that were changed:
    those that became its own and those that were. In a BIDS dataset `spatial_reference` and
    `sources` are those of the result.
    """

    sha256: str = Field(validation_alias="SHA256", serialization_alias="SHA256")
    mask_sha256: str = Field(
        validation_alias="MaskSHA256", serialization_alias="MaskSHA256"
    )
    result_sha256: str = Field(
        validation_alias="ResultSHA256", serialization_alias="ResultSHA256"
    )
    scan_sha256: str = Field(
        "", validation_alias="ScanSHA256", serialization_alias="ScanSHA256"
    )
    changed_voxels: NonNegativeInt
    structures: dict[str, NonNegativeInt]
    sessions: tuple[Session, ...] = Field(min_length=1)
    spatial_reference: str | None = None
    sources: tuple[str, ...] | None = None

    @property
    def minutes(self) -> float:
        """How long all sessions took together."""
        return sum(session.minutes for session in self.sessions)


@dataclass(frozen=True)
class Correction:
    """A corrected label map, and the result beside it.

    `facts` is None if there is no JSON beside it, or one of other bytes. `scan_sha256` is the scan
    that was corrected, also if another program has saved the map again; "" if it is not known.
    """

    path: Path
    result: Path
    facts: Facts | None
    scan_sha256: str = ""

    def why_unfit(self, scan_sha256: str) -> str:
        """Return why the correction does not count for a scan with this hash; "" if it does."""
        if self.scan_sha256 and scan_sha256 and self.scan_sha256 != scan_sha256:
            return (
                "is a correction of what the scan was before: correct it again, or give "
                "--uncorrected"
            )
        try:
            corrected = self.read().data
        except InputError as error:
            return reason_of(error, where=False)
        result = Volume.read(self.result, labels=True).data
        if result.any() and not corrected.any():
            return "is a correction without any label: correct it again, or delete it"
        if _are_sides_swapped(corrected, result):
            return (
                "is a correction whose left and right are exchanged: save it again as it lies on "
                "the scan, or delete it"
            )
        return ""

    def read(self) -> Volume:
        """The corrected label map on the grid of the result; GeometryError if it has another."""
        result = Volume.read(self.result, labels=True)
        return _on_grid_of(result, Volume.read(self.path, labels=True), self.path)

    def changed(self) -> NDArray[np.bool_]:
        """Where a person changed the label (X, Y, Z), in the order of axes of the result.

        By the mask beside the map; without JSON it is where map and result differ.
        """
        if self.facts is not None:
            return Volume.read(mask_path(self.result), labels=True).data > 0
        result = Volume.read(self.result, labels=True)
        return np.asarray(self.read().data != result.data)


class OvertakenError(OutputError):
    """A correction that does not build on the one that was saved last."""


def corrected_path(result: Path) -> Path:
    """Where the correction of a label map is, in whichever format, or would be."""
    for ending in _endings(result):
        path = _beside(result, Product.LABELS.suffix, ending)
        if path.is_file():
            return path
    return _beside(result, Product.LABELS.suffix, _ending(result))


def structures_beside(path: Path) -> Path | None:
    """The label map of structures beside a map of parcels; None without it, or of any other."""
    stem = without_suffix(path)
    for parcels in _PARCELS:
        if stem.endswith(parcels):
            return _label_map(path, stem.removesuffix(parcels))
    return None


def has_parcels_from_before(path: Path) -> bool:
    """Whether this is a map of parcels of a scan whose structures are corrected by hand."""
    structures = structures_beside(path)
    return structures is not None and corrected_path(structures).is_file()


def mask_path(result: Path) -> Path:
    """Where the mask of changed voxels is, of the correction of a label map."""
    return _beside(result, Product.BRAIN_MASK.suffix, Product.BRAIN_MASK.ending)


def sidecar_path(result: Path) -> Path:
    """Where the JSON is, of the correction of a label map."""
    return _beside(result, Product.LABELS.suffix, ".json")


def is_correction(path: Path) -> bool:
    """Whether a file is called as a corrected label map is."""
    return is_scan(path) and stem_ends(path, f"{CORRECTED}{_LABELS}")


def result_of(path: Path) -> Path | None:
    """The label map that a correction is of, by its name; None where it is not there."""
    return _label_map(path, without_suffix(path)[: -len(f"{CORRECTED}{_LABELS}")])


def _label_map(beside: Path, stem: str) -> Path | None:
    """The label map of a scan beside another file of it, in whichever format."""
    for name in (f"{stem}{_TRINAT}{_LABELS}", f"{stem}{_LABELS}", stem):
        for ending in _endings(beside):
            result = beside.with_name(f"{name}{ending}")
            if result.is_file() and result != beside:
                return result
    return None


def correction_of(result: Path) -> Correction | None:
    """The correction of a label map; None where there is none.

    IntegrityError where its JSON is not as `save_correction` writes it.
    """
    path = corrected_path(result)
    if not path.is_file():
        return None
    facts = _read_facts(sidecar_path(result))
    scan_sha256 = "" if facts is None else facts.scan_sha256
    if facts is not None:
        mask = mask_path(result)
        hashes = (sha256_of(path), sha256_of(mask) if mask.is_file() else "")
        # A saving that was cut short has replaced some of the files.
        if hashes != (facts.sha256, facts.mask_sha256):
            facts = None
    return Correction(path, result, facts, scan_sha256)


def _are_sides_swapped(corrected: NDArray[Any], result: NDArray[Any]) -> bool:
    """Return True if a label map fits a result better with left and right exchanged.

    False if the numbers are not those of the default scheme.
    """
    scheme = load_scheme(DEFAULT_SCHEME)
    present = set(np.unique(result).tolist()) | set(np.unique(corrected).tolist())
    for numbers in (scheme.fs_ids.tolist(), list(range(len(scheme)))):
        if not present.issubset(numbers):
            continue
        partners = np.arange(max(numbers) + 1)
        partners[numbers] = np.asarray(numbers)[scheme.partner_permutation]
        labelled = result > 0
        as_it_is = (corrected == result)[labelled].sum()
        exchanged = (partners[corrected] == result)[labelled].sum()
        return bool(exchanged > as_it_is)
    return False


def find_corrections(folder: Path) -> list[Correction]:
    """The corrections of the results anywhere below a folder, sorted by their paths."""
    found = []
    for path in sorted(walk(folder, wanted=is_correction)):
        result = result_of(path)
        if result is None:
            continue
        correction = correction_of(result)
        if correction is not None:
            found.append(correction)
    return found


def save_correction(
    result: Path,
    corrected: Volume,
    session: Session,
    *,
    builds_on: str,
    names: Mapping[int, str],
    scan_sha256: str = "",
    lock: Path,
) -> Correction:
    """Write a corrected label map beside a result, with its mask and its JSON.

    `builds_on` is the SHA-256 of the map that was corrected: the result, or the correction that was
    there. `names` are those of the numbers in it. All is written before anything is replaced, while
    `lock` is held. OvertakenError where another correction was saved meanwhile: nothing is written.
    """
    with run_lock(lock, patience_s=_PATIENCE_S):
        original = Volume.read(result, labels=True)
        corrected = _on_grid_of(original, corrected, corrected_path(result))
        earlier = correction_of(result)
        shown = original
        shown_sha256 = result_sha256 = sha256_of(result)
        if earlier is not None:
            shown = earlier.read()
            shown_sha256 = sha256_of(earlier.path)
        # A saving that was cut short has left its map and not its JSON: it may come again.
        is_same = np.array_equal(shown.data, corrected.data)
        if shown_sha256 != builds_on:
            if not is_same:
                raise _overtaken(result, earlier)
            if earlier is not None and earlier.facts is not None:
                return earlier

        before = None
        if earlier is not None:
            before = _read_facts(sidecar_path(result))
        sessions: tuple[Session, ...] = ()
        changed = corrected.data != original.data
        if before is not None:
            sessions = before.sessions
            is_ours = earlier is not None and earlier.facts is not None
            if before.result_sha256 != result_sha256 and is_ours:
                # The result was replaced since: the mask alone knows what was changed in it.
                changed = Volume.read(mask_path(result), labels=True).data > 0
                changed = changed | (corrected.data != shown.data)
                result_sha256 = before.result_sha256
        facts = Facts(
            sha256="",  # known once the files are written
            mask_sha256="",
            result_sha256=result_sha256,
            scan_sha256=scan_sha256,
            changed_voxels=int(changed.sum()),
            structures=_changed_by_structure(original, corrected, changed, names),
            sessions=(*sessions, session),
            **_origin_of(result),
        )
        return _write(result, corrected, changed, facts)


def list_correction(
    table: Path, scan: str, correction: Correction, *, lock: Path
) -> None:
    """Put what a correction's JSON says into the table of a folder, in the place of its scan's row.

    The table is for people: commands go by the files themselves. The other rows stay.
    """
    facts = correction.facts
    assert facts is not None
    last = facts.sessions[-1]
    row = [
        scan,
        os.path.relpath(correction.path, table.parent),
        facts.changed_voxels,
        round(facts.minutes, 1),
        len(facts.sessions),
        last.by,
        last.at,
        facts.sha256,
        facts.result_sha256,
    ]
    with run_lock(lock, patience_s=_PATIENCE_S):
        rows = []
        if table.is_file():
            rows = read_rows(table, required=_COLUMNS, names=("scan", "by"))
        kept = [
            [other[column] or None for column in _COLUMNS]
            for other in rows
            if other["scan"] != spreadsheet_safe(scan)
        ]
        write_tsv(table, _COLUMNS, [*kept, row])


def _write(
    result: Path, corrected: Volume, changed: NDArray[np.bool_], facts: Facts
) -> Correction:
    """Write the three files, none of which is in its place before all are complete.

    What savings that were killed have left is removed: the caller holds the lock.
    """
    path = corrected_path(result)
    mask = mask_path(result)
    sidecar = sidecar_path(result)
    prefix, suffix = _STAGED
    for left in path.parent.glob(f"{prefix}*{suffix}"):
        shutil.rmtree(left, ignore_errors=True)
    try:
        with TemporaryDirectory(
            prefix=prefix, suffix=suffix, dir=path.parent
        ) as folder:
            staged = Path(folder)
            corrected.write(staged / path.name, labels=True)
            changes = Volume(changed.astype(np.uint8), corrected.affine)
            changes.write(staged / mask.name, labels=True)
            hashes = {
                "sha256": sha256_of(staged / path.name),
                "mask_sha256": sha256_of(staged / mask.name),
            }
            facts = facts.model_copy(update=hashes)
            content = facts.model_dump_json(by_alias=True, exclude_none=True, indent=2)
            write_whole(staged / sidecar.name, content + "\n")
            # The JSON comes last: what it says is then true.
            for file in (mask, path, sidecar):
                (staged / file.name).replace(file)
        sync(path.parent)
    except OutputError as error:
        # For people it is about the correction, not about a file that is being staged.
        error.where = str(path)
        raise
    except OSError as error:
        raise not_written(path, error) from error
    return Correction(path, result, facts, facts.scan_sha256)


def _changed_by_structure(
    original: Volume,
    corrected: Volume,
    changed: NDArray[np.bool_],
    names: Mapping[int, str],
) -> dict[str, int]:
    """How many of the changed voxels each structure has lost or gained; those without any not."""
    was = original.data[changed]
    now = corrected.data[changed]
    counts = {}
    for number, name in names.items():
        voxels = int(((was == number) != (now == number)).sum())
        if voxels:
            counts[name] = voxels
    return counts


def _origin_of(result: Path) -> dict[str, Any]:
    """What the JSON beside a result of a BIDS dataset says of where it is from."""
    path = result.with_name(f"{without_suffix(result)}.json")
    if not path.is_file():
        return {}
    said = json.loads(read_text(path))
    return {
        "spatial_reference": said.get("SpatialReference"),
        "sources": said.get("Sources"),
    }


def _read_facts(path: Path) -> Facts | None:
    """What a JSON says; None where it is not there."""
    if not path.is_file():
        return None
    try:
        return Facts.model_validate_json(read_text(path))
    except ValidationError:
        what = "is not what trinat writes of a correction"
        raise IntegrityError(
            what, where=path, remedy="restore it, or remove it"
        ) from None


def _overtaken(result: Path, earlier: Correction | None) -> OvertakenError:
    """What to raise for a correction that does not build on the last one."""
    what = "its result has changed since it was shown"
    if earlier is not None:
        what = "another correction was saved meanwhile"
        if earlier.facts is not None:
            last = earlier.facts.sessions[-1]
            what = f"{what}, by {last.by} at {last.at}"
    remedy = "load it and put your changes on it"
    return OvertakenError(what, where=without_suffix(result), remedy=remedy)


def _on_grid_of(result: Volume, corrected: Volume, path: Path) -> Volume:
    """A correction in the order of axes of its result; GeometryError where grids differ."""
    try:
        on_grid, _ = on_grid_of(corrected, result)
    except GeometryError:
        what = "is on another grid than the result that it corrects"
        remedy = "correct the result itself"
        raise GeometryError(what, where=path, remedy=remedy) from None
    return on_grid


def _beside(result: Path, suffix: str, ending: str) -> Path:
    """The name of a file of the correction of a label map."""
    stem = without_suffix(result)
    stem = stem.removesuffix(_LABELS).removesuffix(_TRINAT)
    return result.with_name(f"{stem}{CORRECTED}_{suffix}{ending}")


def _endings(path: Path) -> tuple[str, ...]:
    """The file's own ending, and the others that a label map may have beside it."""
    own = _ending(path)
    return (own, *(ending for ending in (".nii.gz", ".nii", ".mgz") if ending != own))


def _ending(path: Path) -> str:
    """The ending of a name that `without_suffix` takes away, as .nii.gz."""
    return path.name[len(without_suffix(path)) :]
