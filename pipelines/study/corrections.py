"""Corrected label maps and lesion masks: their names, their metadata, and how they are saved.

A correction consists of three files beside the label map written by `trinat predict`, which stays
unchanged:

- `NAME_desc-corrected_dseg.nii.gz`, the whole label map after the correction, on the same grid and
  with the same numbers. In a BIDS dataset `desc-corrected` replaces `desc-trinat`.
- `NAME_desc-corrected_mask.nii.gz`, 1 where a rater changed the label. It remains valid when a
  later run replaces the result.
- `NAME_desc-corrected_dseg.json`: who, when, how long, what was changed, and in which result.

A mask of lesions is corrected in the same way. Its files are `NAME_desc-corrected_lesions.nii.gz`,
`NAME_desc-changed_lesions.nii.gz` (the changed voxels) and `NAME_desc-corrected_lesions.json`; in a
BIDS dataset `label-lesion_desc-corrected_mask` and `label-lesion_desc-changed_mask`.

A label map of this name alone, from another program, is a correction, too. The JSON applies only to
the map and the mask whose hashes it lists. If another program has saved the map again, the changed
voxels are the voxels that differ from the result. If the mask does not match the hash in the JSON,
saving was interrupted: such a correction is not used until it is saved again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

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
from trinat.pipelines.study.discovery import is_scan, stem_ends
from trinat.pipelines.study.entry import digest_of
from trinat.pipelines.study.naming import CORRECTED, Product
from trinat.pipelines.study.shared_table import replace_row
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
    read_text,
    remove_leftovers,
    sha256_of,
    sync,
    write_whole,
)
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels import DEFAULT_SCHEME
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.metrics.common_grid import on_grid_of

_LABELS = f"_{Product.LABELS.suffix}"
_TRINAT = f"_desc-{Product.LABELS.own_entities['desc']}"
# Endings of names of parcel maps, in a plain folder and in a BIDS dataset.
_PARCELS = (
    f"_{Product.PARCELS.plain}",
    f"_seg-{Product.PARCELS.own_entities['seg']}{_LABELS}",
)
_LESIONS = f"_{Product.LESIONS.plain}"
_LESIONS_IN_BIDS = f"_label-{Product.LESIONS.own_entities['label']}"
_MASK = f"_{Product.BRAIN_MASK.suffix}"
# Part of the names of masks of the voxels that were changed in a mask of lesions.
CHANGED = "_desc-changed"
# Endings of names of corrections, with the endings of the maps that they correct.
_ENDINGS_OF_CORRECTIONS = (
    (f"{CORRECTED}{_LABELS}", ""),
    (f"{CORRECTED}{_LESIONS}", _LESIONS),
    (f"{_LESIONS_IN_BIDS}{CORRECTED}{_MASK}", f"{_LESIONS_IN_BIDS}{_MASK}"),
)
_PATIENCE_S = 5.0
# Temporary files older than this are leftovers of killed processes: writing one takes seconds.
ABANDONED_S = 3600.0
# Prefix and suffix of the folder in which a correction is prepared.
_STAGED = (".trinat-correction-", ".tmp")


class _Stated(BaseModel):
    """Base class of the JSON sidecar's parts, whose keys are written like BIDS' (CorrectedBy)."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_pascal, populate_by_name=True
    )


class Saving(_Stated):
    """A save of a correction in the viewer: who saved it, when, and after how many minutes of work.

    `by` is the name of the rater, `at` the time (ISO 8601, UTC), and `minutes` the duration of the
    work that was saved.
    """

    by: str
    at: str
    minutes: NonNegativeFloat


