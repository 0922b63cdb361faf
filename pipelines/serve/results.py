"""The files of a finished scan as clients ask for them; some are made when first asked for.

The engine leaves its usual outputs in the folder result/ of a scan. Label maps in MGZ and the
probabilities of one structure are made of these, beside them, and deleted with them.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
from fastapi import HTTPException

from trinat.pipelines.common.naming import Product
from trinat.pipelines.serve.queue import Queue
from trinat.pipelines.serve.records import Submission
from trinat.segmentation.io.files import read_text
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import LabelScheme


@dataclass(frozen=True)
class ResultFile:
    """A file that a client may ask for.

    `product` is the output of the engine that it is; None for a file that is called as clients
    call it. `output` is the word by which a client has to have asked for it; "" if it is always
    made.
    """

    product: Product | None
    output: str
    media_type: str


RESULTS = {
    "labels.nii.gz": ResultFile(Product.LABELS, "", "application/gzip"),
    "brainmask.nii.gz": ResultFile(Product.BRAIN_MASK, "", "application/gzip"),
    "labels.mgz": ResultFile(None, "mgz", "application/gzip"),
    "seg.dcm": ResultFile(Product.DICOM_SEG, "dicom-seg", "application/dicom"),
    "volumes.tsv": ResultFile(None, "", "text/tab-separated-values"),
    "qc.png": ResultFile(Product.PICTURE, "", "image/png"),
}


class Results:
    """Finds the files of finished scans; what is missing is a refusal for the client."""

    def __init__(self, queue: Queue, scheme: LabelScheme) -> None:
        """Of the scans in a queue, whose label maps follow a scheme."""
        self._queue = queue
        self._labels = {label.name: label for label in scheme.labels}
        # Files are made one at a time: each takes memory.
        self._making = threading.Lock()

    def file(self, submission: Submission, name: str) -> Path:
        """A result by its name, one of RESULTS; labels.mgz is made when it is first asked for."""
        if name not in RESULTS:
            raise HTTPException(404, f"no such result: there are {', '.join(RESULTS)}")
        result = RESULTS[name]
        _refuse_unless_asked(submission, result.output)
        if result.product:
            return self._queue.file(submission, result.product)
        path = self._queue.result(submission) / name
        if name == "labels.mgz":
            nifti = self._queue.file(submission, Product.LABELS)
            with self._making:
                if not path.exists():
                    Volume.read(nifti, labels=True).write(path, labels=True)
        return path

    def probability(self, submission: Submission, structure: str) -> Path:
        """The map of one structure, by its name in the scheme, as a file of its own.

        It is taken out of the 4D file of all maps, in the order that the JSON beside that says.
        """
        _refuse_unless_asked(submission, "probabilities")
        maps = self._queue.file(submission, Product.PROBABILITIES)
        sidecar = self._queue.file(submission, Product.PROBABILITIES, ".json")
        abbreviations = json.loads(read_text(sidecar))["LabelMap"]
        label = self._labels.get(structure)
        if label is None or label.abbreviation not in abbreviations:
            raise HTTPException(404, "no such structure: see /v1/labels")
        name = f"probabilities-{label.index}.nii.gz"
        path = self._queue.result(submission) / name
        with self._making:
            if not path.exists():
                number = abbreviations.index(label.abbreviation)
                _read_map(maps, number).write(path)
        return path


def _refuse_unless_asked(submission: Submission, output: str) -> None:
    """Refuse a result that is made on demand alone, where the client did not ask for it."""
    if output and output not in submission.outputs:
        raise HTTPException(404, f"not made: ask for it with outputs={output}")


def _read_map(path: Path, number: int) -> Volume:
    """One of the maps in a 4D file, without reading the others into memory."""
    image = nib.load(path)
    values = np.asarray(image.dataobj[..., number], np.float32)
    return Volume(values, image.affine)
