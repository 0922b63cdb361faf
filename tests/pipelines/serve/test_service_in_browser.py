"""The page of the service in a browser: scans are sent, followed and viewed.

No outside requests.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest
from helpers.browser import Browser, find_chromium
from helpers.norms import norms
from helpers.service import AT, Service, tiny_scan

NAME = "sub-<script>document.title='hit'<.nii.gz"


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.browser
def test_a_scan_is_sent_and_its_labels_are_shown(tmp_path: Path) -> None:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium")
    scan = base64.b64encode(tiny_scan(tmp_path / "scan.nii.gz").read_bytes()).decode()
    pictures = Path(os.environ.get("TRINAT_PICTURES", tmp_path))
    with Service(tmp_path / "queue") as service:
        service.ready()
        page = Browser(chromium, webgl=True)
        try:
            page.resize(1440)
            page.open(service.address)
            assert page.evaluate("location.search") == ""
            page.wait("!document.getElementById('drop').hidden")
            # Choose files in the field first, then drop them.
            for how in ("field", "drop"):
                page.evaluate(
                    f"""(() => {{
                        window.trinatShown = null;
                        const bytes = Uint8Array.from(atob("{scan}"), (c) => c.charCodeAt(0));
                        const data = new DataTransfer();
                        data.items.add(new File([bytes], {json.dumps(NAME)}));
                        const field = document.getElementById("file");
                        if ({json.dumps(how)} === "field") {{
                            field.files = data.files;
                            field.dispatchEvent(new Event("change"));
                        }} else {{
                            data.items.add(new File(["hello"], "notes.txt"));
                            document.getElementById("drop").dispatchEvent(
                                new DragEvent("drop", {{ dataTransfer: data, bubbles: true }}));
                        }}
                    }})()"""
                )
                sent = 1 if how == "field" else 2
                page.wait(f"document.querySelectorAll('.scan').length === {sent}")
                # The scan appears before its labels, unless these are ready at once.
                page.wait("window.trinatShown", 120)
                page.wait(
                    f"document.getElementById('progress').textContent[0] === '{sent}'",
                    120,
                )
                page.wait("window.trinatShown?.step === 0", 120)
            page.wait(
                "document.getElementById('refused').innerText.includes('not a kind of scan')"
            )
            assert page.evaluate(
                "document.getElementById('name').innerText"
            ).startswith(NAME)
            assert "hit" not in page.evaluate("document.title")
            # The table has the structures with voxels, and nothing can be rated.
            volumes = (
                "[...document.querySelectorAll('.volume')].map((x) => x.textContent)"
            )
            assert any(v not in ("", "0") for v in page.evaluate(volumes)), (
                page.evaluate(volumes)
            )
            assert not page.evaluate("!!document.querySelector('.verdict')")
            links = page.evaluate(
                "[...document.querySelectorAll('#files a')].map((a) => a.download)"
            )
            assert links == [
                "labels.nii.gz",
                "brainmask.nii.gz",
                "volumes.tsv",
                "qc.png",
            ]
            for width in (1440, 390):
                page.resize(width)
                for tab in ("picture", "scans"):
                    page.evaluate(
                        f"document.querySelector('nav [data-tab={tab}]').click()"
                    )
                    (pictures / f"{width}-{tab}.png").write_bytes(page.picture())
                    assert page.evaluate(
                        "document.documentElement.scrollWidth <= innerWidth"
                    )
            for left in (1, 0):
                # Deleting asks first, and does nothing without a yes.
                page.evaluate("globalThis.confirm = () => false")
                page.evaluate("document.getElementById('delete').click()")
                assert page.evaluate("document.getElementById('delete') !== null")
                page.evaluate("globalThis.confirm = () => true")
                page.evaluate("document.getElementById('delete').click()")
                page.wait(f"document.querySelectorAll('.scan').length === {left}")
            assert not list((service.queue / "jobs").iterdir())
        finally:
            page.close()
        ours = service.address.partition("?")[0]
        assert all(url.startswith((ours, "data:", "blob:")) for url in page.requests)
        # The browser logs the refused upload, too.
        assert all("415" in problem for problem in page.problems), page.problems


@pytest.mark.slow
@pytest.mark.browser
def test_age_and_sex_are_asked_for_where_a_page_is_compared_with_norms(
    tmp_path: Path,
) -> None:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium")
    scan = base64.b64encode(tiny_scan(tmp_path / "scan.nii.gz").read_bytes()).decode()
    (tmp_path / "norms.tsv").write_text(norms().table)
    reference = str(tmp_path / "norms.tsv")
    with Service(tmp_path / "queue", "--reference", reference) as service:
        service.ready()
        page = Browser(chromium, webgl=True)
        try:
            page.open(service.address)
            page.wait("!document.getElementById('drop').hidden")
            assert page.evaluate("document.getElementById('participant').hidden")
            page.evaluate("document.querySelector('.output[value=page]').click()")
            assert not page.evaluate("document.getElementById('participant').hidden")

            def send(count: int) -> None:
                """Send this many files at once, of a woman of 31."""
                for field, keys in (("age", "31"), ("sex", "f")):
                    page.evaluate(f"document.getElementById('{field}').focus()")
                    for key in keys:
                        page.press(key)
                page.evaluate(
                    f"""(() => {{
                        const bytes = Uint8Array.from(atob("{scan}"), (c) => c.charCodeAt(0));
                        const data = new DataTransfer();
                        for (let n = 0; n < {count}; n++) {{
                            data.items.add(new File([bytes], `${{n}}.nii.gz`));
                        }}
                        const field = document.getElementById("file");
                        field.files = data.files;
                        field.dispatchEvent(new Event("change"));
                    }})()"""
                )

            send(2)
            refused = "document.getElementById('refused').innerText"
            page.wait(f"{refused}.includes('one participant')")
            send(1)
            files = "[...document.querySelectorAll('#files a')].map((a) => a.download)"
            page.wait(f"{files}.includes('page.html')", 120)
            # The next scan may belong to another participant.
            assert page.evaluate("document.getElementById('age').value") == ""
            (job,) = service.client.get("/v1/study").json()["scans"]
            path = f"{AT}/{job['id']}/page.html"
            assert "of 120 participants" in service.client.get(path).text
        finally:
            page.close()
