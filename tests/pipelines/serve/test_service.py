"""The HTTP interface with a tiny model: the life of a scan, and refused requests."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import stat
import zipfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from helpers.dicom import write_classic
from helpers.norms import norms
from helpers.overfitted import with_parcels
from helpers.serial import QUICK, run_serially
from helpers.service import AT, Service, quick_model, tiny_scan

from trinat.segmentation.io.volume import Volume

pytestmark = [pytest.mark.slow, pytest.mark.important]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONWARNINGS", "always::ResourceWarning")
        running = Service(tmp_path_factory.mktemp("service") / "queue")
    with running:
        yield running.ready()


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_scan(tmp_path_factory.mktemp("scans") / "sub-CANARY.nii.gz")


@pytest.fixture(scope="module")
def finished(service: Service, scan: Path) -> str:
    id = service.send(scan, outputs="mgz, probabilities").json()["id"]
    assert service.wait(id)["state"] == "done"
    return id


def reason(answer) -> str:  # type: ignore[no-untyped-def]
    assert "\n" not in answer.text.strip()
    return answer.json()["reason"]


def test_a_scan_from_its_acceptance_to_its_end(service: Service, scan: Path) -> None:
    answer = service.send(scan)
    told = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"{AT}/{told['id']}"
    assert (told["state"], told["place"]) == ("queued", 1)
    with service.client.stream("GET", f"{AT}/{told['id']}/events") as events:
        assert events.headers["content-type"].startswith("text/event-stream")
        lines = [json.loads(line[6:]) for line in events.iter_lines() if line]
    assert lines[-1]["state"] == "done"
    assert lines[-1]["grade"] in ("pass", "look", "reject")
    progress = [line["progress"] for line in lines]
    assert progress == sorted(progress)
    assert progress[-1] == 1
    assert service.client.delete(f"{AT}/{told['id']}").status_code == 204
    assert service.client.get(f"{AT}/{told['id']}").status_code == 404
    assert not (service.queue / "jobs" / told["id"]).exists()


def test_results_are_those_of_the_command_line(
    service: Service, scan: Path, finished: str, tmp_path: Path
) -> None:
    output = replace(QUICK, brain_mask=True)
    run_serially([str(scan)], tmp_path / "out", model=str(quick_model()), output=output)
    labels = service.client.get(f"{AT}/{finished}/labels.nii.gz")
    assert labels.headers["content-type"] == "application/gzip"
    assert labels.content == (tmp_path / "out/sub-CANARY_dseg.nii.gz").read_bytes()
    (tmp_path / "labels.mgz").write_bytes(
        service.client.get(f"{AT}/{finished}/labels.mgz").content
    )
    mgz = Volume.read(tmp_path / "labels.mgz", labels=True)
    nifti = Volume.read(tmp_path / "out/sub-CANARY_dseg.nii.gz", labels=True)
    np.testing.assert_array_equal(mgz.data, nifti.data)
    np.testing.assert_allclose(mgz.affine, nifti.affine)
    ours = service.client.get(f"{AT}/{finished}/volumes.tsv").text.splitlines()
    theirs = (tmp_path / "out/volumes.tsv").read_text().splitlines()
    assert ours[0] == theirs[0]
    assert ours[1].split("\t")[1:] == theirs[1].split("\t")[1:]
    assert service.client.get(f"{AT}/{finished}/qc.png").content.startswith(b"\x89PNG")
    mask = service.client.get(f"{AT}/{finished}/brainmask.nii.gz").content
    written = tmp_path / "out/sub-CANARY_brainmask.nii.gz"
    assert mask == written.read_bytes()


def test_probabilities_of_all_structures_are_one(
    service: Service, finished: str
) -> None:
    total = np.zeros(())
    for label in service.client.get("/v1/labels").json():
        answer = service.client.get(f"{AT}/{finished}/probabilities/{label['name']}")
        if answer.status_code == 200:
            image = nib.Nifti1Image.from_bytes(gzip.decompress(answer.content))
            total = total + np.asarray(image.dataobj)
    np.testing.assert_allclose(total, 1, atol=1e-3)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("seg.dcm", 404),
        ("jobs.sqlite", 404),
        ("..%2f..%2ftoken", 404),
        ("probabilities/No-Such", 404),
        ("probabilities/..%2f..%2ftoken", 404),
    ],
)
def test_no_other_file_is_given(
    service: Service, finished: str, path: str, status: int
) -> None:
    answer = service.client.get(f"{AT}/{finished}/{path}")
    assert answer.status_code == status
    assert service.token not in reason(answer)


def test_a_refusal_lists_the_results_that_the_scan_has(
    service: Service, finished: str
) -> None:
    answer = service.client.get(f"{AT}/{finished}/aseg.mgz")
    _, _, listed = reason(answer).partition("there are ")
    names = listed.split(", ")
    assert "labels.mgz" in names
    for name in names:
        assert service.client.get(f"{AT}/{finished}/{name}").status_code == 200


@pytest.mark.parametrize("id", ["0" * 32, "x", "..", "%2e%2e%2ftoken", "0" * 33, "%00"])
def test_an_id_that_was_never_given_is_not_found(service: Service, id: str) -> None:
    for answer in (
        service.client.get(f"{AT}/{id}/volumes.tsv"),
        service.client.delete(f"{AT}/{id}"),
    ):
        assert answer.status_code in (404, 405, 422)
        reason(answer)


def test_a_damaged_scan_fails_with_its_reason(service: Service, scan: Path) -> None:
    answer = service.send(scan.read_bytes()[:-900])
    assert answer.status_code == 202
    end = service.wait(answer.json()["id"])
    assert end["state"] == "failed"
    assert "truncated" in end["reason"]
    early = service.client.get(f"{AT}/{end['id']}/labels.nii.gz")
    assert (early.status_code, reason(early)) == (409, "no result: it is failed")


def _announces_too_much() -> bytes:
    header = nib.Nifti1Header()
    header.set_data_shape((30000, 30000, 30000))
    return gzip.compress(header.binaryblock + bytes(1000), mtime=0)


@pytest.mark.parametrize(
    ("name", "content", "fields", "status"),
    [
        ("scan.txt", b"hello", {}, 415),
        ("scan.nii.gz", b"hello", {}, 422),
        ("scan.nii.gz", b"", {}, 422),
        ("scan.nii", b"\x5c\x01\0\0" + bytes(100), {}, 422),
        ("scan.mgz", gzip.compress(bytes(300), mtime=0), {}, 422),
        ("scan.nii.gz", _announces_too_much(), {}, 422),
        ("scan.nii.gz", None, {"outputs": "everything"}, 422),
        ("scan.nii.gz", None, {"outputs": "dicom-seg"}, 422),
        ("scan.nii.gz", None, {"unknown": "1"}, 422),
        ("scan.nii.gz", None, {"outputs": "x" * 1000}, 400),
        ("../../scan.exe", b"", {}, 415),
    ],
)
def test_what_is_no_scan_is_told_at_once(
    service: Service,
    scan: Path,
    name: str,
    content: bytes | None,
    fields: dict,
    status: int,
) -> None:
    before = service.client.get("/metrics").text
    answer = service.send(
        scan.read_bytes() if content is None else content, name, **fields
    )
    assert answer.status_code == status
    assert reason(answer)
    assert str(service.queue) not in answer.text
    assert service.client.get("/metrics").text == before


_PART = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.nii"\r\n\r\n'


def test_what_is_no_form_is_told_at_once(service: Service) -> None:
    for content, kind, status in (
        (b"{}", "application/json", 415),
        (b"a=b", "application/x-www-form-urlencoded", 415),
        (b"hello", "multipart/form-data", 400),
        (b"hello", "multipart/form-data; boundary=x", 400),
        (b"--x\r\n", "multipart/form-data; boundary=x", 422),
        (b"--x--\r\n", "multipart/form-data; boundary=x", 422),
        (_PART + b"a\r\n" + _PART + b"b\r\n--x--", None, 400),
        (
            b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\na\r\n--x--',
            None,
            422,
        ),
    ):
        headers = {"Content-Type": kind or "multipart/form-data; boundary=x"}
        answer = service.client.post(AT, content=content, headers=headers)
        assert (answer.status_code, bool(reason(answer))) == (status, True), content
    assert "ResourceWarning" not in service.log.read_text()


def test_a_file_that_is_cut_short_is_no_scan(service: Service) -> None:
    """Separate from the other forms, because Starlette leaves its file to the garbage collector."""
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = service.client.post(AT, content=_PART + b"abc", headers=headers)
    assert answer.status_code == 422
    assert reason(answer)


def test_a_zip_of_dicom_gives_a_dicom_seg(
    service: Service, scan: Path, tmp_path: Path
) -> None:
    write_classic(tmp_path / "series", Volume.read(scan))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path in sorted((tmp_path / "series").rglob("*")):
            if path.is_file():
                archive.write(path, path.name)
    end = service.wait(
        service.send(packed.getvalue(), "a.zip", outputs="dicom-seg").json()["id"]
    )
    assert end["state"] == "done", end
    seg = service.client.get(f"{AT}/{end['id']}/seg.dcm")
    assert seg.content[128:132] == b"DICM"


def test_what_it_says_of_itself(service: Service, finished: str) -> None:
    ask = service.client.get
    assert ask("/readyz").json() == {"status": "ready"}
    assert 'trinat_scans{state="done"}' in ask("/metrics").text
    assert "fast" in [model["name"] for model in ask("/v1/models").json()]
    thalamus = next(x for x in ask("/v1/labels").json() if x["number"] == 10)
    assert thalamus["name"].startswith("Left-Thalamus")
    paths = ask("/openapi.json").json()["paths"]
    assert {AT, f"{AT}/{{id}}", f"{AT}/{{id}}/events", "/metrics"} <= paths.keys()
    assert "<!doctype html>" in ask("/").text
    assert (
        service.client.get("/healthz", headers={"Authorization": ""}).status_code == 200
    )
    assert (
        service.client.get("/metrics", headers={"Authorization": ""}).status_code == 401
    )


def test_the_page_lists_what_was_sent_and_shows_it(
    service: Service, finished: str
) -> None:
    ask = service.client.get
    study = ask("/v1/study").json()
    assert study["service"]
    (scan,) = [scan for scan in study["scans"] if scan["id"] == finished]
    assert (scan["there"], scan["state"]) == (True, "done")
    path = f"/v1/scans/{scan['number']}"
    detail = ask(path).json()
    assert detail["scan"]
    assert detail["result"]["volumes_mm3"].keys() <= {
        x["name"] for x in study["structures"]
    }
    labels = nib.Nifti1Image.from_bytes(ask(f"{path}/scan").content)
    assert len(ask(f"{path}/labels").content) == np.prod(labels.shape)
    rating = {
        "structure": "",
        "rating": "pass",
        "remark": "",
        "sha256": detail["sha256"],
    }
    for answer in (
        service.client.put(f"{path}/ratings", json=rating),
        ask("/v1/scans/999999"),
        ask(f"{path}/token"),
    ):
        assert answer.status_code == 422
        assert reason(answer)
    assert not (service.queue / "ratings.tsv").exists()
    for path in ("/token", "/..%2ftoken", "/v1/scans/-1"):
        assert ask(path).status_code == 404


def ended_at(queue: Path, id: str) -> float:
    """Read the time at which a scan ended from the queue's table."""
    with closing(sqlite3.connect(queue / "jobs.sqlite")) as table:
        query = "SELECT ended FROM jobs WHERE id = ?"
        (ended,) = table.execute(query, (id,)).fetchone()
    return ended


