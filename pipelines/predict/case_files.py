"""Numbers of a segmentation for the ledger, and the files that are written for a scan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trinat.pipelines.predict.settings import (
    CaseNames,
    OutputSettings,
    RunSettings,
    slices_of,
)
from trinat.pipelines.predict.tables import write_label_table
from trinat.pipelines.report.case_view import view_result
from trinat.pipelines.report.scan_page import scan_page
from trinat.pipelines.study.cases import Case
from trinat.pipelines.study.lesions import lesions_result
from trinat.pipelines.study.naming import LABEL_TABLES, Product
from trinat.pipelines.study.record import (
    CallosumResult,
    FurtherResult,
    LesionResult,
    ParcelResult,
    ScanResult,
    SheetResult,
    ThicknessResult,
)
from trinat.segmentation.inference import quality
from trinat.segmentation.inference.checks import anatomy, brightness
from trinat.segmentation.inference.checks.limits import Limits
from trinat.segmentation.inference.measuring import (
    ParcelMeasure,
    grade_thickness,
    measure,
)
from trinat.segmentation.inference.prediction import Prediction, Tissues
from trinat.segmentation.io.files import sha256_of, write_json, write_tsv, write_whole
from trinat.segmentation.io.volume import Volume, write_maps
from trinat.segmentation.labels import HEMISPHERES, Side
from trinat.segmentation.labels.measures import MEASURES, BrainVolumes
from trinat.segmentation.labels.scheme import TISSUES, LabelScheme, load_scheme
from trinat.segmentation.models.checkpoint import Model
from trinat.segmentation.rendering.pictures import draw_mosaic, encoded
from trinat.segmentation.space.views import reoriented
from trinat.segmentation.timing import stage

if TYPE_CHECKING:
    from trinat.segmentation.inference.callosum import Callosum
    from trinat.segmentation.inference.thickness import CortexThickness

_TISSUE_MAPS = [
    product for product in Product if product.own_entities.get("label") in TISSUES
]
# Smallest fraction of a structure changed by clean-up that is reported.
_REPORTED_CHANGE = 0.01


def judge(
    found: Prediction,
    changes: dict[str, float],
    model: Model,
    limits: Limits,
) -> tuple[ScanResult, BrainVolumes]:
    """Grade a segmentation; return its numbers for the ledger, and the measures of the whole brain.

    The numbers are grades with reasons, volumes in mm³, agreement of views and notes. `changes`
    maps structures to the fraction of their voxels that clean-up has changed; `limits` are the
    values of quality measures below which a scan or a structure gets a bad grade.
    """
    volumes_mm3 = found.volumes_mm3
    measured = measure(found, limits)
    verdict = quality.grade(found.evidence, limits)
    total_brain_mm3 = anatomy.total_brain_mm3(found.scheme, volumes_mm3)
    result = ScanResult(
        model=model.name,
        grade=verdict.name,
        reasons=list(verdict.reasons),
        structure_grades=dict(verdict.structures),
        notes=list(found.notes),
        total_brain_mm3=round(total_brain_mm3, 3),
        volumes_mm3={name: round(mm3, 3) for name, mm3 in volumes_mm3.items()},
        measures_mm3={
            name: None if mm3 is None else round(mm3, 3)
            for name, mm3 in measured.mm3.items()
        },
        csf=found.csf,
        tissue_contrast=_rounded(brightness.tissue_contrast(found.evidence)),
    )
    if measured.note:
        result.notes.append(measured.note)
    if model.info.training.pseudo_labels:
        result.pseudo_labels = model.info.training.pseudo_labels
    if found.agreement is not None:
        result.mean_agreement = _rounded(quality.mean_agreement(found))
        result.agreement = _by_structure(found, volumes_mm3, found.agreement)
    doubt = found.uncertainty
    if doubt is not None:
        result.iou = _by_structure(found, volumes_mm3, doubt.iou)
        result.pairwise_dice = _by_structure(found, volumes_mm3, doubt.pairwise_dice)
        result.volume_cv = _by_structure(found, volumes_mm3, doubt.volume_cv)
    cleaned = {
        name: round(share, 4)
        for name, share in changes.items()
        if share > _REPORTED_CHANGE
    }
    if cleaned:
        result.cleaned = cleaned
        shares = [f"{name} {share:.0%}" for name, share in cleaned.items()]
        result.notes.append(f"clean-up changed {', '.join(shares)}")
    return result, measured


def _thickness_result(found: Prediction) -> ThicknessResult:
    """Return cortical thickness of parcels and hemispheres, with its grade, for the ledger.

    The parcels of a side come before its hemisphere.
    """
    grade, reasons = grade_thickness(found.evidence)
    cortex = found.cortex_thickness
    sheets = {}
    for hemisphere in cortex.hemispheres:
        parcels = [sheet for sheet in cortex.parcels if sheet.side == hemisphere.side]
        for sheet in (*parcels, hemisphere):
            sheets[sheet.name] = SheetResult(
                side=sheet.side,
                mm=_rounded(sheet.thickness_mm),
                std_mm=_rounded(sheet.std_mm),
                area_mm2=round(sheet.area_mm2, 3),
                mm3=round(sheet.volume_mm3, 3),
            )
    return ThicknessResult(grade=grade, reasons=list(reasons), sheets=sheets)


def _by_structure(
    found: Prediction, volumes_mm3: Mapping[str, float], values: np.ndarray
) -> dict[str, float | None]:
    """Map values of classes, an array (K,), to the names of structures.

    `found` has the label scheme of the classes: the list of structures. Background is left out, and
    so are structures without an entry in `volumes_mm3`, which the model cannot predict. A value
    that is not finite becomes None.
    """
    by_name = {}
    for label in found.scheme.labels[1:]:
        if label.name in volumes_mm3:
            by_name[label.name] = _rounded(float(values[label.index]))
    return by_name


def by_name(parcels: Iterable[ParcelMeasure]) -> dict[str, ParcelResult]:
    """Return the measurements of parcels for the ledger, rounded, by the names of the parcels."""
    return {
        parcel.name: ParcelResult(
            freesurfer=parcel.freesurfer,
            side=parcel.side,
            lobe=parcel.lobe,
            mm3=round(parcel.mm3, 3),
            share=_rounded(parcel.share),
            asymmetry=_rounded(parcel.asymmetry),
            agreement=_rounded(parcel.agreement),
            grade=parcel.grade,
        )
        for parcel in parcels
    }


def callosum_result(found: Callosum) -> CallosumResult:
    """Return volumes, area, lengths and thickness of a corpus callosum for the ledger, rounded."""
    thickness = found.thickness_mm
    return CallosumResult(
        grade=found.grade,
        reasons=list(found.reasons),
        volumes_mm3={name: round(mm3, 3) for name, mm3 in found.volumes_mm3.items()},
        total_mm3=round(found.volume_mm3, 3),
        thickness_mm=[round(mm, 3) for mm in thickness[np.isfinite(thickness)]],
        **{name: _rounded(value) for name, value in found.measures.items()},
    )


# The function that measures each further output.
FURTHER_RESULTS: Mapping[str, Callable[[Prediction], FurtherResult]] = {
    "thickness": _thickness_result,
    "callosum": lambda found: callosum_result(found.callosum),
    "lesions": lambda found: lesions_result(found.lesions),
}


def _bids_uri(case: Case) -> str:
    """Return the BIDS URI of a case's scan."""
    return f"bids:raw:{case.shown}"


