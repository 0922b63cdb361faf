"""MONAI's losses, which a recipe may choose instead of QuickNAT's. MONAI is imported when used."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from trinat.segmentation.labels.scheme import IGNORE


class MonaiLoss(BaseModel):
    """Settings have the names and the meaning that they have in MONAI."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    include_background: bool = True  # in Dice

    def common(self) -> dict[str, Any]:
        """The arguments that all of MONAI's losses get."""
        return {
            "include_background": self.include_background,
            "to_onehot_y": True,
            "softmax": True,
            "batch": True,
        }

    @abstractmethod
    def build(self, class_weights: Tensor) -> nn.Module:
        """MONAI's loss of logits (1, K, P) and labels (1, 1, P); `class_weights` are (K,)."""


class DiceCE(MonaiLoss):
    """MONAI's DiceCELoss: Dice and cross entropy."""

    kind: Literal["DiceCELoss"]
    lambda_dice: float = Field(default=1.0, ge=0)
    lambda_ce: float = Field(default=1.0, ge=0)
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    # Exponent on the class weights of the cross entropy: 1 is median frequency, 0 none
    balance: float = Field(default=0.0, ge=0, le=1)

    def build(self, class_weights: Tensor) -> nn.Module:
        """Class weights count in the cross entropy alone."""
        from monai.losses import DiceCELoss

        loss: nn.Module = DiceCELoss(
            **self.common(),
            lambda_dice=self.lambda_dice,
            lambda_ce=self.lambda_ce,
            label_smoothing=self.label_smoothing,
        )
        # Given to the loss, weights would also be those of its Dice.
        loss.cross_entropy = nn.CrossEntropyLoss(
            weight=class_weights, label_smoothing=self.label_smoothing
        )
        return loss


class DiceFocal(MonaiLoss):
    """MONAI's DiceFocalLoss: Dice, and focal loss of each class by itself (a sigmoid)."""

    kind: Literal["DiceFocalLoss"]
    lambda_dice: float = Field(default=1.0, ge=0)
    lambda_focal: float = Field(default=1.0, ge=0)
    gamma: float = Field(default=2.0, ge=0, le=10)

    def build(self, class_weights: Tensor) -> nn.Module:
        """Without class weights."""
        from monai.losses import DiceFocalLoss

        loss: nn.Module = DiceFocalLoss(
            **self.common(),
            gamma=self.gamma,
            lambda_dice=self.lambda_dice,
            lambda_focal=self.lambda_focal,
        )
        return loss


class GeneralizedDice(MonaiLoss):
    """MONAI's GeneralizedDiceLoss: classes weighted by their size."""

    kind: Literal["GeneralizedDiceLoss"]
    w_type: Literal["square", "simple", "uniform"] = "square"

    def build(self, class_weights: Tensor) -> nn.Module:
        """Without class weights other than its own."""
        from monai.losses import GeneralizedDiceLoss

        loss: nn.Module = GeneralizedDiceLoss(
            **self.common(),
            w_type=self.w_type,
        )
        return loss


class Tversky(MonaiLoss):
    """MONAI's TverskyLoss: Dice that weighs false positives and false negatives."""

    kind: Literal["TverskyLoss"]
    alpha: float = Field(default=0.5, ge=0, le=1)  # of false positives
    beta: float = Field(default=0.5, ge=0, le=1)  # of false negatives

    def build(self, class_weights: Tensor) -> nn.Module:
        """Without class weights."""
        from monai.losses import TverskyLoss

        loss: nn.Module = TverskyLoss(
            **self.common(),
            alpha=self.alpha,
            beta=self.beta,
        )
        return loss


AnyMonaiLoss = DiceCE | DiceFocal | GeneralizedDice | Tversky


class MonaiSegmentationLoss(nn.Module):
    """Logits (N, K, H, W) of any float type, labels (N, H, W) -> scalar float32.

    All pixels of a batch are taken together, as with MONAI's `batch=True`: single slices lack most
    structures. Pixels of label `IGNORE`, or of a class of weight 0, are left out.
    """

    counted: Tensor

    def __init__(self, config: AnyMonaiLoss, class_weights: Tensor) -> None:
        """`class_weights` (K,) are those of `median_frequency_weights`; 0 leaves a class out."""
        super().__init__()
        self.loss = config.build(class_weights)
        # Whether a pixel counts, by its label, of all 256 that a byte has. Labels that are no class
        # count, so that `forward` meets them and gives NaN.
        counted = torch.ones(256, dtype=torch.bool)
        counted[: len(class_weights)] = class_weights > 0
        counted[IGNORE] = False
        self.register_buffer("counted", counted, persistent=False)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """A scalar; 0 where no pixel counts, NaN for a label that is neither class nor IGNORE."""
        classes = logits.shape[1]
        labels = labels.long()
        chosen = self.counted[labels]
        target = labels[chosen]
        scores = logits.float().movedim(1, -1)[chosen]
        if not len(target):
            return scores.sum()
        if target.amax() >= classes:
            return scores.sum() * torch.nan
        loss: Tensor = self.loss(scores.T[None], target[None, None])
        return loss
