"""Uploads of scans: the form is written to disk, its scan is checked and put into the queue.

Errors that a client can correct are found before the scan is accepted: the fields of the form, the
type of file by its name, and the header of the scan; a zip must have a DICOM file in it. Damaged
voxels are found by the engine later.
The maximum size of an upload is in `settings.py`; `guard.py` stops larger ones while they arrive.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import HTTPException, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException as StarletteHTTPException

from trinat.pipelines.common.extras import require_extra
from trinat.pipelines.serve.queue import OUTPUTS, Queue, Segmentation
from trinat.pipelines.serve.settings import (
    MAX_FIELD_BYTES,
    MAX_FORM_FIELDS,
)
from trinat.pipelines.study.participants import Facts
from trinat.segmentation.errors import FormatError, InputError
from trinat.segmentation.io.cells import age_in, sex_in
from trinat.segmentation.io.dicom.parsing import START_LENGTH, has_magic
from trinat.segmentation.io.dicom.series import opened
from trinat.segmentation.io.headers import read_mgh, read_nifti
from trinat.segmentation.io.streams import SCAN_SUFFIXES, ScanStream, has_checksum

_COPIED_BYTES = 1 << 20  # bytes copied at a time
# Endings of pairs of files: a single upload cannot contain both, so they are refused.
_HALVES = (".hdr", ".img")
# Parsers of the fields about the participant.
_READERS: dict[str, Callable[[str], float | str]] = {"age": age_in, "sex": sex_in}
_ENDINGS = (*(suffix for suffix in SCAN_SUFFIXES if suffix not in _HALVES), ".zip")
# The fields of the form, for messages.
_THE_FORM = (
    "a form has one field `file` with a scan, and may have `outputs`, `age` and `sex`"
)

# Schema of the form in the OpenAPI document.
FORM: dict[str, Any] = {
    "type": "object",
    "required": ["file"],
    "properties": {
        "file": {
            "type": "string",
            "format": "binary",
            "description": "NIfTI, MGZ, zipped DICOM",
        },
        "outputs": {"type": "string", "examples": ["mgz,probabilities"]},
        "age": {"type": "string", "description": "in years, for norms"},
        "sex": {"type": "string", "description": "M or F, for norms"},
    },
}


async def receive(request: Request, queue: Queue, client: str) -> Segmentation:
    """Read the form of an upload and put its scan into the queue; return the scan's state.

    `client` is the address of the client. Raises HTTPException or InputError for a form with other
    fields or a file that is no scan, FullError if the queue is full, OSError if the scan cannot be
    stored, and ClientDisconnect if the upload breaks off.
    """
    with queue.upload(client) as folder:
        if queue.is_disk_full:
            raise HTTPException(507, "the server's disk is full")
        try:
            form = await request.form(
                max_files=1, max_fields=MAX_FORM_FIELDS, max_part_size=MAX_FIELD_BYTES
            )
        except StarletteHTTPException as error:
            # The guard has other statuses for bodies that are too large or too slow.
            if error.status_code != 400:
                raise
            raise HTTPException(
                400, f"{_THE_FORM} of up to {MAX_FIELD_BYTES} bytes"
            ) from None
        try:
            return await run_in_threadpool(_take, queue, form, folder)
        finally:
            await form.close()


def _take(queue: Queue, form: FormData, folder: Path) -> Segmentation:
    """Store the scan of a form in `folder`, check its header and put it into the queue.

    Returns the scan's state. Raises InputError or HTTPException if the form or the scan is refused,
    and ConfigError if a package for an output is missing.
    """
    upload, outputs, participant = _fields(form)
    is_compared = queue.has_norms and "page" in outputs
    if participant != Facts() and not is_compared:
        raise InputError(
            "age and sex are for norms",
            remedy="leave them out, or send outputs=page to a service with norms",
        )
    # The name only determines the type of file; it is not stored.
    name = (upload.filename or "").lower()
    ending = next((each for each in _ENDINGS if name.endswith(each)), None)
    if ending is None:
        raise HTTPException(415, f"not a kind of scan: name it {', '.join(_ENDINGS)}")
    if "dicom-seg" in outputs:
        if ending != ".zip":
            raise InputError("dicom-seg requires DICOM input: send the files as a zip")
        require_extra("dicom", "pydicom", "highdicom")
    scan = folder / f"scan{ending}"
    with scan.open("wb") as file:
        shutil.copyfileobj(upload.file, file, _COPIED_BYTES)
    if ending == ".zip":
        _require_dicom(scan)
        return queue.accept(scan, outputs, participant).seen()
    # Refuses a header that is broken or announces too much data.
    with ScanStream(scan, packed=has_checksum(scan)) as source:
        if ".mg" in scan.name:
            read_mgh(source)
        else:
            read_nifti(source)
    return queue.accept(scan, outputs, participant).seen()


def _require_dicom(scan: Path) -> None:
    """Raise InputError unless a zip is sound and has a DICOM file in it."""
    with opened(scan) as archive:
        for name in archive.members:
            if has_magic(archive.read(name, START_LENGTH)):
                return
    raise FormatError(
        "no DICOM file in the zip", remedy="send NIfTI and MGZ files without a zip"
    )


def _fields(form: FormData) -> tuple[UploadFile, list[str], Facts]:
    """Read the fields of a form: the uploaded file, the requested outputs, and age and sex.

    Outputs are keys of `OUTPUTS` without duplicates. An empty age or sex counts as unknown (None).
    Raises InputError for any other field, and for values that cannot be read.
    """
    files: list[UploadFile] = []
    words: list[str] = []
    participant: dict[str, Any] = {}
    for name, part in form.multi_items():
        if name == "file" and isinstance(part, UploadFile):
            files.append(part)
        elif name == "outputs" and isinstance(part, str):
            words += [word.strip() for word in part.split(",")]
        elif name in _READERS and isinstance(part, str):
            text = part.strip()
            if not text:
                continue
            try:
                participant[name] = _READERS[name](text)
            except ValueError as error:
                raise InputError(f"{name} {error}") from None
        else:
            raise InputError(_THE_FORM)
    if len(files) != 1:
        raise InputError(_THE_FORM)
    outputs = list(dict.fromkeys(word for word in words if word))
    if not OUTPUTS.keys() >= set(outputs):
        raise InputError(f"unknown outputs: choose from {', '.join(OUTPUTS)}")
    return files[0], outputs, Facts(**participant)
