"""Ten minutes of a GPU: each part has its limit, and what there is when time ends is kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benches.session import Session


def test_parts_end_by_themselves_or_at_their_limit_and_the_session_goes_on(
    tmp_path: Path,
) -> None:
    session = Session(tmp_path, 60.0)
    session.do("good", [sys.executable, "-c", "print('done')"], 30)
    session.do("bad", [sys.executable, "-c", "raise SystemExit(3)"], 30)
    # It writes down what it has at SIGTERM, as a training does.
    saving = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *given: sys.exit(print('saved')))\n"
        "print('begun', flush=True)\n"
        "time.sleep(60)"
    )
    session.do("long", [sys.executable, "-c", saving], 5)
    session.seconds = 0.0
    session.do("late", [sys.executable, "-c", "print('never')"], 30)
    written = json.loads((tmp_path / "session.json").read_text())["parts"]
    assert [part["ended"] for part in written] == [
        "status 0",
        "status 3",
        "its limit of 5 s",
        "no time left",
    ]
    assert (tmp_path / "good.log").read_text() == "done\n"
    assert (tmp_path / "long.log").read_text() == "begun\nsaved\n"
    assert not (tmp_path / "late.log").exists()
