"""The HTTP service: its routes, as documented in docs/service.md, and its main loop.

Ids are looked up in the queue, and no path on the disk has a part that was chosen by a client. The
page and its routes are in `viewer.py`; `guard.py` protects all of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, get_args

import nibabel as nib
import numpy as np
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    StreamingResponse,
)
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect

from trinat.pipelines.common.models import print_licences
from trinat.pipelines.jobs.lock import run_lock
from trinat.pipelines.predict.settings import PredictRequest
from trinat.pipelines.serve.learner import Learner, Learning
from trinat.pipelines.serve.queue import (
    OUTPUTS,
    EngineThread,
    FullError,
    Queue,
    Segmentation,
    State,
    Submission,
)
from trinat.pipelines.serve.queue_study import study_of
from trinat.pipelines.serve.settings import ServiceSettings
from trinat.pipelines.serve.uploads import FORM, receive
from trinat.pipelines.study.corrections import OvertakenError, corrected_path
from trinat.pipelines.study.naming import Product
from trinat.pipelines.view.start import answer
from trinat.pipelines.view.viewer import routes_of
from trinat.pipelines.view.voxels import Voxels
from trinat.segmentation.errors import InputError, OutputError, TrinatError, reason_of
from trinat.segmentation.io.files import read_text
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.parcels import Parcellation
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.models.zoo import (
    find_model,
    find_parcels_folder,
    read_model_file,
    read_scheme,
    shipped_models,
)

_DESCRIPTION = (
    "Segments the human brain in T1-weighted MRI. For research, not for diagnosis."
)
_ANSWERED_ERRORS = (
    StarletteHTTPException,
    RequestValidationError,
    TrinatError,
    FileNotFoundError,
    Exception,
)


# Retry-After of refused clients, in seconds.
_RETRY_S = "10"
_POLL_S = 0.2
# Number of polls without a change after which an event is sent anyway, as a keep-alive.
_SILENT_POLLS = 75

router = APIRouter()


@dataclass(frozen=True)
class _ResultFile:
    """Description of a result file that a client may request.

    `product` is the kind of output of the segmentation; None for a file that `Results` or the
    viewer makes. `output` is the word, a key of `OUTPUTS`, with which the client must have
    requested the file at upload; "" if the file is always made.
    """

    product: Product | None
    output: str


def _output_key_of(product: Product) -> str:
    """Return the key of `OUTPUTS` by which a client requests an output; "" if it is always made."""
    words = (word for word, setting in OUTPUTS.items() if setting == product.setting)
    return next(words, "")


_RESULTS = {
    product.download: _ResultFile(product, _output_key_of(product))
    for product in Product
    if product.download
} | {
    "labels.mgz": _ResultFile(None, "mgz"),
    "volumes.tsv": _ResultFile(None, ""),
    "corrected.nii.gz": _ResultFile(None, ""),
    "parcels.tsv": _ResultFile(None, ""),
}
_MEDIA_TYPES = {
    **dict.fromkeys((".gz", ".mgz"), "application/gzip"),
    ".dcm": "application/dicom",
    ".html": "text/html",
    ".png": "image/png",
    ".tsv": "text/tab-separated-values",
}
# Only made by a service with --parcels.
_OF_PARCELS = ("parcels.nii.gz", "parcels.tsv")


class Results:
    """Result files of finished scans, for download.

    Errors are HTTPExceptions with status 404 if a scan does not have the requested file. The engine
    writes its outputs to the folder result/ of a scan. The label map in MGZ and the probability map
    of a single structure are made from these at the first request, stored beside them, and deleted
    with them.
    """

    def __init__(self, queue: Queue, scheme: LabelScheme) -> None:
        """Prepare for the scans in `queue`, whose label maps have the labels of `scheme`."""
        self._queue = queue
        self._labels = {label.name: label for label in scheme.labels}
        # Files are made one at a time, since each takes memory.
        self._making = threading.Lock()

    def file(self, submission: Submission, name: str) -> Path:
        """Return the path of a result file by its name for clients, such as labels.mgz.

        Names are the keys of `_RESULTS`. labels.mgz is made at the first request. Raises
        HTTPException (404) for unknown names, and for files that the scan does not have.
        """
        if name not in _RESULTS:
            made = [each for each in _RESULTS if not self._missing(submission, each)]
            raise HTTPException(404, f"no such result: there are {', '.join(made)}")
        reason = self._missing(submission, name)
        if reason:
            raise HTTPException(404, reason)
        labels = self._queue.file(submission, Product.LABELS)
        if name == "corrected.nii.gz":
            return corrected_path(labels)
        product = _RESULTS[name].product
        if product:
            return self._queue.file(submission, product)
        path = self._queue.result(submission) / name
        if name == "labels.mgz":
            with self._making:
                if not path.exists():
                    Volume.read(labels, labels=True).write(path, labels=True)
        return path

    def _missing(self, submission: Submission, name: str) -> str:
        """Return the reason why a scan does not have the result `name`; "" if it has it.

        `name` is a key of `_RESULTS`.
        """
        output = _RESULTS[name].output
        if output and output not in submission.outputs:
            return _not_requested(output)
        if name in _OF_PARCELS and not submission.result.parcels:
            return "not made: this service has no --parcels"
        labels = self._queue.file(submission, Product.LABELS)
        if name == "corrected.nii.gz" and not corrected_path(labels).is_file():
            return "there is no correction of this scan; make one with the brush of its page"
        return ""

    def probability(self, submission: Submission, structure: str) -> Path:
        """Return the path of the probability map of one structure, a 3D NIfTI file.

        `structure` is its name in the label scheme. The map is extracted at the first request from
        the 4D file of all maps, whose order is in the JSON beside it. Raises HTTPException (404)
        for an unknown structure, or if probabilities were not requested.
        """
        if "probabilities" not in submission.outputs:
            raise HTTPException(404, _not_requested("probabilities"))
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
                # The proxy reads only this map of the file into memory.
                image = nib.load(maps)
                number = abbreviations.index(label.abbreviation)
                values = np.asarray(image.dataobj[..., number], np.float32)
                Volume(values, image.affine).write(path)
        return path


def _not_requested(output: str) -> str:
    """Return the message for an optional result that was not requested; `output` is its key."""
    return f"not made: ask for it with outputs={output}"


@dataclass(frozen=True)
class Service:
    """Objects shared by the routes; `make_app` stores this in `app.state.service`."""

    queue: Queue
    engine: EngineThread
    model: str  # its name, or its folder
    scheme: LabelScheme
    results: Results
    learner: Learner

    @property
    def why_not_ready(self) -> str:
        """Reason why no scan can be processed now; "" if the service is ready."""
        if not self.engine.ready:
            return "the model is not loaded yet"
        if self.queue.is_disk_full:
            return "the server's disk is full"
        return ""


async def _service(request: Request) -> Service:
    """Return the service of the application, for FastAPI's `Depends`."""
    service: Service = request.app.state.service
    return service


