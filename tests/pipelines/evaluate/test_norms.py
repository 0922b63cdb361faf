"""trinat norms: a table of controls, its selection, the fit on new participants, and a report."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.refusals import refusal
from scipy import optimize

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.evaluate.cohort import report_cohort
from trinat.pipelines.evaluate.norms import (
    Controls,
    _Model,
    fit_curves,
    make_norms,
)
from trinat.pipelines.evaluate.norms_table import read_norms
from trinat.pipelines.evaluate.settings import CohortSettings
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.ledger import Ledger
from trinat.pipelines.study.record import ScanResult, SheetResult, ThicknessResult
from trinat.segmentation.errors import ConfigError, EvaluationError, OutputError
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.metrics.norms import Curve

pytestmark = pytest.mark.usefixtures("without_figures")

PARTICIPANTS = 88


@pytest.fixture(scope="module")
def controls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write participants of 30 to 40 with a brain stem of 300 to 400 mm3, more in men.

    One is a patient.
    """
    folder = tmp_path_factory.mktemp("controls")
    draw = np.random.default_rng(0)
    people = ["participant_id\tage\tsex\tgroup\teTIV"]
    for number in range(PARTICIPANTS):
        labels = np.zeros((16, 16, 16), np.int16)
        is_male = number % 2
        labels.reshape(-1)[: 320 + 20 * is_male + int(draw.normal(0, 15))] = 16
        name = f"s{number:02d}"
        Volume(labels, np.eye(4)).write(folder / f"{name}_dseg.nii.gz", labels=True)
        group = "patient" if number == 5 else "control"
        head = 1.4e6 + 1e5 * is_male + draw.normal(0, 5e4)
        people.append(
            f"{name}\t{30 + number % 11}\t{'FM'[is_male]}\t{group}\t{head:.0f}"
        )
    (folder / "participants.tsv").write_text("\n".join(people) + "\n")
    return folder


@pytest.fixture(scope="module")
def settings(controls: Path) -> CohortSettings:
    return CohortSettings(controls, controls / "unused", labels="quicknat33", jobs=1)


def make(settings: CohortSettings, out: Path, group: str | None = "control") -> None:
    assert make_norms(settings, out, group, lambda *_: None) == Exit.OK


