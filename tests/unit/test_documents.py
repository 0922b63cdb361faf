"""Files and links in the documents exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *(
        ROOT / name
        for name in ("AGENTS.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "README.md")
    ),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FOLDERS = r"segmentation|pipelines|configs|tests|scripts|docs|containers|\.ci"
PATH = re.compile(rf"(?<![\w./])(?:{FOLDERS})/[\w./*-]*")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        for heading in headings
    }


@pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT))
)
def test_what_a_document_names_is_there(document: Path) -> None:
    text = document.read_text()
    named = {path.rstrip(".-") for path in PATH.findall(text)}
    assert [
        path for path in sorted(named) if not any(ROOT.glob(path.rstrip("/")))
    ] == []
    for link in LINK.findall(text):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        # The example pages of the site are made of these scripts.
        file = re.sub(r"auto_examples/index\.rst$", "examples/README.rst", file)
        file = re.sub(r"auto_examples/(\w+)\.rst$", r"examples/\1.py", file)
        target = document.parent / file if file else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text()), link