def test_a_result_is_corrected_and_taken(service: Service, scan: Path) -> None:
    id = service.send(scan).json()["id"]
    assert service.wait(id)["state"] == "done"
    ask = service.client.get
    (row,) = [row for row in ask("/v1/study").json()["scans"] if row["id"] == id]
    path = f"/v1/scans/{row['number']}"
    before = ask(f"{AT}/{id}/labels.nii.gz").content
    not_there = ask(f"{AT}/{id}/corrected.nii.gz")
    assert not_there.status_code == 404
    assert "no correction" in reason(not_there)

    # The first voxel becomes the first structure of the table, the left white matter.
    painted = np.uint32(0).tobytes() + bytes([1])
    facts = {"builds_on": ask(path).json()["sha256"], "minutes": "1", "tab": "0" * 16}
    draft = f"{path}/drafts/{'0' * 16}"
    ended = ended_at(service.queue, id)
    kept = service.client.put(draft, params=facts, content=painted)
    assert kept.status_code == 204
    assert list((service.queue / "jobs" / id / "drafts").iterdir())
    # The retention time starts again, since somebody is working on it.
    assert ended_at(service.queue, id) > ended
    saved = service.client.put(f"{path}/correction", params=facts, content=painted)
    assert saved.json()["correction"]["voxels"] == 1
    assert not list((service.queue / "jobs" / id / "drafts").iterdir())
    corrected = nib.Nifti1Image.from_bytes(
        gzip.decompress(ask(f"{AT}/{id}/corrected.nii.gz").content)
    )
    predicted = nib.Nifti1Image.from_bytes(gzip.decompress(before))
    changed = np.argwhere(
        np.asarray(corrected.dataobj) != np.asarray(predicted.dataobj)
    )
    assert len(changed) == 1
    assert corrected.dataobj[tuple(changed[0])] == 2
    assert ask(f"{AT}/{id}/labels.nii.gz").content == before

    # Its correction can be used for learning, and a learning that has begun is stopped.
    assert ask("/v1/learning").json() is None
    assert ask("/v1/learning/own.zip").status_code == 409
    asked = service.client.post("/v1/learning")
    assert (asked.status_code, asked.json()["scans"]) == (202, 1)
    assert "after" not in ask("/v1/learning").json()
    assert service.client.post("/v1/learning").status_code == 409
    assert service.client.delete("/v1/learning").status_code == 204
    assert ask("/v1/learning").json() is None

    # Another tab does not know about the correction.
    other = np.uint32(1).tobytes() + bytes([1])
    refused = service.client.put(f"{path}/correction", params=facts, content=other)
    assert refused.status_code == 409
    assert "saved meanwhile, by service" in reason(refused)

    # The ids of deleted scans are removed from every table.
    assert not (service.queue / "corrections.tsv").exists()
    assert service.client.delete(f"{AT}/{id}").status_code == 204
    assert id not in "".join(str(path) for path in service.queue.rglob("*"))
    assert id.encode() not in (service.queue / "jobs.sqlite").read_bytes()


