"""The HTTP interface and its page; `pipelines/web/guard.py` stands before it."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, get_args

import nibabel as nib
import numpy as np
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    StreamingResponse,
)
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from trinat.pipelines.common.naming import Product
from trinat.pipelines.predict.entry import Entry
from trinat.pipelines.predict.outputs import PLAIN_LABEL_TABLE
from trinat.pipelines.predict.tables import write_label_table
from trinat.pipelines.serve.queue import (
    OUTPUTS,
    FullError,
    Job,
    Queue,
    Segmentation,
    State,
)
from trinat.pipelines.serve.worker import Worker
from trinat.pipelines.view.app import routes_of
from trinat.pipelines.view.study import Item, Study
from trinat.pipelines.view.voxels import Voxels
from trinat.segmentation.errors import InputError, OutputError, TrinatError, reason_of
from trinat.segmentation.io.files import read_bytes, read_text
from trinat.segmentation.io.headers import read_mgh, read_nifti
from trinat.segmentation.io.plain_yaml import parse_yaml
from trinat.segmentation.io.streams import SCAN_SUFFIXES, ScanStream, has_checksum
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme, parse_scheme
from trinat.segmentation.models.zoo import MODEL_FILE, shipped_models

# Each result, what it is asked for by if not always made, and its type.
_RESULTS = {
    "labels.nii.gz": (Product.LABELS, "", "application/gzip"),
    "labels.mgz": (None, "mgz", "application/gzip"),
    "seg.dcm": (Product.DICOM_SEG, "dicom-seg", "application/dicom"),
    "volumes.tsv": (None, "", "text/tab-separated-values"),
    "qc.png": (Product.PICTURE, "", "image/png"),
}
_ENDINGS = (
    *(suffix for suffix in SCAN_SUFFIXES if suffix not in (".hdr", ".img")),
    ".zip",
)
_RETRY_S = "10"
_POLL_S, _BEAT = 0.2, 75  # after so many polls without news a line is sent all the same
_FREE_BYTES = 1 << 30  # A disk with less has no room for results.
_FORM: dict[str, Any] = {
    "type": "object",
    "required": ["file"],
    "properties": {
        "file": {
            "type": "string",
            "format": "binary",
            "description": "NIfTI, MGZ, zipped DICOM",
        },
        "outputs": {"type": "string", "examples": ["mgz,probabilities"]},
    },
}


def make_app(queue: Queue, worker: Worker, model: str, scheme: LabelScheme) -> FastAPI:
    """Every route; an id is looked up, and no path has a part that a client has chosen."""
    app = FastAPI(
        title="trinat",
        version=version("trinat"),
        description="Segments the human brain in T1-weighted MRI. For research, not for diagnosis.",
        docs_url=None,  # their pages would come from elsewhere
        redoc_url=None,
        # For the document alone: the guard has let in who comes so far.
        dependencies=[Depends(HTTPBearer(auto_error=False))],
        exception_handlers=dict.fromkeys(
            (
                AnyHTTPException,
                RequestValidationError,
                TrinatError,
                FileNotFoundError,
                Exception,
            ),
            _told,
        ),
    )
    tempfile.tempdir = str(
        queue.folder / "incoming"
    )  # where uploads are put as they come
    making = threading.Lock()

    def known(id: Annotated[str, InPath(pattern="^[0-9a-f]{32}$")]) -> Job:
        if job := queue.jobs.get(id):
            return job
        raise HTTPException(404, "no such segmentation: deleted, or never there")

    def done(job: Job = Depends(known)) -> Job:
        if job.state != "done":
            raise HTTPException(409, f"no result: it is {job.state}")
        return job

    def made(path: Path, make: Callable[[], Volume], *, labels: bool = False) -> Path:
        # One at a time: each takes memory.
        with making:
            if not path.exists():
                make().write(path, labels=labels)
        return path

    @app.post(
        "/v1/segmentations",
        status_code=202,
        openapi_extra={
            "requestBody": {"content": {"multipart/form-data": {"schema": _FORM}}}
        },
    )
    async def accept(request: Request, response: Response) -> Segmentation:
        """Put a scan into the queue: form field `file`, and what is wanted as well in `outputs`."""
        if not request.headers.get("content-type", "").startswith(
            "multipart/form-data"
        ):
            raise HTTPException(
                415, "not multipart/form-data: send the scan as its field `file`"
            )
        client = request.client.host if request.client else ""
        try:
            with queue.upload(client) as folder:
                if shutil.disk_usage(folder).free < _FREE_BYTES:
                    raise HTTPException(507, "the server's disk is full")
                form = await _form(request)
                try:
                    job = await run_in_threadpool(
                        _take, queue, form.multi_items(), folder, client
                    )
                finally:
                    await form.close()
        except FullError as error:
            raise HTTPException(429, str(error), {"Retry-After": _RETRY_S}) from None
        except InputError as error:
            raise HTTPException(422, reason_of(error, where=False)) from None
        except OSError as error:
            raise HTTPException(
                507, f"it could not be stored: {error.strerror}"
            ) from None
        except ClientDisconnect:
            raise HTTPException(400, "the upload was cut short") from None
        response.headers["Location"] = f"/v1/segmentations/{job.id}"
        return job

    @app.get("/v1/segmentations/{id}")
    def state(job: Job = Depends(known)) -> Segmentation:
        """How far it is."""
        return queue.seen(job)

    @app.get("/v1/segmentations/{id}/events", response_class=StreamingResponse)
    async def events(job: Job = Depends(known)) -> StreamingResponse:
        """The same as server-sent events, until it has ended."""
        return StreamingResponse(_events(queue, job), media_type="text/event-stream")

    @app.delete("/v1/segmentations/{id}", status_code=204)
    def delete(job: Job = Depends(known)) -> None:
        """Delete the scan and its results, whatever its state."""
        queue.delete(job)

    @app.get("/v1/segmentations/{id}/{name}", response_class=FileResponse)
    def result(
        name: Annotated[str, InPath(examples=list(_RESULTS))], job: Job = Depends(done)
    ) -> FileResponse:
        """A result."""
        if name not in _RESULTS:
            raise HTTPException(404, f"no such result: there are {', '.join(_RESULTS)}")
        product, asked, media_type = _RESULTS[name]
        _require(job, asked)
        path = queue.file(job, product) if product else queue.result(job) / name
        if name == "labels.mgz":
            nifti = queue.file(job, Product.LABELS)
            made(path, lambda: Volume.read(nifti, labels=True), labels=True)
        return FileResponse(path, media_type=media_type, filename=name)

    @app.get(
        "/v1/segmentations/{id}/probabilities/{structure}", response_class=FileResponse
    )
    def probabilities(structure: str, job: Job = Depends(done)) -> FileResponse:
        """The probability of a structure, by its name in /v1/labels, as .nii.gz."""
        _require(job, "probabilities")
        label = next(
            (label for label in scheme.labels if label.name == structure), None
        )
        maps = json.loads(read_text(queue.file(job, Product.PROBABILITIES, ".json")))[
            "LabelMap"
        ]
        if label is None or label.abbreviation not in maps:
            raise HTTPException(404, "no such structure: see /v1/labels")
        path = queue.result(job) / f"probabilities-{label.index}.nii.gz"
        maps_file, number = (
            queue.file(job, Product.PROBABILITIES),
            maps.index(label.abbreviation),
        )
        made(path, lambda: _map(maps_file, number))
        return FileResponse(
            path, media_type="application/gzip", filename=f"{structure}.nii.gz"
        )

    @app.get("/v1/models")
    def models() -> list[dict[str, Any]]:
        """The shipped models, and which one is at work here."""
        found = [
            (name, _model_yaml(folder)) for name, folder in shipped_models().items()
        ]
        return [
            {
                "name": n,
                "in_use": n == model,
                "labels": i["labels"],
                "metrics": i.get("metrics"),
            }
            for n, i in found
        ]

    @app.get("/v1/labels")
    def labels() -> list[dict[str, Any]]:
        """Numbers, names and colours in label maps."""
        return [
            {
                "number": x.fs_id,
                "name": x.name,
                "abbreviation": x.abbreviation,
                "color": x.color,
            }
            for x in scheme.labels
        ]

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Whether the server answers; needs no token."""
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> dict[str, str]:
        """Whether the model is loaded and scans are begun."""
        if not worker.ready:
            raise HTTPException(
                503, "the model is not loaded yet", {"Retry-After": _RETRY_S}
            )
        return {"status": "ready"}

    @app.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> str:
        """For Prometheus."""
        states = Counter(job.state for job in list(queue.jobs.values()))
        return "\n".join(
            (
                "# TYPE trinat_scans gauge",
                *(f'trinat_scans{{state="{s}"}} {states[s]}' for s in get_args(State)),
                "# TYPE trinat_scans_ended_total counter",
                *(
                    f'trinat_scans_ended_total{{state="{s}"}} {n}'
                    for s, n in queue.ended.items()
                ),
                "# TYPE trinat_work_seconds_total counter",
                f"trinat_work_seconds_total {queue.busy_s:.3f}",
                "# TYPE trinat_ready gauge",
                f"trinat_ready {int(worker.ready)}\n",
            )
        )

    study = _QueueStudy(queue, scheme)
    voxels = Voxels(study)
    queue.forget = voxels.forget
    app.router.routes += routes_of(study, voxels)
    return app


