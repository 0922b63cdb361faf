"""The volumes of the structures in a label map, measured in a process of a pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trinat.pipelines.common.process import cpu_count, isolated
from trinat.pipelines.common.scanfiles import ScanFile
from trinat.segmentation.errors import TrinatError
from trinat.segmentation.io.orientation import TrustAffine
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme

_KILLED = "its process was killed (out of memory?): use fewer --jobs"


@dataclass(frozen=True)
class MapVolumes:
    """One label map: its volumes in mm³ by structure, or why it was not measured.

    `sha256` is of the file; empty where it could not be read.
    """

    file: ScanFile
    volumes_mm3: Mapping[str, float] | None
    failure: str = ""
    sha256: str = ""

    @property
    def subject(self) -> str:
        """The name of the label map."""
        return self.file.name


@dataclass(frozen=True)
class _Task:
    """A file, the scheme of its labels, and what to trust of its orientation."""

    file: ScanFile
    scheme: str
    trust_affine: TrustAffine | None


def measure_volumes(
    files: Sequence[ScanFile],
    scheme: str,
    trust_affine: TrustAffine | None,
    jobs: int | None,
    finished: Callable[[MapVolumes, int, int], object],
) -> list[MapVolumes]:
    """Results in the order of files; `finished(result, done, total)` is called with each.

    `scheme` is the name or file of a label scheme. Without a number of `jobs` there are as many
    as processors. A file that cannot be read gives a result with its failure.
    """
    tasks = [_Task(file, scheme, trust_affine) for file in files]
    return isolated(
        _measure,
        tasks,
        jobs or cpu_count(),
        killed=_killed,
        finished=finished,
        torch_threads=None,
    )


def _killed(task: _Task) -> MapVolumes:
    """The result of a label map whose process died."""
    return MapVolumes(task.file, None, _KILLED)


def _measure(task: _Task) -> MapVolumes:
    """Volumes of all the scheme's structures: 0 for one that is not in the map."""
    file = task.file
    scheme = load_scheme(task.scheme)
    try:
        labels = Volume.read(file.path, labels=True, trust_affine=task.trust_affine)
        classes = scheme.from_freesurfer(
            labels.data, spacing_mm=labels.spacing_mm, where=file.path
        )
    except (TrinatError, OSError) as error:
        return MapVolumes(file, None, str(error))
    voxels = np.bincount(classes.ravel(), minlength=len(scheme))
    volumes_mm3 = {}
    for label in scheme.labels[1:]:
        volumes_mm3[label.name] = float(voxels[label.index] * labels.grid.voxel_mm3)
    return MapVolumes(file, volumes_mm3, sha256=labels.source_sha256 or "")