def test_only_its_owner_reads_the_queue(service: Service, finished: str) -> None:
    assert stat.S_IMODE(service.queue.stat().st_mode) == 0o700
    places = [path for path in service.queue.rglob("*") if not path.is_symlink()]
    modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in places}
    assert modes == {(True, 0o700), (False, 0o600)}


def test_the_log_names_no_one(service: Service, finished: str) -> None:
    log = service.log.read_text()
    assert f"{finished} done" in log
    for word in ("CANARY", service.token, str(service.queue), "Traceback"):
        assert word not in log
    # They are not in any other file of the queue either.
    for path in (service.queue / "jobs").rglob("*.json"):
        assert "CANARY" not in path.read_text()
    assert b"CANARY" not in (service.queue / "jobs.sqlite").read_bytes()


def test_a_page_is_compared_with_norms(scan: Path, tmp_path: Path) -> None:
    (tmp_path / "norms.tsv").write_text(norms().table)
    reference = str(tmp_path / "norms.tsv")
    with Service(tmp_path / "queue", "--reference", reference) as service:
        assert service.client.get("/v1/study").json()["norms"]
        sent = service.send(scan, outputs="page", age="30", sex="F").json()
        alone = service.send(scan).json()
        assert service.wait(sent["id"])["state"] == "done"
        page = service.client.get(f"{AT}/{sent['id']}/page.html")
        assert page.headers["content-disposition"].startswith("attachment")
        assert "of 120 participants" in page.text
        assert service.wait(alone["id"])["state"] == "done"
        answer = service.client.get(f"{AT}/{alone['id']}/page.html")
        assert reason(answer) == "not made: ask for it with outputs=page"


