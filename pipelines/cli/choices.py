"""Words of the command line become settings, or are refused before anything is read."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from trinat.segmentation.errors import ConfigError

if TYPE_CHECKING:
    from trinat.pipelines.predict.engine import Engine
    from trinat.pipelines.predict.request import EngineMaker
    from trinat.pipelines.predict.settings import RunSettings

_DEVICE = re.compile(r"auto|cpu|mps|cuda(:[0-9]+)?")
# In the order in which they are computed.
_VIEWS = ("coronal", "axial", "sagittal")


def split_views(text: str) -> tuple[str, ...]:
    """The views of "axial, coronal", in the order in which they are computed."""
    chosen = _words(text)
    for view in chosen:
        if view not in _VIEWS:
            what = f"--views {text}: unknown view {view!r}"
            raise ConfigError(what, remedy=f"choose from {', '.join(_VIEWS)}")
    return tuple(view for view in _VIEWS if view in chosen)


def split_devices(text: str) -> tuple[str, ...]:
    """The device names of "cuda:0,cuda:1", or of its short form "cuda:0,1"."""
    words = _words(text)
    if not words:
        raise ConfigError("--device is empty", remedy="give auto, cpu or cuda:0")
    kind = words[0].partition(":")[0]
    names = []
    for word in words:
        name = f"{kind}:{word}" if word.isdecimal() else word
        if not _DEVICE.fullmatch(name):
            what = f"--device {text}: unknown device {name}"
            raise ConfigError(what, remedy="give auto, cpu, cuda or cuda:0,1")
        names.append(name)
    return tuple(names)


def excluded_grades(*, include_rejected: bool, exclude: str | None) -> tuple[str, ...]:
    """The grades whose results are in no number of a group; ConfigError for both options."""
    from trinat.pipelines.predict.doubt import EXCLUDED_GRADES

    if include_rejected and exclude is not None:
        raise ConfigError(
            f"--include-rejected with --exclude {exclude}",
            remedy="leave one of them out",
        )
    if include_rejected:
        return ()
    if exclude is not None:
        return (*EXCLUDED_GRADES, exclude)
    return EXCLUDED_GRADES


def check_longitudinal(
    *,
    uncertainty: int,
    store: Path | None = None,
    sessions: Collection[str] | None = None,
) -> None:
    """ConfigError for what does not go together with --longitudinal."""
    if uncertainty:
        raise ConfigError(
            "--longitudinal has no --uncertainty", remedy="leave one of them out"
        )
    if store is not None:
        raise ConfigError(
            "--longitudinal takes scans, no --store", remedy="give the scans"
        )
    if sessions:
        raise ConfigError(
            "--longitudinal takes all sessions of a person together",
            remedy="leave --session_label out",
        )


def _words(text: str) -> list[str]:
    """The words between commas, without the empty ones."""
    words = [word.strip() for word in text.split(",")]
    return [word for word in words if word]


def engine_on(
    cluster: str,
    config: Path | None,
    devices: tuple[str, ...] = ("auto",),
    workers: int = 1,
    timeout_s: float | None = None,
) -> EngineMaker:
    """What makes the engine of a run on a cluster.

    Options that the cluster decides are refused, as is a cluster where its packages are missing.
    """
    from trinat.pipelines.predict.cluster import DaskEngine, is_cluster

    if not is_cluster(cluster):
        remedy = "give local:2, tcp://host:8786, slurm, pbs, sge or lsf"
        raise ConfigError(f"--cluster {cluster}: unknown cluster", remedy=remedy)
    if len(devices) > 1:
        what = f"--device {','.join(devices)} with --cluster: a worker has one device"
        remedy = "give one, as cuda, and start a worker for each GPU"
        raise ConfigError(what, remedy=remedy)
    if workers > 1:
        what = f"--workers {workers} with --cluster: the cluster sets the number of workers"
        raise ConfigError(what, remedy=f"remove it, or give --cluster local:{workers}")
    if timeout_s is not None:
        what = "--timeout with --cluster: a scan on another machine cannot be stopped from here"
        remedy = "remove it; the walltime in --cluster-config ends a job that hangs"
        raise ConfigError(what, remedy=remedy)
    if importlib.util.find_spec("distributed") is None:
        remedy = "pip install 'trinat[cluster]'"
        raise ConfigError("--cluster needs more packages", remedy=remedy)

    def make_engine(settings: RunSettings) -> Engine:
        return DaskEngine(settings, cluster, config, device=devices[0])

    return make_engine