def read_scheme(model: Path) -> LabelScheme:
    """Of a model folder, without torch: the models themselves are loaded by the workers."""
    name = _model_yaml(model)["labels"]
    table = model / f"{name}.tsv"
    return (
        parse_scheme(name, read_bytes(table), table)
        if table.is_file()
        else load_scheme(name)
    )


def _model_yaml(folder: Path) -> Any:
    return parse_yaml(read_bytes(folder / MODEL_FILE), aliases=False)


async def _told(_: Request, error: Exception) -> Response:
    """What is wrong, in one line; never what was sent."""
    if isinstance(error, AnyHTTPException):
        return JSONResponse({"reason": error.detail}, error.status_code, error.headers)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        return JSONResponse({"reason": f"{first['loc'][-1]}: {first['msg']}"}, 422)
    if isinstance(error, OutputError):
        # The scan is not to blame.
        return JSONResponse({"reason": reason_of(error, where=False)}, 507)
    if isinstance(error, TrinatError):
        return JSONResponse({"reason": reason_of(error, where=False)}, 422)
    if isinstance(error, FileNotFoundError):
        return JSONResponse({"reason": "deleted meanwhile"}, 404)
    return JSONResponse({"reason": "a fault of trinat: see its log"}, 500)


def _require(job: Job, asked: str) -> None:
    if asked and asked not in job.outputs:
        raise HTTPException(404, f"not made: ask for it with outputs={asked}")