AtService = Annotated[Service, Depends(_service)]


def _known(
    id: Annotated[str, InPath(pattern="^[0-9a-f]{32}$")], service: AtService
) -> Submission:
    """Return the scan with this id; raise HTTPException (404) if there is none."""
    submission = service.queue.find(id)
    if submission is None:
        raise HTTPException(404, "no such segmentation: deleted, or never there")
    return submission


Known = Annotated[Submission, Depends(_known)]


def _done(submission: Known) -> Submission:
    """Return the scan with this id; raise HTTPException (409) if its segmentation is not done."""
    if submission.state != "done":
        raise HTTPException(409, f"no result: it is {submission.state}")
    return submission


Done = Annotated[Submission, Depends(_done)]


@router.post(
    "/v1/segmentations",
    status_code=202,
    openapi_extra={
        "requestBody": {"content": {"multipart/form-data": {"schema": FORM}}}
    },
)
async def accept(
    request: Request, response: Response, service: AtService
) -> Segmentation:
    """Queue a scan: form field `file`; `outputs` names the optional results to make.

    If the service has norms, `age` and `sex` of the participant are accepted too.
    """
    content_type = request.headers.get("content-type", "")
    if not content_type.startswith("multipart/form-data"):
        raise HTTPException(
            415, "not multipart/form-data: send the scan as its field `file`"
        )
    client = ""
    if request.client:
        client = request.client.host
    try:
        accepted = await receive(request, service.queue, client)
    except FullError as error:
        raise HTTPException(429, str(error), {"Retry-After": _RETRY_S}) from None
    except InputError as error:
        raise HTTPException(422, reason_of(error, where=False)) from None
    except OSError as error:
        raise HTTPException(507, f"it could not be stored: {error.strerror}") from None
    except ClientDisconnect:
        raise HTTPException(400, "the upload was cut short") from None
    response.headers["Location"] = f"/v1/segmentations/{accepted.id}"
    return accepted


@router.get("/v1/segmentations/{id}")
def state(submission: Known) -> Segmentation:
    """Return the state of a scan: queued, running, done or failed."""
    return submission.seen()


