"""Words from the command line to checked settings, for commands that share them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.predict.settings import OutputSettings
from segmentation.errors import ConfigError

if TYPE_CHECKING:
    from pipelines.predict.run import EngineMaker

__all__ = ["engine_on", "output_settings", "split_devices"]

_CHOICES = {
    "--format": ("aseg", "index"),
    "--precision": ("auto", "float32", "bfloat16"),
    "--trust-affine": (None, "sform", "qform", "header"),
}
_DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]+)?")
_VIEWS = ("coronal", "axial", "sagittal")


def output_settings(
    *, views: str, precision: str, format_: str, trust_affine: str | None, **others: Any
) -> OutputSettings:
    given = {"--format": format_, "--precision": precision, "--trust-affine": trust_affine}
    for option, value in given.items():
        _require(option, value, _CHOICES[option])
    chosen = tuple(word.strip() for word in views.split(",") if word.strip())
    for view in chosen:
        _require("--views", view, _VIEWS)
    return OutputSettings(
        views=tuple(view for view in _VIEWS if view in chosen),
        precision=precision,  # type: ignore[arg-type]
        format=format_,  # type: ignore[arg-type]
        trust_affine=trust_affine,  # type: ignore[arg-type]
        **others,
    )


def split_devices(text: str) -> tuple[str, ...]:
    """ "cuda:0,1" is cuda:0 and cuda:1."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise ConfigError("--device is empty", remedy="give auto, cpu or cuda:0")
    kind = words[0].partition(":")[0]
    names = [f"{kind}:{word}" if word.isdecimal() else word for word in words]
    for name in names:
        if not _DEVICE.fullmatch(name):
            raise ConfigError(
                f"--device {text}: {name} is no device", remedy="give auto, cpu, cuda or cuda:0,1"
            )
    return tuple(names)


def engine_on(
    cluster: str,
    config: Path | None,
    *,
    devices: tuple[str, ...] = ("auto",),
    workers: int = 1,
    timeout_s: float | None = None,
) -> EngineMaker:
    """Makes the engine of a run on a cluster; what a cluster decides itself is refused."""
    from pipelines.predict.cluster import DaskEngine, is_cluster

    if not is_cluster(cluster):
        raise ConfigError(
            f"--cluster {cluster} is not known",
            remedy="give local:2, tcp://host:8786, slurm, pbs, sge or lsf",
        )
    if len(devices) > 1:
        raise ConfigError(
            f"--device {','.join(devices)} with --cluster: a worker has one device",
            remedy="give one, as cuda, and start a worker for each GPU",
        )
    if workers > 1:
        raise ConfigError(
            f"--workers {workers} with --cluster: the cluster says how many there are",
            remedy=f"leave it out, or give --cluster local:{workers}",
        )
    if timeout_s is not None:
        raise ConfigError(
            "--timeout with --cluster: a scan on another machine cannot be stopped from here",
            remedy="leave it out; the walltime in --cluster-config ends a job that hangs",
        )
    if importlib.util.find_spec("distributed") is None:
        raise ConfigError("--cluster needs more packages", remedy="pip install 'trinat[cluster]'")
    return lambda settings: DaskEngine(settings, cluster, config, device=devices[0])


def _require(option: str, value: str | None, allowed: tuple[str | None, ...]) -> None:
    if value not in allowed:
        words = ", ".join(word for word in allowed if word)
        raise ConfigError(f"{option} {value} is not known", remedy=f"give one of {words}")
