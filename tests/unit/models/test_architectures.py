"""Architectures are read, named and built in one place."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from trinat.segmentation.models.architectures import PUBLISHED, Architecture, build
from trinat.segmentation.models.quicknat import QuickNat, QuickNatConfig


class File(BaseModel):
    network: Architecture = PUBLISHED


def test_a_file_that_names_no_architecture_has_a_quicknat() -> None:
    plain = File.model_validate({"network": {"filters": 4, "depth": 1}})
    named = File.model_validate(
        {"network": {"architecture": "quicknat", "filters": 4, "depth": 1}}
    )
    assert plain == named == File(network=QuickNatConfig(filters=4, depth=1))
    finer = File(network=QuickNatConfig(unshuffle=2))
    assert File.model_validate(finer.model_dump(mode="json")) == finer
    network = build(plain.network)
    assert isinstance(network, QuickNat)
    assert network.config is plain.network


@pytest.mark.parametrize(
    ("given", "key", "message"),
    [
        (
            {"architecture": "unet"},
            ("network",),
            "'unet' is no architecture; known: quicknat",
        ),
        ({"filters": 0}, ("network", "filters"), "greater than or equal to 1"),
        ({"width": 3}, ("network", "width"), "not permitted"),
        ({"channels": 2}, ("network", "channels"), "must be odd"),
        (5, ("network",), "valid dictionary"),
    ],
)
def test_what_is_wrong_is_named_by_its_key(
    given: object, key: tuple[str], message: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        File.model_validate({"network": given})
    (error,) = refused.value.errors()
    assert error["loc"] == key
    assert message in error["msg"]
