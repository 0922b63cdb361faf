"""The routes of the page: scans are called by their number in the list, never by a path."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import Annotated, Literal

from pydantic import BaseModel, StringConstraints, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from trinat.pipelines.view.study import Study
from trinat.pipelines.view.voxels import Voxels
from trinat.segmentation.errors import InputError, TrinatError

_PAGE = resources.files("trinat.pipelines.view") / "page"
_FILES = {
    "/": ("index.html", "text/html"),
    "/view.css": ("view.css", "text/css"),
    "/view.js": ("view.js", "text/javascript"),
    "/picture.js": ("picture.js", "text/javascript"),
    "/niivue.js": ("niivue/niivue.umd.js", "text/javascript"),
}


class _Judgement(BaseModel):
    """`structure` is empty for the whole scan, `rating` to take one back."""

    structure: str
    sha256: str
    rating: Literal["pass", "look", "reject", ""]
    remark: Annotated[str, StringConstraints(max_length=2000)]


def make_app(study: Study) -> Starlette:
    """The page of a folder of results, as an application that knows nothing of who may ask."""
    refused = dict.fromkeys((TrinatError, OSError), _refused)
    return Starlette(routes=routes_of(study, Voxels(study)), exception_handlers=refused)


def routes_of(study: Study, voxels: Voxels) -> list[BaseRoute]:
    """The page and what it asks for."""

    def overview(_: Request) -> Response:
        return JSONResponse(study.overview())

    def raters(_: Request) -> Response:
        return JSONResponse(study.raters())

    def detail(request: Request) -> Response:
        return JSONResponse(study.detail(study[request.path_params["number"]]))

    def content(request: Request) -> Response:
        number, kind = request.path_params["number"], request.path_params["kind"]
        if kind not in ("scan", "labels", "against", "entropy", "surfaces"):
            raise InputError(f"no {kind} of scans")
        step = 2 if request.query_params.get("step") == "2" else 1
        return Response(
            voxels.content(number, kind, step), media_type="application/octet-stream"
        )

    async def rate(request: Request) -> Response:
        item = study[request.path_params["number"]]
        try:
            given = _Judgement.model_validate_json(await request.body())
        except ValidationError:
            raise InputError(
                "not a rating: give structure, rating, remark and sha256"
            ) from None
        await run_in_threadpool(study.rate, item, **given.model_dump())
        return JSONResponse(await run_in_threadpool(study.detail, item))

    return [
        *(Route(path, _file(name, kind)) for path, (name, kind) in _FILES.items()),
        Route("/v1/study", overview),
        Route("/v1/raters", raters),
        Route("/v1/scans/{number:int}", detail),
        Route("/v1/scans/{number:int}/ratings", rate, methods=["PUT"]),
        Route("/v1/scans/{number:int}/{kind}", content),
    ]


def _file(name: str, kind: str) -> Callable[[Request], Response]:
    return lambda _: Response(
        _PAGE.joinpath(*name.split("/")).read_bytes(), media_type=kind
    )


def _refused(_: Request, error: Exception) -> Response:
    return JSONResponse({"reason": str(error)}, status_code=422)