@router.get("/v1/segmentations/{id}/events", response_class=StreamingResponse)
async def events(submission: Known, service: AtService) -> StreamingResponse:
    """Stream the state of a scan as server-sent events until it has ended."""
    lines = _events(service.queue, submission)
    return StreamingResponse(lines, media_type="text/event-stream")


@router.delete("/v1/segmentations/{id}", status_code=204)
def delete(submission: Known, service: AtService) -> None:
    """Delete a scan and its results, in any state."""
    service.queue.delete(submission)


@router.get("/v1/segmentations/{id}/{name}", response_class=FileResponse)
def result(
    name: Annotated[str, InPath(examples=list(_RESULTS))],
    submission: Done,
    service: AtService,
) -> FileResponse:
    """Return a result file by its name."""
    path = service.results.file(submission, name)
    media_type = _MEDIA_TYPES[Path(name).suffix]
    return FileResponse(path, media_type=media_type, filename=name)


@router.get(
    "/v1/segmentations/{id}/probabilities/{structure}", response_class=FileResponse
)
def probabilities(structure: str, submission: Done, service: AtService) -> FileResponse:
    """Return the probability map of a structure, by its name in /v1/labels, as .nii.gz."""
    path = service.results.probability(submission, structure)
    return FileResponse(
        path, media_type="application/gzip", filename=f"{structure}.nii.gz"
    )


@router.post("/v1/learning", status_code=202)
def ask_to_learn(service: AtService) -> Learning:
    """Start learning a model from the corrections, once the scans before it are finished."""
    try:
        return service.learner.ask()
    except FullError as error:
        raise HTTPException(409, str(error)) from None


@router.get("/v1/learning")
def learning(service: AtService) -> Learning | None:
    """Return the progress and outcome of the learning; null if none was requested."""
    return service.learner.job


@router.get("/v1/learning/own.zip", response_class=FileResponse)
def learnt(service: AtService) -> FileResponse:
    """Return the learnt model: a folder in a zip file."""
    job = service.learner.job
    if job is None or job.state != "done":
        raise HTTPException(
            409, "there is no learnt model, or learning has not finished"
        )
    model = service.learner.model
    return FileResponse(model, media_type="application/zip", filename=model.name)


@router.delete("/v1/learning", status_code=204)
def forget_learning(service: AtService) -> None:
    """Stop the learning, in any state, and delete its model."""
    service.learner.delete()


@router.get("/v1/models")
def models(service: AtService) -> list[dict[str, Any]]:
    """Return the shipped models, and mark the one in use."""
    descriptions = []
    for name, folder in shipped_models().items():
        info = read_model_file(folder)
        descriptions.append(
            {
                "name": name,
                "in_use": name == service.model,
                "labels": info["labels"],
                "metrics": info.get("metrics"),
            }
        )
    return descriptions


@router.get("/v1/labels")
def labels(service: AtService) -> list[dict[str, Any]]:
    """Return the numbers, names and colours of label maps."""
    return [
        {
            "number": label.fs_id,
            "name": label.name,
            "abbreviation": label.abbreviation,
            "color": label.color,
        }
        for label in service.scheme.labels
    ]


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Report that the server is alive; needs no token."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(service: AtService) -> dict[str, str]:
    """Report whether scans are being processed: the model is loaded, and the disk has room."""
    reason = service.why_not_ready
    if reason:
        raise HTTPException(503, reason, {"Retry-After": _RETRY_S})
    return {"status": "ready"}


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(service: AtService) -> str:
    """Return counts and processing times of scans in the format of Prometheus."""
    queue = service.queue
    counts = Counter(submission.state for submission in queue.submissions)
    scans = [
        f'trinat_scans{{state="{name}"}} {counts[name]}' for name in get_args(State)
    ]
    ended = [
        f'trinat_scans_ended_total{{state="{name}"}} {count}'
        for name, count in queue.ended.items()
    ]
    lines = [
        "# TYPE trinat_scans gauge",
        *scans,
        "# TYPE trinat_scans_ended_total counter",
        *ended,
        "# TYPE trinat_work_seconds_total counter",
        f"trinat_work_seconds_total {queue.busy_s:.3f}",
        "# TYPE trinat_ready gauge",
        f"trinat_ready {int(not service.why_not_ready)}",
    ]
    return "\n".join(lines) + "\n"


