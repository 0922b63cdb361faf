"""YAML without surprises: values as written, and no duplicate keys."""

from __future__ import annotations

import pytest

from trinat.segmentation.io.plain_yaml import parse_yaml


def test_plain_values_come_as_they_are() -> None:
    text = "a: 1\nb: [1.5, true, null, x]\nc: {a: 2021-01-01}\nd: 1:30\n"
    found = parse_yaml(text)
    assert found["a"] == 1
    assert found["b"] == [1.5, True, None, "x"]
    assert str(found["c"]["a"]) == "2021-01-01"
    assert found["d"] == 90


@pytest.mark.parametrize(
    "text",
    ["a: 1\nb: 2\na: 1", "x: {a: 1, 'a': 2}", "- [{b: 1},\n {a: 1, a: 2}]", "? a\n? a"],
)
def test_a_key_that_stands_twice_is_named_with_its_line(text: str) -> None:
    line = text.count("\n") + 1
    with pytest.raises(ValueError, match=rf"^the key a occurs twice, line {line}$"):
        parse_yaml(text)


def test_a_key_may_stand_in_several_mappings_and_replace_a_merged_one() -> None:
    text = "p: {q: &b {<<: &a {x: 1, y: 1}, x: 2}}\nc: {<<: *b, y: 3}\n'1': 0\n1: 0"
    assert parse_yaml(text) == {
        "p": {"q": {"x": 2, "y": 1}},
        "c": {"x": 2, "y": 3},
        "1": 0,
        1: 0,
    }
