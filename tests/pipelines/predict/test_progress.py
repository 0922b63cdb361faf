"""What is said of a scan that failed, and at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.predict.ledger import Entry
from pipelines.predict.progress import listener
from pipelines.predict.run import Outcome

BROKEN = Entry("b", "failed", "in/b\n.nii.gz", "cut short: copy it again")


@pytest.mark.parametrize("interactive", [False, True])
def test_a_failed_scan_is_one_line_like_every_message(interactive: bool, capsys) -> None:
    with listener(quiet=False, as_json=False, interactive=interactive) as (_, on_entry, _end):
        on_entry(BROKEN)
    assert "trinat: in/b\\n.nii.gz: cut short: copy it again\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kept", "skipped"), [(0, "3 skipped"), (1, "3 skipped (1 with changed results)")]
)
@pytest.mark.parametrize("interactive", [False, True])
def test_changed_results_are_told_apart_from_what_is_unchanged(
    interactive: bool, kept: int, skipped: str, capsys
) -> None:
    outcome = Outcome(0, 3, 2, interrupted=False, kept=kept)
    with listener(quiet=False, as_json=False, interactive=interactive) as (_, _entry, on_end):
        on_end(outcome, Path("out"))
    assert f"0 done, {skipped}, 2 failed: out/report.html\n" in capsys.readouterr().err
