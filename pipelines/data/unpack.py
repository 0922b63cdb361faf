"""Archives of a dataset: only what is used of them is unpacked, beside them, once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from natsort import natsorted

from pipelines.data.catalogue import archives_of
from segmentation.data.archive import extract
from segmentation.data.sources.registry import SOURCES, Source
from segmentation.errors import DatasetError, TrinatError
from segmentation.io.volume import Volume

__all__ = ["unpack_archives"]


def unpack_archives(name: str, root: Path, say: Callable[[str], None]) -> None:
    """Unpack what is needed of the dataset's archives in `root`, each beside itself, once."""
    source, limits = SOURCES.get(name), archives_of(name)
    if source is None or not root.is_dir():
        return
    for archive in natsorted(root.iterdir()):
        if archive.name not in limits:
            continue
        folder = archive.with_name(archive.name.partition(".tar")[0])
        if folder.exists():
            continue
        say(f"unpacking what is needed of {archive.name}")
        partial = archive.with_name(f".{folder.name}.unpacking")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            extract(
                archive,
                partial,
                limits=limits[archive.name],
                wanted=source.wanted_member,
                received=lambda path: _convert_analyze(path, source),
            )
            if not any(partial.iterdir()):
                raise DatasetError("holds nothing that this source uses", where=archive)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _convert_analyze(path: Path, source: Source) -> None:
    """Replace an Analyze pair, once both halves are there, by a .nii.gz that knows its axes.

    A pair that cannot be read stays: its subject's own turn will say why.
    """
    axes = source.member_axes(path)
    header, voxels = path.with_suffix(".hdr"), path.with_suffix(".img")
    if axes is None or not (header.is_file() and voxels.is_file()):
        return
    is_labels = path.parent.name == "FSL_SEG"
    try:
        volume = Volume.read(header, axes=axes, labels=is_labels)
    except TrinatError:
        return
    volume.write(header.with_suffix(".nii.gz"), labels=is_labels)
    header.unlink()
    voxels.unlink()
