"""Uploads by themselves: where they are put as they come."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import httpx
import nibabel as nib
import numpy as np
import pytest

from trinat.pipelines.web.queue import Queue
from trinat.pipelines.web.service import make_app
from trinat.segmentation.labels.scheme import load_scheme


class Engine:
    ready = False


def test_a_large_upload_is_kept_below_the_queue_while_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More than what a form's parser has in memory; the system's place for files is not there.
    image = nib.Nifti1Image(np.zeros((100, 100, 200), np.uint8), np.eye(4))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    queue = Queue(tmp_path)
    engine: Any = Engine()
    app = make_app(queue, engine, "fast", load_scheme("quicknat33"))
    assert tempfile.tempdir == str(tmp_path / "nowhere")

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://service"
        ) as client:
            files = {"file": ("scan.nii", image.to_bytes())}
            return await client.post("/v1/segmentations", files=files)

    answer = asyncio.run(send())
    assert answer.status_code == 202
    submission = queue.submissions[answer.json()["id"]]
    assert queue.scan(submission).read_bytes() == image.to_bytes()
    assert not list((tmp_path / "incoming").iterdir())
