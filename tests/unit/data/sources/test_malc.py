"""The labelling challenge of 2012 (MALC): both layouts, participants, scans without labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.listings import DEFAULT, ids, reasons
from helpers.miniatures import malc_scan, malc_table, write_nifti

from trinat.segmentation.data.sources.base import SourceOptions
from trinat.segmentation.data.sources.registry import list_subjects
from trinat.segmentation.errors import ConfigError, DatasetError


@pytest.mark.parametrize("part", ["training", ""])
def test_the_challenges_scans_are_found_in_both_layouts(
    tmp_path: Path, part: str
) -> None:
    image = malc_scan(tmp_path, "1000", part=part)
    malc_scan(tmp_path, "1036", part=part)
    malc_table(tmp_path, "1000,OAS1_0061,F,20")
    first, second = list_subjects("malc", tmp_path, DEFAULT).subjects
    assert (first.id, first.participant) == ("1000", "OAS1_0061")
    assert (second.id, second.participant) == ("1036", "1036")
    assert first.image == image
    assert first.labels is not None
    assert first.labels.name.endswith("_glm.nii.gz")
    assert first.note == ("" if part else "skull-stripped")
    assert first.fold is not None
    assert first.fold.name == "neuromorphometrics"
    assert "Neuromorphometrics" in first.licence


@pytest.mark.parametrize(
    "rows",
    [
        (),
        ("1003,OAS1_0101,M,30",),
        ("1023,OAS1_0101,M,30",),
        ("1003,A,M,30", "1023,B,M,30"),
    ],
)
def test_a_second_scan_is_of_the_same_participant_whatever_the_table_has(
    tmp_path: Path, rows: tuple[str, ...]
) -> None:
    malc_scan(tmp_path, "1003", part="testing")
    malc_scan(tmp_path, "1023", part="testing")
    malc_table(tmp_path, *rows)
    first, second = list_subjects("malc", tmp_path, DEFAULT).subjects
    assert first.participant == second.participant


def test_test_scans_whose_labels_one_does_not_have_are_skipped(tmp_path: Path) -> None:
    malc_scan(tmp_path, "1000", part="training")
    malc_scan(tmp_path, "1003", part="testing")
    (tmp_path / "testing-labels/1003_3_glm.nii.gz").unlink()
    (tmp_path / "testing-labels").rmdir()
    listing = list_subjects("malc", tmp_path, DEFAULT)
    assert ids(listing) == ["1000"]
    assert [(e.reason, e.broken) for e in listing.exclusions] == [("no labels", False)]


def test_a_file_lost_from_a_part_is_told(tmp_path: Path) -> None:
    for scan in ("1000", "1001", "1002"):
        malc_scan(tmp_path, scan, part="training")
    (tmp_path / "training-images/1001_3.nii.gz").unlink()
    (tmp_path / "training-labels/1002_3_glm.nii.gz").unlink()
    listing = list_subjects("malc", tmp_path, DEFAULT)
    assert ids(listing) == ["1000"]
    assert reasons(listing) == {
        "1001": "no image (1001_3.nii.gz or 1001_SS.nii.gz or 1001.nii.gz)",
        "1002": "no label map in training-labels/",
    }
    assert all(exclusion.broken for exclusion in listing.exclusions)


def test_heads_go_before_stripped_scans_unless_asked_for(tmp_path: Path) -> None:
    stripped = malc_scan(tmp_path, "1000")
    head = write_nifti(tmp_path / "1000_3.nii.gz", np.ones((4, 4, 4), np.uint8))
    assert list_subjects("malc", tmp_path, DEFAULT).subjects[0].image == head
    asked = SourceOptions(image="stripped")
    assert list_subjects("malc", tmp_path, asked).subjects[0].image == stripped
    with pytest.raises(ConfigError, match="name head or stripped"):
        list_subjects("malc", tmp_path, SourceOptions(image="raw"))


def test_a_scan_in_two_places_is_refused(tmp_path: Path) -> None:
    malc_scan(tmp_path, "1000", part="training")
    malc_scan(tmp_path, "1000", part="testing")
    with pytest.raises(DatasetError, match="1000 exists twice"):
        list_subjects("malc", tmp_path, DEFAULT)
