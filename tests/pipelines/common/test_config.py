"""Settings from files: errors name the file, the key and the line."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.refusals import refusal

from trinat.pipelines.common.config import read_yaml, with_settings
from trinat.segmentation.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "name: a\nstages:\n  - optimiser: {rate: 1, rate: 2}\n",
            "the key rate occurs twice, line 3",
        ),
        ("name: a\nseed: 1\nname: b\n", "the key name occurs twice, line 3"),
        ("name: [\n", "is not readable YAML, line 2"),
        ("[" * 20_000, "is not readable YAML"),
        ("name: !!bool x\n", "is not readable YAML"),
        ("- name\n", "holds no settings: write `key: value` lines"),
    ],
)
def test_a_recipe_that_says_nothing_is_refused_in_one_line(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as told:
        read_yaml(path)
    assert str(told.value) == f"{path}: {message}"


def test_a_setting_with_a_key_twice_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"--set optimiser: '\{rate: 1, rate: 2\}' is no value"
    ):
        with_settings({}, ["optimiser={rate: 1, rate: 2}"])


@pytest.mark.parametrize("setting", ["a..0=3", ".=3", "=3", "a.=3", "a.²=3"])
def test_each_part_of_a_key_has_a_name(setting: str) -> None:
    with refusal(ConfigError):
        with_settings({"a": [1, 2]}, [setting])
