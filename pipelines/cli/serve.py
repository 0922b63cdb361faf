"""trinat serve and view: segmentations over HTTP, results in the browser."""

from __future__ import annotations

import getpass
import importlib.util
import logging
from pathlib import Path

import typer

from trinat.pipelines.cli.choices import engine_on, split_devices
from trinat.pipelines.cli.options import Model, Threads
from trinat.pipelines.serve.limits import (
    KEEP_HOURS,
    MAX_OF_CLIENT,
    MAX_UPLOAD_MB,
    MAX_WAITING,
    bytes_of,
)
from trinat.segmentation.errors import ConfigError


def serve_(
    model: Model = "",
    queue: Path | None = typer.Option(
        None,
        help="Folder of the waiting scans, their results and the token. Default: trinat/queue in "
        "$XDG_STATE_HOME or ~/.local/state.",
    ),
    host: str = typer.Option("127.0.0.1", help="Address to listen on."),
    port: int = typer.Option(
        8765, min=0, max=65535, help="Port to listen on; 0: any free one."
    ),
    name: list[str] = typer.Option(
        [], help="Host name of a proxy in front of this server; repeatable."
    ),
    keep: float = typer.Option(
        KEEP_HOURS,
        min=0,
        help="Hours after which a finished scan is deleted with its results.",
    ),
    max_upload: float = typer.Option(
        MAX_UPLOAD_MB, min=1, help="Largest upload, in MB."
    ),
    max_queue: int = typer.Option(
        MAX_WAITING, min=1, help="Number of scans that may wait."
    ),
    max_client: int = typer.Option(
        MAX_OF_CLIENT, min=1, help="Number of scans that one address may have."
    ),
    device: str = typer.Option(
        "auto", envvar="TRINAT_DEVICE", help="As for trinat predict."
    ),
    workers: int = typer.Option(
        1, min=1, help="Number of processes; each loads the model."
    ),
    threads: Threads = None,
    timeout: float | None = typer.Option(
        None, min=0, help="Time limit per scan, in seconds."
    ),
    cluster: str | None = typer.Option(
        None, help="Dask cluster, as for trinat predict."
    ),
    cluster_config: Path | None = typer.Option(None, help="As for trinat predict."),
) -> int:
    """Segment scans received over HTTP, from a browser or a program; see docs/service.md.

    Example: trinat serve --model fast
    """
    if importlib.util.find_spec("fastapi") is None:
        raise ConfigError(
            "trinat serve needs more packages", remedy="pip install 'trinat[serve]'"
        )
    from trinat.pipelines.common.lock import run_lock
    from trinat.pipelines.predict.progress import say_licences
    from trinat.pipelines.predict.request import PredictRequest
    from trinat.pipelines.serve.app import make_app
    from trinat.pipelines.serve.catalogue import read_scheme
    from trinat.pipelines.serve.queue import Queue, default_folder, private_files
    from trinat.pipelines.serve.worker import Worker
    from trinat.pipelines.web.start import answer
    from trinat.segmentation.models.zoo import default_model, find_model

    devices = split_devices(device)
    engine = None
    if cluster:
        engine = engine_on(cluster, cluster_config, devices, workers, timeout)
    place = default_folder() if queue is None else queue
    request = PredictRequest(
        inputs=(),
        out=place,
        model=model or default_model(devices),
        devices=devices,
        workers=workers,
        threads=threads,
        timeout_s=timeout,
        engine=engine,
    )
    _log_own_messages()
    _warn_of_network(host)
    folder = find_model(request.model)
    say_licences([request.model])
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    if queue is None:
        place.chmod(0o700)
    with private_files(), run_lock(place / "lock"):
        waiting = Queue(
            place, queued=max_queue, per_client=max_client, keep_s=keep * 3600
        )
        worker = Worker(waiting, request, folder)

        def start(address: str) -> None:
            worker.start()
            typer.echo(address)

        answer(
            make_app(waiting, worker, request.model, read_scheme(folder)),
            waiting.token(),
            host=host,
            port=port,
            names=name,
            max_body=bytes_of(max_upload),
            say=start,
        )
        worker.stop()
    if worker.error is not None:
        raise worker.error
    return 0


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
    results: Path = typer.Argument(..., help="Output folder of trinat predict."),
    against: Path | None = typer.Option(
        None, "--against", help="True label maps, or a second result, to switch to."
    ),
    images: Path | None = typer.Option(
        None, "--images", help="T1 scans. Default: where trinat predict read them."
    ),
    labels: str = typer.Option(
        "quicknat33", "--labels", help="Label scheme of folders without a label table."
    ),
    rater: str = typer.Option(
        "",
        "--rater",
        envvar="TRINAT_RATER",
        help="Name in ratings.tsv. Default: your user name.",
    ),
    port: int = typer.Option(
        0, "--port", min=0, max=65535, help="Port. Default: any free one."
    ),
    no_browser: bool = typer.Option(
        False, "--no-browser", help="Print the address only."
    ),
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