class _FormParser(MultiPartParser):
    ended = False

    def on_end(self) -> None:
        self.ended = True


async def _form(request: Request) -> FormData:
    """A form that ends early is an error, upon which the parser closes its files."""

    async def body() -> AsyncGenerator[bytes]:
        async for chunk in request.stream():
            yield chunk
        if not parser.ended:
            raise InputError("the form ends early")

    parser = _FormParser(
        request.headers, body(), max_files=1, max_fields=9, max_part_size=200
    )
    try:
        return await parser.parse()
    except MultiPartException as error:
        raise HTTPException(400, error.message) from None


def _take(
    queue: Queue, parts: list[tuple[str, UploadFile | str]], folder: Path, client: str
) -> Segmentation:
    """Take the scan of a form into the queue, once its header is looked at."""
    files = [
        part for name, part in parts if name == "file" and isinstance(part, UploadFile)
    ]
    texts = [
        part for name, part in parts if name == "outputs" and isinstance(part, str)
    ]
    if len(files) != 1 or len(files) + len(texts) != len(parts):
        raise InputError(
            "a form has one field `file` with a scan, and may have `outputs`"
        )
    words = [word.strip() for text in texts for word in text.split(",") if word.strip()]
    if not OUTPUTS.keys() >= set(words):
        raise InputError(f"unknown outputs: choose from {', '.join(OUTPUTS)}")
    name = (files[0].filename or "").lower()
    ending = next((ending for ending in _ENDINGS if name.endswith(ending)), "")
    if not ending:
        raise HTTPException(415, f"not a kind of scan: name it {', '.join(_ENDINGS)}")
    scan = folder / f"scan{ending}"
    with scan.open("wb") as file:
        shutil.copyfileobj(files[0].file, file, 1 << 20)
    if ending != ".zip":
        if "dicom-seg" in words:
            raise InputError(
                "dicom-seg is made of DICOM files alone: send them as a zip"
            )
        # A header that is broken, or announces too much, is told at once.
        with ScanStream(scan, packed=has_checksum(scan)) as stream:
            (read_mgh if ".mg" in ending else read_nifti)(stream)
    elif find_spec("highdicom") is None:
        raise InputError(
            "DICOM needs more packages", remedy="pip install 'trinat[dicom]'"
        )
    return queue.accept(scan, list(dict.fromkeys(words)), client)


