"""The page of one scan: sides in a row, asymmetry, the worse grade, percentiles, no network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.browser import (
    assert_fits_desk_and_phone,
    find_chromium,
    print_to_pdf,
)
from helpers.pages import rows_of

from trinat.pipelines.report.scan_page import scan_page
from trinat.pipelines.study.participants import Facts
from trinat.pipelines.study.record import (
    CallosumResult,
    ScanResult,
    SheetResult,
    ThicknessResult,
)
from trinat.segmentation.inference.prediction import Prediction
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.measures import INTRACRANIAL
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.metrics.norms import Curve, Norms
from trinat.segmentation.metrics.norms import rows_of as rows_of_norms
from trinat.segmentation.space.conform import conform

SCHEME = load_scheme("quicknat33")
LEFT = SCHEME.names.index("Left-Hippocampus")
RIGHT = SCHEME.names.index("Right-Hippocampus")
STEM = SCHEME.names.index("Brain-Stem")
RESULT: dict[str, Any] = {
    "grade": "look",
    "reasons": ["Right-Hippocampus: <views> agree too little"],
    "notes": [],
    "total_brain_mm3": 1_234_567.0,
    "mean_agreement": 0.91,
    "structure_grades": {
        "Left-Hippocampus": "pass",
        "Right-Hippocampus": "look",
        "Brain-Stem": "pass",
    },
    "volumes_mm3": {
        "Left-Hippocampus": 3300.0,
        "Brain-Stem": 20000.0,
        "Right-Hippocampus": 2700.0,
    },
}


@pytest.fixture(scope="module")
def found() -> Prediction:
    """Segment blocks of three structures in a head of 40 x 40 x 40 mm."""
    image = np.zeros((40, 40, 40), np.float32)
    image[4:36, 4:36, 4:36] = 100
    conformed = conform(Volume(image, np.eye(4)), shape=None)
    shape = conformed.volume.shape
    fused = torch.zeros((*shape, len(SCHEME)), dtype=torch.float16)
    fused[..., 0] = 0.5
    fused[10:14, 10:14, 10:14, LEFT] = 1
    fused[20:24, 10:14, 10:14, RIGHT] = 1
    fused[14:18, 10:14, 4:14, STEM] = 1
    return Prediction(
        fused=fused,
        scheme=SCHEME,
        plan=conformed.plan,
        image=conformed.volume,
        notes=(),
        agreement=None,
        uncertainty=None,
        not_predicted=("CSF",),
    )


def test_the_sides_of_each_view_are_named(found: Prediction) -> None:
    page = scan_page(found, ScanResult(**RESULT), {}, title="sub-1")
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    named = [re.sub(r"<[^>]+>", " ", caption).split() for caption in captions]
    assert named == [["L", "Axial", "R"], ["L", "Coronal", "R"], ["P", "Sagittal", "A"]]


def test_both_sides_are_in_a_row_with_their_asymmetry(found: Prediction) -> None:
    """Hippocampus: 100 (3300 - 2700) / 3000 = 20 %."""
    page = scan_page(found, ScanResult(**RESULT), {"trinat": "1"}, title="sub-1")
    assert rows_of(page) == [
        [
            *("Hippocampus", "look (right)", "3,300", "2,700", "6,000", "+20.0"),
            "right: Right-Hippocampus: &lt;views&gt; agree too little",
        ],
        ["Brain Stem", "pass", "", "", "20,000", "", ""],
    ]
    assert "Not predicted by this model: CSF." in page
    assert "1,235 ml" in page


def norms_of(*structures: str, source: str = "table") -> Norms:
    """Return norms for women of 30, with intracranial volumes of one source.

    3,000 mm³ in a head of 1.5 l, with a standard deviation of 10 %.
    """
    curve = Curve([30.0], [1.0], [3000.0], [0.1], [20], 120, 1.5e6, 1.0, source)
    return Norms.of(
        row for name in structures for row in rows_of_norms(name, "F", curve, "")
    )


def test_norms_say_a_percentile_and_a_z_of_each_side(found: Prediction) -> None:
    """Left 3,300 is 1 SD above, right 2,700 as much below: 84 and 16 in a hundred have less."""
    reference = norms_of("Left-Hippocampus", "Right-Hippocampus")
    participant = Facts(age=30.0, sex="F", intracranial_mm3=1.5e6)
    page = scan_page(
        found,
        ScanResult(**RESULT),
        {},
        title="sub-1",
        norms=reference,
        participant=participant,
    )
    assert [row[7:9] for row in rows_of(page)] == [
        ["84 (z +1.0)", "16 (z −1.0)"],
        ["", ""],
    ]
    assert "the norms that were given, of 120 participants" in page


def test_norms_take_the_head_of_their_own_source(found: Prediction) -> None:
    """Left 3,300 is 1 SD above the median in the head of the table, and the median in the other."""
    result = {**RESULT, "measures_mm3": {INTRACRANIAL.column: 1.65e6}}
    participant = Facts(age=30.0, sex="F", intracranial_mm3=1.5e6)

    def page(source: str, result: dict[str, Any]) -> str:
        return scan_page(
            found,
            ScanResult(**result),
            {},
            title="sub-1",
            norms=norms_of("Left-Hippocampus", source=source),
            participant=participant,
        )

    assert rows_of(page("measured", result))[0][7] == "50 (z +0.0)"
    assert rows_of(page("table", result))[0][7] == "84 (z +1.0)"
    assert "No percentiles" in page("measured", RESULT)


def test_why_there_are_no_percentiles_is_said(found: Prediction) -> None:
    reference = norms_of("Left-Hippocampus")
    page = scan_page(found, ScanResult(**RESULT), {}, title="sub-1", norms=reference)
    assert "No percentiles: age and sex are not known." in page
    assert all(len(row) == 7 for row in rows_of(page))


def test_callosum_and_thickness_have_tables_and_grades(found: Prediction) -> None:
    callosum = CallosumResult(
        grade="look",
        reasons=["the callosum is 50 mm long"],
        volumes_mm3={"CC_Central": 400.0},
        total_mm3=2500.0,
        area_mm2=500.25,
        length_mm=50.0,
        midline_mm=None,
        mean_thickness_mm=5.0,
        max_thickness_mm=9.0,
        thickness_mm=[],
    )
    sheet = SheetResult(side="left", mm=2.51, std_mm=0.5, mm3=3000.0, area_mm2=1200.0)
    thickness = ThicknessResult(
        grade="pass", reasons=[], sheets={"ctx-lh-insula": sheet}
    )
    result = ScanResult(**RESULT, callosum=callosum, thickness=thickness)
    page = scan_page(found, result, {}, title="sub-1")
    assert ["CC area (mm²)", "500.25"] in rows_of(page, "callosum-table")
    assert "look (the callosum is 50 mm long)" in page
    assert ["L insula (mm)", "2.51"] in rows_of(page, "thickness-table")
    plain = scan_page(found, ScanResult(**RESULT), {}, title="sub-1")
    assert "callosum-table" not in plain


def test_a_structure_that_is_new_is_shown_too(found: Prediction) -> None:
    volumes = {**RESULT["volumes_mm3"], "Vermis": 5000.0}
    result = {**RESULT, "volumes_mm3": volumes}
    page = scan_page(found, ScanResult(**result), {}, title="sub-1")
    assert ["Vermis", "", "", "", "5,000", "", ""] in rows_of(page)


def test_a_scan_that_passes_names_its_structures_that_do_not(
    found: Prediction,
) -> None:
    grades = {"Left-Hippocampus": "look", "Brain-Stem": "reject"}
    volumes = {**RESULT["volumes_mm3"], "Brain-Stem": 0.0}
    result = {
        **RESULT,
        "grade": "pass",
        "reasons": [],
        "structure_grades": grades,
        "volumes_mm3": volumes,
        "agreement": {"Left-Hippocampus": 0.614},
        "csf": "intracranial",
    }
    page = scan_page(found, ScanResult(**result), {}, title="sub-1")
    assert "look at 2 structures, in the table below" in page
    assert [row[6] for row in rows_of(page)] == [
        "left: views agree by 0.61 only",
        "not found",
    ]
    assert "CSF: all fluid inside the skull" in page
    well = {**result, "structure_grades": {}, "csf": "region"}
    page = scan_page(found, ScanResult(**well), {}, title="sub-1")
    assert "all checks of the whole scan passed<" in page
    assert "CSF: all fluid" not in page


@pytest.mark.parametrize(("mm3", "shown"), [(1_500_000.0, True), (None, False)])
def test_the_intracranial_volume_is_shown_where_it_is_known(
    found: Prediction, mm3: float | None, shown: bool
) -> None:
    measures = {"EstimatedTotalIntraCranialVol": mm3}
    result = {**RESULT, "measures_mm3": measures}
    page = scan_page(found, ScanResult(**result), {}, title="sub-1")
    assert ("1,500 ml" in page) == shown
    assert ("Intracranial volume" in page) == shown


def test_a_page_is_self_contained_and_escapes_names(found: Prediction) -> None:
    page = scan_page(found, ScanResult(**RESULT), {}, title="<script>alert(1)</script>")
    assert "<script" not in page
    assert "&lt;views&gt;" in page
    assert "default-src &#39;none&#39;" in page
    sources = re.findall(r'src="([^"]{0,20})', page)
    assert len(sources) == 3
    assert all(source.startswith("data:image/png") for source in sources)


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.browser
def test_a_page_prints_on_two_sheets_and_fits_a_phone(
    found: Prediction, tmp_path: Path
) -> None:
    """With all 32 structures and a percentile for each."""
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium")
    names = SCHEME.names[1:]
    volumes = dict.fromkeys(names, 123456.0)
    result = {**RESULT, "volumes_mm3": volumes, "structure_grades": {}}
    facts = {"scan": f"sub-1 (SHA-256 {'0' * 64})", "model": f"fast ({'0' * 64})"}
    page = tmp_path / "sub-1_page.html"
    page.write_text(
        scan_page(
            found,
            ScanResult(**result),
            facts,
            title="sub-1",
            norms=norms_of(*names),
            participant=Facts(age=30.0, sex="F", intracranial_mm3=1.5e6),
        )
    )
    sheets = re.findall(rb"/Type\s*/Page[^s]", print_to_pdf(page).read_bytes())
    assert len(sheets) == 2
    assert_fits_desk_and_phone(chromium, page)
