"""Pipes, devices, sockets and folders in place of files: one line each, and no waiting."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.miniatures import write_analyze
from helpers.refusals import refusal

from trinat.pipelines.common.config import read_yaml
from trinat.pipelines.prepare.catalogue import ArchiveLimits
from trinat.pipelines.prepare.unpack import extract
from trinat.pipelines.study.ledger import read_entries
from trinat.segmentation.data.slices import SubjectFile
from trinat.segmentation.data.splits import read_split
from trinat.segmentation.data.store import Store
from trinat.segmentation.errors import InputError, TrinatError
from trinat.segmentation.io.files import open_regular, read_rows
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.checkpoint import load_model, read_info
from trinat.segmentation.models.unpickling import read_torch_file
from trinat.segmentation.models.zoo import find_model
from trinat.segmentation.synthetic.heads import load_heads
from trinat.segmentation.training.state import read_state

READERS: dict[str, Callable[[Path], Any]] = {
    "scan.nii.gz": Volume.read,
    "scan.nii": Volume.read,
    "scan.mgz": Volume.read,
    "scan.hdr": Volume.read,
    "labels.nii.gz": lambda path: Volume.read(path, labels=True),
    "participants.tsv": lambda path: read_rows(path, required=()),
    "checkpoint.pth": read_torch_file,
    "recipe.yaml": read_yaml,
    "run.jsonl": lambda path: read_entries([path]),
    "split.json": read_split,
    "store.json": lambda path: Store(path.parent),
    "model.yaml": lambda path: read_info(path.parent),
    "subject.h5": lambda path: SubjectFile(path).fingerprint,
    "scheme.tsv": load_scheme,
    "heads.npz": load_heads,
    "step-1.state": read_state,
    "disc.tar.gz": lambda path: extract(
        path, path.parent / "out", limits=ArchiveLimits(members=1, bytes=1)
    ),
}


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _linked_pipe(path: Path) -> None:
    os.mkfifo(path.parent / "pipe")
    path.symlink_to("pipe")


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _socket(path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as server:
        # The path of a socket must be short, so use its name alone.
        here = Path.cwd()
        os.chdir(path.parent)
        try:
            server.bind(path.name)
        finally:
            os.chdir(here)


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    """Interrupt a reader that waits."""

    def late(*_: object) -> None:
        pytest.fail(
            "still waiting after a minute"
        )  # not an Exception, which a reader might catch

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("make", [_pipe, _linked_pipe, _device, _socket, Path.mkdir])
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_regular_file_is_refused(
    name: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path / name)
    told = (
        "not a regular file|is a folder|no model here|no such label scheme|is missing"
    )
    with pytest.raises(TrinatError, match=told) as caught:
        READERS[name](tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_regular_file_is_opened_also_through_links(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"content"
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "nothing")
    with refusal(InputError, tmp_path):
        open_regular(tmp_path)


@pytest.mark.parametrize("make", [_pipe, _device])
def test_the_image_half_of_a_pair(make: Callable[[Path], None], tmp_path: Path) -> None:
    header = write_analyze(tmp_path / "scan.hdr", np.ones((20, 20, 20)), "RAS")
    (tmp_path / "scan.img").unlink()
    make(tmp_path / "scan.img")
    with pytest.raises(TrinatError, match="not a regular file"):
        Volume.read(header, axes="RAS")


@pytest.mark.parametrize("make", [_pipe, _device])
def test_weights(make: Callable[[Path], None], tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(find_model("fast"), model)
    weights = next(model.glob("*.safetensors"))
    weights.unlink()
    make(weights)
    with pytest.raises(TrinatError, match="not a regular file"):
        load_model(model)
