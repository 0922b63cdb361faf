"""The page in a real browser: a scan is dropped, followed and looked at; nothing from elsewhere."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from helpers.browser import Browser, find_chromium
from helpers.service import Service, tiny_scan

NAME = "sub-<script>document.title='hit'<.nii.gz"


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.browser
def test_a_scan_is_dropped_and_its_labels_come(tmp_path: Path) -> None:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium")
    scan = base64.b64encode(tiny_scan(tmp_path / "scan.nii.gz").read_bytes()).decode()
    with Service(tmp_path / "queue") as service:
        service.ready()
        page = Browser(chromium)
        try:
            page.open(service.address)
            assert page.evaluate("location.search") == ""
            page.evaluate(
                f"""(() => {{
                    const bytes = Uint8Array.from(atob("{scan}"), (c) => c.charCodeAt(0));
                    const data = new DataTransfer();
                    data.items.add(new File([bytes], {json.dumps(NAME)}));
                    data.items.add(new File(["hello"], "notes.txt"));
                    const drop = document.getElementById("drop");
                    drop.dispatchEvent(new DragEvent("drop", {{ dataTransfer: data }}));
                }})()"""
            )
            page.wait("document.querySelectorAll('li').length === 2", 60)
            page.wait("document.querySelector('li img')?.naturalWidth > 0", 240)
            text = page.evaluate("document.getElementById('scans').innerText")
            assert NAME in text
            assert "done" in text
            assert "not a kind of scan" in text
            assert page.evaluate("document.title") == "trinat"
            links = page.evaluate("[...document.querySelectorAll('li a')].map((a) => a.download)")
            assert links == ["labels.nii.gz", "volumes.tsv"]
            for width in (1440, 390):
                page.resize(width)
                (tmp_path / f"{width}.png").write_bytes(page.picture())
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            page.evaluate("document.querySelector('li button').click()")
            page.wait("document.querySelectorAll('li').length === 1")
            assert not list((service.queue / "jobs").iterdir())
        finally:
            page.close()
        ours = service.address.partition("?")[0]
        assert all(url.startswith((ours, "data:")) for url in page.requests)
        # The refused upload is told by the browser too.
        assert all("415" in problem for problem in page.problems), page.problems
