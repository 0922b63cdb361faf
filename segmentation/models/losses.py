"""Training losses: weighted cross entropy with a boundary term, plus multi-class Dice.

A recipe may choose one of MONAI's losses instead. MONAI is imported when it is used.
"""

from __future__ import annotations

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
    """Weights of the parts of the loss, of classes and of boundaries."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: Literal["quicknat"] = "quicknat"
    cross_entropy: float = Field(default=1.0, ge=0)  # its weight
    dice: float = Field(default=1.0, ge=0)  # its weight
    # In units of the largest class weight; 2 is the paper's 2 * median(f) / min(f).
    boundary: float = Field(default=2.0, ge=0)
    # Exponent on the class weights: 1 is median frequency, 0 counts every pixel alike.
    balance: float = Field(default=1.0, ge=0, le=1)
    # Denominators of both parts. weighted: cross entropy over the sum of weights, Dice over the
    # classes of the batch. plain, as in the paper: over pixels, and over all classes.
    mean: Literal["weighted", "plain"] = "weighted"


class MonaiLoss(BaseModel):
    """Base of MONAI's losses; settings have the names and the meaning that they have in MONAI."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    include_background: bool = True  # in Dice
    kind: str  # name of MONAI's class

    def arguments(self) -> dict[str, Any]:
        """Return the settings that are keyword arguments of MONAI's class."""
        return self.model_dump(exclude={"kind"})

    def build(self, class_weights: Tensor) -> nn.Module:
        """Build MONAI's loss, which is called with logits (1, K, P) and labels (1, 1, P).

        `class_weights` (K,) are used by DiceCE only.
        """
        from monai import losses

        monai_class = getattr(losses, self.kind)
        loss: nn.Module = monai_class(
            to_onehot_y=True, softmax=True, batch=True, **self.arguments()
        )
        return loss


class DiceCE(MonaiLoss):
    """MONAI's DiceCELoss: Dice and cross entropy."""

    kind: Literal["DiceCELoss"]
    lambda_dice: float = Field(default=1.0, ge=0)
    lambda_ce: float = Field(default=1.0, ge=0)
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    # Exponent on the class weights of the cross entropy: 1 is median frequency, 0 none
    balance: float = Field(default=0.0, ge=0, le=1)

    def arguments(self) -> dict[str, Any]:
        """Return the settings without `balance`, which MONAI does not have."""
        return self.model_dump(exclude={"kind", "balance"})

    def build(self, class_weights: Tensor) -> nn.Module:
        """Build the loss; the class weights apply to the cross entropy only."""
        loss = super().build(class_weights)
        # Passed to the loss itself, the weights would also apply to its Dice.
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


class GeneralizedDice(MonaiLoss):
    """MONAI's GeneralizedDiceLoss: classes weighted by their size."""

    kind: Literal["GeneralizedDiceLoss"]
    w_type: Literal["square", "simple", "uniform"] = "square"


class Tversky(MonaiLoss):
    """MONAI's TverskyLoss: Dice that weighs false positives and false negatives."""

    kind: Literal["TverskyLoss"]
    alpha: float = Field(default=0.5, ge=0, le=1)  # weight of false positives
    beta: float = Field(default=0.5, ge=0, le=1)  # weight of false negatives


AnyMonaiLoss = DiceCE | DiceFocal | GeneralizedDice | Tversky


def _with_kind(value: object) -> object:
    """Add `kind: quicknat` to settings that do not name a kind of loss."""
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
    """Return class weights (K,) that balance rare classes against frequent classes.

    `counts` (K,) is the number of pixels f of each class. The weight of class k is (median(f) /
    f_k) ** balance, or 0 if f_k is 0. The median is over the classes that are present.
    """
    frequency = torch.as_tensor(counts, dtype=torch.float64)
    present = frequency > 0
    # quantile, because torch's median of an even number of values is the lower of the two middle
    # values.
    median = frequency[present].quantile(0.5)
    without_zeros = frequency.where(present, median)
    weights = (median / without_zeros) ** balance
    return (weights * present).float()


