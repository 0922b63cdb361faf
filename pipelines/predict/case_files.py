"""The files of one case: label map, tables, maps, DICOM SEG and picture."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from trinat.pipelines.predict.outputs import CaseNames
from trinat.pipelines.predict.settings import OutputSettings, RunSettings
from trinat.pipelines.predict.tables import format_aseg_stats
from trinat.pipelines.scans.cases import Case
from trinat.pipelines.scans.naming import Product
from trinat.segmentation.inference.prediction import Prediction
from trinat.segmentation.io.files import write_whole
from trinat.segmentation.io.maps import write_maps
from trinat.segmentation.labels.measures import BrainVolumes
from trinat.segmentation.report.case_view import view_result
from trinat.segmentation.report.page import short_name
from trinat.segmentation.report.pictures import draw_mosaic, encoded
from trinat.segmentation.report.scan_page import scan_page
from trinat.segmentation.timing import stage


@dataclass(frozen=True)
class CaseFiles:
    """Writes the files of a case from its segmentation, in the folder of `names`."""

    names: CaseNames
    case: Case
    found: Prediction
    volumes: BrainVolumes
    settings: RunSettings
    model: str

    @cached_property
    def _output(self) -> OutputSettings:
        """The settings of the run, with the further outputs that this case alone gets."""
        also: dict[str, Any] = dict.fromkeys(self.case.also, True)
        return replace(self.settings.output, **also)

    @cached_property
    def _origin(self) -> dict[str, Any]:
        """What the JSON beside a file says of where it is from."""
        origin: dict[str, Any] = {}
        if self.settings.bids:
            source = f"bids:raw:{self.case.shown}"
            origin["SpatialReference"] = source
            origin["Sources"] = [source]
        origin["Model"] = self.model
        origin["ModelSHA256"] = self.settings.model_sha256
        origin["TrinatVersion"] = version("trinat")
        return origin

    def write_all(self, digest: str, result: Mapping[str, Any]) -> Path | None:
        """Write every file that is wanted; returns the path of the picture, None without one.

        `digest` is the SHA-256 of the scan, `result` what its line of the ledger says.
        """
        self._write_labels()
        if self._output.wants(Product.STATS):
            self._write_stats()
        if self._output.wants(Product.BRAIN_MASK):
            self._write_brain_mask()
        if self._output.wants(Product.ENTROPY):
            self.found.entropy.write(self.names.path(Product.ENTROPY))
        if self._output.wants(Product.PROBABILITIES):
            self._write_probabilities()
        if self._output.wants(Product.DICOM_SEG):
            self._write_dicom_seg(digest)
        if self._output.wants(Product.PAGE):
            self._write_page(digest, result)
        if self._output.wants(Product.PICTURE):
            return self._write_picture()
        return None

    def _write_labels(self) -> None:
        """The label map, and in a BIDS dataset the JSON beside it."""
        labels = self.found.indices
        if self._output.format == "aseg":
            labels = self.found.labels
        path = self.names.labels(self._output, self.case.path)
        labels.write(path, labels=True)
        if self.settings.bids:
            _write_json(self.names.path(Product.LABELS, ".json"), self._origin)

    def _write_stats(self) -> None:
        """aseg.stats, as FreeSurfer has it."""
        found = self.found
        table = format_aseg_stats(
            self.case.stem, found.scheme, found.voxels, found.voxel_mm3, self.volumes
        )
        write_whole(self.names.path(Product.STATS), table)

    def _write_brain_mask(self) -> None:
        """What is inside the skull, 1 there and 0 elsewhere; in a BIDS dataset with a JSON."""
        mask = self.found.brain
        numbers = replace(mask, data=mask.data.astype(np.uint8))
        numbers.write(self.names.path(Product.BRAIN_MASK), labels=True)
        if self.settings.bids:
            content = {"Type": "Brain", **self._origin}
            _write_json(self.names.path(Product.BRAIN_MASK, ".json"), content)

    def _write_probabilities(self) -> None:
        """One 4D file, background first, and the JSON that says what each of its maps is of.

        As BIDS has it, that is the abbreviation in the label table beside the label maps.
        """
        labels = [
            label
            for label in self.found.scheme.labels
            if label.name not in self.found.not_predicted
        ]
        maps = (self.found.probabilities(label.name) for label in labels)
        write_maps(self.names.path(Product.PROBABILITIES), maps, len(labels))
        content = dict(self._origin)
        content["LabelMap"] = [label.abbreviation for label in labels]
        _write_json(self.names.path(Product.PROBABILITIES, ".json"), content)

    def _write_dicom_seg(self, digest: str) -> None:
        """A DICOM SEG that refers to the series of the scan."""
        from trinat.segmentation.labels.dicom_seg import write_seg

        write_seg(
            self.names.path(Product.DICOM_SEG),
            self.found.indices,
            self.found.scheme,
            self.case.path,
            self.case.series,
            digest=digest,
            model=self.model,
            left_out=self.found.not_predicted,
        )

    def _write_page(self, digest: str, result: Mapping[str, Any]) -> None:
        """The page of the scan alone."""
        facts = {
            "trinat": version("trinat"),
            "date": datetime.now(UTC).date().isoformat(),
            "model": f"{self.model} (SHA-256 {self.settings.model_sha256})",
            "scan": f"{self.case.stem} (SHA-256 {digest})",
        }
        page = scan_page(
            self.found,
            result,
            facts,
            title=self.case.stem,
            ranges=self._output.reference,
        )
        write_whole(self.names.path(Product.PAGE), page)

    def _write_picture(self) -> Path:
        """A mosaic of slices with their labels."""
        path = self.names.path(Product.PICTURE)
        found = self.found
        with stage("picture"):
            mosaic = draw_mosaic(
                found.image, found.working, found.scheme, title=self.case.stem
            )
            write_whole(path, encoded(mosaic, "PNG"))
        return path


@stage("picture")
def write_slices(path: Path, found: Prediction) -> None:
    """What the page of the run shows of a scan, its most doubtful structure first.

    JSON, with pictures of the slices inside. The folder of `path` must not exist.
    """
    labels = found.scheme.labels
    focus = 0
    if found.agreement is not None:
        voxels = np.bincount(found.working.data.ravel(), minlength=len(labels))
        agreement = np.nan_to_num(found.agreement)
        # Structures that were not found are no place to look at.
        agreement = np.where(voxels > 0, agreement, np.inf)
        # Nor is background.
        focus = 1 + int(np.argmin(agreement[1:]))
    content = asdict(view_result(found.image, found.working, focus=focus))
    del content["truth"]
    del content["not_compared"]
    del content["still_png"]
    content["palette"] = {
        "colors": [label.color for label in labels],
        "names": [short_name(label.name) for label in labels],
    }
    path.parent.mkdir()
    _write_json(path, content)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_whole(path, json.dumps(content, indent=2) + "\n")