def _rounded(value: float | None) -> float | None:
    if value is None or not np.isfinite(value):
        return None
    return round(value, 4)


@dataclass(frozen=True)
class CaseFiles:
    """Writer of the output files of one scan, below the folder `staging`.

    `found` is the segmentation of the scan, and `volumes` are the measures of the whole brain, such
    as the intracranial volume. `sources` are the cases whose scans the segmentation was computed
    from: several, if the scans of a participant were segmented together. `digest` is the SHA-256 of
    the scan, and `result` has its numbers for the ledger.
    """

    staging: Path
    case: Case
    found: Prediction
    volumes: BrainVolumes
    settings: RunSettings
    sources: Sequence[Case]
    digest: str
    result: ScanResult

    @cached_property
    def names(self) -> CaseNames:
        """Paths of the output files, below `staging`."""
        case = self.case
        return CaseNames(self.staging, case.id, case.entities, self.settings.bids)

    @property
    def picture(self) -> str:
        """Path of the picture of slices, relative to `staging`; "" if none is wanted."""
        if not self.wants(Product.PICTURE):
            return ""
        return str(self.names.path(Product.PICTURE).relative_to(self.staging))

    @cached_property
    def _output(self) -> OutputSettings:
        """Output settings of the run, with the additional output files that this case requests."""
        also: dict[str, Any] = dict.fromkeys(self.case.also, True)
        return replace(self.settings.output, **also)

    @cached_property
    def _provenance(self) -> dict[str, Any]:
        """Origin of the files for JSON sidecars: scans, model, hashes and trinat's version."""
        origin: dict[str, Any] = {}
        if self.settings.bids:
            origin["SpatialReference"] = _bids_uri(self.case)
            origin["Sources"] = [_bids_uri(case) for case in self.sources]
        origin["Model"] = self.result.model
        origin["ModelSHA256"] = self.settings.model_sha256
        further = self.settings.further_models
        if "parcels" in further:
            origin["ParcelsModelSHA256"] = further["parcels"]
        if "lesions" in further:
            origin["LesionsNetworkSHA256"] = further["lesions"]
        origin["TrinatVersion"] = version("trinat")
        return origin

    def wants(self, product: Product) -> bool:
        """Return True if a kind of output file is written for this scan."""
        return self._output.wants(product)

    def write_all(self, *, label_table: bool) -> dict[str, str]:
        """Write all output files that are wanted; return the SHA-256 of each by its path.

        Paths are relative to `staging`. With `label_table`, the tables that explain the numbers of
        label maps are written, too.
        """
        self.names.path(Product.LABELS).parent.mkdir(parents=True)
        writers: dict[Product, Callable[[], None]] = {
            Product.STATS: self._write_stats,
            Product.LESION_LIST: self._write_lesion_list,
            Product.PARCEL_STATS: self._write_parcel_stats,
            Product.PROBABILITIES: self._write_probabilities,
            Product.DICOM_SEG: self._write_dicom_seg,
            Product.PAGE: self._write_page,
            Product.LEFT_CORTEX_STATS: partial(
                self._write_cortex_stats, Product.LEFT_CORTEX_STATS, "left"
            ),
            Product.RIGHT_CORTEX_STATS: partial(
                self._write_cortex_stats, Product.RIGHT_CORTEX_STATS, "right"
            ),
            Product.PICTURE: self._write_picture,
        }
        for product in _TISSUE_MAPS:
            writers[product] = partial(self._write_tissue_map, product)
        for product in Product:
            if self.wants(product):
                writers.get(product, partial(self._write_volume, product))()
        outputs = {}
        for path in sorted(self.staging.rglob("*")):
            if path.is_file():
                outputs[str(path.relative_to(self.staging))] = sha256_of(path)
        # Slices are no outputs of the case: the run decides which of them are kept.
        if self.picture:
            _write_slices(self.staging / slices_of(self.case.id), self.found)
        if label_table:
            self._write_label_tables()
        return outputs

    def _write_label_tables(self) -> None:
        """Write the tables that explain the numbers of the label maps that are written."""
        by_index = self._output.format == "index"
        for product, plain, in_bids in LABEL_TABLES.values():
            if not self.wants(product):
                continue
            scheme = self.found.scheme
            if product is Product.PARCELS:
                assert self.found.parcel_map is not None
                scheme = self.found.parcel_map.parcellation.whole
            elif product is Product.CALLOSUM:
                scheme = load_scheme("callosum")
            write_label_table(
                self.staging / (in_bids if self.settings.bids else plain),
                scheme,
                # The map of the callosum always has FreeSurfer's numbers.
                by_index=by_index and product is not Product.CALLOSUM,
            )

    def _write_sidecar(self, product: Product, **facts: str) -> None:
        """Write the JSON sidecar of an output file, in a BIDS dataset only.

        It has the `facts` as keys and values, and the origin of the file: scans, model and version.
        """
        if self.settings.bids:
            content = {**facts, **self._provenance}
            write_json(self.names.path(product, ".json"), content, indent=2)

    def _volume_of(self, product: Product) -> Volume:
        """Return the map of an output that consists of one volume."""
        found = self.found
        by_index = self._output.format == "index"
        match product:
            case Product.LABELS:
                return found.indices if by_index else found.labels
            case Product.PARCELS:
                return found.parcel_indices if by_index else found.parcel_labels
            case Product.CALLOSUM:
                return found.callosum.labels
            case Product.LESIONS:
                return found.lesions.mask
            case Product.BRAIN_MASK | Product.FMRIPREP_MASK:
                return replace(found.brain, data=found.brain.data.astype(np.uint8))
            case Product.TISSUES | Product.FMRIPREP_TISSUES:
                return self._tissues.labels
            case Product.THICKNESS:
                return found.thickness_map
            case Product.ENTROPY:
                return found.entropy
        raise NotImplementedError(f"no function writes {product.name}")

    def _write_volume(self, product: Product) -> None:
        """Write an output that consists of one volume, with a JSON sidecar if it may have one.

        Masks and label maps are written with their label intent.
        """
        volume = _in_axes_of(product, self._volume_of(product))
        is_mask = product.suffix == "mask"
        path = self.names.path(product)
        if product is Product.LABELS:
            path = self.names.labels(self._output, self.case.path)
        volume.write(path, labels=is_mask or product.suffix == "dseg")
        if ".json" in product.further:
            type_of_mask = "Lesion" if product is Product.LESIONS else "Brain"
            facts = {"Type": type_of_mask} if is_mask else {}
            self._write_sidecar(product, **facts)

    def _write_stats(self) -> None:
        """Write aseg.stats in FreeSurfer's format."""
        found = self.found
        voxels: dict[str, float] = dict(found.voxels)
        if self.wants(Product.CALLOSUM):
            voxels.update(found.callosum.voxels)
        table = format_aseg_stats(
            self.case.stem, found.scheme, voxels, found.voxel_mm3, self.volumes
        )
        write_whole(self.names.path(Product.STATS), table)

    def _write_lesion_list(self) -> None:
        """Write the list of lesions, a row for each, the largest first."""
        assert self.result.lesions is not None
        lesions = self.result.lesions.lesions
        rows = [list(lesion.model_dump().values()) for lesion in lesions]
        path = self.names.path(Product.LESION_LIST)
        write_tsv(path, tuple(LesionResult.model_fields), rows)

    def _write_parcel_stats(self) -> None:
        """Write parcels.stats: structures and parcels in the format of `mri_segstats`."""
        found = self.found
        assert found.parcel_map is not None
        parcellation = found.parcel_map.parcellation
        cortex = {label.name for label in parcellation.cortex}
        voxels = {
            name: count for name, count in found.voxels.items() if name not in cortex
        }
        voxels.update(found.parcel_voxels)
        table = format_aseg_stats(
            self.case.stem, parcellation.whole, voxels, found.voxel_mm3, self.volumes
        )
        write_whole(self.names.path(Product.PARCEL_STATS), table)

    def _write_cortex_stats(self, product: Product, side: Side) -> None:
        """Write lh.aparc.stats or rh.aparc.stats, the measures of a side's parcels."""
        table = format_cortex_stats(
            self.case.stem, self.found.cortex_thickness, side, self.found.parcel_voxels
        )
        write_whole(self.names.path(product), table)

    @cached_property
    def _tissues(self) -> Tissues:
        """Maps of grey matter, white matter and CSF, which all tissue files are written from."""
        return self.found.tissues()

    def _write_tissue_map(self, product: Product) -> None:
        """Write the probability map of one tissue."""
        found = _in_axes_of(
            product, self._tissues.by_label[product.own_entities["label"]]
        )
        write_maps(self.names.path(product), [found], 1)
        self._write_sidecar(product)

    def _write_probabilities(self) -> None:
        """Write the probability maps as one 4D file, background first, with a JSON sidecar.

        The JSON lists the structure of each map by its abbreviation in the label table, as BIDS
        requires.
        """
        labels = [
            label
            for label in self.found.scheme.labels
            if label.name not in self.found.not_predicted
        ]
        maps = (self.found.probabilities(label.name) for label in labels)
        write_maps(self.names.path(Product.PROBABILITIES), maps, len(labels))
        content = dict(self._provenance)
        content["LabelMap"] = [label.abbreviation for label in labels]
        path = self.names.path(Product.PROBABILITIES, ".json")
        write_json(path, content, indent=2)

    def _write_dicom_seg(self) -> None:
        """Write a DICOM SEG that refers to the series of the scan."""
        from trinat.segmentation.labels.dicom_seg import write_seg

        write_seg(
            self.names.path(Product.DICOM_SEG),
            self.found.indices,
            self.found.scheme,
            self.case.path,
            self.case.series,
            digest=self.digest,
            model=self.result.model,
            left_out=self.found.not_predicted,
        )

    def _write_page(self) -> None:
        """Write the page of a single scan."""
        facts = {
            "trinat": version("trinat"),
            "date": datetime.now(UTC).date().isoformat(),
            "model": f"{self.result.model} (SHA-256 {self.settings.model_sha256})",
            "scan": f"{self.case.stem} (SHA-256 {self.digest})",
        }
        # The folders too: scans of several participants may have one name.
        named = self.case.named
        page = scan_page(
            self.found,
            self.result,
            facts,
            title="/".join((*named.folders, named.name)),
            norms=self._output.reference,
            participant=self.case.facts,
        )
        write_whole(self.names.path(Product.PAGE), page)

    @stage("picture")
    def _write_picture(self) -> None:
        """Write a mosaic of slices with their labels."""
        found = self.found
        mosaic = draw_mosaic(
            found.image, found.working, found.scheme, title=self.case.stem
        )
        write_whole(self.names.path(Product.PICTURE), encoded(mosaic, "PNG"))


