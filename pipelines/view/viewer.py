"""Routes of the page: scans are addressed by their number in the list, never by a path."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from http import HTTPStatus
from importlib import resources
from typing import Annotated, Any, Literal

from pydantic import BaseModel, StringConstraints, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from trinat.pipelines.study.corrections import OvertakenError
from trinat.pipelines.view.correcting import (
    LAYERS_WITH_BRUSH,
    Corrections,
    Painted,
)
from trinat.pipelines.view.viewed import ViewedStudy
from trinat.pipelines.view.voxels import KINDS, Voxels
from trinat.segmentation.errors import InputError, TrinatError

_PAGE = resources.files("trinat.pipelines.view") / "page"
_MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
# Static files by path: the page, its styles and scripts, and NiiVue.
_FILES = {"/": "index.html", "/niivue.js": "niivue/niivue.umd.js"}
for _file in _PAGE.iterdir():
    if _file.name.endswith((".css", ".js")):
        _FILES[f"/{_file.name}"] = _file.name

_TAB = re.compile("[0-9a-f]{16}")
# Longest work on a correction; the sum of many stays finite.
_MOST_MINUTES = 1e5


class _Judgement(BaseModel):
    """A rating sent by the page.

    `structure` is "" for the whole scan; a `rating` of "" withdraws an earlier one. `sha256` is the
    hash of the label map that was shown.
    """

    structure: str
    sha256: str
    rating: Literal["pass", "look", "reject", ""]
    remark: Annotated[str, StringConstraints(max_length=2000)]


def make_app(study: ViewedStudy) -> Starlette:
    """Return the application for a folder of results, without any access control."""
    refused = dict.fromkeys((TrinatError, OSError), _refuse)
    return Starlette(routes=routes_of(study, Voxels(study)), exception_handlers=refused)


def routes_of(study: ViewedStudy, voxels: Voxels) -> list[BaseRoute]:
    """Return the routes of the page and of its requests; `voxels` reads the files of the study."""
    answers = _Answers(study, voxels)
    return [
        *(Route(path, answers.file) for path in _FILES),
        Route("/v1/study", answers.overview),
        Route("/v1/raters", answers.raters),
        Route("/v1/scans/{number:int}", answers.detail),
        Route("/v1/scans/{number:int}/ratings", answers.rate, methods=["PUT"]),
        Route("/v1/scans/{number:int}/value", answers.value),
        Route("/v1/scans/{number:int}/correction", answers.correct, methods=["PUT"]),
        Route("/v1/scans/{number:int}/drafts/{tab}", answers.draft),
        Route("/v1/scans/{number:int}/drafts/{tab}", answers.keep, methods=["PUT"]),
        Route("/v1/scans/{number:int}/drafts/{tab}", answers.drop, methods=["DELETE"]),
        Route("/v1/scans/{number:int}/{kind}", answers.content),
    ]


class _Answers:
    """Request handlers for a study, one method per route."""

    def __init__(self, study: ViewedStudy, voxels: Voxels) -> None:
        self._study = study
        self._voxels = voxels
        self._corrections = Corrections(study, voxels)

    def file(self, request: Request) -> Response:
        """Return a file of the page."""
        name = _FILES[request.url.path]
        content = _PAGE.joinpath(*name.split("/")).read_bytes()
        media_type = _MEDIA_TYPES[name.rpartition(".")[2]]
        return Response(content, media_type=media_type)

    def overview(self, _: Request) -> Response:
        """Return the list of scans and structures, for the page's list."""
        return JSONResponse(self._study.overview())

    def raters(self, _: Request) -> Response:
        """Return the agreement between raters."""
        return JSONResponse(self._study.raters())

    def detail(self, request: Request) -> Response:
        """Return all details of a scan."""
        return JSONResponse(self._detail(request))

    def _detail(self, request: Request) -> dict[str, Any]:
        """Return all details of a scan, and of the correction of the map ?layer= that is shown."""
        scan = self._study[request.path_params["number"]]
        return self._study.detail(scan) | self._corrections.facts(scan, _layer(request))

    def content(self, request: Request) -> Response:
        """Return voxels or surfaces of a scan; with ?step=2 every second voxel of each axis."""
        number = request.path_params["number"]
        kind = request.path_params["kind"]
        if kind not in KINDS:
            raise InputError(f"no {kind} of scans")
        step = 1
        if request.query_params.get("step") == "2":
            step = 2
        content = self._voxels.content(number, kind, step)
        return Response(content, media_type="application/octet-stream")

    def value(self, request: Request) -> Response:
        """Return the scan's own value at a position in RAS mm, ?mm=x,y,z; null outside of it."""
        words = request.query_params.get("mm", "").split(",")
        try:
            place_mm = [float(word) for word in words]
        except ValueError:
            place_mm = []
        if len(place_mm) != 3 or not all(map(math.isfinite, place_mm)):
            raise InputError("not a place: give mm=x,y,z")
        value = self._voxels.value(request.path_params["number"], place_mm)
        return JSONResponse({"value": value})

    async def rate(self, request: Request) -> Response:
        """Store a rating and return the updated details of the scan."""
        scan = self._study[request.path_params["number"]]
        body = await request.body()
        try:
            judgement = _Judgement.model_validate_json(body)
        except ValidationError:
            raise InputError(
                "not a rating: give structure, rating, remark and sha256"
            ) from None
        await run_in_threadpool(self._study.rate, scan, **judgement.model_dump())
        return JSONResponse(await run_in_threadpool(self._detail, request))

    async def correct(self, request: Request) -> Response:
        """Save a correction from the changes in the body; return updated details of the scan."""
        number = request.path_params["number"]
        painted = await _read_changes(request)
        messages = await run_in_threadpool(self._corrections.save, number, painted)
        detail = await run_in_threadpool(self._detail, request)
        detail["unreadable"] += messages
        return JSONResponse(detail)

    def draft(self, request: Request) -> Response:
        """Return the changes in the draft of a tab, as bytes."""
        number = request.path_params["number"]
        content = self._corrections.draft(
            number, _checked_tab(request.path_params["tab"]), _layer(request)
        )
        return Response(content, media_type="application/octet-stream")

    async def keep(self, request: Request) -> Response:
        """Store the changes in the body as the draft of a tab."""
        number = request.path_params["number"]
        painted = await _read_changes(request)
        await run_in_threadpool(self._corrections.keep, number, painted)
        return Response(status_code=204)

    def drop(self, request: Request) -> Response:
        """Delete the draft of a tab, with ?at= only if that is when it was saved."""
        number = request.path_params["number"]
        tab = _checked_tab(request.path_params["tab"])
        at = request.query_params.get("at", "")
        self._corrections.drop(number, tab, _layer(request), at)
        return Response(status_code=204)


