"""trinat report on label maps without a reference."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.miniatures import without_orientation
from helpers.refusals import refusal
from helpers.studies import add_result, write_study

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.evaluate.cohort import report_cohort
from trinat.pipelines.evaluate.settings import CohortSettings
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.ledger import Ledger, read_entries
from trinat.pipelines.study.study import Study
from trinat.segmentation.errors import ConfigError, DatasetError, EvaluationError
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.measures import INTRACRANIAL

pytestmark = pytest.mark.usefixtures("without_figures")

AFFINE = np.diag([1.0, 1.0, 2.0, 1.0])
SCANS = 9


def labels(n: int) -> np.ndarray:
    """Return left and right hippocampus and a brain stem.

    The left one of the ninth scan is enormous.
    """
    volume = np.zeros((24, 20, 16), np.int16)
    volume[2 : 6 + n % 3, 4:8, 4:8] = 17
    volume[14:18, 4:8, 4:8] = 53
    volume[10:13, 10:13, 2 : 8 + n % 2] = 16
    if n == SCANS:
        volume[1:9, 1:18, 2:14] = 17
    return volume


@pytest.fixture(scope="module")
def predictions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("predictions")
    for n in range(1, SCANS + 1):
        name = f"sub-{n:02d}/anat/sub-{n:02d}_space-orig_desc-trinat_dseg.nii.gz"
        (root / name).parent.mkdir(parents=True)
        Volume(labels(n), AFFINE).write(root / name, labels=True)
        add_result(
            root,
            f"sub-{n:02d}",
            name,
            grade="reject" if n == SCANS else "pass",
            reasons=["left is larger"] if n == SCANS else [],
            volume_cv={"Left-Hippocampus": 0.01 * n, "Brain-Stem": None},
        )
    with Ledger(root / "run.jsonl") as ledger:
        ledger.add(Entry("sub-10", "failed", reason="FormatError: not a head"))
    with (root / "participants.tsv").open("w") as file:
        file.write("participant_id\tsex\tage\tsite\n")
        for n in range(1, SCANS + 1):
            file.write(
                f"sub-{n:02d}\t{'MF'[n % 2]}\t{20 + n}\t{'north' if n < 5 else 'south'}\n"
            )
    return root


def test_scans_count_where_any_of_their_structures_does(tmp_path: Path) -> None:
    with Ledger(tmp_path / "run.jsonl") as ledger:
        ledger.add(Entry("sub-5", "failed", reason="FormatError: not a head"))
    for n in range(1, 5):
        name = f"sub-{n}_dseg.nii.gz"
        Volume(labels(1), AFFINE).write(tmp_path / name, labels=True)
        result = {"grade": "reject" if n == 4 else "pass", "reasons": ["cut"]}
        if n == 1:
            result["structure_grades"] = {"Left-Hippocampus": "reject"}
        add_result(tmp_path, f"sub-{n}", name, **result)
    people = "".join(f"sub-{n}\t{sex}\n" for n, sex in enumerate("FFMM", start=1))
    (tmp_path / "participants.tsv").write_text("participant_id\tsex\n" + people)
    report_cohort(CohortSettings(tmp_path, tmp_path / "out", jobs=1))
    page = (tmp_path / "out/report.html").read_text()
    # The fourth scan is rejected, and a single structure of the first.
    assert "Participants: F: 2, M: 1." in page
    assert "1 of 5 scans failed." in page


def test_what_the_ledgers_of_folds_say_is_in_the_report(tmp_path: Path) -> None:
    for n in range(2):
        name, place = f"sub-{n}_dseg.nii.gz", tmp_path / f"found/fold-{n}"
        place.mkdir(parents=True)
        Volume(labels(1), AFFINE).write(place / name, labels=True)
        add_result(place, "same", name, grade="look", reasons=[f"reason {n}"])
        with Ledger(place / "run.jsonl") as ledger:
            ledger.add(Entry(f"bad {n}", "failed", reason=f"failure {n}"))
    assert (
        report_cohort(CohortSettings(tmp_path / "found", tmp_path / "out", jobs=1))
        == Exit.SOME_FAILED
    )
    # Outliers cannot be told among two scans.
    page = (tmp_path / "out/report.html").read_text()
    assert "Nothing stands out" not in page
    assert "Not tested: robust z-scores need" in page
    assert "not tested: too few scans" in page
    assert 'id="outlier-table"' not in page
    page = (tmp_path / "out/report.html").read_text()
    assert all(
        f"{word} {n}" in page for word in ("reason", "failure") for n in range(2)
    )


def test_maps_without_orientation_are_read_when_told_what_to_trust(
    tmp_path: Path,
) -> None:
    path = tmp_path / "maps/sub-01_dseg.nii.gz"
    path.parent.mkdir()
    Volume(labels(1), AFFINE).write(path, labels=True)
    without_orientation(path)
    untold = CohortSettings(path.parent, tmp_path / "out", jobs=1)
    with pytest.raises(EvaluationError, match="--trust-affine"):
        report_cohort(untold)
    assert report_cohort(replace(untold, trust_affine="header")) == Exit.OK


@pytest.fixture(scope="module")
def settings(
    predictions: Path, tmp_path_factory: pytest.TempPathFactory
) -> CohortSettings:
    root = tmp_path_factory.mktemp("report")
    return CohortSettings(predictions, root / "out", excluded=(), jobs=1)


@pytest.fixture(scope="module")
def written(settings: CohortSettings) -> Path:
    assert (
        report_cohort(settings) == Exit.SOME_FAILED
    )  # sub-10 failed, according to the ledger
    return settings.out


@pytest.fixture(scope="module")
def volumes(written: Path) -> pd.DataFrame:
    return pd.read_csv(
        written / "volumes.csv", keep_default_na=False, na_values={"z": [""]}
    )


@pytest.fixture(scope="module")
def page(written: Path) -> str:
    return html.unescape((written / "report.html").read_text())


def rows(volumes: pd.DataFrame, structure: str, metric: str = "volume") -> pd.DataFrame:
    return volumes[(volumes["structure"] == structure) & (volumes["metric"] == metric)]


def test_the_asymmetry_index_is_signed_and_relative(volumes: pd.DataFrame) -> None:
    index = rows(volumes, "Left-Hippocampus", "asymmetry_index").set_index("subject")[
        "value"
    ]
    # 160 against 128 mm3: 32 of a mean of 144.
    assert float(index["sub-01"]) == pytest.approx(100 * 32 / 144)
    assert float(index["sub-03"]) == 0


def test_an_outlier_is_found_by_its_robust_z(volumes: pd.DataFrame, page: str) -> None:
    z = rows(volumes, "Left-Hippocampus").set_index("subject")["z"]
    assert z["sub-09"] > 10
    assert z.drop("sub-09").abs().max() < 3.5
    assert "sub-09" in re.findall(r'id="outlier-table".*?</table>', page, re.DOTALL)[0]


def test_people_are_told_apart_by_sex_age_and_site(page: str) -> None:
    assert "By sex: mean ± SD" in page
    assert "By site: mean ± SD" in page
    assert "Participants: north: 4, south: 5." in page
    assert "By age" not in page  # all in their twenties: one band


def test_the_run_speaks_through_its_ledger(page: str) -> None:
    assert "1 of 10 scans failed." in page
    assert "FormatError: not a head" in page
    assert "1 scan rejected by quality control, but included in the numbers." in page
    assert "left is larger" in page
    assert "Uncertainty of volumes" in page


def test_maps_of_one_name_go_by_their_files(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    for name in ("sub-01_T1w_dseg", "sub-01_desc-old_dseg", "sub-02_T1w_dseg"):
        Volume(labels(1), AFFINE).write(tmp_path / f"{name}.nii.gz", labels=True)
    logged.clear()
    settings = CohortSettings(tmp_path, tmp_path / "report", jobs=1)
    assert report_cohort(settings) == Exit.OK
    (remark,) = logged.messages
    assert remark.endswith(" are both of sub-01: each map counts as a scan")
    table = pd.read_csv(tmp_path / "report/volumes.csv", keep_default_na=False)
    assert set(zip(table["subject"], table["session"], strict=True)) == {
        ("sub-01", "sub-01_T1w_dseg"),
        ("sub-01", "sub-01_desc-old_dseg"),
        ("sub-02", ""),
    }
    assert "3 scans of 2 participants" in (tmp_path / "report/report.html").read_text()


def test_a_damaged_map_is_a_failure_and_the_rest_is_reported(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    Volume(labels(1), AFFINE).write(tmp_path / "good_dseg.nii.gz", labels=True)
    (tmp_path / "bad_dseg.nii.gz").write_bytes(b"damaged")
    settings = CohortSettings(tmp_path, tmp_path / "out", jobs=1)
    logged.clear()
    assert report_cohort(settings) == Exit.SOME_FAILED
    assert [line.split(":")[0] for line in logged.messages] == ["bad"]
    page = (settings.out / "report.html").read_text()
    assert "1 of 2 scans failed." in page


def test_a_scan_whose_label_map_was_removed_is_a_failure(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    study = write_study(tmp_path / "study", ["a", "b", "c"])
    settings = CohortSettings(study, tmp_path / "out", jobs=1)
    assert report_cohort(settings) == Exit.OK
    (study / "a_dseg.nii.gz").unlink()
    logged.clear()
    assert report_cohort(settings) == Exit.SOME_FAILED
    assert logged.messages[0].startswith("a: ")
    page = (settings.out / "report.html").read_text()
    assert "1 of 3 scans failed." in page


def test_a_scan_whose_label_map_was_dropped_is_one_failure_and_was_not_edited(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    out = write_study(tmp_path / "study", ["a", "b", "c"])
    (out / "a_dseg.nii.gz").unlink()
    (out / "a_dseg.nii.gz").symlink_to("dropped")
    study = Study(out)
    assert not any(file.is_edited for file in study.checked(study.label_maps()))
    logged.clear()
    settings = CohortSettings(out, tmp_path / "out", jobs=1)
    assert report_cohort(settings) == Exit.SOME_FAILED
    assert sum(line.startswith("a: ") for line in logged.messages) == 1


def test_figures_of_an_earlier_report_are_removed(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", ["a", "b", "c"])
    settings = CohortSettings(study, tmp_path / "out", jobs=1)
    report_cohort(settings)
    # Two scans that count give no figures of their own.
    (settings.out / "figures").mkdir()
    (settings.out / "figures/earlier.svg").touch()
    report_cohort(settings)
    assert not (settings.out / "figures/earlier.svg").exists()


def test_nothing_readable_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "bad_dseg.nii.gz").write_bytes(b"damaged")
    with pytest.raises(EvaluationError, match="none of 1 label maps could be measured"):
        report_cohort(CohortSettings(tmp_path, tmp_path / "out", jobs=1))


def write_graded(folder: Path, grades: list[str]) -> None:
    """Write a scan for each grade, s1 and on; those that pass have 128 mm³ of left hippocampus."""
    for n, grade in enumerate(grades, start=1):
        name = f"s{n}_dseg.nii.gz"
        scan = labels(3 if grade == "pass" else SCANS)
        Volume(scan, AFFINE).write(folder / name, labels=True)
        measures = {"EstimatedTotalIntraCranialVol": 1e6 * n}
        reasons = [f"reason {n}"]
        add_result(
            folder, f"s{n}", name, grade=grade, reasons=reasons, measures_mm3=measures
        )


@pytest.mark.parametrize(
    ("excluded", "counted", "left_out"),
    [
        (("reject",), ["s1", "s2", "s3"], ["s4"]),
        ((), ["s1", "s2", "s3", "s4"], []),
        (("reject", "look"), ["s1", "s2"], ["s3", "s4"]),
    ],
)
def test_a_rejected_scan_is_in_no_number_of_the_group(
    tmp_path: Path,
    excluded: tuple[str, ...],
    counted: list[str],
    left_out: list[str],
    logged: pytest.LogCaptureFixture,
) -> None:
    write_graded(tmp_path, ["pass", "pass", "look", "reject"])
    settings = CohortSettings(tmp_path, tmp_path / "out", excluded=excluded, jobs=1)
    logged.clear()
    assert report_cohort(settings) == Exit.OK
    table = pd.read_csv(tmp_path / "out/volumes.csv")
    assert sorted(table["subject"].unique()) == counted
    page = (tmp_path / "out/report.html").read_text()
    named = re.findall(r'id="left-out-table".*?</table>', page, re.DOTALL)
    assert bool(named) == bool(left_out)
    reasons = {"s3": "graded look: reason 3", "s4": "graded reject: reason 4"}
    assert logged.messages == [
        f"{scan}: left out, {reasons[scan]}" for scan in left_out
    ]
    for scan in left_out:
        assert reasons[scan] in named[0]
    if left_out:
        rows = pd.read_csv(tmp_path / "out/left_out.csv")
        assert rows["subject"].tolist() == left_out
        assert rows["reason"].tolist() == [reasons[scan] for scan in left_out]
    else:
        assert not (tmp_path / "out/left_out.csv").exists()


def test_a_rejected_scan_is_not_in_the_adjustment(tmp_path: Path) -> None:
    write_graded(tmp_path, ["pass", "pass", "pass", "pass", "reject"])
    settings = CohortSettings(tmp_path, tmp_path / "out", adjust="residual", jobs=1)
    report_cohort(settings)
    lines = pd.read_csv(tmp_path / "out/adjustment.csv").set_index("structure")
    # Four equal hippocampi have no slope; the enormous fifth one would cause one.
    assert lines.loc["Left-Hippocampus", "scans"] == 4
    assert lines.loc["Left-Hippocampus", "slope"] == pytest.approx(0, abs=1e-12)


def test_a_rejected_structure_is_in_no_number_of_the_group(tmp_path: Path) -> None:
    write_graded(tmp_path, ["pass", "pass"])
    name = "s3_dseg.nii.gz"
    Volume(labels(SCANS), AFFINE).write(tmp_path / name, labels=True)
    grades = {"Left-Hippocampus": "reject"}
    add_result(tmp_path, "s3", name, grade="look", structure_grades=grades)
    report_cohort(CohortSettings(tmp_path, tmp_path / "out", jobs=1))
    table = pd.read_csv(tmp_path / "out/volumes.csv")
    assert set(rows(table, "Left-Hippocampus")["value"].dropna()) == {128}
    assert rows(table, "Right-Hippocampus")["value"].notna().all()
    (left_out,) = pd.read_csv(tmp_path / "out/left_out.csv").to_dict("records")
    assert left_out["structure"] == "Left-Hippocampus"
    assert left_out["reason"] == "rejected by quality control"


def test_a_group_of_rejected_scans_alone_is_refused(tmp_path: Path) -> None:
    write_graded(tmp_path, ["reject"])
    with pytest.raises(EvaluationError, match=r"every scan is left out.*s1.*reason 1"):
        report_cohort(CohortSettings(tmp_path, tmp_path / "out", jobs=1))


@pytest.mark.slow
@pytest.mark.important
def test_processes_give_the_same_table(
    settings: CohortSettings, written: Path, tmp_path: Path
) -> None:
    report_cohort(replace(settings, out=tmp_path, jobs=2))
    assert (tmp_path / "volumes.csv").read_bytes() == (
        written / "volumes.csv"
    ).read_bytes()


def test_pictures_of_the_run_are_shown_worst_first(
    predictions: Path, tmp_path: Path
) -> None:
    from PIL import Image

    scans = [1, SCANS]
    for n in scans:
        anat = tmp_path / "in" / f"sub-{n:02d}" / "anat"
        anat.mkdir(parents=True)
        stem = f"sub-{n:02d}_space-orig_desc-trinat"
        name = f"{anat.relative_to(tmp_path / 'in')}/{stem}_dseg.nii.gz"
        Volume(labels(n), AFFINE).write(tmp_path / "in" / name, labels=True)
        Image.new("L", (8, 8), n).save(anat / f"{stem}_qc.png")
        grade = "reject" if n == SCANS else "pass"
        add_result(tmp_path / "in", f"sub-{n:02d}", name, grade=grade)
    report_cohort(CohortSettings(tmp_path / "in", tmp_path / "out", jobs=1))
    page = (tmp_path / "out" / "report.html").read_text()
    titles = re.findall(r'class="shot"><h3>(.*?)</h3>', page)
    assert titles == ["sub-09", "sub-01"]


def test_what_the_model_does_not_know_has_no_volume(tmp_path: Path) -> None:
    """Without a ledger, 0 mm3 are taken from the map; with one, the volume is unknown."""
    Volume(labels(1), AFFINE).write(tmp_path / "a_dseg.nii.gz", labels=True)
    known = {"Left-Hippocampus": 1.0, "Left-Thalamus": 0.0}
    for has_ledger, expected in (
        (False, {"CSF", "Left-Thalamus"}),
        (True, {"Left-Thalamus"}),
    ):
        if has_ledger:
            add_result(tmp_path, "a", "a_dseg.nii.gz", volumes_mm3=known)
        assert (
            report_cohort(CohortSettings(tmp_path, tmp_path / "report", jobs=1))
            == Exit.OK
        )
        table = pd.read_csv(tmp_path / "report/volumes.csv").query("metric == 'volume'")
        none = set(table["structure"][table["value"] == 0])
        assert none & {"CSF", "Left-Thalamus"} == expected


def test_volumes_are_adjusted_by_the_ledger_else_by_the_table(
    predictions: Path, tmp_path: Path
) -> None:
    people = tmp_path / "people.tsv"
    rows = [f"sub-{n:02d}\tpatient\t{1e6 + 1e4 * n}" for n in range(1, SCANS + 1)]
    people.write_text("\n".join(["participant_id\tgroup\teTIV", *rows]))
    settings = CohortSettings(
        predictions,
        tmp_path / "out",
        participants=people,
        adjust="proportion",
        excluded=(),
        jobs=1,
    )
    report_cohort(settings)
    table = pd.read_csv(tmp_path / "out/volumes.csv")
    stem = table[(table["structure"] == "Brain-Stem") & (table["subject"] == "sub-02")]
    by = stem.set_index("metric")
    # 9 voxels in each of 6 slices, of 2 mm³, in 1.02 litres.
    assert by["value"].to_dict() == {
        "volume": 108,
        "adjusted_volume": pytest.approx(100 * 108 / 1.02e6),
    }
    assert by["unit"].to_dict() == {"volume": "mm3", "adjusted_volume": "%"}
    assert set(table["group"]) == {"patient"}
    assert not (tmp_path / "out/adjustment.csv").exists()
    report_cohort(replace(settings, adjust="residual"))
    lines = pd.read_csv(tmp_path / "out/adjustment.csv").set_index("structure")
    assert lines.loc["Brain-Stem", "scans"] == SCANS
    with pytest.raises(EvaluationError, match="0 of 9 scans have an intracranial"):
        report_cohort(replace(settings, participants=None))


def test_a_proportion_is_not_adjusted_for_the_head_again(tmp_path: Path) -> None:
    out = write_study(tmp_path / "out", ["a"])
    settings = CohortSettings(out, tmp_path / "report", jobs=1)
    with pytest.raises(ConfigError):
        report_cohort(replace(settings, adjust="proportion", covariates=("icv",)))


def test_intracranial_volumes_of_two_kinds_are_not_mixed(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    out = write_study(tmp_path / "out", ["a", "b"])
    entry = read_entries([out / "run.jsonl"])["a"]
    measured = entry.result.model_copy(
        update={"measures_mm3": {INTRACRANIAL.column: 1.4e6}}
    )
    with Ledger(out / "run.jsonl") as ledger:
        ledger.add(replace(entry, result=measured))
    people = tmp_path / "people.tsv"
    people.write_text("participant_id\teTIV\na\t1500000\nb\t1300000\n")
    settings = CohortSettings(out, tmp_path / "report", participants=people, jobs=1)

    def heads() -> dict[str, float]:
        logged.clear()
        report_cohort(settings)
        table = pd.read_csv(tmp_path / "report/volumes.csv")
        found = table.groupby("subject")["intracranial_mm3"].first()
        return dict(found.dropna())

    # More scans have the table's.
    assert heads() == {"a": 1.5e6, "b": 1.3e6}
    assert not any("comparable" in line for line in logged.messages)
    # Equally many.
    people.write_text("participant_id\teTIV\nb\t1300000\n")
    assert heads() == {"a": 1.4e6}
    assert any("not comparable" in line for line in logged.messages)
    assert "not comparable" in (tmp_path / "report/report.html").read_text()


def test_results_of_two_models_are_named(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    out = write_study(tmp_path / "out", ["a", "b"])
    logged.clear()
    report_cohort(CohortSettings(out, tmp_path / "report", jobs=1))
    assert not any("models" in line for line in logged.messages)
    entry = read_entries([out / "run.jsonl"])["a"]
    with Ledger(out / "run.jsonl") as ledger:
        ledger.add(replace(entry, model="another"))
    report_cohort(CohortSettings(out, tmp_path / "report", jobs=1))
    assert "results of 2 models, whose volumes differ" in logged.messages
    page = (tmp_path / "report" / "report.html").read_text()
    assert "2: volumes of different models differ" in page


def test_sites_are_harmonised_beside_the_measured_volumes(tmp_path: Path) -> None:
    people = ["participant_id\tsite"]
    for n in range(20):
        Volume(labels(n % 8), AFFINE).write(tmp_path / f"s{n}_dseg.nii.gz", labels=True)
        people.append(f"s{n}\t{'north' if n < 10 else 'south'}")
    (tmp_path / "participants.tsv").write_text("\n".join(people))
    settings = CohortSettings(tmp_path, tmp_path / "out", harmonise="site", jobs=1)
    report_cohort(settings)
    effects = pd.read_csv(tmp_path / "out/harmonisation.csv")
    stem = effects[effects["structure"] == "Brain-Stem"].set_index("site")
    # 6 or 7 slices of 9 voxels of 2 mm³: in the north five of each.
    assert stem.loc["north", ["participants", "mean_before"]].tolist() == [10, 117]
    volumes = pd.read_csv(tmp_path / "out/volumes.csv")
    stem = volumes[volumes["structure"] == "Brain-Stem"].set_index("metric")
    assert set(stem.loc["volume", "value"]) == {108, 126}
    assert stem.loc["harmonised_volume", "value"].notna().sum() == 20
    # The right hippocampus is the same in all scans, so it has no site effect.
    right = volumes[volumes["structure"] == "Right-Hippocampus"].set_index("metric")
    assert right.loc["harmonised_volume", "value"].isna().all()
    assert "Sites before and after" in (tmp_path / "out/report.html").read_text()

    report_cohort(replace(settings, harmonise=None))
    assert not (tmp_path / "out/harmonisation.csv").exists()


def test_sites_that_cannot_be_harmonised_are_refused_before_voxels_are_read(
    tmp_path: Path,
) -> None:
    maps(tmp_path, "sub-1", "sub-2", "sub-3", "sub-4")
    (tmp_path / "participants.tsv").write_text(
        "participant_id\tsite\n1\tA\n2\tA\n3\tB\n4\tB\n"
    )
    settings = CohortSettings(tmp_path, tmp_path / "out", harmonise="site", jobs=1)
    measured: list[object] = []
    with pytest.raises(EvaluationError) as caught:
        report_cohort(settings, progress=lambda *result: measured.append(result))
    assert "site A has 2 participants" in str(caught.value)
    assert not measured


def maps(root: Path, *names: str) -> None:
    for n, name in enumerate(names):
        path = root / f"{name}_dseg.nii.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        Volume(labels(n), AFFINE).write(path, labels=True)


def people_in(out: Path) -> set[tuple[str, str]]:
    table = pd.read_csv(out / "volumes.csv", keep_default_na=False, dtype=str)
    return set(zip(table["subject"], table["session"], strict=True))


def test_what_is_not_understood_is_said_or_with_strict_an_error(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    maps(tmp_path / "maps", "sub-01", "sub-02")
    table = tmp_path / "people.tsv"
    table.write_text("participant_id\tage\n1\t999\n")
    settings = CohortSettings(
        tmp_path / "maps", tmp_path / "out", participants=table, jobs=1
    )
    logged.clear()
    assert report_cohort(settings) == Exit.OK
    assert logged.messages == [
        "people.tsv: row 2, age: '999' is no age from 0 to 120 years",
        "people.tsv: 1 of 2 participants are not in the table: sub-02",
    ]
    page = html.unescape((tmp_path / "out/report.html").read_text())
    assert all(line.partition(": ")[2] in page for line in logged.messages)
    with pytest.raises(DatasetError, match=r"'999' is no age .*\(and 1 more\)"):
        report_cohort(replace(settings, strict=True))


def test_participants_of_two_sites_stay_apart_and_are_named(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    maps(tmp_path / "maps", "A/sub-01_T1w", "B/sub-01_T1w", "B/sub-02_T1w")
    logged.clear()
    settings = CohortSettings(tmp_path / "maps", tmp_path / "out", jobs=1)
    report_cohort(settings)
    assert {participant for participant, _ in people_in(tmp_path / "out")} == {
        "A/sub-01",
        "B/sub-01",
        "B/sub-02",
    }
    assert logged.messages == [
        "participants of one name in several folders are taken as several: "
        "A/sub-01, B/sub-01 and 1 more"
    ]


def test_the_ledgers_of_folders_below_and_above_count(tmp_path: Path) -> None:
    for site in ("north", "south"):
        write_study(tmp_path / "all" / site, ["a", "b", "c"], scans=tmp_path / site)
    settings = CohortSettings(tmp_path / "all", tmp_path / "report", jobs=1)
    report_cohort(settings)
    left_out = pd.read_csv(tmp_path / "report/left_out.csv")
    assert left_out["grade"].tolist() == ["reject", "reject"]
    one = tmp_path / "all/north/c_dseg.nii.gz"
    with refusal(EvaluationError, one, remedy="--include-rejected"):
        report_cohort(replace(settings, predictions=one))
    results = tmp_path / "all/north"
    (results / "below").mkdir()
    ledger = results / "run.jsonl"
    for path in results.glob("?_*.nii.gz"):
        path.rename(results / "below" / path.name)
    for letter in "abc":
        text = ledger.read_text().replace(f'"{letter}_', f'"below/{letter}_')
        ledger.write_text(text)
    report_cohort(replace(settings, predictions=results / "below"))
    left_out = pd.read_csv(tmp_path / "report/left_out.csv")
    assert left_out["subject"].tolist() == ["c"]


def test_a_scan_without_parcels_is_not_measured_as_if_it_had_none_of_each(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    out = write_study(tmp_path / "out", ["a", "b"], with_parcels=["a"])
    settings = CohortSettings(out, tmp_path / "report", labels="desikan", jobs=1)
    logged.clear()
    assert report_cohort(settings) == Exit.SOME_FAILED
    assert any(
        line.startswith("b: ") and "has no parcels" in line for line in logged.messages
    )
    volumes = pd.read_csv(tmp_path / "report/volumes.csv")
    assert set(volumes["subject"]) == {"a"}


def test_a_rating_of_the_structures_counts_for_parcels(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    out = write_study(tmp_path / "out", ["a", "b"], with_parcels=["a", "b"])
    digest = sha256_of(out / "b_dseg.nii.gz")
    ratings = tmp_path / "ratings.tsv"
    ratings.write_text(
        "scan\tstructure\trating\tremark\trater\trated\tsha256\n"
        f"b\tn/a\treject\tn/a\tann\t2026-11-28T10:00:00+00:00\t{digest}\n"
    )
    for labels in ("desikan", "quicknat33"):
        settings = CohortSettings(
            out, tmp_path / labels, labels=labels, ratings=ratings, jobs=1
        )
        logged.clear()
        report_cohort(settings)
        excluded = "by raters: 1 scan and 0 structures"
        assert any(excluded in line for line in logged.messages)
        left_out = pd.read_csv(tmp_path / labels / "left_out.csv")
        assert left_out["reason"].tolist() == ["rejected by ann"]


def test_left_out_names_parcels_and_their_grade(tmp_path: Path) -> None:
    out = write_study(tmp_path / "out", ["a"], with_parcels=["a"])
    settings = CohortSettings(
        out, tmp_path / "report", excluded=("reject", "look"), jobs=1
    )
    report_cohort(settings)
    left_out = pd.read_csv(tmp_path / "report/left_out.csv").set_index("structure")
    assert left_out.loc["ctx-lh-insula", "reason"] == (
        "rejected by quality control (graded look)"
    )


def test_the_first_known_fact_of_a_participant_counts(tmp_path: Path) -> None:
    rows = ["participant_id\tsex"]
    for n in range(1, 8):
        for session in (1, 2):
            path = tmp_path / f"scans/OAS1_000{n}_MR{session}_dseg.nii.gz"
            path.parent.mkdir(exist_ok=True)
            Volume(labels(n), AFFINE).write(path, labels=True)
        rows.append(f"OAS1_000{n}_MR2\t{'MF'[n % 2]}")
    people = tmp_path / "people.tsv"
    people.write_text("\n".join(rows))
    settings = CohortSettings(
        tmp_path / "scans", tmp_path / "out", participants=people, jobs=1
    )
    report_cohort(settings)
    effects = pd.read_csv(tmp_path / "out/effects.csv")
    stem = effects[effects["structure"] == "Brain-Stem"].iloc[0]
    assert (stem["first"], stem["second"]) == (4, 3)


def test_relatives_in_the_participants_table_are_not_independent(
    tmp_path: Path,
) -> None:
    maps(tmp_path / "maps", *(f"sub-{n}" for n in range(8)))
    people = ["participant_id\tgroup\tfamily"]
    people += [f"sub-{n}\t{'abab'[n // 2]}\tF{n // 2}" for n in range(8)]
    (tmp_path / "maps/participants.tsv").write_text("\n".join(people))
    report_cohort(CohortSettings(tmp_path / "maps", tmp_path / "out", jobs=1))
    effects = pd.read_csv(tmp_path / "out/effects.csv").set_index("structure")
    # Two families in each group, as two participants in each.
    assert effects.loc["Left-Hippocampus", "df"] == pytest.approx(2)
    page = (tmp_path / "out/report.html").read_text()
    assert "8 participants share a family with another" in page
