"""What is said of a scan that failed."""

from __future__ import annotations

import pytest

from pipelines.predict.ledger import Entry
from pipelines.predict.progress import listener

BROKEN = Entry("b", "failed", "in/b\n.nii.gz", "cut short: copy it again")


@pytest.mark.parametrize("interactive", [False, True])
def test_a_failed_scan_is_one_line_like_every_message(interactive: bool, capsys) -> None:
    with listener(quiet=False, as_json=False, interactive=interactive) as (_, on_entry, _end):
        on_entry(BROKEN)
    assert "trinat: in/b\\n.nii.gz: cut short: copy it again\n" in capsys.readouterr().err
