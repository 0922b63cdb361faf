"""The HTTP interface and its page; `pipelines/web/guard.py` stands before it.

The routes are in `routes.py` and, for the page, in `pipelines/view/app.py`. Here they become one
application, and every error becomes an answer of one line.
"""

from __future__ import annotations

from importlib.metadata import version

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException as AnyHTTPException

from trinat.pipelines.serve.page import study_of
from trinat.pipelines.serve.queue import Queue
from trinat.pipelines.serve.results import Results
from trinat.pipelines.serve.routes import Service, router
from trinat.pipelines.serve.worker import Worker
from trinat.pipelines.view.app import routes_of
from trinat.pipelines.view.voxels import Voxels
from trinat.segmentation.errors import OutputError, TrinatError, reason_of
from trinat.segmentation.labels.scheme import LabelScheme

_DESCRIPTION = (
    "Segments the human brain in T1-weighted MRI. For research, not for diagnosis."
)
_ANSWERED_ERRORS = (
    AnyHTTPException,
    RequestValidationError,
    TrinatError,
    FileNotFoundError,
    Exception,
)


def make_app(queue: Queue, worker: Worker, model: str, scheme: LabelScheme) -> FastAPI:
    """The service over a queue: its routes and its page.

    `worker` is asked whether it is ready, and not started. `model` is the name or the folder of the
    model at work, `scheme` its labels. The queue is made to drop what the page holds in memory of a
    scan that is deleted.
    """
    app = FastAPI(
        title="trinat",
        version=version("trinat"),
        description=_DESCRIPTION,
        docs_url=None,  # their pages would come from elsewhere
        redoc_url=None,
        # For the document alone: the guard has let in who comes so far.
        dependencies=[Depends(HTTPBearer(auto_error=False))],
        exception_handlers=dict.fromkeys(_ANSWERED_ERRORS, _answer_error),
    )
    results = Results(queue, scheme)
    app.state.service = Service(queue, worker, model, scheme, results)
    app.include_router(router)
    study = study_of(queue, scheme)
    voxels = Voxels(study)
    queue.forget = voxels.forget
    app.router.routes += routes_of(study, voxels)
    return app


async def _answer_error(_: Request, error: Exception) -> Response:
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
