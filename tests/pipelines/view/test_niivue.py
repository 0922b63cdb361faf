"""NiiVue is unchanged from npm, with its licence."""

from __future__ import annotations

import json
from importlib import resources

from trinat.segmentation.io.files import sha256_of

FOLDER = resources.files("trinat.pipelines.view") / "page" / "niivue"


def test_it_is_the_file_that_was_published() -> None:
    source = json.loads((FOLDER / "source.json").read_text())
    with resources.as_file(FOLDER / "niivue.umd.js") as path:
        assert sha256_of(path) == source["sha256"]
    assert source["version"] in source["source"]


def test_the_licences_of_what_it_holds_are_beside_it() -> None:
    text = (FOLDER / "LICENSE.txt").read_text()
    assert "Copyright (c) 2021, Niivue" in text
    assert text.count("\n# ") == 10
