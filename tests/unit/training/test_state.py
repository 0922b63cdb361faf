"""State files: complete or refused, two kept, those of another run refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trinat.segmentation.errors import IntegrityError, TrainingError
from trinat.segmentation.training.state import (
    Counters,
    State,
    check_identity,
    differences,
    read_latest,
    read_state,
    seeded,
    write_state,
)


def state(step: int, value: float = 1.0) -> State:
    tensors = {"weight": torch.full((2, 3), value), "count": torch.tensor(step)}
    counters = Counters(step=step, seconds=0.1, best=0.25)
    return State(
        counters,
        {"seed": 1},
        tensors,
        {"weight": torch.zeros(1)},
        {"weight/m": torch.ones(2)},
    )


def test_a_state_comes_back(tmp_path: Path) -> None:
    again = read_state(write_state(tmp_path, state(7, 0.1)))
    assert again.counters == Counters(step=7, seconds=0.1, best=0.25)
    assert again.identity == {"seed": 1}
    assert torch.equal(again.network["weight"], torch.full((2, 3), 0.1))
    assert again.network["count"] == 7
    assert torch.equal(again.optimiser["weight/m"], torch.ones(2))
    assert list(again.average) == ["weight"]


def test_the_last_two_are_kept_and_the_best_beside_them(tmp_path: Path) -> None:
    write_state(tmp_path, state(1), name="best.state")
    for step in (2, 9, 10):
        write_state(tmp_path, state(step))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["best.state", "state-000000009.state", "state-000000010.state"]


@pytest.mark.parametrize("damage", ["cut", "flip", "header", "empty"])
def test_a_damaged_state_is_noticed_and_the_one_before_it_taken(
    tmp_path: Path, damage: str
) -> None:
    write_state(tmp_path, state(1))
    path = write_state(tmp_path, state(2))
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[-1] ^= 1
    elif damage == "header":
        content[0] ^= 1
    path.write_bytes({"cut": content[:-5], "empty": b""}.get(damage, content))
    found, problems = read_latest(tmp_path)
    assert found is not None
    assert found.counters.step == 1
    assert [type(problem) for problem in problems] == [IntegrityError]
    assert path.name in str(problems[0])


def test_damaged_states_do_not_push_out_sound_ones(tmp_path: Path) -> None:
    for step in (8, 9):
        write_state(tmp_path, state(step)).write_bytes(b"")
    for step in (2, 4):
        write_state(tmp_path, state(step))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["state-000000002.state", "state-000000004.state"]


def test_an_empty_folder_has_no_state(tmp_path: Path) -> None:
    assert read_latest(tmp_path) == (None, [])


def test_differences_name_the_key() -> None:
    old = {"stages": [{"batch": 4, "rate": 1.0}], "seed": 0}
    new = {"stages": [{"batch": 8, "rate": 1.0}], "seed": 0, "more": 1}
    assert list(differences(old, new)) == ["more: null -> 1", "stages.0.batch: 4 -> 8"]


def test_a_stage_more_is_named_and_its_settings_are_cut_short() -> None:
    stage = {
        "name": "coronal",
        "views": ["coronal"],
        "data": {"rows": 160, "columns": 160},
    }
    found = list(differences({"stages": [stage]}, {"stages": [stage, stage]}))
    assert found == [
        'stages.1: null -> {"name": "coronal", "views": ["coronal"], "data": {"rows": 160, ...'
    ]


def test_a_store_may_lie_elsewhere_and_has_the_settings_that_it_had(
    tmp_path: Path,
) -> None:
    def settings(place: str, flip: float) -> dict[str, object]:
        store = {"path": place, "split": f"{place}/split.json", "flip": flip}
        return {"scheme": f"{place}/own.tsv", "stages": [{"data": {"store": store}}]}

    check_identity(settings("/old", 0.5), settings("/new", 0.5), tmp_path)
    with pytest.raises(TrainingError, match=r"stages\.0\.data\.store\.flip: 0\.5 -> 0"):
        check_identity(settings("/old", 0.5), settings("/new", 0), tmp_path)


def test_tuples_and_paths_are_what_json_makes_of_them(tmp_path: Path) -> None:
    check_identity({"views": ["coronal"]}, {"views": ("coronal",)}, tmp_path)


def test_random_numbers_are_a_function_of_their_parts() -> None:
    def first(*parts: int) -> float:
        return float(torch.rand((), generator=seeded("cpu", *parts)))

    assert first(1, 2, 3) == first(1, 2, 3)
    assert len({first(1, 2, 3), first(1, 2, 4), first(1, 3, 2), first(2, 2, 3)}) == 4
