"""What training minimises: weighted cross entropy with a boundary term, plus multi-class Dice.

A recipe may choose one of MONAI's losses instead. MONAI is imported when it is used.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from trinat.segmentation.labels.scheme import IGNORE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class LossConfig(BaseModel):
    """How much of each part of the loss, and how classes and boundaries are weighted in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["quicknat"] = "quicknat"
    cross_entropy: float = Field(default=1.0, ge=0)  # its weight
    dice: float = Field(default=1.0, ge=0)  # its weight
    # In units of the largest class weight; 2 is the paper's 2 * median(f) / min(f).
    boundary: float = Field(default=2.0, ge=0)
    # Exponent on the class weights: 1 is median frequency, 0 counts every pixel alike.
    balance: float = Field(default=1.0, ge=0, le=1)
    # What both parts are means over. weighted: cross entropy over the sum of weights, Dice over the
    # classes of the batch. plain, as in the paper: over pixels, and over all classes.
    mean: Literal["weighted", "plain"] = "weighted"


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
        """Build the loss, which has no class weights."""
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
        """Build the loss, which has no class weights other than its own."""
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
        """Build the loss, which has no class weights."""
        from monai.losses import TverskyLoss

        loss: nn.Module = TverskyLoss(
            **self.common(),
            alpha=self.alpha,
            beta=self.beta,
        )
        return loss


AnyMonaiLoss = DiceCE | DiceFocal | GeneralizedDice | Tversky


def _with_kind(value: object) -> object:
    """Settings of a loss that do not name its kind are those of QuickNAT's."""
    if isinstance(value, Mapping) and "kind" not in value:
        return {"kind": "quicknat", **value}
    return value


AnyLoss = Annotated[
    LossConfig | AnyMonaiLoss,
    Field(discriminator="kind"),
    BeforeValidator(_with_kind),
]


def median_frequency_weights(
    counts: NDArray[np.integer] | Tensor, balance: float = 1.0
) -> Tensor:
    """Weights of classes that balance rare ones against frequent ones.

    (K,) pixels f of each class -> (K,) float (median(f) / f_k) ** balance; 0 where f_k is. The
    median is over the classes that are there.
    """
    frequency = torch.as_tensor(counts, dtype=torch.float64)
    present = frequency > 0
    # quantile, because torch's median of an even number is the lower of the middle two.
    median = frequency[present].quantile(0.5)
    without_zeros = frequency.where(present, median)
    weights = (median / without_zeros) ** balance
    return (weights * present).float()


def boundaries(labels: Tensor) -> Tensor:
    """(N, H, W) labels -> bool: pixels with another label above, below, left or right of them.

    In-plane alone: neighbouring slices of a batch are not neighbours in the head.
    """
    edge = torch.zeros_like(labels, dtype=torch.bool)
    row_differs_from_next = labels[:, 1:] != labels[:, :-1]
    edge[:, 1:] |= row_differs_from_next
    edge[:, :-1] |= row_differs_from_next
    column_differs_from_next = labels[:, :, 1:] != labels[:, :, :-1]
    edge[:, :, 1:] |= column_differs_from_next
    edge[:, :, :-1] |= column_differs_from_next
    return edge


class SegmentationLoss(nn.Module):
    """QuickNAT's loss: logits (N, K, H, W) of any float type, labels (N, H, W) -> scalar float32.

    With p the one softmax of the logits, S the labels, w_k the weight of class k and x a pixel:

        cross entropy = sum_x omega(x) * -log p_S(x)(x) / sum_x omega(x)
        omega(x)      = w_S(x) + boundary * max_k w_k * [S differs from S(x) next to x, in-plane]
        Dice loss     = mean over k in S of 1 - 2 sum_x p_k [S = k] / (sum_x p_k + sum_x [S = k])

    With the mean `plain`, cross entropy is divided by the number of pixels instead, and the Dice
    mean is over all classes: one that the batch does not have adds 1, and nothing to the gradient.

    Sums run over the whole batch. With the mean `weighted`, a class that the batch does not have
    stays out of the Dice mean. Pixels of label `IGNORE`, or of a class of weight 0, stay out of
    everything; those beside them weigh as at a border.
    """

    class_weights: Tensor

    def __init__(self, config: LossConfig, class_weights: Tensor) -> None:
        super().__init__()
        self.config = config
        # A label that is neither a class nor IGNORE makes the loss NaN: it is noticed, and costs
        # no device synchronisation.
        table = torch.full((256,), torch.nan)
        table[: len(class_weights)] = class_weights.float()
        table[IGNORE] = 0
        self.register_buffer("class_weights", table, persistent=False)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The weighted sum of both parts, a scalar."""
        cross_entropy, dice = self.parts(logits, labels)
        return self.config.cross_entropy * cross_entropy + self.config.dice * dice

    def parts(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Cross entropy and Dice loss, each unscaled.

        `logits` (N, K, H, W), `labels` (N, H, W) of any integer type. Computed in float32. Pixels
        whose class has the weight 0 count in neither part; if no pixel counts the cross entropy is
        0.
        """
        classes = logits.shape[1]
        # (N H W, K) rows: channels-last logits give them without a copy, and the softmax runs
        # along memory. No one-hot labels: this takes a fifth of the time that they take on a CPU.
        rows = logits.float().permute(0, 2, 3, 1).flatten(0, 2)
        target = labels.long().clamp(max=classes - 1).flatten()

        weights = self.class_weights[labels.long()]
        valid = weights != 0
        edge_weight = self.config.boundary * self.class_weights[:classes].amax()
        omega = weights + boundaries(labels) * edge_weight
        omega = (omega * valid).flatten()
        valid = valid.flatten()
        # Mostly all count. A GPU would have to be waited for to know.
        all_count = valid.device.type == "cpu" and bool(valid.all())
        picked, sizes = cast(
            "tuple[Tensor, Tensor]",
            _Softmax.apply(rows, target, None if all_count else valid),  # type: ignore[no-untyped-call]
        )
        is_plain = self.config.mean == "plain"
        total = valid.sum() if is_plain else omega.sum()
        # 0 where no pixel counts.
        total = total.clamp(min=torch.finfo(omega.dtype).tiny)
        cross_entropy = -(omega * picked).sum() / total

        return cross_entropy, _dice_loss(
            picked.exp(), sizes, target, valid, all_classes=is_plain
        )


