"""Grey matter, white matter and CSF of a scheme."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trinat.segmentation.errors import LabelError
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme, tissue_numbers

QUICKNAT = load_scheme("quicknat33")


def test_every_structure_is_of_one_tissue() -> None:
    by_name = dict(zip(QUICKNAT.names, tissue_numbers(QUICKNAT), strict=True))
    assert by_name.pop("background") == 0
    assert by_name["Left-Cerebral-Cortex"] == by_name["Right-Hippocampus"] == 1
    assert by_name["Brain-Stem"] == by_name["Right-Cerebellum-White-Matter"] == 2
    assert by_name["CSF"] == by_name["Left-Inf-Lat-Vent"] == 3
    assert set(by_name.values()) == {1, 2, 3}


def test_a_structure_without_its_side_is_of_the_same_tissue() -> None:
    merged = QUICKNAT.merged
    sided = tissue_numbers(QUICKNAT)
    assert (tissue_numbers(merged.scheme)[merged.to_merged] == sided).all()


def test_what_is_no_tissue_is_none() -> None:
    # Background, cerebral exterior, white matter, cortex.
    assert tissue_numbers(load_scheme("left4")).tolist() == [0, 0, 2, 1]


def test_a_cortical_parcel_is_grey_matter() -> None:
    background, white = QUICKNAT.labels[:2]
    parcel = replace(white, name="ctx-lh-cuneus", fs_id=1005, partner=None, side=None)
    scheme = LabelScheme("parcels", (background, parcel))
    assert tissue_numbers(scheme).tolist() == [0, 1]


def test_a_class_of_two_tissues_is_refused_by_name() -> None:
    background, white = QUICKNAT.labels[:2]
    half = replace(white, name="hemisphere", members=(2, 3), partner=None, side=None)
    with pytest.raises(LabelError, match="hemisphere of halves is both GM and WM"):
        tissue_numbers(LabelScheme("halves", (background, half)))