@pytest.fixture(scope="module")
def table(settings: CohortSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("norms") / "norms.tsv"
    make(settings, out)
    return out


def test_the_table_has_a_row_for_each_sex_and_year(table: Path) -> None:
    rows = pd.read_csv(table, sep="\t")
    assert set(rows["structure"]) == {"Brain-Stem"}
    assert set(rows["participants"]) == {PARTICIPANTS - 1}
    assert set(rows["intracranial_from"]) == {"table"}
    by_sex = rows.groupby("sex")
    assert by_sex["age"].agg(["min", "max"]).to_numpy().tolist() == [[30, 40], [30, 40]]
    men = rows[rows["sex"] == "M"]
    assert (men["p5"] < men["m"]).all()
    assert (men["m"] < men["p95"]).all()
    assert men["m"].mean() > rows[rows["sex"] == "F"]["m"].mean()


def test_a_report_has_percentiles_of_all_whom_norms_know(
    settings: CohortSettings, table: Path, tmp_path: Path
) -> None:
    report_cohort(replace(settings, reference=table, out=tmp_path / "out"))
    volumes = pd.read_csv(tmp_path / "out/volumes.csv")
    stem = volumes[
        (volumes["structure"] == "Brain-Stem") & (volumes["metric"] == "volume")
    ]
    assert stem["percentile"].between(0, 100).all()
    assert stem["norm_z"].mean() == pytest.approx(0, abs=0.1)
    assert set(stem["norm_participants"]) == {PARTICIPANTS - 1}
    others = volumes[volumes["structure"] != "Brain-Stem"]
    assert others["percentile"].isna().all()
    page = (tmp_path / "out/report.html").read_text()
    assert "according to the given norms" in page
    assert "without percentiles" not in page


def with_thickness(
    predictions: Path, results: Path, none: Collection[int] = ()
) -> Path:
    """Copy the results of controls, with a thickness of 2.5 mm, or 0 for the numbers in `none`."""
    shutil.copytree(predictions, results)
    draw = np.random.default_rng(0)
    with Ledger(results / "run.jsonl") as ledger:
        for number in range(PARTICIPANTS):
            name = f"s{number:02d}"
            mm = 0.0 if number in none else 2.5 + draw.normal(0, 0.1)
            sheet = SheetResult(side="left", mm=mm, std_mm=1, area_mm2=1, mm3=1)
            sheets = {"ctx-lh-insula": sheet}
            thickness = ThicknessResult(grade="pass", reasons=[], sheets=sheets)
            result = ScanResult(thickness=thickness)
            output = f"{name}_dseg.nii.gz"
            outputs = {output: sha256_of(results / output)}
            ledger.add(Entry(name, "done", outputs=outputs, result=result))
    return results


def test_a_measure_that_is_often_0_has_no_norms(
    settings: CohortSettings, tmp_path: Path
) -> None:
    results = with_thickness(settings.predictions, tmp_path / "results", range(5, 12))
    make(replace(settings, predictions=results), tmp_path / "norms.tsv")
    rows = pd.read_csv(tmp_path / "norms.tsv", sep="\t")
    assert set(rows["structure"]) == {"Brain-Stem"}


def test_further_outputs_have_norms_in_their_own_unit(
    settings: CohortSettings, tmp_path: Path
) -> None:
    results = with_thickness(settings.predictions, tmp_path / "results")
    asked = replace(settings, predictions=results)
    table = tmp_path / "norms.tsv"
    make(asked, table)
    rows = pd.read_csv(table, sep="\t")
    of_insula = rows[rows["structure"] == "lh_insula_thickness"]
    assert set(of_insula["unit"]) == {"mm"}
    assert of_insula["m"].mean() == pytest.approx(2.5, abs=0.05)
    report_cohort(replace(asked, reference=table, out=tmp_path / "out"))
    found = pd.read_csv(tmp_path / "out/thickness.csv")
    assert len(found) == PARTICIPANTS
    assert found["norm_z"].mean() == pytest.approx(0, abs=0.1)
    assert found["percentile"].between(0, 100).all()


def test_ages_are_those_of_the_scans_that_have_the_structure(tmp_path: Path) -> None:
    """Each control has a scan 20 years later, in which the brain stem of men is rejected."""
    folder = tmp_path / "two"
    folder.mkdir()
    people = ["participant_id\tage\tsex"]
    for number in range(PARTICIPANTS):
        for session, later in ((1, 0), (2, 20)):
            labels = np.zeros((16, 16, 16), np.int16)
            labels.reshape(-1)[: 300 + number % 7] = 16
            name = f"s{number:02d}_ses-{session}"
            path = folder / f"{name}_dseg.nii.gz"
            Volume(labels, np.eye(4)).write(path, labels=True)
            people.append(f"{name}\t{30 + number % 11 + later}\t{'FM'[number % 2]}")
            grade = "reject" if later and number % 2 else "pass"
            result = ScanResult(
                model="m",
                grade="pass",
                structure_grades={"Brain-Stem": grade},
                volumes_mm3={"Brain-Stem": 300.0},
            )
            with Ledger(folder / "run.jsonl") as ledger:
                outputs = {path.name: sha256_of(path)}
                ledger.add(Entry(name, "done", outputs=outputs, result=result))
    (folder / "participants.tsv").write_text("\n".join(people) + "\n")
    out = tmp_path / "norms.tsv"
    make(CohortSettings(folder, tmp_path / "unused", jobs=1), out, None)
    rows = pd.read_csv(out, sep="\t")
    oldest = rows.groupby("sex")["age"].max()
    # Means over both scans of women reach 50, and men were measured at 30 to 40.
    assert oldest["M"] == 40
    assert oldest["F"] == 50


def test_patients_may_not_be_among_the_healthy(
    settings: CohortSettings, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="has the groups control, patient"):
        make(settings, tmp_path / "norms.tsv", None)
    with pytest.raises(ConfigError, match="known groups: control, patient"):
        make(settings, tmp_path / "norms.tsv", "healthy")
    assert not (tmp_path / "norms.tsv").exists()


def test_participants_without_a_group_may_be_patients(
    settings: CohortSettings, tmp_path: Path
) -> None:
    lines = (settings.predictions / "participants.tsv").read_text()
    table = tmp_path / "participants.tsv"
    table.write_text(lines.replace("\tcontrol\t", "\tn/a\t"))
    with refusal(ConfigError, table, remedy="--group"):
        make(replace(settings, participants=table), tmp_path / "norms.tsv", None)


def people_of(
    settings: CohortSettings, out: Path, change: dict[str, str]
) -> CohortSettings:
    """Return the settings with a participants table in which some rows are replaced."""
    lines = (settings.predictions / "participants.tsv").read_text().splitlines()
    changed = [change.get(line.split("\t")[0], line) for line in lines]
    out.write_text("\n".join(changed) + "\n")
    return replace(settings, participants=out)


def test_who_lacks_an_age_is_left_out_and_named(
    settings: CohortSettings,
    tmp_path: Path,
    logged: pytest.LogCaptureFixture,
) -> None:
    change = {"s07": "s07\tn/a\tM\tcontrol\t1500000"}
    asked = people_of(settings, tmp_path / "people.tsv", change)
    make(asked, tmp_path / "norms.tsv")
    assert "left out: 1 participant without an age or a sex: s07" in logged.messages
    assert logged.messages[-1].startswith(
        "no norms of 31 measures, which fewer than 80 participants"
    )
    participants = pd.read_csv(tmp_path / "norms.tsv", sep="\t")["participants"]
    assert set(participants) == {PARTICIPANTS - 2}


def test_too_few_participants_are_refused_with_their_number(
    settings: CohortSettings, tmp_path: Path
) -> None:
    change = {f"s{n:02d}": f"s{n:02d}\t\t\tcontrol\t" for n in range(10, 20)}
    asked = people_of(settings, tmp_path / "people.tsv", change)
    with pytest.raises(
        EvaluationError, match=r"77 participants .* \(39 F, 38 M\).* 80"
    ):
        make(asked, tmp_path / "norms.tsv")


def test_a_file_that_is_no_norms_is_not_replaced(
    settings: CohortSettings, tmp_path: Path
) -> None:
    out = tmp_path / "participants.tsv"
    out.write_text("participant_id\tage\n1\t2\n")
    with refusal(OutputError, out, remedy="--out"):
        make(settings, out)


def test_norms_of_another_model_are_refused(
    settings: CohortSettings, table: Path, tmp_path: Path
) -> None:
    rows = pd.read_csv(table, sep="\t", dtype=str).assign(model="of the controls")
    rows.to_csv(tmp_path / "norms.tsv", sep="\t", index=False)
    results = tmp_path / "results"
    results.mkdir()
    name = "s00_dseg.nii.gz"
    (results / name).write_bytes((settings.predictions / name).read_bytes())
    with Ledger(results / "run.jsonl") as ledger:
        ledger.add(Entry("s00", "done", model="another", outputs={name: "0"}))
    asked = CohortSettings(
        results, tmp_path / "out", reference=tmp_path / "norms.tsv", jobs=1
    )
    with refusal(ConfigError, tmp_path / "norms.tsv"):
        report_cohort(asked)


def test_whose_ages_the_norms_do_not_reach_is_named(
    settings: CohortSettings,
    controls: Path,
    tmp_path: Path,
    logged: pytest.LogCaptureFixture,
) -> None:
    people = pd.read_csv(controls / "participants.tsv", sep="\t")
    # Participants of 30 to 37 keep their age; those of 38 to 40 become 78 to 80.
    people["age"] += 40 * (people["age"] > 37)
    people.to_csv(tmp_path / "people.tsv", sep="\t", index=False)
    asked = replace(settings, participants=tmp_path / "people.tsv")
    make(asked, tmp_path / "norms.tsv")
    older = (people["age"] > 70) & (people["group"] == "control")
    assert any(
        f"no norms of the ages of {older.sum()} participants (s08, " in line
        for line in logged.messages
    )
    rows = pd.read_csv(tmp_path / "norms.tsv", sep="\t")
    # Participants of 37 are within five years of 42.
    assert rows["age"].max() == 42


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("structure", "Hippo", "line 2: quicknat33 has no 'Hippo'"),
        ("unit", "mm", "line 2: the unit of Brain-Stem is mm3"),
        ("sex", "X", "line 2: sex is F or M"),
        ("m", "0", "line 2, m: '0' is not from 0.001"),
        ("m", "1e400", "line 2, m"),
        ("l", "5000", "line 2, l"),
        ("l", "-5000", "line 2, l"),
        ("participants", "3.5", "line 2, participants"),
        ("participants", "1e400", "line 2, participants"),
        ("s", "much", "line 2, s: 'much' is no number"),
        ("age", "99", "line 3: the ages of Brain-Stem, F do not rise"),
        ("intracranial_power", "0.1", "line 3: the head size, its power or its source"),
        ("intracranial_from", "eTIV", "line 2: intracranial_from is measured or table"),
    ],
)
def test_a_table_that_is_wrong_is_refused_with_its_line(
    table: Path, tmp_path: Path, column: str, value: str, said: str
) -> None:
    rows = pd.read_csv(table, sep="\t", dtype=str, keep_default_na=False)
    rows.loc[0, column] = value
    rows.to_csv(tmp_path / "norms.tsv", sep="\t", index=False)
    with pytest.raises(ConfigError, match=said):
        read_norms(tmp_path / "norms.tsv", load_scheme("quicknat33"))


