"""A service from its start to its end: its queue, its worker, and the server that answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trinat.pipelines.common.licences import say_licences
from trinat.pipelines.common.lock import run_lock
from trinat.pipelines.predict.request import PredictRequest
from trinat.pipelines.serve.app import make_app
from trinat.pipelines.serve.catalogue import read_scheme
from trinat.pipelines.serve.limits import bytes_of
from trinat.pipelines.serve.queue import Queue, default_folder, private_files
from trinat.pipelines.serve.worker import Worker
from trinat.pipelines.web.start import answer
from trinat.segmentation.models.zoo import find_model


@dataclass(frozen=True)
class ServiceSettings:
    """Where a service listens, where its queue is, and what it takes at most.

    Without `queue` it has the user's default folder. `names` are those of proxies before it.
    """

    queue: Path | None
    host: str
    port: int
    names: tuple[str, ...]
    keep_hours: float
    max_upload_mb: float
    max_waiting: int
    max_of_client: int

    @property
    def folder(self) -> Path:
        """Of the queue."""
        if self.queue is None:
            return default_folder()
        return self.queue


def run_service(
    request: PredictRequest, settings: ServiceSettings, say: Callable[[str], object]
) -> None:
    """Answer requests until a signal, and segment what they bring as `request` says.

    `say` gets the address once the service listens. Raises what has ended the worker.
    """
    model = find_model(request.model)
    say_licences([request.model])
    place = settings.folder
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    if settings.queue is None:
        place.chmod(0o700)
    with private_files(), run_lock(place / "lock"):
        queue = Queue(
            place,
            queued=settings.max_waiting,
            per_client=settings.max_of_client,
            keep_s=settings.keep_hours * 3600,
        )
        worker = Worker(queue, request, model)
        answer(
            make_app(queue, worker, request.model, read_scheme(model)),
            queue.token(),
            host=settings.host,
            port=settings.port,
            names=settings.names,
            max_body=bytes_of(settings.max_upload_mb),
            say=partial(_start, worker, say),
        )
        worker.stop()
    if worker.error is not None:
        raise worker.error


def _start(worker: Worker, say: Callable[[str], object], address: str) -> None:
    """Start the worker of a service that listens now, and say the service's address."""
    worker.start()
    say(address)
