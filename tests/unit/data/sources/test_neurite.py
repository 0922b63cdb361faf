"""Neurite-OASIS: its sessions, and the names of its label numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.listings import DEFAULT, reasons
from helpers.miniatures import neurite_session

from trinat.segmentation.data.sources.base import SourceOptions
from trinat.segmentation.data.sources.neurite import SEG35
from trinat.segmentation.data.sources.registry import list_subjects
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.labels.scheme import load_scheme


def test_neurite_numbers_have_the_names_of_their_table() -> None:
    assert sorted(SEG35) == list(range(1, 36))
    # Spot checks against the dataset's own table.
    expected = {
        7: 10,
        13: 16,
        14: 17,
        17: 28,
        18: 30,
        19: 31,
        20: 41,
        30: 53,
        34: 62,
        35: 63,
    }
    assert {number: SEG35[number] for number in expected} == expected
    scheme = load_scheme("quicknat33")
    classes = scheme.from_freesurfer(
        np.arange(36, dtype=np.int16).reshape(1, 1, 36), extra=SEG35
    )
    names = [scheme.names[k] for k in classes.ravel()]
    assert (names[14], names[30]) == ("Left-Hippocampus", "Right-Hippocampus")
    assert names[18] == names[34] == "background"
    # All classes but CSF (24), which seg35 lacks.
    assert set(scheme.names) - set(names) == {"CSF"}


def test_neurite_sessions_are_found_and_lost_labels_told(tmp_path: Path) -> None:
    neurite_session(tmp_path, "OAS1_0001_MR1")
    (neurite_session(tmp_path, "OAS1_0002_MR1") / "seg35.nii.gz").unlink()
    (tmp_path / "OASIS_OAS1_0003").mkdir()
    listing = list_subjects("neurite", tmp_path, DEFAULT)
    assert [(s.id, s.participant) for s in listing.subjects] == [
        ("OAS1_0001_MR1", "OAS1_0001")
    ]
    assert reasons(listing) == {
        "OASIS_OAS1_0002_MR1": "no seg35.nii.gz",
        "OASIS_OAS1_0003": "not named as a session",
    }
    with pytest.raises(ConfigError, match="no images called"):
        list_subjects("neurite", tmp_path, SourceOptions(image="talairach"))
