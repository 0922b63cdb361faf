"""What tests of inference share."""

from __future__ import annotations

import pytest
from helpers.overfitted import overfitted_model

from trinat.segmentation.inference.predictor import Predictor


@pytest.fixture(scope="session")
def segmenter() -> Predictor:
    """A predictor that knows the miniature head by heart; no test changes it."""
    return Predictor(overfitted_model(), device="cpu")
