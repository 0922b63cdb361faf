"""The routes of the page: scans are called by their number in the list, never by a path."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pipelines.common.ratings import VERDICTS
from pipelines.view.study import Study
from pipelines.view.voxels import Voxels
from segmentation.errors import InputError, TrinatError

__all__ = ["make_app"]

_PAGE = resources.files("pipelines.view") / "page"
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/view.css": ("view.css", "text/css; charset=utf-8"),
    "/view.js": ("view.js", "text/javascript; charset=utf-8"),
    "/picture.js": ("picture.js", "text/javascript; charset=utf-8"),
    "/niivue.js": ("niivue/niivue.umd.js", "text/javascript; charset=utf-8"),
}
_LONGEST_REMARK = 2000


def make_app(study: Study) -> Starlette:
    """The page and what it asks for, as an application that knows nothing of who may ask."""
    voxels = Voxels(study)

    def overview(_: Request) -> Response:
        return JSONResponse(study.overview())

    def detail(request: Request) -> Response:
        return JSONResponse(study.detail(study[request.path_params["number"]]))

    def content(request: Request) -> Response:
        number, kind = request.path_params["number"], request.path_params["kind"]
        step = 2 if request.query_params.get("step") == "2" else 1
        makers: dict[str, Callable[[], bytes]] = {
            "scan": lambda: voxels.scan(number, step),
            "labels": lambda: voxels.labels(number, step),
            "against": lambda: voxels.labels(number, step, "against"),
            "entropy": lambda: voxels.entropy(number),
            "surfaces": lambda: voxels.surfaces(number),
        }
        if kind not in makers:
            raise InputError(f"no {kind} of scans")
        return Response(makers[kind](), media_type="application/octet-stream")

    async def rate(request: Request) -> Response:
        from starlette.concurrency import run_in_threadpool

        item = study[request.path_params["number"]]
        structure, rating, remark = _judgement(await request.body())
        await run_in_threadpool(study.rate, item, structure, rating, remark)
        return JSONResponse(await run_in_threadpool(study.detail, item))

    routes = [Route(path, _file(name, kind)) for path, (name, kind) in _FILES.items()]
    routes += [
        Route("/v1/study", overview),
        Route("/v1/scans/{number:int}", detail),
        Route("/v1/scans/{number:int}/ratings", rate, methods=["PUT"]),
        Route("/v1/scans/{number:int}/{kind}", content),
    ]
    return Starlette(routes=routes, exception_handlers={TrinatError: _refused, OSError: _refused})


def _file(name: str, kind: str) -> Callable[[Request], Response]:
    return lambda _: Response(_PAGE.joinpath(*name.split("/")).read_bytes(), media_type=kind)


def _judgement(body: bytes) -> tuple[str, str, str]:
    """Structure ("" for the scan), rating ("" to take it back) and remark."""
    try:
        given: Any = json.loads(body)
        structure, rating, remark = (given[key] for key in ("structure", "rating", "remark"))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError("not a rating: structure, rating and remark are needed") from None
    if not all(isinstance(value, str) for value in (structure, rating, remark)):
        raise InputError("structure, rating and remark of a rating are texts")
    if rating not in (*VERDICTS, ""):
        raise InputError(f"a rating is {', '.join(VERDICTS)}, or empty")
    if len(remark) > _LONGEST_REMARK:
        raise InputError(f"a remark has {_LONGEST_REMARK} characters at most")
    return structure, rating, remark


def _refused(_: Request, error: Exception) -> Response:
    return JSONResponse({"reason": str(error)}, status_code=422)