def _in_axes_of(product: Product, volume: Volume) -> Volume:
    """Return the volume with the axes that the file of an output needs.

    These are RAS for files that fMRIPrep reads: it reorients scans to RAS and overlays masks and
    maps on them as plain arrays. Other files keep the axes of the volume.
    """
    return reoriented(volume, "RAS") if product.for_fmriprep else volume


@stage("picture")
def _write_slices(path: Path, found: Prediction) -> None:
    """Write slices of a scan for the page of the run, as JSON with embedded pictures.

    The slices shown first have most of the structure on which the views agree least. The folder of
    `path` must not exist.
    """
    labels = found.scheme.labels
    focus = 0
    if found.agreement is not None:
        voxels = np.bincount(found.working.data.ravel(), minlength=len(labels))
        agreement = np.nan_to_num(found.agreement)
        # Structures that were not found cannot be shown.
        agreement = np.where(voxels > 0, agreement, np.inf)
        # Skip background.
        focus = 1 + int(np.argmin(agreement[1:]))
    slices = view_result(found.image, found.working, found.scheme, focus=focus)
    path.parent.mkdir()
    write_whole(path, slices.model_dump_json(exclude_defaults=True))


def format_aseg_stats(
    subject: str,
    scheme: LabelScheme,
    voxels: Mapping[str, float],
    voxel_mm3: float,
    volumes: BrainVolumes,
) -> str:
    """Format volumes as FreeSurfer's `aseg.stats`.

    `subject` is the name in its header. `voxels` has the number of voxels of each structure by
    name; voxels of the callosum may count in part. A structure with 0 voxels has a row, a structure
    that is not in `voxels` has none. Rows are sorted by FreeSurfer number and counted from 1.
    `voxel_mm3` is the volume of a voxel. `volumes` are the measures of the whole brain; an unknown
    measure has no line, but a note with the reason.
    """
    lines = [
        "# Title Segmentation Statistics",
        "# generating_program trinat",
        f"# subjectname {subject}",
    ]
    for known in MEASURES:
        mm3 = volumes.mm3.get(known.column)
        if mm3 is not None:
            fields = (known.key, known.name, known.words, f"{mm3:.6f}", "mm^3")
            lines.append(f"# Measure {', '.join(fields)}")
    if volumes.note:
        lines.append(f"# {volumes.note}")
    lines += [
        f"# VoxelVolume_mm3 {voxel_mm3:g}",
        "# ColHeaders Index SegId NVoxels Volume_mm3 StructName",
    ]
    # The callosum has a scheme of its own, because it is also part of the white matter.
    labels = (*scheme.labels, *load_scheme("callosum").labels[1:])
    found = [label for label in labels if label.name in voxels]
    found.sort(key=lambda label: label.fs_id)
    for index, label in enumerate(found, start=1):
        count = voxels[label.name]
        volume_mm3 = count * voxel_mm3
        # Columns are separated by spaces.
        name = "_".join(label.name.split())
        lines.append(
            f"{index:3d} {label.fs_id:3d} {count:9.0f} {volume_mm3:13.3f}  {name}"
        )
    return "\n".join(lines) + "\n"


