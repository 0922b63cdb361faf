"""The code that a report prints gives the report's numbers again, from metrics.csv alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from trinat.pipelines.report import measurements, summary
from trinat.pipelines.report.evaluation import code_of
from trinat.pipelines.report.measurements import metrics_frame, write_table
from trinat.segmentation.metrics.pair import Measurement

# In text order, which differs from the order of numbers.
PARTICIPANTS = ("10", "9", "01", "NA", "e", "f", "g", "h")
MODELS = ("-first", "MODEL")


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """Return metrics with participants of several sessions and with undefined values."""
    rng = np.random.default_rng(0)
    return metrics_frame(
        (
            {"subject": name, "session": f"ses-{session}", "model": model},
            [
                Measurement(
                    structure, 1, metric, np.nan if lost else rng.uniform(0.7, 0.9), ""
                )
                for structure in ("Left-A", "Right-A", "group:all")
                for metric in ("dice", "volume")
                for lost in [structure == "Right-A" and participant in (1, 4)]
            ],
        )
        for model in MODELS
        for participant, name in enumerate(PARTICIPANTS)
        for session in range(3 if participant == 2 else 2 if participant < 4 else 1)
    )


@pytest.mark.parametrize("metric", ["dice", "volume"])
@pytest.mark.parametrize("model", MODELS)
def test_the_statistics_are_the_reports(
    frame: pd.DataFrame,
    model: str,
    metric: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_table(tmp_path / "metrics.csv", frame)
    monkeypatch.chdir(tmp_path)
    code = code_of(model).replace(".to_string()", "").replace('"dice"', f'"{metric}"')
    if metric == "volume":
        code = code.replace("# to, back", "to, back")
    printed: list[pd.DataFrame] = []
    exec(code, {"print": printed.append})
    table = measurements.where(
        summary.structure_statistics(frame, {}), model=model, metric=metric
    )
    again = printed[0].rename(columns=str).loc[table["structure"]]
    names = {"count": "participants", "mean": "mean", "50%": "median", "std": "sd"}
    for theirs, ours in {**names, "low": "low", "high": "high"}.items():
        np.testing.assert_allclose(again[theirs], table[ours], rtol=1e-9, err_msg=ours)


def test_the_code_is_short() -> None:
    assert len(code_of("a").splitlines()) <= 14
    assert max(map(len, code_of("a").splitlines())) <= 100