class Sidecar(_Stated):
    """Content of the JSON sidecar of a corrected label map.

    `sha256` is the hash of the corrected label map, `mask_sha256` of its mask of changed voxels,
    `result_sha256` of the result that was corrected, and `scan_sha256` of the scan of this result
    ("" if unknown). `changed_voxels` is the number of changed voxels. `structures` maps the name of
    each structure to the number of voxels that it gained or lost. `savings` has one entry
    for each time that the correction was saved, the oldest first. In a BIDS dataset
    `spatial_reference` and `sources` are copied from the sidecar of the result; they are None
    elsewhere.
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
    # The key that corrections in users' folders have.
    savings: tuple[Saving, ...] = Field(
        min_length=1, validation_alias="Sessions", serialization_alias="Sessions"
    )
    spatial_reference: str | None = None
    sources: tuple[str, ...] | None = None

    @property
    def minutes(self) -> float:
        """Total minutes of all savings."""
        return sum(saving.minutes for saving in self.savings)


@dataclass(frozen=True)
class Correction:
    """Label map that a rater has corrected by hand, with the predicted label map that it replaces.

    `path` is the corrected label map and `result` the predicted one beside it. `sidecar` is None if
    there is no JSON sidecar, or if it lists other hashes than those of the corrected map and its
    mask. `scan_sha256` is the hash of the scan that was corrected; "" if it is not known.
    `is_whole` is False if saving was interrupted, so that the mask does not match the sidecar.
    `fault` is the reason why the sidecar cannot be read; "" if it can.
    """

    path: Path
    result: Path
    sidecar: Sidecar | None
    scan_sha256: str = ""
    is_whole: bool = True
    fault: str = ""

    def is_of(self, scan_sha256: str) -> bool:
        """Return False if the scan has changed since it was corrected.

        `scan_sha256` is the hash of the scan as it is now; "" if unknown.
        """
        return is_same_scan(self.scan_sha256, scan_sha256)

    @property
    def is_of_earlier_run(self) -> bool:
        """True if a later run has replaced the result that was corrected."""
        if self.sidecar is None:
            return False
        return self.sidecar.result_sha256 != digest_of(self.result)

    def why_unfit(self, scan_sha256: str) -> str:
        """Return why the correction must not be used for a scan; "" if it can be used.

        `scan_sha256` is the hash of the scan as it is now; "" if unknown. Reasons are: the
        sidecar cannot be read, the scan has changed, saving was interrupted, the map cannot be read
        on the grid of the result, it has no labels, or left and right are exchanged.
        """
        if self.fault:
            return f"has a correction whose {self.fault}"
        if not self.is_of(scan_sha256):
            return (
                "is a correction of what the scan was before: correct it again, or give "
                "--uncorrected"
            )
        if not self.is_whole:
            return (
                "is a correction whose saving was interrupted: save it again in `trinat view`, or "
                f"delete {mask_path(self.result).name}"
            )
        try:
            corrected = self.read().data
        except InputError as error:
            return reason_of(error, where=False)
        result = Volume.read(self.result, labels=True).data
        if is_of_lesions(self.result):
            # A rater may have removed all of them.
            return ""
        if result.any() and not corrected.any():
            return "is a correction without any label: correct it again, or delete it"
        if _are_sides_swapped(corrected, result):
            return (
                "is a correction whose left and right are exchanged: save it again as it lies on "
                "the scan, or delete it"
            )
        return ""

    def read(self) -> Volume:
        """Read the corrected label map in the axis order of the predicted one.

        GeometryError is raised if they are on different grids.
        """
        result = Volume.read(self.result, labels=True)
        return _on_grid_of(result, Volume.read(self.path, labels=True), self.path)

    def changed(self) -> NDArray[np.bool_]:
        """Return a mask of the voxels that a rater changed (X, Y, Z), in the axes of the result.

        It is read from the mask beside the map. Without a valid sidecar, it has the voxels that
        differ from the result.
        """
        if self.sidecar is not None:
            return Volume.read(mask_path(self.result), labels=True).data > 0
        result = Volume.read(self.result, labels=True)
        return np.asarray(self.read().data != result.data)


class OvertakenError(OutputError):
    """Raised if a correction cannot be saved because the label map has changed since it was loaded.

    Another correction was saved meanwhile, or a run has replaced the predicted label map.
    """


def corrected_path(result: Path) -> Path:
    """Return the path of the corrected label map that belongs to a predicted one, `result`.

    It need not exist. An existing one may have another file format than the predicted label map.
    """
    corrected, _ = _stems(result)
    for ending in _endings(result):
        path = result.with_name(f"{corrected}{ending}")
        if path.is_file():
            return path
    # Pairs of .hdr and .img are read, not written.
    ending = ".nii.gz" if result.suffix == ".hdr" else _ending(result)
    return result.with_name(f"{corrected}{ending}")


def newest(result: Path, scan_sha256: str) -> Path:
    """Return the path of the corrected label map of a result, if there is one, else `result`.

    Corrections of what the scan was before do not count: `scan_sha256` is the hash of the scan as
    it is now; "" if unknown.
    """
    corrected = corrected_path(result)
    if not corrected.is_file():
        return result
    try:
        sidecar = _read_sidecar(sidecar_path(result))
    except IntegrityError:
        return corrected
    if sidecar is None or is_same_scan(sidecar.scan_sha256, scan_sha256):
        return corrected
    return result


def is_same_scan(one: str, other: str) -> bool:
    """Return False if two hashes of scans differ; unknown ones, "", may be of the same scan."""
    return not one or not other or one == other


def is_of_lesions(result: Path) -> bool:
    """Return True if a result is a mask of lesions, by its name, and not a label map."""
    return without_suffix(result).endswith((_LESIONS, f"{_LESIONS_IN_BIDS}{_MASK}"))


def structures_beside(path: Path) -> Path | None:
    """Return the label map of structures that belongs to a map of cortical parcels.

    `path` is the map of parcels. Both are in the same folder. None if there is no such label map.
    """
    stem = without_suffix(path)
    for parcels in _PARCELS:
        if stem.endswith(parcels):
            of_structures = _label_maps(path, stem.removesuffix(parcels))
            return next(filter(Path.is_file, of_structures), None)
    return None


def has_parcels_from_before(path: Path) -> bool:
    """Return True for a map of cortical parcels whose structures were corrected since."""
    structures = structures_beside(path)
    return structures is not None and corrected_path(structures).is_file()


def mask_path(result: Path) -> Path:
    """Return the path of the mask of the voxels that were changed in a label map, `result`."""
    _, changed = _stems(result)
    return result.with_name(f"{changed}{Product.BRAIN_MASK.ending}")


def sidecar_path(result: Path) -> Path:
    """Return the path of the JSON sidecar of a label map's correction."""
    corrected, _ = _stems(result)
    return result.with_name(f"{corrected}.json")


