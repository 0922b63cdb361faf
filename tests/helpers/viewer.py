"""The page of `trinat view` or of a site, served by a thread of the test process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from trinat.pipelines.view import start
from trinat.pipelines.view.viewed import ViewedStudy
from trinat.pipelines.view.viewer import make_app


def ask(app: ASGIApp, method: str, path: str, **content: Any) -> httpx.Response:
    """Return the response of an application to a request, without a port."""

    async def asking() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://page"
        ) as client:
            return await client.request(method, path, **content)

    return asyncio.run(asking())


@contextmanager
def served(
    out: Path, monkeypatch: pytest.MonkeyPatch, study: ViewedStudy | None = None
) -> Iterator[str]:
    """Serve the page of a results folder during the block, and yield its address."""
    app = make_app(study or ViewedStudy(out, rater="anna"))
    with answered(app, monkeypatch) as address:
        yield address


@contextmanager
def answered(
    app: ASGIApp, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> Iterator[str]:
    """Serve an application during the block, and yield its address."""
    servers, said = [], Queue[str]()
    server = start.uvicorn.Server
    monkeypatch.setattr(
        start.uvicorn,
        "Server",
        lambda config: servers.append(server(config)) or servers[-1],
    )
    thread = threading.Thread(
        target=start.answer,
        args=(app, "secret"),
        kwargs={"on_listening": said.put, **settings},
    )
    thread.start()
    try:
        yield said.get(timeout=60)
    finally:
        servers[0].should_exit = True
        thread.join(60)
