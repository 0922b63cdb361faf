"""What the service answers under each address, as docs/service.md has them.

An id is looked up in the queue, and no path on the disk has a part that a client has chosen.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi import Path as InPath
from fastapi.responses import FileResponse, PlainTextResponse, StreamingResponse
from starlette.requests import ClientDisconnect

from trinat.pipelines.serve.catalogue import describe_labels, describe_models
from trinat.pipelines.serve.queue import FullError, Queue
from trinat.pipelines.serve.records import Segmentation, State, Submission
from trinat.pipelines.serve.results import RESULTS, Results
from trinat.pipelines.serve.uploads import FORM, receive
from trinat.pipelines.serve.worker import Worker
from trinat.segmentation.errors import InputError, reason_of
from trinat.segmentation.labels.scheme import LabelScheme

# When a client that was sent away may ask again, in seconds.
_RETRY_S = "10"
_POLL_S = 0.2
# After this many polls without news an event is sent all the same, so that the line stays open.
_SILENT_POLLS = 75

router = APIRouter()


@dataclass(frozen=True)
class Service:
    """What routes work with; `make_app` puts it into the application's state."""

    queue: Queue
    worker: Worker
    model: str  # its name, or its folder
    scheme: LabelScheme
    results: Results


async def _service(request: Request) -> Service:
    """The service that `make_app` has put into the application, for FastAPI's `Depends`."""
    service: Service = request.app.state.service
    return service


AtService = Annotated[Service, Depends(_service)]


def _known(
    id: Annotated[str, InPath(pattern="^[0-9a-f]{32}$")], service: AtService
) -> Submission:
    """The scan with this id, or a refusal."""
    submission = service.queue.submissions.get(id)
    if submission is None:
        raise HTTPException(404, "no such segmentation: deleted, or never there")
    return submission


Known = Annotated[Submission, Depends(_known)]


def _done(submission: Known) -> Submission:
    """The scan with this id if it has results, or a refusal."""
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
    """Put a scan into the queue: form field `file`, and what is wanted as well in `outputs`."""
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
def state(submission: Known, service: AtService) -> Segmentation:
    """How far it is."""
    return service.queue.seen(submission)


@router.get("/v1/segmentations/{id}/events", response_class=StreamingResponse)
async def events(submission: Known, service: AtService) -> StreamingResponse:
    """The same as server-sent events, until it has ended."""
    lines = _events(service.queue, submission)
    return StreamingResponse(lines, media_type="text/event-stream")


@router.delete("/v1/segmentations/{id}", status_code=204)
def delete(submission: Known, service: AtService) -> None:
    """Delete the scan and its results, whatever its state."""
    service.queue.delete(submission)


@router.get("/v1/segmentations/{id}/{name}", response_class=FileResponse)
def result(
    name: Annotated[str, InPath(examples=list(RESULTS))],
    submission: Done,
    service: AtService,
) -> FileResponse:
    """A result."""
    path = service.results.file(submission, name)
    return FileResponse(path, media_type=RESULTS[name].media_type, filename=name)


@router.get(
    "/v1/segmentations/{id}/probabilities/{structure}", response_class=FileResponse
)
def probabilities(structure: str, submission: Done, service: AtService) -> FileResponse:
    """The probability of a structure, by its name in /v1/labels, as .nii.gz."""
    path = service.results.probability(submission, structure)
    return FileResponse(
        path, media_type="application/gzip", filename=f"{structure}.nii.gz"
    )


@router.get("/v1/models")
def models(service: AtService) -> list[dict[str, Any]]:
    """The shipped models, and which one is at work here."""
    return describe_models(service.model)


@router.get("/v1/labels")
def labels(service: AtService) -> list[dict[str, Any]]:
    """Numbers, names and colours in label maps."""
    return describe_labels(service.scheme)


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Whether the server answers; needs no token."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(service: AtService) -> dict[str, str]:
    """Whether the model is loaded and scans are begun."""
    if not service.worker.ready:
        raise HTTPException(
            503, "the model is not loaded yet", {"Retry-After": _RETRY_S}
        )
    return {"status": "ready"}


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(service: AtService) -> str:
    """For Prometheus."""
    queue = service.queue
    counts = Counter(each.state for each in list(queue.submissions.values()))
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
        f"trinat_ready {int(service.worker.ready)}",
    ]
    return "\n".join(lines) + "\n"


async def _events(queue: Queue, submission: Submission) -> AsyncIterator[str]:
    """A line whenever something about a scan has changed, until it has ended or is deleted."""
    sent = ""
    silent_polls = 0
    while submission.id in queue.submissions:
        now = queue.seen(submission).model_dump_json()
        if now != sent or silent_polls > _SILENT_POLLS:
            yield f"data: {now}\n\n"
            sent = now
            silent_polls = 0
        if submission.ended:
            return
        silent_polls += 1
        await asyncio.sleep(_POLL_S)