def is_correction(path: Path) -> bool:
    """Return True if a file has the name of a corrected label map."""
    return is_scan(path) and stem_ends(path, f"{CORRECTED}{_LABELS}")


def is_of_correction(path: Path) -> bool:
    """Return True for a correction of a map in the same folder, and for a mask of changed voxels.

    The map is a label map or a mask of lesions.
    """
    stem = without_suffix(path)
    if stem.endswith(f"{CORRECTED}{_MASK}") and _LESIONS_IN_BIDS not in stem:
        return True
    return CHANGED in stem or any(map(Path.is_file, possible_results(path)))


def possible_results(path: Path) -> Iterator[Path]:
    """Yield the paths that the predicted map of a correction, `path`, may have.

    Nothing is yielded for other files.
    """
    stem = without_suffix(path)
    for of_correction, of_result in _ENDINGS_OF_CORRECTIONS:
        if stem.endswith(of_correction):
            yield from _label_maps(
                path, f"{stem.removesuffix(of_correction)}{of_result}"
            )


def _label_maps(beside: Path, stem: str) -> Iterator[Path]:
    """Yield the paths that a scan's label map of structures may have.

    `beside` is another file in its folder, and `stem` the beginning of its name. The file formats
    may differ.
    """
    for name in (f"{stem}{_TRINAT}{_LABELS}", f"{stem}{_LABELS}", stem):
        for ending in _endings(beside):
            result = beside.with_name(f"{name}{ending}")
            if result != beside:
                yield result


def correction_of(result: Path) -> Correction | None:
    """Return the correction of a predicted label map, `result`; None if there is none."""
    path = corrected_path(result)
    if not path.is_file():
        return None
    try:
        sidecar = _read_sidecar(sidecar_path(result))
    except IntegrityError as error:
        fault = f"{sidecar_path(result).name} {error.what}: {error.remedy}"
        return Correction(path, result, None, fault=fault)
    mask = mask_path(result)
    if sidecar is None:
        return Correction(path, result, None, is_whole=not mask.is_file())
    # Without a mask, the map counts as one of another program.
    is_whole = not mask.is_file() or sha256_of(mask) == sidecar.mask_sha256
    is_ours = mask.is_file() and is_whole and sha256_of(path) == sidecar.sha256
    return Correction(
        path, result, sidecar if is_ours else None, sidecar.scan_sha256, is_whole
    )


