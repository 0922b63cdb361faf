"""A site that `trinat export --format web` wrote, for this machine: its files and nothing else."""

from __future__ import annotations

from pathlib import Path

from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from trinat.segmentation.errors import ConfigError

# With the guard's Cross-Origin-Opener-Policy, what a browser wants before threads share memory.
_ISOLATION = {"Cross-Origin-Embedder-Policy": "require-corp"}


class _IsolatedFiles(StaticFiles):
    """Files with the headers that threads in a browser need."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """The file, or the page itself for the folder."""
        response = await super().get_response(path, scope)
        response.headers.update(_ISOLATION)
        return response


def make_site_app(folder: Path) -> Starlette:
    """The files of a site, as an application that knows nothing of who may ask.

    ConfigError for a folder that is no such site.
    """
    if not (folder / "models.json").is_file():
        raise ConfigError(
            "no site of trinat",
            where=folder,
            remedy="write one: trinat export fast --format web --out FOLDER",
        )
    files = _IsolatedFiles(directory=folder, html=True)
    return Starlette(routes=[Mount("/", files)])