class _Softmax(torch.autograd.Function):
    """What the loss takes from the softmax of rows (P, K), pixels by classes.

    It gives the logarithm of each pixel's probability of its own class `target`, (P,), and for each
    class the sum of its probability over the pixels that are `valid`, (K,); None means all. With s
    the gradient of the sums and c that of the logarithms, the gradient of a row is

        p_k (v s_k - sum_j p_j v s_j - c) + [k = target] c

    Torch's own, of the operations one by one, takes three times as many passes over (P, K).
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, target: Tensor, valid: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(P, K) to (P,) and (K,)."""
        log_p = rows.log_softmax(1)
        picked = log_p.gather(1, target[:, None])[:, 0]
        p = log_p.exp_()
        sums = p.sum(0) if valid is None else (p * valid[:, None]).sum(0)
        ctx.save_for_backward(p, target, valid)
        return picked, sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, c: Tensor, s: Tensor) -> tuple[Tensor, None, None]:
        """(P,) and (K,) to (P, K)."""
        p, target, valid = ctx.saved_tensors
        row_sums = p @ s
        if valid is None:
            gradient = s - (row_sums + c)[:, None]
        else:
            gradient = valid[:, None] * s - (valid * row_sums + c)[:, None]
        gradient *= p
        gradient.scatter_add_(1, target[:, None], c[:, None])
        return gradient, None, None


class _MonaiSegmentationLoss(nn.Module):
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


def build_loss(config: AnyLoss, counts: NDArray[np.integer] | Tensor) -> nn.Module:
    """The loss for (K,) pixels per class; called with logits (N, K, H, W) and labels (N, H, W)."""
    balance = 0.0
    if isinstance(config, LossConfig | DiceCE):
        balance = config.balance
    weights = median_frequency_weights(counts, balance)
    if isinstance(config, LossConfig):
        return SegmentationLoss(config, weights)
    return _MonaiSegmentationLoss(config, weights)


def _dice_loss(
    own: Tensor, sizes: Tensor, target: Tensor, valid: Tensor, *, all_classes: bool
) -> Tensor:
    """The mean over classes that are present, a scalar; or over all, an absent one being 1.

    `own` (P,) are the pixels' probabilities of their own classes `target`, `valid` says which of
    them count, and `sizes` (K,) are the sums of those pixels' probabilities of each class.
    """
    if own.device.type == "cpu":
        overlap, truth = _sums_by_index(own, target, valid, len(sizes))
    else:
        overlap, truth = _sums_one_hot(own, target, valid, len(sizes))
    present = truth > 0
    sizes = (sizes + truth).where(present, 1)
    dice = 2 * overlap / sizes
    if all_classes:
        return (1 - dice).mean().float()
    total = ((1 - dice) * present).sum()
    return (total / present.sum().clamp(min=1)).float()


def _sums_by_index(
    own: Tensor, target: Tensor, valid: Tensor, classes: int
) -> tuple[Tensor, Tensor]:
    """Per class, the probability on its valid pixels, and their number: quick on a CPU."""

    def per_class(values: Tensor) -> Tensor:
        # Doubles: index_add sums one by one, and floats would lose what 300,000 pixels add up to.
        sums = torch.zeros(classes, dtype=torch.float64)
        return sums.index_add(0, target, values.double())

    return per_class(own * valid), per_class(valid)


def _sums_one_hot(
    own: Tensor, target: Tensor, valid: Tensor, classes: int
) -> tuple[Tensor, Tensor]:
    """The same, for devices with bandwidth to spare, whose atomic additions are not repeatable."""
    numbers = torch.arange(classes, device=own.device)
    is_own = (target[:, None] == numbers) & valid[:, None]
    return torch.where(is_own, own[:, None], 0).sum(0), is_own.sum(0)