def test_a_service_with_parcels_gives_their_map_and_table(
    tmp_path: Path, scan: Path
) -> None:
    model = with_parcels(tmp_path / "model")
    options = ("--model", str(model), "--parcels")
    with Service(tmp_path / "queue", *options) as running:
        service = running.ready()
        id = service.send(scan).json()["id"]
        assert service.wait(id)["state"] == "done"
        table = service.client.get(f"{AT}/{id}/parcels.tsv").text
        names = [line.split("\t")[1] for line in table.splitlines()]
        assert names[0] == "parcel"
        assert "ctx-lh-insula" in names
        found = service.client.get(f"{AT}/{id}/parcels.nii.gz")
        assert found.status_code == 200
        assert found.headers["content-type"] == "application/gzip"
        # The page has both lists, and both maps.
        study = service.client.get("v1/study").json()
        assert [each["layers"] for each in study["scans"]] == [["parcels"]]
        assert "ctx-lh-insula" in [each["name"] for each in study["layers"]["parcels"]]
        number = study["scans"][0]["number"]
        assert service.client.get(f"v1/scans/{number}/parcels").status_code == 200


def test_a_service_without_parcels_says_so(service: Service, finished: str) -> None:
    answer = service.client.get(f"{AT}/{finished}/parcels.nii.gz")
    assert answer.status_code == 404
    assert reason(answer) == "not made: this service has no --parcels"