async def _events(queue: Queue, submission: Submission) -> AsyncIterator[str]:
    """Yield a server-sent event whenever a scan's state changes, until it ends or is deleted."""
    sent = ""
    silent_polls = 0
    while now := queue.find(submission.id):
        line = now.seen().model_dump_json()
        if line != sent or silent_polls > _SILENT_POLLS:
            yield f"data: {line}\n\n"
            sent = line
            silent_polls = 0
        if now.ended:
            return
        silent_polls += 1
        await asyncio.sleep(_POLL_S)


def make_app(
    queue: Queue,
    engine: EngineThread,
    model: str,
    scheme: LabelScheme,
    *,
    parcels: LabelScheme | None = None,
    device: str = "auto",
    threads: int | None = None,
) -> FastAPI:
    """Return the FastAPI application: the routes of the service and those of its page.

    `engine` is only asked for its state, and not started. `model` is the name or the folder of the
    model in use, and `scheme` the labels of its label maps. `parcels` are the labels of its parcel
    maps; None if the service makes none. `device` and `threads` are used to improve the model with
    corrections. The page's cache is cleared whenever a scan is deleted from the queue.
    """
    app = FastAPI(
        title="trinat",
        version=version("trinat"),
        description=_DESCRIPTION,
        docs_url=None,  # these pages would load files from elsewhere
        redoc_url=None,
        # For the OpenAPI document only: the guard has already checked the token.
        dependencies=[Depends(HTTPBearer(auto_error=False))],
        exception_handlers=dict.fromkeys(_ANSWERED_ERRORS, _answer_error),
    )
    results = Results(queue, scheme)
    study = study_of(queue, scheme, parcels)
    learner = Learner(study, model, device, threads)
    app.state.service = Service(queue, engine, model, scheme, results, learner)
    app.include_router(router)
    voxels = Voxels(study)
    queue.forget = voxels.forget
    app.router.routes += routes_of(study, voxels)
    return app


async def _answer_error(_: Request, error: Exception) -> Response:
    """Return the response to an error: its reason in one line, without content of the request."""
    if isinstance(error, StarletteHTTPException):
        return JSONResponse({"reason": error.detail}, error.status_code, error.headers)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        return JSONResponse({"reason": f"{first['loc'][-1]}: {first['msg']}"}, 422)
    if isinstance(error, OvertakenError):
        return JSONResponse({"reason": str(error)}, 409)
    if isinstance(error, OutputError):
        # The disk is full, which is not the scan's fault.
        return JSONResponse({"reason": reason_of(error, where=False)}, 507)
    if isinstance(error, TrinatError):
        return JSONResponse({"reason": reason_of(error, where=False)}, 422)
    if isinstance(error, FileNotFoundError):
        return JSONResponse({"reason": "deleted meanwhile"}, 404)
    return JSONResponse({"reason": "a fault of trinat: see its log"}, 500)


def run_service(
    request: PredictRequest,
    settings: ServiceSettings,
    on_listening: Callable[[str], object],
) -> None:
    """Run the service until a signal: accept scans over HTTP, and segment them.

    `request` has the settings of the segmentation, and `settings` the address, the folder of the
    queue and the limits. `on_listening` is called with the address once the service listens. If the
    engine has failed, its error is raised at the end.
    """
    model = find_model(request.model)
    print_licences([request.model])
    folder = settings.folder
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if settings.queue is None:
        folder.chmod(0o700)
    # Files written by this process and its children are readable by the user only: scans of
    # patients.
    mask = os.umask(0o077)
    try:
        with run_lock(folder / "lock"):
            queue = Queue(
                folder,
                queued=settings.max_waiting,
                per_client=settings.max_of_client,
                keep_s=settings.keep_hours * 3600,
                has_norms=request.output.reference is not None,
            )
            # Starlette keeps large uploads in temporary files: on the queue's disk, which is
            # checked for room, and not in /tmp, which may be small.
            tempfile.tempdir = str(queue.staging)
            engine = EngineThread(queue, request, model)
            scheme = read_scheme(model)
            parcels = None
            if request.output.parcels:
                networks = read_scheme(find_parcels_folder(model))
                parcels = Parcellation(scheme, networks).whole
            app = make_app(
                queue,
                engine,
                request.model,
                scheme,
                parcels=parcels,
                device=request.devices[0],
                threads=request.threads,
            )
            learner = app.state.service.learner

            def begin(address: str) -> None:
                engine.start()
                learner.start()
                on_listening(address)

            answer(
                app,
                queue.token(),
                host=settings.host,
                port=settings.port,
                names=settings.names,
                max_body=settings.max_upload_bytes,
                on_listening=begin,
            )
            learner.stop()
            engine.stop()
    finally:
        os.umask(mask)
    if engine.error is not None:
        raise engine.error
