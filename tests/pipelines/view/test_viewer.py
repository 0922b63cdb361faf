"""Routes of the page: files by number, never by path, and ratings that persist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import nibabel as nib
import numpy as np
import pytest
from helpers.studies import AFFINE, replace_scan, write_study
from helpers.viewer import ask
from starlette.types import ASGIApp

from trinat.pipelines.cli import serve
from trinat.pipelines.study.ratings import read_ratings
from trinat.pipelines.view.viewed import ViewedStudy
from trinat.pipelines.view.viewer import make_app
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.io.volume import Volume


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return write_study(tmp_path / "out", ["a", "b"])


class Client:
    """A client of the application, without a port."""

    def __init__(self, out: Path, rater: str, **settings: Any) -> None:
        self._app = make_app(ViewedStudy(out, rater=rater, **settings))

    def get(self, path: str) -> httpx.Response:
        return ask(self._app, "GET", path)

    def put(self, path: str, **content: Any) -> httpx.Response:
        return ask(self._app, "PUT", path, **content)


def client(out: Path, rater: str = "anna") -> Client:
    return Client(out, rater)


def rate(page: Client, number: int = 0, **changes: str) -> httpx.Response:
    shown = page.get(f"/v1/scans/{number}").json()["sha256"]
    body = {"structure": "", "rating": "look", "remark": "", "sha256": shown, **changes}
    return page.put(f"/v1/scans/{number}/ratings", json=body)


def test_the_page_and_its_files_are_there(out: Path) -> None:
    for path, kind in {
        "/": "text/html",
        "/view.css": "text/css",
        "/view.js": "text/javascript",
        "/picture.js": "text/javascript",
        "/structures.js": "text/javascript",
        "/niivue.js": "text/javascript",
    }.items():
        answer = client(out).get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kind)


def test_a_rating_is_saved_with_who_when_and_the_hash_of_what_was_judged(
    out: Path,
) -> None:
    page = client(out)
    number = [s["name"] for s in page.get("/v1/study").json()["scans"]].index("a")
    answer = rate(page, number, remark="-cut\toff\n")
    assert [r["rating"] for r in answer.json()["ratings"]] == ["look"]
    (saved,) = read_ratings(out / "ratings.tsv")
    assert (saved.scan, saved.structure, saved.rater) == ("a", "", "anna")
    assert saved.remark == "-cut off"
    assert saved.sha256 == sha256_of(out / "a_dseg.nii.gz")
    assert saved.rated.endswith("+00:00")


def test_a_new_rating_replaces_the_raters_own_and_leaves_those_of_others(
    out: Path,
) -> None:
    rate(client(out, "berta"), rating="reject")
    for verdict in ("look", "pass"):
        rate(client(out), rating=verdict)
    rate(client(out), structure="Left-Thalamus", rating="reject")
    found = {
        (r.rater, r.structure): r.rating for r in read_ratings(out / "ratings.tsv")
    }
    assert found == {
        ("berta", ""): "reject",
        ("anna", ""): "pass",
        ("anna", "Left-Thalamus"): "reject",
    }


def test_how_far_raters_agree_is_told(out: Path) -> None:
    assert client(out).get("/v1/study").json()["raters"] == 0
    assert client(out).get("/v1/raters").json() == []
    for number, (anna, berta) in enumerate([("pass", "pass"), ("look", "reject")]):
        rate(client(out), number, rating=anna)
        rate(client(out, "berta"), number, rating=berta)
        rate(client(out), number, structure="Left-Thalamus", rating="pass")
        rate(client(out, "berta"), number, structure="Left-Thalamus", rating="pass")
    assert client(out).get("/v1/study").json()["raters"] == 2
    scans, structures = client(out).get("/v1/raters").json()
    # Ratings are equal by chance in 1/4 (both say pass half of the time); 1/2 are equal.
    assert scans == {
        "of": "scans",
        "rater": "anna",
        "other_rater": "berta",
        "rated_by_both": 2,
        "same_percent": 50.0,
        "kappa": pytest.approx(1 / 3),
    }
    assert (structures["of"], structures["kappa"]) == ("structures", None)


def test_an_empty_rating_takes_it_back(out: Path) -> None:
    rate(client(out))
    rate(client(out), rating="")
    assert read_ratings(out / "ratings.tsv") == []


def test_a_rating_is_stale_once_the_result_has_changed(out: Path) -> None:
    page = client(out)
    rate(page)
    name = page.get("/v1/scans/0").json()["name"]
    assert not page.get("/v1/scans/0").json()["ratings"][0]["stale"]
    path = out / f"{name}_dseg.nii.gz"
    labels = Volume.read(path, labels=True)
    labels.data[0, 0, 0] = 10
    labels.write(path, labels=True)
    assert page.get("/v1/scans/0").json()["ratings"][0]["stale"]
    (shown,) = [s for s in page.get("/v1/study").json()["scans"] if s["name"] == name]
    assert shown["rating"]["stale"]


def test_what_has_changed_since_it_was_shown_is_not_judged_unseen(out: Path) -> None:
    answer = rate(client(out), sha256="0" * 64)
    assert answer.status_code == 422
    assert "has changed since it was shown" in answer.json()["reason"]
    assert not (out / "ratings.tsv").exists()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"[" * 10_000,
        b'{"structure": "", "rating": "fine", "remark": ""}',
        b'{"structure": "", "rating": "pass"}',
        b'{"structure": "", "rating": ["pass"], "remark": ""}',
        b'{"structure": "../..", "rating": "pass", "remark": "", "sha256": "0"}',
        b'{"structure": "", "rating": "pass", "remark": "%s", "sha256": "0"}'
        % (b"x" * 2001),
    ],
)
def test_what_is_no_rating_is_refused_in_one_line_and_nothing_is_written(
    out: Path, body: bytes
) -> None:
    answer = client(out).put("/v1/scans/0/ratings", content=body)
    assert answer.status_code == 422
    assert "\n" not in answer.json()["reason"]
    assert not (out / "ratings.tsv").exists()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/scans/99", 422),
        ("/v1/scans/-1", 404),
        ("/v1/scans/0/ledger", 422),
        ("/v1/scans/0/..%2F..%2Frun.jsonl", 404),
        ("/run.jsonl", 404),
        ("/niivue/LICENSE.txt", 404),
        ("/..%2f..%2f..%2fetc%2fpasswd", 404),
    ],
)
def test_nothing_is_found_by_a_path(out: Path, path: str, status: int) -> None:
    assert client(out).get(path).status_code == status


def test_names_go_out_as_data_alone(tmp_path: Path) -> None:
    name = "<script>alert(1)<"
    out = write_study(tmp_path / "out", [name])
    answer = client(out).get("/v1/study")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["scans"][0]["name"] == name
    assert name not in client(out).get("/").text


def test_a_ratings_file_of_another_make_is_told(out: Path) -> None:
    (out / "ratings.tsv").write_text("scan\trating\na\tpass\n")
    assert "no column" in client(out).get("/v1/scans/0").json()["reason"]


def test_the_scans_own_value_is_told_at_a_place_in_mm(out: Path) -> None:
    """200, and four times the label 10 in the left thalamus, voxels 3 to 6, 8 to 11, 6 to 9."""
    page = client(out)

    def value(place_mm: str) -> Any:
        return page.get(f"/v1/scans/0/value?mm={place_mm}").json()["value"]

    assert value("16,40,32") == 240
    assert value("17.9,40,30.1") == 240
    assert value("40,72,8") == 200
    assert value("0,0,0") == 0
    assert value("-4,0,0") is None
    assert value("800,0,0") is None
    assert value("1e308,-1e308,1e308") is None


def test_scans_that_needed_options_of_predict_are_shown(tmp_path: Path) -> None:
    out = write_study(tmp_path / "out", ["a"])
    scan = tmp_path / "scans/scan0.nii.gz"
    data = nib.load(scan).get_fdata(dtype=np.float32)
    data[0, 0, 0] = np.nan
    replace_scan(out, scan, nib.Nifti1Image(data, AFFINE))
    page = client(out)
    assert page.get("/v1/scans/0/scan").status_code == 200
    assert page.get("/v1/scans/0/value?mm=0,0,0").json()["value"] == 0
    assert page.get("/v1/scans/0/labels").status_code == 200


def test_spaces_around_a_raters_name_do_not_count(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[ASGIApp] = []
    monkeypatch.setattr(serve, "_open", lambda app, *_, **__: opened.append(app))
    serve.view(out, rater=" anna ")
    (app,) = opened
    assert ask(app, "GET", "/v1/study").json()["rater"] == "anna"


@pytest.mark.parametrize("place", ["", "1,2", "1,2,x", "1,2,nan", "1,2,3,4"])
def test_what_is_no_place_is_refused(out: Path, place: str) -> None:
    answer = client(out).get(f"/v1/scans/0/value?mm={place}")
    assert (answer.status_code, answer.json()["reason"]) == (
        422,
        "not a place: give mm=x,y,z",
    )