def _map(path: Path, number: int) -> Volume:
    image = nib.load(path)
    return Volume(np.asarray(image.dataobj[..., number], np.float32), image.affine)


class _QueueStudy(Study):
    """The queue as the page of results lists it: the last first, and not to be rated.

    Scans have the numbers with which they were accepted: those of a list would change.
    """

    queue: Queue

    def __init__(self, queue: Queue, scheme: LabelScheme) -> None:
        super().__init__(queue.folder, rater="")
        self.__dict__["queue"] = queue  # frozen otherwise
        write_label_table(queue.folder / PLAIN_LABEL_TABLE, scheme, by_index=False)

    @property
    def jobs(self) -> list[Job]:
        return list(self.queue.jobs.values())[::-1]

    @property
    def items(self) -> list[Item]:
        return [self._item(job) for job in self.jobs]

    def __getitem__(self, number: int) -> Item:
        for job in self.jobs:
            if job.number == number:
                return self._item(job)
        raise InputError("no such scan: deleted, or never there")

    def image(self, item: Item) -> Path | None:
        scan = Path(item.entry.scan)
        return scan if item.labels and scan.suffix != ".zip" else None

    def overview(self) -> dict[str, Any]:
        """With what a page needs to send a scan, to follow it and to take its results."""
        jobs = {job.id: job for job in self.jobs}
        known = super().overview()
        scans = [
            {
                **scan,
                "number": job.number,
                **self.queue.seen(job).model_dump(exclude={"grade"}),
            }
            for scan in known["scans"]
            if (job := jobs.get(scan["name"]))
        ]
        return {
            **known,
            "title": "Scans sent to this service",
            "service": True,
            "scans": scans,
        }

    def rate(self, *_: object, **__: object) -> None:
        raise InputError(
            "results of a service are not rated: they are deleted after a while"
        )

    def _item(self, job: Job) -> Item:
        scan = self.queue.result(job).with_name(f"scan{job.ending}")
        labels = self.queue.file(job, Product.LABELS) if job.state == "done" else None
        state: Any = job.state
        entry = Entry(
            job.id, state, scan=str(scan), reason=job.reason, result=job.result
        )
        return Item(job.id, self.folder, entry, labels)


async def _events(queue: Queue, job: Job) -> AsyncIterator[str]:
    told, silent = "", 0
    while job.id in queue.jobs:
        now = queue.seen(job).model_dump_json()
        if now != told or silent > _BEAT:
            yield f"data: {now}\n\n"
            told, silent = now, 0
        if job.ended:
            return
        silent += 1
        await asyncio.sleep(_POLL_S)
