"""A training step on the meta device, where reading a value on the host is an error."""

from __future__ import annotations

import pytest
import torch

from trinat.segmentation.models.losses import LossConfig, SegmentationLoss
from trinat.segmentation.models.quicknat import FAST, PUBLISHED, QuickNatConfig
from trinat.segmentation.space.views import View
from trinat.segmentation.training.network import ViewsNet


@pytest.mark.parametrize("config", [FAST, PUBLISHED], ids=["fast", "published"])
def test_a_step_reads_no_value_on_the_host(config: QuickNatConfig) -> None:
    views = {View.CORONAL: 33, View.SAGITTAL: 19}
    with torch.device("meta"):
        network = ViewsNet(config, views)
        losses = [SegmentationLoss(LossConfig(), torch.ones(k)) for k in views.values()]
        images = torch.rand(4, config.channels, 64, 64)
        labels = torch.zeros(2, 64, 64, dtype=torch.uint8)
    optimiser = torch.optim.AdamW(network.parameters(), capturable=False)
    logits = network(images, [(view, 2) for view in views])
    loss = sum(of(z, labels) for of, z in zip(losses, logits, strict=True))
    loss.backward()
    optimiser.step()
    assert loss.device.type == "meta"
    with pytest.raises(RuntimeError):
        loss.item()
