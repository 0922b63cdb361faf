from pathlib import Path

import pytest

from pipelines.common.claim import claim
from segmentation.errors import OutputError


def test_a_file_of_the_users_with_an_outputs_name_refuses_the_folder(tmp_path: Path) -> None:
    (tmp_path / "participants.tsv").write_text("mine")
    with pytest.raises(OutputError, match="not written by this command"):
        claim(tmp_path, ["participants.tsv"])
    assert [path.name for path in tmp_path.iterdir()] == ["participants.tsv"]


def test_a_dangling_link_in_an_outputs_place_refuses_the_folder(tmp_path: Path) -> None:
    (tmp_path / "report.html").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError):
        claim(tmp_path, ["report.html"])


def test_a_claimed_folder_is_taken_again(tmp_path: Path) -> None:
    claim(tmp_path / "out", ["metrics.csv"])
    (tmp_path / "out" / "metrics.csv").write_text("ours")
    claim(tmp_path / "out", ["metrics.csv"])


def test_other_files_may_lie_beside_outputs(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    claim(tmp_path, ["metrics.csv"])
    assert (tmp_path / "notes.txt").read_text() == "mine"