async def _read_changes(request: Request) -> Painted:
    """Return the changes in the body of a request, with the parameters in its address."""
    given = request.query_params
    minutes = -1.0
    with suppress(ValueError):
        minutes = float(given.get("minutes", ""))
    if not 0 <= minutes <= _MOST_MINUTES:
        raise InputError("give the minutes that it took, as minutes=1.5")
    return Painted(
        content=await request.body(),
        builds_on=given.get("builds_on", ""),
        minutes=minutes,
        tab=_checked_tab(request.path_params.get("tab") or given.get("tab", "")),
        layer=_layer(request),
    )


def _layer(request: Request) -> str:
    """Return the map of a scan that is corrected: "" for the structures; raise if unknown."""
    layer = request.query_params.get("layer", "")
    if layer not in LAYERS_WITH_BRUSH:
        raise InputError(f"{layer} cannot be corrected")
    return layer


def _checked_tab(name: str) -> str:
    """Return the id of a browser tab; raise InputError unless it is safe as part of a file name."""
    if not _TAB.fullmatch(name):
        raise InputError("not the name of a tab: give 16 hexadecimal digits")
    return name


def _refuse(_: Request, error: Exception) -> Response:
    status = HTTPStatus.UNPROCESSABLE_ENTITY
    if isinstance(error, OvertakenError):
        status = HTTPStatus.CONFLICT
    return JSONResponse({"reason": str(error)}, status_code=status)
