"""Scans with reversed contrast are inverted, and no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.overfitted import random_model
from helpers.serial import small_scan
from pydantic import ValidationError

from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.inference.preparation import (
    REVERSED,
    find_reversed_white_matter,
    reverse_contrast,
)
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.metrics.pair import evaluate
from trinat.segmentation.models.checkpoint import load_model, save_model
from trinat.segmentation.models.model_info import Description, Preprocessing
from trinat.segmentation.segmenter import Segmenter
from trinat.segmentation.synthetic.phantom import phantom

SCHEME = load_scheme("quicknat33")
WHITE_MATTER = SCHEME.find("Left-Cerebral-White-Matter").index
CORTEX = SCHEME.find("Right-Cerebral-Cortex").index
VENTRICLE = SCHEME.find("Left-Lateral-Ventricle").index
THALAMUS = SCHEME.find("Left-Thalamus").index
VOXELS = 150


def slices_of(
    brightness: dict[int, float], *, voxels: int = VOXELS, likelihood: float = 0.9
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return a slice for each class, of this brightness and this probability of the class."""
    found = []
    for index, value in brightness.items():
        probabilities = torch.zeros(1, 1, voxels, len(SCHEME))
        probabilities[..., index] = likelihood
        found.append((torch.full((1, 1, voxels), value), probabilities))
    return found


def test_white_matter_becomes_bright_and_fluid_dark_and_air_stays_dark() -> None:
    image = torch.tensor([0.0, 0.1, 0.2, 0.4, 0.6, 1.0, 1.2, 1.7])
    #                      air  bone      white grey fluid
    # From half of white matter's, 0.2, on: 1.2 minus the brightness. Below, (b / 0.2)² of the 1.0
    # that 0.2 becomes.
    expected = torch.tensor([0.0, 0.25, 1.0, 0.8, 0.6, 0.2, 0.0, 0.0])
    torch.testing.assert_close(reverse_contrast(image, 0.4), expected)


@pytest.mark.parametrize(
    ("white_matter", "cortex", "fluid", "is_reverse"),
    [
        pytest.param(0.35, 0.5, 1.0, True, id="T2"),
        pytest.param(0.75, 0.88, 0.9, True, id="PD"),
        pytest.param(0.75, 0.88, 0.85, True, id="PD with grey fluid"),
        pytest.param(0.9, 0.6, 0.3, False, id="T1"),
        pytest.param(0.75, 0.88, 0.3, False, id="FLAIR"),
        pytest.param(0.75, 0.76, 0.9, False, id="no contrast"),
    ],
)
def test_what_is_reversed(
    white_matter: float, cortex: float, fluid: float, is_reverse: bool
) -> None:
    # The thalamus is none of the three classes.
    seen = slices_of(
        {WHITE_MATTER: white_matter, CORTEX: cortex, VENTRICLE: fluid, THALAMUS: 0.1}
    )
    found = find_reversed_white_matter(seen, SCHEME)
    assert found == (pytest.approx(white_matter) if is_reverse else None)


@pytest.mark.parametrize(
    "weak",
    [{"voxels": 99}, {"likelihood": 0.5}],
    ids=["few voxels", "unlikely labels"],
)
def test_without_evidence_a_scan_stays_as_it_is(weak: dict[str, float]) -> None:
    t2 = {WHITE_MATTER: 0.35, CORTEX: 0.5, VENTRICLE: 1.0}
    assert find_reversed_white_matter(slices_of(t2), SCHEME) is not None
    assert find_reversed_white_matter(slices_of(t2, **weak), SCHEME) is None  # type: ignore[arg-type]
    del t2[VENTRICLE]
    assert find_reversed_white_matter(slices_of(t2), SCHEME) is None
    assert find_reversed_white_matter([], SCHEME) is None


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"contrast": "T1"}, "only with contrast: any"),
        (
            {
                "contrast": "any",
                "preprocessing": Preprocessing(scaling="minimum-maximum"),
            },
            "only with scaling: trinat",
        ),
    ],
)
def test_what_cannot_reverse_is_refused(said: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Description(name="m", reverse_contrast=True, **said)


def test_networks_see_the_scan_reversed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_it_is = Predictor(random_model(), device="cpu")
    description = Description(name="m", contrast="any", reverse_contrast=True)
    save_model(tmp_path, description, load_model(random_model()).networks)
    predictor = Predictor(tmp_path, device="cpu")
    prepared = predictor.prepare(small_scan())
    data = reverse_contrast(torch.from_numpy(prepared.volume.data), 0.4).numpy()
    beforehand = replace(prepared, volume=replace(prepared.volume, data=data))
    monkeypatch.setattr(predictor, "find_reversed_white_matter", lambda _image: 0.4)
    found = predictor.infer(prepared)
    assert torch.equal(found.fused, as_it_is.infer(beforehand).fused)
    plain = as_it_is.infer(prepared)
    assert not torch.equal(found.fused, plain.fused)
    assert found.notes == (REVERSED,)
    # Grades and pictures use the original scan.
    assert (found.image.data == plain.image.data).all()


def like_t2(scan: Volume) -> Volume:
    """Make fluid brightest and white matter darkest; air stays dark."""
    brightness = scan.data / np.percentile(scan.data, 99.5)
    turned = np.interp(brightness, (0, 0.1, 0.25, 0.65, 1, 2), (0, 5, 250, 140, 75, 90))
    return replace(scan, data=turned.astype(np.float32))


@pytest.mark.slow
@pytest.mark.important
def test_the_shipped_model_reverses_t2_and_not_t1() -> None:
    scan, truth = phantom(seed=5, spacing_mm=(1.5, 1.5, 1.5))
    segmenter = Segmenter("any")
    images = {
        name: torch.from_numpy(segmenter.prepare(volume).volume.data)
        for name, volume in {"T1": scan, "T2": like_t2(scan)}.items()
    }
    assert segmenter.find_reversed_white_matter(images["T1"]) is None
    assert segmenter.find_reversed_white_matter(images["T2"]) is not None
    assert Segmenter("fast").find_reversed_white_matter(images["T2"]) is None
    dice = evaluate(truth, segmenter.segment(like_t2(scan)))["dice"].drop("CSF")
    assert dice.mean() > 0.8
