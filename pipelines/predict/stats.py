"""`aseg.stats` in FreeSurfer's form: what tools that read FreeSurfer's tables expect."""

from __future__ import annotations

from collections.abc import Mapping

from segmentation.labels.scheme import LabelScheme

__all__ = ["format_aseg_stats"]


def format_aseg_stats(
    subject: str, scheme: LabelScheme, voxels: Mapping[str, int], voxel_mm3: float
) -> str:
    """Table of a label map's structures; measures that were not measured (eTIV) are not there."""
    lines = [
        "# Title Segmentation Statistics",
        "# generating_program trinat",
        f"# subjectname {subject}",
        f"# VoxelVolume_mm3 {voxel_mm3:g}",
        "# ColHeaders Index SegId NVoxels Volume_mm3 StructName",
    ]
    rows = sorted(
        (label.fs_id, voxels[label.name], label.name)
        for label in scheme.labels
        if label.name in voxels
    )
    for index, (number, count, name) in enumerate(rows, start=1):
        lines.append(f"{index:3d} {number:3d} {count:9d} {count * voxel_mm3:13.3f}  {name}")
    return "\n".join(lines) + "\n"
