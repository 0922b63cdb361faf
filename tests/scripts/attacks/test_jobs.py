"""Files that count as the result of a command under attack."""

from __future__ import annotations

from pathlib import Path

from attacks.jobs import results


def test_a_page_is_the_same_on_another_day_and_not_with_other_words(
    tmp_path: Path,
) -> None:
    page = tmp_path / "report.html"
    page.write_text("<p>2 scans, 2026-11-26</p>")
    before = results(tmp_path)
    page.write_text("<p>2 scans, 2026-11-26 to 2026-11-27</p>")
    assert results(tmp_path) == before
    page.write_text("<p>3 scans, 2026-11-26</p>")
    assert results(tmp_path) != before
