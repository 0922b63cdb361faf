"""Labels from a model: their licence and their source."""

from __future__ import annotations

from pathlib import Path

import pytest

from trinat.pipelines.prepare.labelling import label_with_model
from trinat.segmentation.data.preparing import Cut
from trinat.segmentation.data.sources.base import Listing
from trinat.segmentation.errors import InputError
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.space.views import View


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("manual", ["the weights of manual are licensed under CC BY-NC 3.0"]),
        ("fast", []),
    ],
)
def test_a_licence_that_is_not_that_of_trinat_is_told(
    model: str, told: list[str], tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    cut = Cut(load_scheme("quicknat33"), (View.CORONAL,))
    # The notice is printed first, although there is no scan.
    with pytest.raises(InputError):
        label_with_model(Listing(()), model, tmp_path / "labels", cut)
    assert logged.messages == told
