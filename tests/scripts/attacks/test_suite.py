"""The suite must be able to find each kind of failure."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from attacks import scans
from attacks.suite import Suite, families
from attacks.verdicts import Verdict, lost, raw_in, wrong
from attacks.workshop import Done, Try, checked, time_limit

from trinat.segmentation.errors import InputError


def right(attempt: Try) -> None:
    assert attempt.folder.is_dir()


def refused(attempt: Try) -> None:
    raise InputError("no", where="file")


def bare(attempt: Try) -> None:
    raise ZeroDivisionError


def silently(attempt: Try) -> None:
    raise wrong("other voxels")


def loses(attempt: Try) -> None:
    raise lost("a file")


def hangs(attempt: Try) -> None:
    with time_limit(0.05):
        time.sleep(60)


def dies(attempt: Try) -> None:
    import os

    os._exit(7)


@pytest.mark.parametrize(
    ("attack", "verdict"),
    [
        (right, Verdict.RIGHT),
        (refused, Verdict.REFUSED),
        (bare, Verdict.TRACEBACK),
        (silently, Verdict.WRONG),
        (loses, Verdict.LOST),
        (hangs, Verdict.HANG),
        (dies, Verdict.TRACEBACK),
    ],
)
def test_a_turn_counts_each_verdict_and_failures_say_how_to_repeat_them(
    tmp_path: Path, attack, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attacks.suite._TURN_S", 0)
    suite = Suite(3, tmp_path)
    suite.run({"family": attack}, 0)
    good = verdict in (Verdict.RIGHT, Verdict.REFUSED)
    assert suite.tallies["family"] == {verdict: 1}
    assert suite.is_good == good
    assert len(suite.failures) == (not good)
    if not good:
        assert "--seed 3 --only 'family' --try 0" in suite.failures[0]
    suite.run({"family": attack}, 0)
    assert suite.tallies["family"] == {verdict: 2}
    assert "| family |     2 |" in suite.table()


def test_a_reader_that_takes_damage_for_a_scan_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A reader that stops at the last voxel never reads the checksum.
    monkeypatch.setattr(
        "trinat.segmentation.io.streams.ScanStream.drain", lambda *_, **__: None
    )
    monkeypatch.setattr("gzip._GzipReader._read_eof", lambda self: None)
    suite = Suite(1, tmp_path)
    found = {
        suite.attempt("family", scans.malformed, number)[0] for number in range(70)
    }
    assert Verdict.WRONG in found


def test_what_a_command_says_and_how_it_ends_is_judged() -> None:
    assert checked(Done(0, "ok", "")).out == "ok"
    for done in (
        Done(0, "", "Traceback (most recent call last):\n  File ..."),
        Done(4, "", "trinat: KeyError: 'a': a fault of trinat"),
        Done(0, "", "/x/y.py:12: RuntimeWarning: overflow"),
        Done(-11, "", ""),
        Done(4, "", ""),
        Done(0, "", "", hung=True),
    ):
        with pytest.raises(BaseException, match=r".") as caught:
            checked(done)
        assert type(caught.value).__name__ == "Bad"
    assert raw_in("a line\nx: a fault of trinat: y") == "x: a fault of trinat: y"


def test_every_family_is_found_and_the_same_seed_gives_the_same_tries(
    tmp_path: Path,
) -> None:
    assert len(families()) == 18
    drawn = []

    def draws(attempt: Try) -> None:
        drawn.append(attempt.chance.random())

    for place, seed, family, number in (
        ("a", 1, "x", 2),
        ("b", 1, "x", 2),
        ("c", 2, "x", 2),
        ("d", 1, "y", 2),
        ("e", 1, "x", 3),
    ):
        Suite(seed, tmp_path / place).attempt(family, draws, number)
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 4
