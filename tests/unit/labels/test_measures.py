"""Volumes of the whole brain, as sums worked out by hand."""

from __future__ import annotations

import pytest

from trinat.segmentation.labels.measures import INTRACRANIAL, MEASURES, sums_mm3
from trinat.segmentation.labels.scheme import load_scheme

SCHEME = load_scheme("quicknat33")
# One mm³ each, except for structures that distinguish the sums.
VOLUMES = {
    **dict.fromkeys(SCHEME.names[1:], 1.0),
    "Left-Cerebral-Cortex": 300.0,
    "Right-Cerebral-Cortex": 310.0,
    "Left-Cerebral-White-Matter": 200.0,
    "Right-Cerebral-White-Matter": 210.0,
    "Left-Cerebellum-Cortex": 50.0,
    "Right-Cerebellum-Cortex": 51.0,
    "Brain-Stem": 1e6,
    "CSF": 1e7,
}


def test_sums_are_made_of_what_freesurfer_makes_them_of() -> None:
    found = sums_mm3(SCHEME, VOLUMES)
    # 16 subcortical structures of 1 mm³, four lateral ventricles, third and fourth ventricle.
    assert found == {
        "CortexVol": 610,
        "SubCortGrayVol": 16,
        "CerebralWhiteMatterVol": 410,
        "TotalGrayVol": 610 + 16 + 101,
        "SupraTentorialVol": 610 + 410 + 16 + 4,
        "BrainSegVolNotVent": 610 + 410 + 16 + 101 + 2,
        "BrainSegVol": 610 + 410 + 16 + 101 + 2 + 4 + 2,
    }


def test_a_sum_without_one_of_its_parts_is_not_known() -> None:
    without = {name: mm3 for name, mm3 in VOLUMES.items() if name != "Left-Caudate"}
    assert set(sums_mm3(SCHEME, without)) == {"CortexVol", "CerebralWhiteMatterVol"}


@pytest.mark.parametrize("name", ["tissue4", "left4"])
def test_classes_that_hold_something_else_too_are_no_part_of_a_sum(name: str) -> None:
    scheme = load_scheme(name)
    assert sums_mm3(scheme, dict.fromkeys(scheme.names[1:], 1.0)) == {}


def test_classes_of_both_sides_are_summed_too() -> None:
    scheme = SCHEME.merged.scheme
    found = sums_mm3(scheme, dict.fromkeys(scheme.names[1:], 1.0))
    assert found["CortexVol"] == 1
    assert found["SubCortGrayVol"] == 8


def test_lines_of_aseg_stats_are_read_by_commas() -> None:
    for measure in MEASURES:
        assert "," not in measure.words
    assert INTRACRANIAL.column == "EstimatedTotalIntraCranialVol"