def boundaries(labels: Tensor) -> Tensor:
    """Return a mask (N, H, W) of pixels with another label above, below, left or right of them.

    Labels are compared within a slice only: neighbouring slices of a batch are not neighbours in
    the head.
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

    With p the softmax of the logits, S the labels, w_k the weight of class k and x a pixel:

        cross entropy = sum_x omega(x) * -log p_S(x)(x) / sum_x omega(x)
        omega(x)      = w_S(x) + boundary * max_k w_k * [S differs from S(x) next to x, in-plane]
        Dice loss     = mean over k in S of 1 - 2 sum_x p_k [S = k] / (sum_x p_k + sum_x [S = k])

    Sums run over the whole batch. Pixels with the label `IGNORE`, or of a class with the weight 0,
    are left out of all sums; their neighbours get the weight of a boundary.

    This is the mean `weighted`, in which the Dice loss leaves out classes that the batch lacks.
    With the mean `plain`, cross entropy is divided by the number of pixels instead, and the Dice
    mean is over all classes: a class that the batch lacks adds 1 to the sum, and nothing to the
    gradient.
    """

    class_weights: Tensor

    def __init__(self, config: LossConfig, class_weights: Tensor) -> None:
        super().__init__()
        self.config = config
        # Any label that is neither a class nor IGNORE makes the loss NaN. This reveals it without a
        # device synchronisation.
        table = torch.full((256,), torch.nan)
        table[: len(class_weights)] = class_weights.float()
        table[IGNORE] = 0
        self.register_buffer("class_weights", table, persistent=False)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the weighted sum of cross entropy and Dice loss, a scalar."""
        cross_entropy, dice = self.parts(logits, labels)
        return self.config.cross_entropy * cross_entropy + self.config.dice * dice

    def parts(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return cross entropy and Dice loss, both without their weights.

        `logits` are (N, K, H, W), and `labels` (N, H, W) of any integer type. The loss is computed
        in float32. Pixels with the label IGNORE, or whose class has the weight 0, are left out of
        both parts. If no pixel is left, the cross entropy is 0.
        """
        classes = logits.shape[1]
        # Rows (N H W, K): channels-last logits need no copy, and the softmax runs along memory.
        # Avoiding one-hot labels takes a fifth of the time on a CPU.
        rows = logits.float().permute(0, 2, 3, 1).flatten(0, 2)
        target = labels.long().clamp(max=classes - 1).flatten()

        weights = self.class_weights[labels.long()]
        valid = weights != 0
        edge_weight = self.config.boundary * self.class_weights[:classes].amax()
        omega = weights + boundaries(labels) * edge_weight
        omega = (omega * valid).flatten()
        valid = valid.flatten()
        # Usually all pixels are valid. On a GPU this check would cost a synchronisation.
        all_count = valid.device.type == "cpu" and bool(valid.all())
        picked, sizes = cast(
            "tuple[Tensor, Tensor]",
            _Softmax.apply(rows, target, None if all_count else valid),  # type: ignore[no-untyped-call]
        )
        is_plain = self.config.mean == "plain"
        total = valid.sum() if is_plain else omega.sum()
        # This makes the cross entropy 0 if no pixel is valid.
        total = total.clamp(min=torch.finfo(omega.dtype).tiny)
        cross_entropy = -(omega * picked).sum() / total

        return cross_entropy, _dice_loss(
            picked.exp(), sizes, target, valid, all_classes=is_plain
        )


class _Softmax(torch.autograd.Function):
    """Softmax of rows (P, K), pixels by classes, reduced to the values that the loss needs.

    It returns two tensors. The first, (P,), is the logarithm of each pixel's probability of its
    labelled class `target`. The second, (K,), is the sum of each class's probability over the
    pixels that are `valid`; None means all pixels. With s the gradient of the sums, c the gradient
    of the logarithms, and v 1 for valid pixels and 0 for others, the gradient of a row is

        p_k (v s_k - sum_j p_j v s_j - c) + [k = target] c

    Torch's automatic gradient takes three times as many passes over (P, K).
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, target: Tensor, valid: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the logarithms (P,) and the sums (K,)."""
        log_p = rows.log_softmax(1)
        picked = log_p.gather(1, target[:, None])[:, 0]
        p = log_p.exp_()
        sums = p.sum(0) if valid is None else (p * valid[:, None]).sum(0)
        ctx.save_for_backward(p, target, valid)
        return picked, sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, c: Tensor, s: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of the rows (P, K) from the gradients of logarithms and sums.

        `c` (P,) is the gradient of the logarithms and `s` (K,) that of the sums.
        """
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
    """Adapter of MONAI's losses: logits (N, K, H, W), labels (N, H, W) -> scalar float32.

    Logits may have any float type. All pixels of a batch are taken together, as with MONAI's
    `batch=True`, because single slices lack most structures. Pixels with the label `IGNORE`, or of
    a class with the weight 0, are left out.
    """

    counted: Tensor

    def __init__(self, config: AnyMonaiLoss, class_weights: Tensor) -> None:
        """Build the loss.

        `class_weights` (K,) come from `median_frequency_weights`. Pixels of a class with the weight
        0 are left out.
        """
        super().__init__()
        self.loss = config.build(class_weights)
        # Mask of labels that are used, for all 256 values of a byte. It is True for labels that are
        # no class, so that `forward` notices them and returns NaN.
        counted = torch.ones(256, dtype=torch.bool)
        counted[: len(class_weights)] = class_weights > 0
        counted[IGNORE] = False
        self.register_buffer("counted", counted, persistent=False)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss, a scalar.

        It is 0 if no pixel is used, and NaN if a label is neither a class nor IGNORE.
        """
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
    """Build a loss, which is called with logits (N, K, H, W) and labels (N, H, W).

    `counts` (K,) is the number of pixels of each class in the training data.
    """
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
    """Return the mean Dice loss over the classes that are present or, with `all_classes`, over all.

    Absent classes then add 1. `own` (P,) is each pixel's probability of its labelled class
    `target`. `valid` is the mask of pixels that are used. `sizes` (K,) is the sum of each class's
    probability over these pixels.
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
    """Return two sums over the valid pixels of each class: of `own`, and of their number, (K,).

    This is fast on a CPU.
    """

    def per_class(values: Tensor) -> Tensor:
        # float64: index_add adds values one by one, and float32 would lose precision over 300,000
        # pixels.
        sums = torch.zeros(classes, dtype=torch.float64)
        return sums.index_add(0, target, values.double())

    return per_class(own * valid), per_class(valid)


def _sums_one_hot(
    own: Tensor, target: Tensor, valid: Tensor, classes: int
) -> tuple[Tensor, Tensor]:
    """Return the same sums as `_sums_by_index`, computed with one-hot vectors.

    For devices with high bandwidth, whose atomic additions are not repeatable.
    """
    numbers = torch.arange(classes, device=own.device)
    is_own = (target[:, None] == numbers) & valid[:, None]
    return torch.where(is_own, own[:, None], 0).sum(0), is_own.sum(0)
