"""A training step on the meta device, where reading a value on the host is an error."""

from __future__ import annotations

import pytest
import torch

from trinat.segmentation.models.losses import LossConfig, SegmentationLoss
from trinat.segmentation.models.quicknat import (
    FAST,
    PUBLISHED,
    QuickNat,
    QuickNatConfig,
)


@pytest.mark.parametrize("config", [FAST, PUBLISHED], ids=["fast", "published"])
def test_a_step_reads_no_value_on_the_host(config: QuickNatConfig) -> None:
    with torch.device("meta"):
        network = QuickNat(config)
        loss_of = SegmentationLoss(LossConfig(), torch.ones(config.classes))
        images = torch.rand(2, config.channels, 64, 64)
        labels = torch.zeros(2, 64, 64, dtype=torch.uint8)
    optimiser = torch.optim.AdamW(network.parameters(), capturable=False)
    loss = loss_of(network(images), labels)
    loss.backward()
    optimiser.step()
    assert loss.device.type == "meta"
    with pytest.raises(RuntimeError):
        loss.item()
