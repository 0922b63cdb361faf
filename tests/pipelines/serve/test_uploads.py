"""Uploads: the fields of the form, and the zips that are refused at once."""

from __future__ import annotations

import asyncio
import io
import zipfile
from pathlib import Path
from typing import Any

import httpx
import nibabel as nib
import numpy as np
import pytest
from typer.testing import CliRunner

from trinat.pipelines.cli import app
from trinat.pipelines.common import extras
from trinat.pipelines.common.exits import Exit
from trinat.pipelines.serve import service
from trinat.pipelines.serve.queue import Queue
from trinat.pipelines.serve.service import make_app
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.labels.scheme import load_scheme


class Engine:
    ready = False


async def send(
    queue: Queue, scan: bytes, name: str = "scan.nii", **fields: str
) -> httpx.Response:
    """Return the response of a service with this queue to a form."""
    engine: Any = Engine()
    app = make_app(queue, engine, "fast", load_scheme("quicknat33"))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://service"
    ) as client:
        files = {"file": (name, scan)}
        return await client.post("/v1/segmentations", files=files, data=fields)


@pytest.mark.parametrize(
    ("fields", "has_norms", "said"),
    [
        ({"outputs": "page", "age": "70", "sex": "f"}, True, ""),
        ({"outputs": "page", "age": "", "sex": ""}, False, ""),
        ({"outputs": "page", "age": "old"}, True, "age is no number"),
        ({"outputs": "page", "sex": "x"}, True, "sex is not understood as a sex"),
        ({"outputs": "page", "age": "70"}, False, "age and sex are for norms"),
        ({"age": "70"}, True, "age and sex are for norms"),
    ],
)
def test_age_and_sex_are_taken_for_the_page_of_a_service_with_norms(
    fields: dict[str, str], has_norms: bool, said: str, tmp_path: Path
) -> None:
    image = nib.Nifti1Image(np.zeros((40, 40, 40), np.uint8), np.eye(4))
    queue = Queue(tmp_path, has_norms=has_norms)
    answer = asyncio.run(send(queue, image.to_bytes(), **fields))
    if said:
        assert answer.status_code == 422
        assert said in answer.json()["reason"]
        assert not queue.submissions
        return
    assert answer.status_code == 202, answer.text
    assert not {"age", "sex"} & answer.json().keys()
    submission = queue.find(answer.json()["id"])
    assert submission is not None
    known = (70, "F") if has_norms else (None, None)
    assert (submission.age, submission.sex) == known


def zipped(**files: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 422),
        (b"hello", 422),
        (zipped(), 422),
        (zipped(scan=b"\x5c\x01\0\0" + bytes(400)), 422),
        (zipped(readme=b"hello", image=bytes(128) + b"DICM"), 202),
    ],
)
def test_a_zip_without_dicom_is_refused_at_once(
    content: bytes, status: int, tmp_path: Path
) -> None:
    queue = Queue(tmp_path)
    answer = asyncio.run(send(queue, content, "scan.zip"))
    assert answer.status_code == status
    assert len(queue.submissions) == (status == 202)
    assert str(tmp_path) not in answer.text


def test_dicom_seg_without_its_package_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "find_spec", {"pydicom": True}.get)
    queue = Queue(tmp_path)
    content = zipped(image=bytes(128) + b"DICM")
    answer = asyncio.run(send(queue, content, "scan.zip", outputs="dicom-seg"))
    assert answer.status_code == 422
    assert "highdicom" in answer.text
    assert not queue.submissions


def test_a_field_that_is_too_long_is_refused_with_the_fields_of_the_form(
    tmp_path: Path,
) -> None:
    answer = asyncio.run(send(Queue(tmp_path), b"", outputs="x" * 201))
    assert answer.status_code == 400
    for said in ("outputs", "200 bytes"):
        assert said in answer.json()["reason"]


@pytest.mark.parametrize("name", ["seg.example.org:8443", "https://seg.example.org"])
def test_a_name_that_no_host_can_have_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A service that starts nevertheless would never end.
    monkeypatch.setattr(service, "run_service", lambda *_: None)
    names = ["--name", "seg.example.org", "--name", name]
    result = CliRunner().invoke(app, ["serve", *names])
    assert isinstance(result.exception, ConfigError)
    assert name in str(result.exception)


def test_the_largest_upload_is_finite() -> None:
    result = CliRunner().invoke(app, ["serve", "--max-upload", "inf"])
    assert result.exit_code == Exit.USAGE
