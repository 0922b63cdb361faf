"""Simulated atrophy: which volumes grow, which shrink, and the table of both versions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benches._visits import flow_of
from benches.aged import ageing, deformed, growth_of, run

from trinat.segmentation.data.sources.base import SourceOptions
from trinat.segmentation.data.sources.registry import list_subjects
from trinat.segmentation.io.volume import Volume

WHITE_MATTER, VENTRICLE = 2, 4
SIZE, BRAIN, INSIDE = 56, 32, 12


def brain() -> np.ndarray:
    """Return a cube of white matter with a ventricle in its middle."""
    numbers = np.zeros((SIZE, SIZE, SIZE), np.int16)
    for width, number in ((BRAIN, WHITE_MATTER), (INSIDE, VENTRICLE)):
        middle = slice((SIZE - width) // 2, (SIZE + width) // 2)
        numbers[middle, middle, middle] = number
    return numbers


def test_what_fluid_gains_the_cerebrum_loses() -> None:
    growth = growth_of(brain(), ventricles=0.1, sulci=0.0)
    lost = 0.1 * INSIDE**3 / (BRAIN**3 - INSIDE**3)
    assert growth[SIZE // 2, SIZE // 2, SIZE // 2] == pytest.approx(0.1)
    assert growth[SIZE // 2, SIZE // 2, SIZE // 2 + 10] == pytest.approx(-lost)
    assert growth[0, 0, 0] == 0.0


def test_what_grows_flows_outwards() -> None:
    flow = flow_of(growth_of(brain(), ventricles=0.1, sulci=0.0))
    right = flow[0, (SIZE + INSIDE) // 2, SIZE // 2, SIZE // 2]
    left = flow[0, (SIZE - INSIDE) // 2 - 1, SIZE // 2, SIZE // 2]
    # Across the middle of a growing cube of 12: a third of 0.1 * 12, half to each side.
    assert right == pytest.approx(0.2, rel=0.25)
    assert left == pytest.approx(-right, rel=0.01)


def test_ventricles_grow_and_the_head_keeps_its_size() -> None:
    young = brain()
    old = deformed(young, ageing(young, ventricles=2.0, sulci=1.0), labels=True)
    grown = (old == VENTRICLE).sum() / INSIDE**3
    assert grown == pytest.approx(2.0, rel=0.15)
    assert (old > 0).sum() == pytest.approx(BRAIN**3, rel=0.02)


def test_the_image_goes_with_the_labels() -> None:
    young = brain()
    image = np.where(young == VENTRICLE, 20, np.where(young > 0, 110, 0)).astype(
        np.uint8
    )
    origins = ageing(young, ventricles=2.0, sulci=1.0)
    old, scan = deformed(young, origins, labels=True), deformed(image, origins)
    assert scan.dtype == np.uint8
    dark = (scan < 65) & (old > 0)
    assert (dark == (old == VENTRICLE)).mean() > 0.995


def test_the_table_has_the_young_and_the_old_of_each_person(tmp_path: Path) -> None:
    for name in ("images", "labels"):
        (tmp_path / name).mkdir()
    Volume(brain(), np.eye(4)).write(tmp_path / "labels" / "p01.nii.gz", labels=True)
    scan = Volume(brain().astype(np.float32) * 20, np.eye(4))
    scan.write(tmp_path / "images" / "p01.nii.gz")
    run("pairs", str(tmp_path), str(tmp_path / "out"), "1.5", "1.2")
    found = list_subjects("pairs", tmp_path / "out" / "pairs.csv", SourceOptions())
    assert [subject.id for subject in found.subjects] == ["p01", "p01-aged"]
    assert {subject.person for subject in found.subjects} == {"p01"}
    old = Volume.read(tmp_path / "out" / "p01-aged-labels.nii.gz", labels=True)
    assert (old.data == VENTRICLE).sum() > 1.2 * INSIDE**3
