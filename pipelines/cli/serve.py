"""trinat serve, view and web: segmentation over HTTP and in the browser, and the viewer."""

from __future__ import annotations

import getpass
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trinat.pipelines.cli import options
from trinat.pipelines.cli.fields import Only, with_fields
from trinat.pipelines.common.exits import Exit
from trinat.pipelines.common.extras import require_extra
from trinat.pipelines.predict.settings import PredictRequest
from trinat.pipelines.serve.settings import ServiceSettings
from trinat.pipelines.view.guard import SITE_POLICY
from trinat.segmentation.labels import DEFAULT_SCHEME

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_Port = Annotated[
    int,
    typer.Option("--port", min=0, max=65535, help="Port. Default: any free one."),
]
_NoBrowser = Annotated[
    bool, typer.Option("--no-browser", help="Print the address only.")
]


@with_fields
def serve_(
    asked: Annotated[
        Callable[..., PredictRequest],
        Only(
            PredictRequest,
            *(
                "model",
                "devices",
                "workers",
                "threads",
                "timeout_s",
                "precision",
                "parcels",
            ),
        ),
    ],
    compared: options.ComparedWith,
    settings: ServiceSettings,
) -> int:
    """Segment scans received over HTTP, from a browser or a program; see docs/service.md.

    Example: trinat serve --model fast
    """
    require_extra("serve", "fastapi", "uvicorn", "python_multipart")
    from trinat.pipelines.serve.service import run_service
    from trinat.pipelines.view.guard import is_loopback
    from trinat.segmentation.models.zoo import default_model

    request = asked(inputs=(), out=settings.folder)
    request = replace(request, model=request.model or default_model(request.devices))
    request = compared.apply_to(request)
    # Only trinat's own log is shown: other loggers may quote the content of requests.
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.CRITICAL)
    logging.getLogger("trinat").setLevel(logging.INFO)
    if not is_loopback(settings.host):
        typer.echo(
            "the connection is not encrypted: put a TLS proxy in front of it", err=True
        )
    run_service(request, settings, typer.echo)
    return 0


def view(
    results: Annotated[Path, typer.Argument(help="Output folder of trinat predict.")],
    against: Annotated[
        Path | None,
        typer.Option(
            "--against", help="True label maps, or a second result, to switch to."
        ),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            "--images", help="T1 scans. Default: where trinat predict read them."
        ),
    ] = None,
    labels: Annotated[
        str,
        typer.Option("--labels", help="Label scheme of folders without a label table."),
    ] = DEFAULT_SCHEME,
    rater: Annotated[
        str,
        typer.Option(
            "--rater",
            envvar="TRINAT_RATER",
            help="Name in ratings.tsv. Default: your user name.",
        ),
    ] = "",
    port: _Port = 0,
    no_browser: _NoBrowser = False,
) -> int:
    """View and rate results in the browser; ratings are saved in RESULTS/ratings.tsv.

    Example: trinat view out/ --against manual/
    """
    require_extra("serve", "fastapi", "uvicorn")
    from trinat.pipelines.view.correcting import MAX_CHANGES
    from trinat.pipelines.view.viewed import ViewedStudy
    from trinat.pipelines.view.viewer import make_app

    # Cells of tables have no spaces around them.
    rater = rater.strip()
    if not rater:
        try:
            rater = getpass.getuser()
        except (KeyError, OSError):
            # No user name, as in a container.
            rater = "rater"
    study = ViewedStudy(
        results, images=images, against=against, rater=rater, labels=labels
    )
    typer.echo(f"scans in {results}: {len(study.scans)}", err=True)
    _open(make_app(study), port, no_browser=no_browser, max_body=MAX_CHANGES)
    return Exit.OK


def web(
    site: Annotated[Path, typer.Argument(help="Folder of trinat export --format web.")],
    port: _Port = 0,
    no_browser: _NoBrowser = False,
) -> int:
    """Open a site that segments scans in the browser itself; no scan is sent to any server.

    Example: trinat web site/
    """
    require_extra("serve", "fastapi", "uvicorn")
    from trinat.pipelines.view.start import make_site_app

    _open(make_site_app(site), port, no_browser=no_browser, policy=SITE_POLICY)
    return Exit.OK


def _open(
    app: ASGIApp,
    port: int,
    *,
    no_browser: bool,
    policy: str | None = None,
    max_body: int | None = None,
) -> None:
    """Serve a web application until a signal, and open its address in the browser.

    With `no_browser` the address is only printed. `policy` is the Content-Security-Policy of the
    pages and `max_body` the maximum size of a request in bytes, if they differ from the defaults.
    """
    import webbrowser

    from trinat.pipelines.view.guard import MAX_BODY, POLICY, new_token
    from trinat.pipelines.view.start import answer

    def show_address(address: str) -> None:
        typer.echo(address)
        if not no_browser:
            webbrowser.open(address)

    answer(
        app,
        new_token(),
        port=port,
        policy=policy or POLICY,
        max_body=max_body or MAX_BODY,
        on_listening=show_address,
    )
