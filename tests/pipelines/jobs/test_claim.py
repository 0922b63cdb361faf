"""A command claims the names of its outputs, and refuses a folder with a user's file of one."""

from pathlib import Path

import pytest
from helpers.refusals import refusal

from trinat.pipelines.jobs.lock import claimed, refuse_foreign
from trinat.segmentation.errors import OutputError


def test_a_file_of_the_users_with_an_outputs_name_refuses_the_folder(
    tmp_path: Path,
) -> None:
    (tmp_path / "participants.tsv").write_text("mine")
    with (
        refusal(OutputError, tmp_path / "participants.tsv", remedy="--out"),
        claimed(tmp_path, ["participants.tsv"]),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["participants.tsv"]


def test_a_file_in_the_folders_place_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    with refusal(OutputError, out, remedy="--out"):
        refuse_foreign(out, ["volumes.csv"])


def test_a_dangling_link_in_an_outputs_place_refuses_the_folder(tmp_path: Path) -> None:
    (tmp_path / "report.html").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError), claimed(tmp_path, ["report.html"]):
        pass


def test_a_claimed_folder_is_taken_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with claimed(out, ["metrics.csv"]):
        (out / "metrics.csv").write_text("ours")
    with claimed(out, ["metrics.csv"]):
        assert (out / "metrics.csv").read_text() == "ours"


def test_other_files_may_lie_beside_outputs(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with claimed(tmp_path, ["metrics.csv"]):
        pass
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_what_a_killed_run_was_writing_is_gone(tmp_path: Path) -> None:
    with claimed(tmp_path, ["figures"]):
        (tmp_path / "figures").mkdir()
        (tmp_path / "figures" / "a.svg").touch()
    for folder in (tmp_path, tmp_path / "figures"):
        (folder / ".trinat-0123456789abcdef.tmp").touch()
    with claimed(tmp_path, ["figures"], within=["figures"]):
        assert not list(tmp_path.rglob("*.tmp"))


def test_a_mark_of_the_users_is_none(tmp_path: Path) -> None:
    (tmp_path / ".trinat").write_text("mine")
    with pytest.raises(OutputError), claimed(tmp_path, ["metrics.csv"]):
        pass
    assert (tmp_path / ".trinat").read_text() == "mine"