def _are_sides_swapped(
    corrected: NDArray[np.integer], result: NDArray[np.integer]
) -> bool:
    """Return True if a corrected label map fits the predicted one better with sides exchanged.

    Both are arrays (X, Y, Z) of label numbers; left and right are exchanged in `corrected`. Returns
    False if the numbers are not those of the default label scheme.
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


def save_correction(
    result: Path,
    corrected: Volume,
    saving: Saving,
    *,
    builds_on: str,
    names: Mapping[int, str],
    scan_sha256: str = "",
    lock: Path,
) -> Correction:
    """Write a corrected label map beside a result, with its mask and its JSON sidecar.

    `corrected` is the label map after the correction. `builds_on` is the SHA-256 of the map that
    the rater has corrected: the result, or the existing correction. `names` maps label numbers to
    the names of structures. `scan_sha256` is the hash of the scan of the result; "" if unknown.

    A correction of what the scan was before is replaced. All files are written before any file is
    replaced, while the file `lock` is locked. If another map than `builds_on` is current,
    OvertakenError is raised and nothing is written.
    """
    with run_lock(lock, patience_s=_PATIENCE_S):
        original = Volume.read(result, labels=True)
        corrected = _on_grid_of(original, corrected, corrected_path(result))
        earlier = correction_of(result)
        if earlier is not None and not earlier.is_of(scan_sha256):
            earlier = None
        shown = original
        shown_sha256 = result_sha256 = sha256_of(result)
        if earlier is not None:
            shown = earlier.read()
            shown_sha256 = sha256_of(earlier.path)
        # If saving was interrupted after the map and before the JSON, the map on the disk is no
        # longer `builds_on`. Saving the same map again is allowed then.
        is_same = np.array_equal(shown.data, corrected.data)
        if shown_sha256 != builds_on:
            if not is_same:
                raise _overtaken(result, earlier)
            if earlier is not None and earlier.sidecar is not None:
                return earlier

        before = None
        if earlier is not None:
            before = _read_sidecar(sidecar_path(result))
        savings: tuple[Saving, ...] = ()
        changed = corrected.data != original.data
        if before is not None:
            savings = before.savings
            is_ours = earlier is not None and earlier.sidecar is not None
            if before.result_sha256 != result_sha256 and is_ours:
                # The result was replaced since the earlier correction, so comparing with it would
                # not show what the rater changed: take that from the mask.
                changed = Volume.read(mask_path(result), labels=True).data > 0
                changed = changed | (corrected.data != shown.data)
                result_sha256 = before.result_sha256
        sidecar = Sidecar(
            sha256="",  # known once the files are written
            mask_sha256="",
            result_sha256=result_sha256,
            scan_sha256=scan_sha256,
            changed_voxels=int(changed.sum()),
            structures=_changed_by_structure(original, corrected, changed, names),
            savings=(*savings, saving),
        )
        return _write(result, corrected, changed, _with_origin(sidecar, result))


def list_correction(
    table: Path, scan: str, correction: Correction, *, lock: Path
) -> None:
    """Write a correction to the folder's table of corrections, replacing its earlier row.

    `table` is the path of the table and `scan` the name of the case. The table is for users only:
    no command reads it. It is written while the file `lock` is locked.
    """
    sidecar = correction.sidecar
    assert sidecar is not None
    last = sidecar.savings[-1]
    row = {
        "scan": scan,
        "corrected": os.path.relpath(correction.path, table.parent),
        "changed_voxels": sidecar.changed_voxels,
        "minutes": round(sidecar.minutes, 1),
        "sessions": len(sidecar.savings),
        "by": last.by,
        "at": last.at,
        "sha256": sidecar.sha256,
        "result_sha256": sidecar.result_sha256,
    }
    replace_row(table, row, key=("corrected",), lock=lock)


def _write(
    result: Path, corrected: Volume, changed: NDArray[np.bool_], sidecar: Sidecar
) -> Correction:
    """Write label map, mask and sidecar to a temporary folder, then move them into place.

    Temporary folders of interrupted savings are removed, which is safe because the caller holds the
    lock.
    """
    path = corrected_path(result)
    mask = mask_path(result)
    json_path = sidecar_path(result)
    prefix, suffix = _STAGED
    for left in path.parent.glob(f"{prefix}*{suffix}"):
        shutil.rmtree(left, ignore_errors=True)
    remove_leftovers(path.parent, older_than_s=ABANDONED_S)
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
            sidecar = sidecar.model_copy(update=hashes)
            content = sidecar.model_dump_json(
                by_alias=True, exclude_none=True, indent=2
            )
            write_whole(staged / json_path.name, content + "\n")
            # Move the JSON last, so that its content is true as soon as it is visible.
            for file in (mask, path, json_path):
                (staged / file.name).replace(file)
        sync(path.parent)
    except OutputError as error:
        # Report the path of the correction instead of the staged file.
        error.where = str(path)
        raise
    except OSError as error:
        raise not_written(path, error) from error
    return Correction(path, result, sidecar, sidecar.scan_sha256)


def _changed_by_structure(
    original: Volume,
    corrected: Volume,
    changed: NDArray[np.bool_],
    names: Mapping[int, str],
) -> dict[str, int]:
    """Return the number of voxels that each structure gained or lost, by name.

    `changed` (X, Y, Z) restricts the count, `names` maps label numbers to names. Structures without
    a change are omitted.
    """
    was = original.data[changed]
    now = corrected.data[changed]
    counts = {}
    for number, name in names.items():
        voxels = int(((was == number) != (now == number)).sum())
        if voxels:
            counts[name] = voxels
    return counts


def _with_origin(sidecar: Sidecar, result: Path) -> Sidecar:
    """Copy the reference space and the source files from the sidecar of the result, if it has one.

    These are the fields `spatial_reference` and `sources`, which exist in BIDS datasets only.
    """
    path = result.with_name(f"{without_suffix(result)}.json")
    if not path.is_file():
        return sidecar
    said = json.loads(read_text(path))
    return Sidecar.model_validate(
        {
            **sidecar.model_dump(),
            "spatial_reference": said.get("SpatialReference"),
            "sources": said.get("Sources"),
        }
    )


def _read_sidecar(path: Path) -> Sidecar | None:
    """Read the JSON sidecar of a correction; return None if it does not exist.

    IntegrityError is raised if it is invalid.
    """
    if not path.is_file():
        return None
    try:
        return Sidecar.model_validate_json(read_text(path))
    except (ValidationError, UnicodeDecodeError):
        what = "is not what trinat writes of a correction"
        raise IntegrityError(
            what, where=path, remedy="restore it, or remove it and the mask"
        ) from None


def _overtaken(result: Path, earlier: Correction | None) -> OvertakenError:
    """Return the error for a correction of a label map that has changed since it was loaded.

    `earlier` is the correction that was saved meanwhile; None if the predicted label map itself has
    changed.
    """
    what = "its result has changed since it was shown"
    if earlier is not None:
        what = "another correction was saved meanwhile"
        if earlier.sidecar is not None:
            last = earlier.sidecar.savings[-1]
            what = f"{what}, by {last.by} at {last.at}"
    remedy = "load it and put your changes on it"
    return OvertakenError(what, where=without_suffix(result), remedy=remedy)


def _on_grid_of(result: Volume, corrected: Volume, path: Path) -> Volume:
    """Return a correction in the axis order of its result; raise GeometryError if grids differ."""
    try:
        on_grid, _ = on_grid_of(corrected, result)
    except GeometryError:
        what = "is on another grid than the result that it corrects"
        remedy = "correct the result itself"
        raise GeometryError(what, where=path, remedy=remedy) from None
    return on_grid


def _stems(result: Path) -> tuple[str, str]:
    """Return the names without suffix of a result's correction, and of its mask of changed voxels.

    `result` is the label map, or the mask of lesions, that is corrected.
    """
    stem = without_suffix(result)
    if not is_of_lesions(result):
        stem = stem.removesuffix(_LABELS).removesuffix(_TRINAT)
        return f"{stem}{CORRECTED}{_LABELS}", f"{stem}{CORRECTED}{_MASK}"
    kind = _LESIONS if stem.endswith(_LESIONS) else _MASK
    stem = stem.removesuffix(kind)
    return f"{stem}{CORRECTED}{kind}", f"{stem}{CHANGED}{kind}"


def _endings(path: Path) -> tuple[str, ...]:
    """Return the file endings to try for a label map: that of `path`, then other formats.

    `path` is a file beside the label map. Other formats are .nii.gz, .nii, .mgz and .hdr.
    """
    own = _ending(path)
    others = (".nii.gz", ".nii", ".mgz", ".hdr")
    return (own, *(ending for ending in others if ending != own))


def _ending(path: Path) -> str:
    """Return the ending of a name that `without_suffix` removes, such as .nii.gz."""
    return path.name[len(without_suffix(path)) :]
