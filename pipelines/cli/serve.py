"""trinat serve, view and web: over HTTP, results in the browser, and all of it in the browser."""

from __future__ import annotations

import getpass
import importlib.util
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from trinat.pipelines.cli import options
from trinat.pipelines.cli.fields import Only, with_fields
from trinat.pipelines.common.exits import Exit
from trinat.pipelines.predict.settings import PredictRequest
from trinat.pipelines.web.settings import SITE_POLICY, ServiceSettings
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.labels import DEFAULT_SCHEME


@with_fields
def serve_(
    asked: Annotated[
        Callable[..., PredictRequest],
        Only(PredictRequest, "model", "devices", "workers", "threads", "timeout_s"),
    ],
    cluster: options.OnCluster,
    settings: ServiceSettings,
) -> int:
    """Segment scans received over HTTP, from a browser or a program; see docs/service.md.

    Example: trinat serve --model fast
    """
    if importlib.util.find_spec("fastapi") is None:
        raise ConfigError(
            "trinat serve needs more packages", remedy="pip install 'trinat[serve]'"
        )
    from trinat.pipelines.web.guard import is_loopback
    from trinat.pipelines.web.service import run_service
    from trinat.segmentation.models.zoo import default_model

    request = cluster.give(asked(inputs=(), out=settings.folder))
    request = replace(request, model=request.model or default_model(request.devices))
    # What trinat says is logged, and nothing else: others may quote what they were sent.
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.CRITICAL)
    logging.getLogger("trinat").setLevel(logging.INFO)
    if not is_loopback(settings.host):
        typer.echo(
            "anyone on the network can read what is sent: put TLS before it", err=True
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
    port: Annotated[
        int,
        typer.Option("--port", min=0, max=65535, help="Port. Default: any free one."),
    ] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address only.")
    ] = False,
) -> int:
    """View and rate results in the browser; ratings are saved in RESULTS/ratings.tsv.

    Example: trinat view out/ --against manual/
    """
    import webbrowser

    try:
        from trinat.pipelines.web.guard import new_token
        from trinat.pipelines.web.start import answer
        from trinat.pipelines.web.viewer import make_app
    except ModuleNotFoundError as error:
        remedy = "pip install 'trinat[serve]'"
        raise ConfigError(f"needs the package {error.name}", remedy=remedy) from None
    from trinat.pipelines.web.study import Study

    if not rater:
        try:
            rater = getpass.getuser()
        except (KeyError, OSError):
            # None, as in a container.
            rater = "rater"
    study = Study(results, rater, images, against, labels)
    typer.echo(f"{len(study.items)} scans in {results}", err=True)

    def say(address: str) -> None:
        typer.echo(address)
        if not no_browser:
            webbrowser.open(address)

    answer(make_app(study), new_token(), port=port, say=say)
    return Exit.OK


def web(
    site: Annotated[Path, typer.Argument(help="Folder of trinat export --format web.")],
    port: Annotated[
        int,
        typer.Option("--port", min=0, max=65535, help="Port. Default: any free one."),
    ] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address only.")
    ] = False,
) -> int:
    """Open a site that segments scans in the browser itself; no scan is sent to any server.

    Example: trinat web site/
    """
    import webbrowser

    try:
        from trinat.pipelines.web.guard import new_token
        from trinat.pipelines.web.site import make_site_app
        from trinat.pipelines.web.start import answer
    except ModuleNotFoundError as error:
        remedy = "pip install 'trinat[serve]'"
        raise ConfigError(f"needs the package {error.name}", remedy=remedy) from None

    app = make_site_app(site)

    def say(address: str) -> None:
        typer.echo(address)
        if not no_browser:
            webbrowser.open(address)

    answer(app, new_token(), port=port, policy=SITE_POLICY, say=say)
    return Exit.OK


def _user() -> str:
    """The user's name; "rater" where there is none, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "rater"
