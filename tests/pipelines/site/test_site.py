"""`trinat web` serves a site with the headers that threads need; ONNX Runtime is as published."""

from __future__ import annotations

import asyncio
import json
from importlib import resources
from pathlib import Path

import httpx
from helpers.refusals import refusal

from trinat.pipelines.cli.serve import web
from trinat.pipelines.view.start import make_site_app
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.io.files import sha256_of

RUNTIME = resources.files("trinat.pipelines.site") / "browser" / "onnxruntime"


def test_files_come_with_the_headers_that_threads_need(tmp_path: Path) -> None:
    (tmp_path / "models.json").write_text("[]")
    (tmp_path / "index.html").write_text("page")
    (tmp_path / "a.mjs").write_text("")
    (tmp_path / "a.wasm").write_bytes(b"\0asm")

    async def ask() -> dict[str, httpx.Response]:
        transport = httpx.ASGITransport(make_site_app(tmp_path))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://site"
        ) as client:
            paths = ("/", "/a.mjs", "/a.wasm", "/..%2Fsecret")
            return {path: await client.get(path) for path in paths}

    (tmp_path.parent / "secret").write_text("secret")
    answers = asyncio.run(ask())
    assert answers["/"].text == "page"
    assert answers["/"].headers["Cross-Origin-Embedder-Policy"] == "require-corp"
    assert answers["/a.mjs"].headers["Content-Type"].startswith("text/javascript")
    assert answers["/a.wasm"].headers["Content-Type"] == "application/wasm"
    assert answers["/..%2Fsecret"].status_code == 404


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with refusal(ConfigError, tmp_path, remedy="--format"):
        web(tmp_path)


def test_onnx_runtime_is_what_was_published() -> None:
    source = json.loads((RUNTIME / "source.json").read_text())
    assert source["version"] in source["source"]
    assert len(source["sha256"]) == 6
    for name, digest in source["sha256"].items():
        with resources.as_file(RUNTIME / name) as path:
            assert sha256_of(path) == digest
    assert "MIT License" in (RUNTIME / "LICENSE.txt").read_text()
