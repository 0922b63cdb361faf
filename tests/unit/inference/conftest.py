"""Fixtures of the tests of inference."""

from __future__ import annotations

import pytest
from helpers.overfitted import overfitted_model

from trinat.segmentation.inference.predictor import Predictor


@pytest.fixture(scope="session")
def segmenter() -> Predictor:
    """Provide a predictor overfitted to the miniature head; no test changes it."""
    return Predictor(overfitted_model(), device="cpu")
