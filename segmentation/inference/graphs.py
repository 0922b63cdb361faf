"""Torch modules of a view's network with its part of the fusion, for export as ONNX.

They consist of the code that `Predictor` runs, so that there is one definition of both.
`pipelines/site/export.py` exports them for a browser.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trinat.segmentation.inference.fusion import (
    ViewAggregator,
    odds_by_class,
    weighted_classes,
    weighted_csf,
)
from trinat.segmentation.inference.prior import weighted_by, weights_by_class
from trinat.segmentation.inference.runtime import TorchRuntime
from trinat.segmentation.labels.label import CSF_GROUP
from trinat.segmentation.models.checkpoint import Model
from trinat.segmentation.models.model_info import Prior
from trinat.segmentation.space.views import View


class ViewGraph(nn.Module):
    """Module that runs a view's network on slices and adds the result to the fusion."""

    def __init__(self, model: Model, view: View, fusion: ViewAggregator) -> None:
        super().__init__()
        ready = TorchRuntime(
            model.networks[view],
            torch.device("cpu"),
            torch.float32,
            never=model.not_predicted_in(view),
        )
        self.network = ready.network
        self.view = view
        self.fusion = fusion

    def forward(
        self, slices: Tensor, before: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Run slices (N, C, H, W) of a view; return the updated sum and the view's own prediction.

        `before` (N, H, W, K) is the sum of the views that were added before. All tensors are
        float32 unless stated.

        Returns the sum including this view, (N, H, W, K), rounded to half precision as
        `ViewAggregator` stores it; this view's most probable class, (N, H, W) uint8; and the view's
        probabilities of background and of that class, (N, H, W) each.
        """
        logits = self.network(slices)
        probabilities = logits.permute(0, 2, 3, 1).softmax(-1)
        added = self.fusion.weighted(self.view, before, probabilities)
        classes = probabilities.argmax(-1).to(torch.uint8)
        after = (before + added.half().float()).half().float()
        return after, classes, probabilities[..., 0], probabilities.amax(-1)


class FusionGraph(nn.Module):
    """Module that converts the sum of all views to fused probabilities, with the model's odds."""

    def __init__(self, model: Model, fusion: ViewAggregator) -> None:
        super().__init__()
        self.fusion = fusion
        odds = model.info.fusion
        self.csf_odds = odds.csf_odds
        self.csf_classes = [
            label.index for label in model.scheme.labels if label.group == CSF_GROUP
        ]
        self.factors: Tensor | None = None
        if odds.class_odds:
            self.factors = odds_by_class(model.scheme, odds.class_odds)

    def forward(self, added: Tensor) -> Tensor:
        """Convert the sum of all views, (V, K) float32, to probabilities (V, K) that sum to 1.

        V is the number of voxels. Input, output and the result of each step are rounded to half
        precision.
        """
        probabilities = self.fusion.finished(added.half()).half()
        if self.csf_odds != 1:
            by_class = list(probabilities.unbind(-1))
            for k in self.csf_classes:
                weighted = weighted_csf(by_class[0], by_class[k], self.csf_odds)
                by_class[0], by_class[k] = (values.half() for values in weighted)
            probabilities = torch.stack(by_class, -1)
        if self.factors is not None:
            probabilities = weighted_classes(probabilities, self.factors).half()
        return probabilities.float()


class PriorGraph(nn.Module):
    """Module that applies the template of the anatomical prior to fused probabilities."""

    def __init__(self, model: Model, prior: Prior) -> None:
        super().__init__()
        self.floor = prior.floor
        self.weights = weights_by_class(prior, model.scheme)

    def forward(self, shares: Tensor, probabilities: Tensor) -> Tensor:
        """Weight probabilities (V, K) by the template; return them rounded to half precision.

        `shares` (V, K) are the template's values at these voxels, from 0 to 255.
        """
        changed = weighted_by(shares, probabilities, self.weights, self.floor)
        return changed.half().float()


def fusion_of(model: Model) -> ViewAggregator:
    """Return an aggregator for all views of a model; its volume is empty (no voxels)."""
    # The sagittal view comes last.
    views = tuple(view for view in View if view in model.networks)
    is_merged = View.SAGITTAL in views and model.is_merged(View.SAGITTAL)
    return ViewAggregator(
        (0, 0, 0),
        model.scheme,
        views,
        model.fusion_weights(views),
        sagittal_is_merged=is_merged,
        mean=model.info.fusion.mean,
    )
