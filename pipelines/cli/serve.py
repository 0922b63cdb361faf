"""trinat serve and view: segmentations over HTTP, results in the browser."""

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
from trinat.pipelines.predict.request import PredictRequest
from trinat.pipelines.serve.limits import (
    KEEP_HOURS,
    MAX_OF_CLIENT,
    MAX_UPLOAD_MB,
    MAX_WAITING,
)
from trinat.segmentation.errors import ConfigError


@with_fields
def serve_(
    asked: Annotated[
        Callable[..., PredictRequest],
        Only(PredictRequest, "model", "devices", "workers", "threads", "timeout_s"),
    ],
    cluster: options.OnCluster,
    queue: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the waiting scans, their results and the token. Default: trinat/queue "
            "in $XDG_STATE_HOME or ~/.local/state."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")
    ] = 8765,
    name: Annotated[
        list[str] | None,
        typer.Option(help="Host name of a proxy in front of this server; repeatable."),
    ] = None,
    keep: Annotated[
        float,
        typer.Option(
            min=0, help="Hours after which a finished scan is deleted with its results."
        ),
    ] = KEEP_HOURS,
    max_upload: Annotated[
        float, typer.Option(min=1, help="Largest upload, in MB.")
    ] = MAX_UPLOAD_MB,
    max_queue: Annotated[
        int, typer.Option(min=1, help="Number of scans that may wait.")
    ] = MAX_WAITING,
    max_client: Annotated[
        int, typer.Option(min=1, help="Number of scans that one address may have.")
    ] = MAX_OF_CLIENT,
) -> int:
    """Segment scans received over HTTP, from a browser or a program; see docs/service.md.

    Example: trinat serve --model fast
    """
    _check_packages()
    from trinat.pipelines.serve.run import ServiceSettings, run_service
    from trinat.segmentation.models.zoo import default_model

    settings = ServiceSettings(
        queue=queue,
        host=host,
        port=port,
        names=tuple(name or ()),
        keep_hours=keep,
        max_upload_mb=max_upload,
        max_waiting=max_queue,
        max_of_client=max_client,
    )
    request = cluster.give(asked(inputs=(), out=settings.folder))
    request = replace(request, model=request.model or default_model(request.devices))
    _log_own_messages()
    _warn_of_network(host)
    run_service(request, settings, typer.echo)
    return 0


def _check_packages() -> None:
    """ConfigError where the packages of the service are not installed."""
    if importlib.util.find_spec("fastapi") is None:
        raise ConfigError(
            "trinat serve needs more packages", remedy="pip install 'trinat[serve]'"
        )


def _log_own_messages() -> None:
    """Log what trinat says alone: others may quote what they were sent."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.CRITICAL)
    logging.getLogger("trinat").setLevel(logging.INFO)


def _warn_of_network(host: str) -> None:
    """Warn where what is sent to this address is sent over a network."""
    from trinat.pipelines.web.guard import is_loopback

    if not is_loopback(host):
        typer.echo(
            "anyone on the network can read what is sent: put TLS before it", err=True
        )


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
    ] = "quicknat33",
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

    from trinat.pipelines.common.exits import Exit

    try:
        from trinat.pipelines.view.app import make_app
        from trinat.pipelines.web.guard import new_token
        from trinat.pipelines.web.start import answer
    except ModuleNotFoundError as error:
        remedy = "pip install 'trinat[serve]'"
        raise ConfigError(f"needs the package {error.name}", remedy=remedy) from None
    from trinat.pipelines.view.study import Study

    study = Study(results, rater or _user(), images, against, labels)
    typer.echo(f"{len(study.items)} scans in {results}", err=True)

    def say(address: str) -> None:
        typer.echo(address)
        if not no_browser:
            webbrowser.open(address)

    answer(make_app(study), new_token(), port=port, say=say)
    return Exit.OK


def _user() -> str:
    """The user's name; "rater" where there is none, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "rater"
