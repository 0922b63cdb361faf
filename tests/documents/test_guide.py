"""The dataset and the transform that CONTRIBUTING.md shows work as they stand there."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.miniatures import head_image, head_labels, write_nifti

from trinat.segmentation.data.sources import registry
from trinat.segmentation.data.sources.base import SourceOptions
from trinat.segmentation.data.transforms import from_monai

GUIDE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()


def run(first_line: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run the indented block of the guide that begins with a line, and return its names."""
    _, found, rest = GUIDE.partition(f"\n        {first_line}")
    assert found, first_line
    lines = []
    for line in f"        {first_line}{rest}".splitlines():
        if line and not line.startswith(" " * 8):
            break
        lines.append(line)
    code = textwrap.dedent("\n".join(lines))
    exec(compile(code, "CONTRIBUTING.md", "exec", dont_inherit=True), names)
    return names


def test_the_dataset_finds_scans_labels_and_participants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = run('"""ADNI: one folder a session', {})["SOURCE"]
    monkeypatch.setattr(registry, "SOURCES", {"adni": source})
    labels = head_labels()
    session = tmp_path / "002_S_0413_m06"
    write_nifti(session / "t1.nii.gz", head_image(labels))
    write_nifti(session / "aseg.nii.gz", labels)
    (tmp_path / "003_S_0907_m12").mkdir()
    (tmp_path / "004_S_notes").mkdir()
    listing = registry.list_subjects("adni", tmp_path, SourceOptions())
    (subject,) = listing.subjects
    assert (subject.participant, subject.session) == ("002_S_0413", "m06")
    assert subject.labels == session / "aseg.nii.gz"
    broken = {exclusion.name: exclusion.broken for exclusion in listing.exclusions}
    assert broken == {"003_S_0907_m12": True, "004_S_notes": False}


def test_the_transform_scales_the_image_and_leaves_the_labels() -> None:
    names = dict(vars(from_monai))
    transform = run("class MonaiScaleIntensity", names)["MonaiScaleIntensity"]
    change = transform(name="RandScaleIntensity", share=1).build()
    labels = torch.ones(8, 8, dtype=torch.uint8)
    image, same = change(torch.ones(3, 8, 8), labels, 5)
    assert torch.equal(same, labels)
    factor = image[0, 0, 0]
    assert 0.7 <= factor <= 1.3
    assert factor != 1
    assert torch.equal(image, factor.expand(3, 8, 8))
