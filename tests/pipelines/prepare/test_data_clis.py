"""The commands trinat data and trinat prepare --pictures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.commands import trinat
from helpers.loopback import Server, cut, serve
from helpers.miniatures import freesurfer_subject
from helpers.refusals import refusal
from PIL import Image

from trinat.pipelines.prepare.catalogue import Archive, ArchiveLimits, Dataset
from trinat.segmentation.errors import ConfigError

CONTENT = bytes(range(256)) * 8


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Serve a catalogue of one dataset with two discs."""
    running = Server()
    url = running.plays(lambda h: cut(h, CONTENT, 700), lambda h: serve(h, CONTENT))
    archive = Archive(
        part="images",
        name="mini_disc{disc}.tar",
        urls=(url,),
        discs=2,
        md5={1: hashlib.md5(CONTENT).hexdigest()},
        limits=ArchiveLimits(10, 10**6),
    )
    dataset = Dataset(
        title="Mini",
        holds="little",
        size="2 kB",
        licence="none",
        terms="https://a.example",
        citation="nobody",
        archives=(archive,),
    )
    catalogue = {"mini": dataset}
    monkeypatch.setattr(
        "trinat.pipelines.prepare.catalogue.load_catalogue", lambda: catalogue
    )
    yield running
    running.close()


def test_get_fetches_checks_and_says_how_it_knows(
    server: Server, tmp_path: Path
) -> None:
    printed = trinat("data", "get", "mini", "--root", tmp_path, "--accept-terms")
    first, second = printed.splitlines()
    assert first.endswith(
        f"downloaded, md5 {hashlib.md5(CONTENT).hexdigest()} (as published)"
    )
    assert "not published; saved in checksums.json" in second
    assert (tmp_path / "mini_disc1.tar").read_bytes() == CONTENT
    recorded = json.loads((tmp_path / "checksums.json").read_text())
    assert recorded == {
        "mini_disc2.tar": f"sha256 {hashlib.sha256(CONTENT).hexdigest()}"
    }
    assert server.ranges == [None, "bytes=700-", None]
    again = trinat(
        "data", "get", "mini", "--disc", 1, "--root", tmp_path, "--accept-terms"
    )
    assert "already downloaded" in again
    assert len(server.ranges) == 3


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("nothing",), "no dataset 'nothing'"),
        (("mini", "--disc", 3), "has no disc 3"),
        (("mini", "--part", "films"), "has no part 'films'"),
    ],
)
def test_get_names_what_there_is(
    server: Server, tmp_path: Path, words: tuple[object, ...], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        trinat("data", "get", *words, "--root", tmp_path, "--accept-terms")
    assert server.ranges == []


def test_list_prints_licence_and_citation(server: Server) -> None:
    printed = trinat("data", "list")
    for text in (
        "mini: Mini",
        "images (discs 1-2)",
        "licence none",
        "https://a.example",
        "nobody",
    ):
        assert text in printed


def test_list_as_json_has_the_same_and_the_addresses(server: Server) -> None:
    mini = json.loads(trinat("data", "list", "--json"))["mini"]
    assert mini["title"] == "Mini"
    assert [archive["part"] for archive in mini["archives"]][:1] == ["images"]
    assert mini["archives"][0]["urls"]


def test_a_dataset_without_download_says_how_to_come_by_it(tmp_path: Path) -> None:
    with refusal(ConfigError, remedy="--root"):
        trinat("data", "get", "malc", "--root", tmp_path, "--accept-terms")
    listed = trinat("data", "list").partition("malc: ")[2]
    assert "ask Neuromorphometrics" in listed
    assert "CC BY-NC 3.0" in listed
    assert "(http://neuromorphometrics.com) under academic subscription" in listed
    assert "parts" not in listed


def test_a_store_can_be_shown_and_reported(tmp_path: Path) -> None:
    freesurfer_subject(tmp_path / "in", "s1")
    (tmp_path / "c.yaml").write_text("source: freesurfer\ngrid: [64, 64, 64]\n")
    store = tmp_path / "store"
    given = ("--config", tmp_path / "c.yaml", "--root", tmp_path / "in", "--out", store)
    printed = trinat("prepare", *given, "--views", "coronal", "--views", "axial")
    assert "1 in, 1 made" in printed
    assert trinat("prepare", *given, "--views", "coronal", "axial", "--quiet").endswith(
        "1 in, 0 made, 1 up to date, 0 failed, 0 skipped\n"
    )
    trinat("data", "show", store, "s1", "--out", tmp_path / "a.png")
    trinat(
        "data",
        "show",
        store,
        "s1",
        "--augment",
        2,
        "--seed",
        3,
        "--out",
        tmp_path / "b.png",
    )
    for name in ("a.png", "b.png"):
        with Image.open(tmp_path / name) as picture:
            assert (
                picture.width > 3 * 64
            )  # three pictures in a row, one pixel per voxel
