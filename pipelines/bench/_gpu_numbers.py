"""Whether a GPU's numbers are right, and the same twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipelines.bench._gpu import PUBLISHED_NAME, Figures, Setting, batch_of, network_of
from pipelines.bench._steps import step_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def numerics_part(setting: Setting) -> Iterator[Figures]:
    """Logits and gradients against float64 on the same device: relative errors of norms."""
    import copy

    import torch

    slices, labels = (tensor[:4] for tensor in batch_of(setting))
    network = network_of(PUBLISHED_NAME, setting, dropout=0.0).train()
    # Each is done once: looking for the fastest way in float64 takes longer than any.
    torch.backends.cudnn.benchmark = False

    def outcome(dtype: torch.dtype, bf16: bool, tf32: bool) -> tuple[Tensor, Tensor]:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
        own = copy.deepcopy(network).to(dtype)
        with torch.autocast(slices.device.type, torch.bfloat16, enabled=bf16):
            logits = own(slices.to(dtype))
        loss = torch.nn.functional.cross_entropy(logits.double(), labels.long())
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad.flatten().double() for p in own.parameters() if p.grad is not None]
        return logits.detach().double(), torch.cat(gradients)

    wanted = outcome(torch.float64, False, False)
    ways = (("float32", False, False), ("tf32", False, True), ("bf16", True, False))
    for name, bf16, tf32 in ways:
        found = outcome(torch.float32, bf16, tf32)
        figures: Figures = {}
        for what, got, want in zip(("logits", "gradients"), found, wanted, strict=True):
            figures[f"{name}: {what}"] = float((got - want).norm() / want.norm())
        same = (found[0].argmax(1) == wanted[0].argmax(1)).double().mean()
        yield figures | {f"{name}: pixels of the same class": float(same)}


def determinism_part(setting: Setting) -> Iterator[Figures]:
    """The same three steps twice, with and without torch's deterministic algorithms."""
    import os

    import torch

    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    slices, labels = batch_of(setting)
    torch.backends.cudnn.benchmark = False

    def weights() -> Tensor:
        network = network_of(PUBLISHED_NAME, setting).train()
        torch.backends.cudnn.benchmark = False
        step = step_of(network, slices, labels, bf16=setting.bf16)
        torch.manual_seed(2)
        for _ in range(3):
            step()
        return torch.cat([p.detach().flatten() for p in network.parameters()])

    for asked in (False, True):
        torch.use_deterministic_algorithms(asked)
        name = "deterministic algorithms" if asked else "as it comes"
        yield {f"{name}: the same bits twice": torch.equal(weights(), weights())}
