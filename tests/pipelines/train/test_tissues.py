"""The shipped recipe `tissues` learns: its first stage, unchanged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.tiny_training import SILENT

from trinat.pipelines.jobs.process import prepare_process
from trinat.pipelines.train.run import read_recipe, train
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.metrics.overlap import dice, joint_histogram
from trinat.segmentation.synthetic.phantom import phantom

# Dice of grey and white matter. It was 0.50 to 0.56 with two seeds of the recipe and two
# phantoms. After 200 steps some networks of one view find no fluid yet.
LEAST_DICE = 0.35
# Training synthesises its slices from the phantom's anatomy; none of them is of this head.
SEED = 7


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.usefixtures("one_thread")
def test_the_coronal_stage_learns_the_tissues_of_a_head_that_it_has_not_seen(
    tmp_path: Path,
) -> None:
    prepare_process()
    recipe = read_recipe("tissues")
    coronal = recipe.model_copy(update={"stages": recipe.stages[:1]})
    model = train(coronal, tmp_path / "run", SILENT)
    scan, truth = phantom(SEED, csf="intracranial")
    found = Predictor(model, device="cpu").segment(scan)
    scheme = load_scheme("tissue4")
    joint = joint_histogram(
        scheme.from_freesurfer(truth.data), found.indices.data, len(scheme)
    )
    of_tissues = dict(zip(scheme.names, dice(joint), strict=True))
    matter = [of_tissues["Grey-Matter"], of_tissues["White-Matter"]]
    assert np.mean(matter) > LEAST_DICE