def format_cortex_stats(
    subject: str, found: CortexThickness, side: Side, voxels: Mapping[str, int]
) -> str:
    """Format the thickness of one side as FreeSurfer's `?h.aparc.stats`.

    `subject` is the name in the header, and `found` is the thickness of both sides. `voxels` has
    the number of voxels of each parcel by name. Columns are in FreeSurfer's order, which its
    programs rely on. Voxels replace vertices, the surface is the middle surface, and there is no
    curvature. Parcels without cortex have no row.
    """
    (hemisphere,) = (sheet for sheet in found.hemispheres if sheet.side == side)
    lines = [
        "# Table of FreeSurfer cortical parcellation anatomical statistics",
        "# generating_program trinat",
        f"# subjectname {subject}",
        f"# hemi {HEMISPHERES[side]}",
        f"# Measure Cortex, MidSurfArea, Middle Surface Total Area, {hemisphere.area_mm2:g}, mm^2",
    ]
    if hemisphere.thickness_mm is not None:
        lines.append(
            f"# Measure Cortex, MeanThickness, Mean Thickness, {hemisphere.thickness_mm:g}, mm"
        )
    lines += [
        "# NTableCols 6",
        "# ColHeaders StructName NVoxels SurfArea GrayVol ThickAvg ThickStd",
    ]
    for sheet in found.parcels:
        if sheet.side != side or sheet.thickness_mm is None:
            continue
        name = sheet.name.removeprefix(f"ctx-{HEMISPHERES[side]}-")
        lines.append(
            f"{name:<40} {voxels[sheet.name]:5d}  {sheet.area_mm2:5.0f}  {sheet.volume_mm3:5.0f}"
            f"  {sheet.thickness_mm:5.3f} {sheet.std_mm:5.3f}"
        )
    return "\n".join(lines) + "\n"
