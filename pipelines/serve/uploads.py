"""Scans that are sent: the form is read to the disk, its scan is checked and put into the queue.

What is checked at once is what a client can correct at once: the fields of the form, the kind of
file by its name, the header of the scan. Damage in the voxels is found by the worker. How large an
upload may be is in `settings.py`; the guard cuts off what is larger, while it comes.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator, Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any, BinaryIO, cast

from fastapi import HTTPException, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from trinat.pipelines.serve.queue import OUTPUTS, Queue, Segmentation
from trinat.pipelines.serve.settings import (
    MAX_FIELD_BYTES,
    MAX_FORM_FIELDS,
    MIN_FREE_BYTES,
)
from trinat.segmentation.data.people import Facts
from trinat.segmentation.data.people_table import age_in, sex_in
from trinat.segmentation.errors import InputError
from trinat.segmentation.io.headers import read_mgh, read_nifti
from trinat.segmentation.io.streams import SCAN_SUFFIXES, ScanStream, has_checksum

_COPIED_BYTES = 1 << 20  # at once
# A header without its image, or an image without its header, is no scan.
_HALVES = (".hdr", ".img")
# How fields on the person are read.
_READERS: dict[str, Callable[[str], float | str]] = {"age": age_in, "sex": sex_in}
_ENDINGS = (*(suffix for suffix in SCAN_SUFFIXES if suffix not in _HALVES), ".zip")

# The form as the OpenAPI document describes it.
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
    """Read the form of a request and take its scan into the queue.

    What comes is written below the folder of the upload, which is gone afterwards if the scan was
    not accepted. Raises HTTPException or InputError for what is no such form or no scan,
    FullError where the queue is full, OSError where it cannot be stored, and ClientDisconnect.
    """
    with queue.upload(client) as folder:
        if shutil.disk_usage(folder).free < MIN_FREE_BYTES:
            raise HTTPException(507, "the server's disk is full")
        form = await _read_form(request, folder)
        try:
            return await run_in_threadpool(_take, queue, form, folder, client)
        finally:
            await form.close()


class _FormParser(MultiPartParser):
    """Starlette's parser of forms, which keeps large files in a folder of ours while they come.

    Starlette itself has them in the system's folder for temporary files, which may be small, and
    is not on the disk that the queue is on. `ended` says whether the form came to its end.
    """

    def __init__(
        self,
        request: Request,
        body: AsyncGenerator[bytes],
        folder: Path,
    ) -> None:
        super().__init__(
            request.headers,
            body,
            max_files=1,
            max_fields=MAX_FORM_FIELDS,
            max_part_size=MAX_FIELD_BYTES,
        )
        self.ended = False
        self._folder = folder
        self._spooled: list[SpooledTemporaryFile[bytes]] = []

    def on_headers_finished(self) -> None:
        """A part begins: give it, if it is a file, one in our folder."""
        super().on_headers_finished()
        upload = self._current_part.file
        if upload is None:
            return
        upload.file.close()  # still empty, and in memory
        # Starlette closes it with the form, and `close` where there is no form.
        spooled = SpooledTemporaryFile(  # noqa: SIM115
            self.spool_max_size, dir=str(self._folder)
        )
        self._spooled.append(spooled)
        upload.file = cast(BinaryIO, spooled)

    def on_end(self) -> None:
        """The last boundary was read."""
        self.ended = True

    def close(self) -> None:
        """Close the files; for a form that was not read to its end."""
        for spooled in self._spooled:
            spooled.close()


async def _read_form(request: Request, folder: Path) -> FormData:
    """The fields of a form, its file below `folder`; one that ends early is an error."""

    async def body() -> AsyncGenerator[bytes]:
        async for chunk in request.stream():
            yield chunk
        if not parser.ended:
            raise InputError("the form ends early")

    parser = _FormParser(request, body(), folder)
    try:
        return await parser.parse()
    except MultiPartException as error:
        parser.close()
        raise HTTPException(400, error.message) from None
    except BaseException:
        parser.close()
        raise


def _take(queue: Queue, form: FormData, folder: Path, client: str) -> Segmentation:
    """Take the scan of a form into the queue, once its header is looked at."""
    upload, outputs, person = _fields(form)
    is_compared = queue.has_norms and "page" in outputs
    if person != Facts() and not is_compared:
        raise InputError(
            "age and sex are for norms",
            remedy="leave them out, or send outputs=page to a service with norms",
        )
    # What kind of scan it is; nothing else of its name is kept.
    name = (upload.filename or "").lower()
    ending = next((each for each in _ENDINGS if name.endswith(each)), None)
    if ending is None:
        raise HTTPException(415, f"not a kind of scan: name it {', '.join(_ENDINGS)}")
    scan = folder / f"scan{ending}"
    with scan.open("wb") as file:
        shutil.copyfileobj(upload.file, file, _COPIED_BYTES)
    if ending == ".zip":
        if find_spec("highdicom") is None:
            raise InputError(
                "DICOM needs more packages", remedy="pip install 'trinat[dicom]'"
            )
        return queue.accept(scan, outputs, client, person)
    if "dicom-seg" in outputs:
        raise InputError("dicom-seg is made of DICOM files alone: send them as a zip")
    # A header that is broken, or announces too much, is refused at once.
    with ScanStream(scan, packed=has_checksum(scan)) as source:
        if ".mg" in scan.name:
            read_mgh(source)
        else:
            read_nifti(source)
    return queue.accept(scan, outputs, client, person)


def _fields(form: FormData) -> tuple[UploadFile, list[str], Facts]:
    """The file of a form, the outputs that it asks for, each once, and what it says of the person.

    Anything else is refused. An empty age or sex is not known.
    """
    files: list[UploadFile] = []
    words: list[str] = []
    person: dict[str, Any] = {}
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
                person[name] = _READERS[name](text)
            except ValueError as error:
                raise InputError(f"{name} {error}") from None
        else:
            raise _not_the_form()
    if len(files) != 1:
        raise _not_the_form()
    outputs = list(dict.fromkeys(word for word in words if word))
    if not OUTPUTS.keys() >= set(outputs):
        raise InputError(f"unknown outputs: choose from {', '.join(OUTPUTS)}")
    return files[0], outputs, Facts(**person)


def _not_the_form() -> InputError:
    """The refusal of a form with other fields than ours."""
    return InputError(
        "a form has one field `file` with a scan, and may have `outputs`, `age` and `sex`"
    )