def test_norms_without_a_source_of_intracranial_volumes_are_of_measured_ones(
    table: Path, tmp_path: Path
) -> None:
    rows = pd.read_csv(table, sep="\t", dtype=str, keep_default_na=False)
    older = rows.drop(columns="intracranial_from")
    older.to_csv(tmp_path / "norms.tsv", sep="\t", index=False)
    norms = read_norms(tmp_path / "norms.tsv", load_scheme("quicknat33"))
    assert {curve.intracranial_from for curve in norms.curves.values()} == {"measured"}


def test_medians_that_could_be_thousands_are_refused(
    table: Path, tmp_path: Path
) -> None:
    rows = pd.read_csv(table, sep="\t", dtype=str, keep_default_na=False)
    rows["m"] = ["4.000", "4.123"] * (len(rows) // 2) + ["4"] * (len(rows) % 2)
    rows.to_csv(tmp_path / "norms.tsv", sep="\t", index=False)
    with pytest.raises(ConfigError) as caught:
        read_norms(tmp_path / "norms.tsv", load_scheme("quicknat33"))
    assert "thousands" in str(caught.value)


def test_a_table_that_cannot_make_norms_is_refused_before_voxels_are_read(
    settings: CohortSettings, tmp_path: Path
) -> None:
    few = {f"s{n:02d}": f"s{n:02d}\t\t\tcontrol\t" for n in range(10, 20)}
    asked = people_of(settings, tmp_path / "people.tsv", few)
    measured: list[object] = []
    with pytest.raises(EvaluationError):
        make_norms(
            asked,
            tmp_path / "norms.tsv",
            "control",
            lambda *result: measured.append(result),
        )
    with pytest.raises(ConfigError):  # patients and controls, and no --group
        make_norms(
            settings,
            tmp_path / "norms.tsv",
            None,
            lambda *result: measured.append(result),
        )
    assert not measured


def draw(seed: int, participants: int) -> Controls:
    """Draw hippocampi that shrink from 50 on, at different rates, and larger heads of men."""
    draw = np.random.default_rng(seed)
    age = draw.uniform(20, 85, participants)
    is_male = draw.integers(0, 2, participants).astype(float)
    head = np.exp(draw.normal(np.log(1.4e6) + 0.12 * is_male, 0.085))
    lost = 0.1 * np.clip((age - 50) / 30, 0, None) ** 2
    spread = 380 * (1 + 0.006 * (age - 50))
    volume = 4200 * (head / 1.45e6) ** 0.45 * (1 - lost + 0.01 * is_male)
    return Controls(
        volume + spread * draw.normal(size=participants), age, is_male, head
    )


def z_of_fresh(curves: dict[str, Curve], fresh: Controls) -> list[float]:
    """Return the z values of all participants within the range of the curves."""
    assert fresh.intracranial_mm3 is not None
    found = []
    rows = zip(
        fresh.volume_mm3, fresh.age, fresh.is_male, fresh.intracranial_mm3, strict=True
    )
    for volume, age, is_male, head in rows:
        curve = curves["M" if is_male else "F"]
        if curve.ages[0] <= age < curve.ages[-1] + 1:
            found.append(curve.at(age, head).z(volume))
    return found


def test_the_uncertainty_of_the_median_is_of_participants_of_its_age() -> None:
    """Summed over the controls it is the number of parameters, as in any weighted regression."""
    controls = draw(0, 100)
    model = _Model.of(controls)
    for slope in (-0.2, 0.0, 0.2):
        leverage = model._leverage(model.design, controls.age, slope)
        assert leverage.sum() == pytest.approx(model.design.shape[1])


@pytest.mark.parametrize("participants", [100, 300])
def test_fresh_participants_lie_where_norms_say(participants: int) -> None:
    """Twenty groups of controls, 300 new participants each."""
    z: list[float] = []
    for seed in range(20):
        z += z_of_fresh(fit_curves(draw(seed, participants)), draw(1000 + seed, 300))
    assert len(z) > 5500
    below = 100 * np.mean(np.array(z) < -1.645)
    above = 100 * np.mean(np.array(z) > 1.645)
    assert (below, above) == (
        pytest.approx(5, abs=1.5),
        pytest.approx(5, abs=1.5),
    )
    assert np.mean(z) == pytest.approx(0, abs=0.1)
    assert 0.95 < np.std(z) < 1.05


def test_the_gradient_is_that_of_the_likelihood() -> None:
    model = _Model.of(draw(0, 100))
    start = model.start() + 0.01

    def value(parameters: np.ndarray) -> float:
        return model.loss(parameters)[0]

    numeric = optimize.approx_fprime(start, value, 1e-7)
    assert model.loss(start)[1] == pytest.approx(numeric, abs=1e-4)


def years(curve: Curve) -> Sequence[float]:
    return curve.ages


def test_a_curve_ends_where_participants_are_few() -> None:
    """Ninety men from 30 to 39, and four from 60 on; women of all ages from 32 to 36."""
    controls = draw(1, 114)
    age = np.concatenate(
        [np.arange(90) % 10 + 30, [60, 62, 64, 66], np.arange(20) % 5 + 32]
    )
    is_male = np.repeat([1.0, 0.0], [94, 20])
    curves = fit_curves(Controls(controls.volume_mm3, age.astype(float), is_male, None))
    # Within five years of 44 there are participants of 39; within five years of 45 there are none.
    assert list(years(curves["M"])) == list(range(30, 45))
    assert list(years(curves["F"])) == list(range(32, 37))
    assert curves["M"].intracranial_power is None
    assert curves["M"].at(35, None).median_mm3 > 0
