"""Correction routes of the page: corrections next to the result, drafts kept, none lost."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import numpy as np
import pytest
from helpers.studies import AFFINE, add_lesions, write_study
from helpers.viewer import ask

from trinat.pipelines.predict.tables import write_label_table
from trinat.pipelines.study.corrections import (
    Correction,
    corrected_path,
    correction_of,
    save_correction,
    sidecar_path,
)
from trinat.pipelines.study.naming import CORRECTIONS
from trinat.pipelines.view import correcting
from trinat.pipelines.view.viewed import ViewedStudy
from trinat.pipelines.view.viewer import make_app
from trinat.segmentation.io.files import read_rows, sha256_of
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.space.views import reoriented

SHAPE = (20, 24, 18)
TAB, OTHER_TAB = "0" * 16, "1" * 16
# Indices into the table of structures, which has no background.
NAMES = load_scheme("quicknat33").names
LEFT_THALAMUS = NAMES.index("Left-Thalamus")
RIGHT_THALAMUS = NAMES.index("Right-Thalamus")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return write_study(tmp_path / "out", ["a", "b"])


class Page:
    """A tab of a rater, as a client of the application."""

    layer = ""

    def __init__(self, out: Path, rater: str = "anna", tab: str = TAB) -> None:
        self._app = make_app(ViewedStudy(out, rater=rater))
        self.tab = tab

    def ask(self, method: str, path: str, **content: object) -> httpx.Response:
        return ask(self._app, method, path, **content)

    def detail(self) -> dict:
        return self.ask("GET", "/v1/scans/0", params={"layer": self.layer}).json()

    def save(self, changes: bytes, builds_on: str = "", **more: str) -> httpx.Response:
        query = {
            "builds_on": builds_on or self.detail()["builds_on"],
            "minutes": "2.5",
            "tab": self.tab,
            "layer": self.layer,
            **more,
        }
        path = "/v1/scans/0/correction"
        return self.ask("PUT", path, params=query, content=changes)

    def keep(self, changes: bytes, **more: str) -> httpx.Response:
        shown = self.detail()["builds_on"]
        query = {"builds_on": shown, "minutes": "1", "layer": self.layer, **more}
        path = f"/v1/scans/0/drafts/{self.tab}"
        return self.ask("PUT", path, params=query, content=changes)


class LesionPage(Page):
    """A tab in which the layer of lesions is shown."""

    layer = "lesions"


def changes(place: int, *voxels: tuple[int, int, int]) -> bytes:
    """Encode voxels on RAS axes that get the structure at an index of the table."""
    i, j, k = np.array(voxels).T
    indices = i + SHAPE[0] * (j + SHAPE[1] * k)
    return indices.astype("<u4").tobytes() + bytes([place] * len(voxels))


def change_scan(out: Path) -> tuple[str, str]:
    """Change a voxel of the scan with the number 0; return its SHA-256 before and after."""
    path = out.parent / "scans/scan1.nii.gz"
    before = sha256_of(path)
    scan = Volume.read(path)
    scan.data[0, 0, 0] += 7
    scan.write(path)
    return before, sha256_of(path)


def result(page: Page, out: Path) -> Path:
    """Return the label map of the scan with the number 0."""
    name = page.detail()["name"]
    return out / f"{name}_dseg.nii.gz"


def test_changes_are_saved_beside_the_result_in_its_own_space(out: Path) -> None:
    page = Page(out)
    path = result(page, out)
    # Axes in another order, and a number that is not in the table of structures.
    labels = Volume.read(path, labels=True)
    labels.data[0, 0, 0] = 85
    turned = reoriented(labels, "PIR")
    turned.write(path, labels=True)
    before = sha256_of(path)

    answer = page.save(changes(RIGHT_THALAMUS, (2, 3, 4), (6, 8, 6)))
    assert answer.status_code == 200, answer.text
    said = answer.json()["correction"]
    assert (said["by"], said["minutes"], said["voxels"]) == ("anna", 2.5, 2)
    assert not said["stale"]

    assert sha256_of(path) == before
    corrected = Volume.read(corrected_path(path), labels=True)
    assert corrected.axcodes == "PIR"
    np.testing.assert_allclose(corrected.affine, turned.affine)
    expected = labels.data.copy()
    expected[2, 3, 4] = expected[6, 8, 6] = 49
    np.testing.assert_array_equal(reoriented(corrected, "RAS").data, expected)
    facts = json.loads(sidecar_path(path).read_text())
    assert facts["Structures"] == {"Left-Thalamus": 1, "Right-Thalamus": 2}
    assert facts["ScanSHA256"] == sha256_of(out.parent / "scans/scan1.nii.gz")
    assert (answer.json()["sha256"]) == facts["SHA256"]


def test_the_page_shows_the_corrected_map_and_what_was_predicted(out: Path) -> None:
    page = Page(out)
    page.save(changes(RIGHT_THALAMUS, (2, 3, 4)))
    at = 2 + SHAPE[0] * (3 + SHAPE[1] * 4)
    assert page.ask("GET", "/v1/scans/0/labels").content[at] == RIGHT_THALAMUS
    assert page.ask("GET", "/v1/scans/0/predicted").content[at] == 0


def test_the_second_of_two_participants_is_refused_and_loses_nothing(out: Path) -> None:
    anna, berta = Page(out), Page(out, "berta", OTHER_TAB)
    shown = berta.detail()["sha256"]
    painted = changes(LEFT_THALAMUS, (1, 1, 1))
    assert berta.keep(painted).status_code == 204
    assert anna.save(changes(RIGHT_THALAMUS, (2, 3, 4))).status_code == 200
    saved = corrected_path(result(anna, out)).read_bytes()

    refused = berta.save(painted, builds_on=shown)
    assert refused.status_code == 409
    reason = refused.json()["reason"]
    assert "another correction was saved meanwhile, by anna" in reason
    assert "\n" not in reason
    assert corrected_path(result(anna, out)).read_bytes() == saved

    # The draft is still there, and is continued on top of anna's correction.
    (draft,) = berta.detail()["drafts"]
    assert draft["builds_on"] == shown
    kept = berta.ask("GET", f"/v1/scans/0/drafts/{draft['tab']}").content
    assert berta.save(kept).status_code == 200
    found = correction_of(result(anna, out))
    assert found
    assert found.sidecar
    assert [saving.by for saving in found.sidecar.savings] == ["anna", "berta"]
    assert [tuple(voxel) for voxel in np.argwhere(found.changed())] == [
        (1, 1, 1),
        (2, 3, 4),
    ]
    assert not berta.detail()["drafts"]


def test_a_draft_outlives_its_tab_and_its_server(out: Path) -> None:
    painted = changes(RIGHT_THALAMUS, (2, 3, 4))
    Page(out).keep(painted)
    later = Page(out, tab=OTHER_TAB)
    (draft,) = later.detail()["drafts"]
    assert (draft["tab"], draft["voxels"], draft["minutes"]) == (TAB, 1, 1)
    assert draft["builds_on"] == later.detail()["sha256"]
    assert later.ask("GET", f"/v1/scans/0/drafts/{TAB}").content == painted
    # Another rater does not see it.
    assert not Page(out, "berta").detail()["drafts"]
    later.ask("DELETE", f"/v1/scans/0/drafts/{TAB}")
    assert not later.detail()["drafts"]


def test_a_draft_stays_if_its_tab_has_painted_more_since_it_was_taken(
    out: Path,
) -> None:
    one, two = Page(out), Page(out, tab=OTHER_TAB)
    one.keep(changes(RIGHT_THALAMUS, (2, 3, 4)))
    (taken,) = two.detail()["drafts"]
    more = changes(RIGHT_THALAMUS, (2, 3, 4), (2, 3, 5))
    one.keep(more)
    path = f"/v1/scans/0/drafts/{TAB}"
    assert two.ask("DELETE", path, params={"at": taken["at"]}).status_code == 204
    assert one.ask("GET", path).content == more
    (now,) = two.detail()["drafts"]
    two.ask("DELETE", path, params={"at": now["at"]})
    assert not two.detail()["drafts"]


def test_strokes_that_are_kept_while_the_correction_is_saved_stay(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Page(out)
    shown = page.detail()["builds_on"]
    more = changes(RIGHT_THALAMUS, (2, 3, 4), (2, 3, 5))

    def keep_and_save(*words: object, **more_words: object) -> Correction:
        page.keep(more)
        return save_correction(*words, **more_words)

    monkeypatch.setattr(correcting, "save_correction", keep_and_save)
    page.save(changes(RIGHT_THALAMUS, (2, 3, 4)))
    (draft,) = page.detail()["drafts"]
    assert (draft["voxels"], draft["builds_on"]) == (2, shown)


def test_a_correction_of_what_the_scan_was_before_is_replaced(out: Path) -> None:
    page = Page(out)
    path = result(page, out)
    predicted = Volume.read(path, labels=True).data
    page.save(changes(RIGHT_THALAMUS, (2, 3, 4)))
    ledger = out / "run.jsonl"
    before, now = change_scan(out)
    ledger.write_text(ledger.read_text().replace(before, now))
    page = Page(out)
    detail = page.detail()
    assert detail["correction"] is None
    assert detail["builds_on"] == detail["sha256"] == sha256_of(path)
    page.save(changes(RIGHT_THALAMUS, (6, 8, 6)))
    correction = correction_of(path)
    assert correction is not None
    assert correction.sidecar is not None
    assert len(correction.sidecar.savings) == 1
    expected = predicted.copy()
    expected[6, 8, 6] = 49
    np.testing.assert_array_equal(correction.read().data, expected)


def test_a_draft_of_what_the_scan_was_before_is_not_offered(out: Path) -> None:
    assert Page(out).keep(changes(RIGHT_THALAMUS, (2, 3, 4))).status_code == 204
    (path,) = out.rglob("*.draft")
    ledger = out / "run.jsonl"
    before, now = change_scan(out)
    ledger.write_text(ledger.read_text().replace(before, now))
    detail = Page(out).detail()
    assert not detail["drafts"]
    (reason,) = detail["unreadable"]
    assert reason.startswith(f"{path.name}: ")


@pytest.mark.parametrize("damage", ["", "cut", "voxels", "key", "scan"])
def test_an_unreadable_draft_is_left_aside_and_named(out: Path, damage: str) -> None:
    page = Page(out)
    painted = changes(RIGHT_THALAMUS, (2, 3, 4))
    assert page.keep(painted).status_code == 204
    (path,) = out.rglob("*.draft")
    content = path.read_bytes()
    head, _, voxels = content.partition(b"\n")
    path.write_bytes(
        {
            "": b"",
            "cut": content[:20],
            "voxels": content[:-1],
            "key": head.replace(b'"minutes"', b'"hours"') + b"\n" + voxels,
            "scan": head.replace(b'"anna"', b'"otto"') + b"\n" + voxels,
        }[damage]
    )
    detail = page.ask("GET", "/v1/scans/0")
    assert detail.status_code == 200
    assert detail.json()["drafts"] == []
    (said,) = detail.json()["unreadable"]
    assert said.startswith(path.name)
    answer = page.ask("GET", f"/v1/scans/0/drafts/{TAB}")
    assert answer.status_code == 422
    # The next draft of the tab replaces it.
    assert page.keep(painted).status_code == 204
    assert len(page.detail()["drafts"]) == 1


def test_a_scan_whose_correction_has_an_unreadable_json_opens(out: Path) -> None:
    page = Page(out)
    page.save(changes(RIGHT_THALAMUS, (2, 3, 4)))
    sidecar = sidecar_path(result(page, out))
    said = json.loads(sidecar.read_text())
    sidecar.write_text(json.dumps({**said, "Sessions": []}))
    detail = page.detail()
    assert detail["correction"] is None
    (named,) = detail["unreadable"]
    assert named.startswith(sidecar.name)


@pytest.mark.parametrize("linked", ["drafts", ""])
def test_a_folder_of_drafts_that_is_a_link_is_refused(
    out: Path, tmp_path: Path, linked: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder = out / ".trinat-work" / linked
    folder.parent.mkdir(exist_ok=True)
    folder.symlink_to(elsewhere, target_is_directory=True)
    page = Page(out)
    answer = page.keep(changes(RIGHT_THALAMUS, (2, 3, 4)))
    assert answer.status_code == 422
    assert not list(elsewhere.iterdir())
    (said,) = page.detail()["unreadable"]
    assert said.startswith(folder.name)


def test_two_tabs_of_one_participant_have_a_draft_each(out: Path) -> None:
    one, two = Page(out), Page(out, tab=OTHER_TAB)
    one.keep(changes(RIGHT_THALAMUS, (2, 3, 4)))
    two.keep(changes(LEFT_THALAMUS, (1, 1, 1)))
    assert {each["tab"] for each in one.detail()["drafts"]} == {TAB, OTHER_TAB}


def test_the_table_of_a_folder_has_a_row_for_each_corrected_scan(out: Path) -> None:
    page = Page(out)
    name = page.detail()["name"]
    page.save(changes(RIGHT_THALAMUS, (2, 3, 4)))
    page.save(changes(RIGHT_THALAMUS, (2, 3, 5)))
    header, row = (out / CORRECTIONS).read_text().splitlines()
    assert header.split("\t")[:7] == [
        "scan",
        "corrected",
        "changed_voxels",
        "minutes",
        "sessions",
        "by",
        "at",
    ]
    corrected = f"{name}_desc-corrected_dseg.nii.gz"
    assert row.split("\t")[:6] == [name, corrected, "2", "5.0", "2", "anna"]


def test_columns_that_a_user_adds_to_the_table_or_removes_hinder_no_saving(
    out: Path,
) -> None:
    page = Page(out)
    name = page.detail()["name"]
    page.save(changes(RIGHT_THALAMUS, (2, 3, 4)))
    corrected = f"{name}_desc-corrected_dseg.nii.gz"
    (out / CORRECTIONS).write_text(
        f"corrected\tnote\nother_dseg.nii.gz\tolder\n{corrected}\task\n"
    )
    answer = page.save(changes(RIGHT_THALAMUS, (2, 3, 5)))
    assert answer.status_code == 200
    assert answer.json()["unreadable"] == []
    other, row = read_rows(out / CORRECTIONS, required=("scan", "note", "minutes"))
    assert (other["scan"], other["note"]) == ("", "older")
    assert (row["scan"], row["note"], row["minutes"]) == (name, "ask", "5.0")


def test_a_correction_is_saved_if_its_table_cannot_be_written(out: Path) -> None:
    page = Page(out)
    painted = changes(RIGHT_THALAMUS, (2, 3, 4))
    page.keep(painted)
    (out / CORRECTIONS).write_text("a table\tof others\n")
    answer = page.save(painted)
    assert answer.status_code == 200
    (message,) = answer.json()["unreadable"]
    assert message.startswith(CORRECTIONS)
    assert answer.json()["drafts"] == []
    assert corrected_path(result(page, out)).is_file()


def test_viewers_of_a_folder_and_of_the_one_around_it_wait_for_each_other(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = []

    def save(*words, lock: Path, **more_words) -> Correction:
        locks.append(lock.resolve())
        return save_correction(*words, lock=lock, **more_words)

    monkeypatch.setattr(correcting, "save_correction", save)
    for folder, voxel in ((out, (2, 3, 4)), (out.parent, (2, 3, 5))):
        assert Page(folder).save(changes(RIGHT_THALAMUS, voxel)).status_code == 200
    assert len(set(locks)) == 1


def test_a_scan_that_was_changed_since_is_named_and_takes_no_correction(
    out: Path,
) -> None:
    page = Page(out)
    change_scan(out)
    (message,) = page.detail()["unreadable"]
    assert "changed" in message
    painted = changes(RIGHT_THALAMUS, (2, 3, 4))
    page.keep(painted)
    assert page.save(painted).status_code == 422
    assert not corrected_path(result(page, out)).exists()
    assert len(page.detail()["drafts"]) == 1


def test_a_correction_with_the_numbers_of_an_earlier_run_is_not_shown(
    out: Path,
) -> None:
    page = Page(out)
    painted = changes(RIGHT_THALAMUS, (2, 3, 4))
    page.save(painted)
    path = result(page, out)
    # The later run writes indices instead of FreeSurfer's numbers.
    labels = Volume.read(path, labels=True)
    numbers = load_scheme("quicknat33").from_freesurfer(
        labels.data, spacing_mm=labels.spacing_mm
    )
    Volume(numbers, labels.affine).write(path, labels=True)
    write_label_table(out / "labels.tsv", load_scheme("quicknat33"), by_index=True)
    page = Page(out)
    assert page.ask("GET", "/v1/scans/0/predicted").status_code == 200
    before = sha256_of(corrected_path(path))
    for answer in (page.ask("GET", "/v1/scans/0/labels"), page.save(painted)):
        assert answer.status_code == 422
        assert "numbers of an earlier run" in answer.json()["reason"]
    assert sha256_of(corrected_path(path)) == before


def test_lesions_are_painted_and_a_bridge_that_is_erased_splits_one(
    tmp_path: Path,
) -> None:
    out = write_study(tmp_path / "out", ["a"])
    add_lesions(out, "a")
    page = LesionPage(out)
    assert page.detail()["builds_on"] == sha256_of(out / "a_lesions.nii.gz")

    # Voxels beside the larger lesion: 7 x 64 mm³ now, and 1 x 64 mm³ as before.
    row = [(6, 9, 12), (7, 9, 12), (8, 9, 12)]
    saved = page.save(changes(1, *row)).json()
    assert saved["correction"]["file"] == "a_desc-corrected_lesions.nii.gz"
    lesions = saved["result"]["lesions"]["lesions"]
    assert [lesion["mm3"] for lesion in lesions] == [448, 64]

    saved = page.save(changes(0, row[0])).json()
    lesions = saved["result"]["lesions"]["lesions"]
    assert [lesion["mm3"] for lesion in lesions] == [256, 128, 64]
    # The middle of the voxels (7, 9, 12) and (8, 9, 12), of 4 mm.
    assert [lesions[1][f"{axis}_mm"] for axis in "xyz"] == [30, 36, 48]
    assert saved["result"]["lesions"]["grade"] == ""

    def voxel(kind: str) -> int:
        content = page.ask("GET", f"/v1/scans/0/{kind}").content
        return content[7 + SHAPE[0] * (9 + SHAPE[1] * 12)]

    assert (voxel("lesions"), voxel("lesions-predicted")) == (1, 0)
    correction = correction_of(out / "a_lesions.nii.gz")
    assert correction
    assert correction.sidecar
    assert correction.sidecar.structures == {"White-matter-lesions": 2}
    # The structures have not been corrected.
    assert Page(out).detail()["correction"] is None


def test_structures_and_lesions_of_a_scan_have_drafts_and_rows_of_their_own(
    tmp_path: Path,
) -> None:
    out = write_study(tmp_path / "out", ["a"])
    add_lesions(out, "a")
    structures, lesions = Page(out), LesionPage(out)
    structures.keep(changes(RIGHT_THALAMUS, (2, 3, 4)))
    assert lesions.detail()["drafts"] == []
    lesions.keep(changes(1, (6, 9, 12)))
    lesions.save(changes(1, (6, 9, 12)))
    assert lesions.detail()["drafts"] == []
    assert [draft["voxels"] for draft in structures.detail()["drafts"]] == [1]
    structures.save(changes(RIGHT_THALAMUS, (2, 3, 4)))
    rows = (out / CORRECTIONS).read_text().splitlines()[1:]
    assert [row.split("\t")[1] for row in rows] == [
        "a_desc-corrected_lesions.nii.gz",
        "a_desc-corrected_dseg.nii.gz",
    ]


def test_other_layers_have_no_brush(out: Path) -> None:
    answer = Page(out).save(changes(1, (6, 9, 12)), layer="parcels")
    assert answer.status_code == 422
    # This study has no lesions.
    page = LesionPage(out)
    assert page.detail()["builds_on"] == ""
    assert page.save(changes(1, (6, 9, 12)), builds_on="0").status_code == 422


def test_a_rating_is_of_the_corrected_map(out: Path) -> None:
    page = Page(out)
    body = {"structure": "", "rating": "look", "remark": ""}
    first = {**body, "sha256": page.detail()["sha256"]}
    page.ask("PUT", "/v1/scans/0/ratings", json=first)
    page.save(changes(RIGHT_THALAMUS, (2, 3, 4)))
    (rating,) = page.detail()["ratings"]
    assert rating["stale"]
    second = {**body, "sha256": page.detail()["sha256"]}
    page.ask("PUT", "/v1/scans/0/ratings", json=second)
    (rating,) = page.detail()["ratings"]
    assert not rating["stale"]


def test_a_map_on_another_grid_than_its_scan_is_not_corrected(out: Path) -> None:
    page = Page(out)
    path = result(page, out)
    coarse = AFFINE @ np.diag([2, 2, 2, 1])
    Volume(np.zeros(SHAPE, np.uint8), coarse).write(path, labels=True)
    answer = page.save(changes(RIGHT_THALAMUS, (2, 3, 4)))
    assert "on another grid than its scan" in answer.json()["reason"]
    assert not corrected_path(path).exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "there is no change to save"),
        (b"abcd", "not changes"),
        (changes(RIGHT_THALAMUS, (0, 0, 18)), "do not match this label map"),
        (changes(200, (0, 0, 0)), "do not match this label map"),
    ],
)
def test_what_is_no_change_of_the_map_is_refused(
    out: Path, content: bytes, reason: str
) -> None:
    answer = Page(out).save(content)
    assert answer.status_code == 422
    assert reason in answer.json()["reason"]


@pytest.mark.parametrize("minutes", ["", "x", "nan", "inf", "-1", "1e308"])
def test_minutes_are_a_number(out: Path, minutes: str) -> None:
    painted = changes(RIGHT_THALAMUS, (2, 3, 4))
    answer = Page(out).save(painted, minutes=minutes)
    assert "minutes" in answer.json()["reason"]


@pytest.mark.parametrize("tab", ["..", "0", "g" * 16, "0" * 17])
def test_a_tab_is_no_path(out: Path, tab: str) -> None:
    painted = changes(RIGHT_THALAMUS, (2, 3, 4))
    assert Page(out).save(painted, tab=tab).status_code == 422


def test_a_full_disk_is_told_in_one_line_and_the_draft_stays(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Page(out)
    painted = changes(RIGHT_THALAMUS, (2, 3, 4))
    page.keep(painted)

    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device", None)

    with monkeypatch.context() as full:
        full.setattr("trinat.pipelines.study.corrections.write_whole", no_room)
        answer = page.save(painted)
    assert "No space left on device" in answer.json()["reason"]
    assert "\n" not in answer.json()["reason"]
    assert not corrected_path(result(page, out)).exists()
    assert len(page.detail()["drafts"]) == 1
    assert page.save(painted).status_code == 200
