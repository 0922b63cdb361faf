"""A QuickNAT with the attribute names of its authors' port, to make checkpoints like theirs."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import Tensor, nn


class ChannelGate(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(channels, channels // 2)
        self.fc2 = nn.Linear(channels // 2, channels)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.fc2(self.fc1(x.mean((2, 3))).relu()).sigmoid()
        return x * gate[:, :, None, None]


class SpatialGate(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.conv(x).sigmoid()


class BothGates(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.cSE = ChannelGate(channels)
        self.sSE = SpatialGate(channels)

    def forward(self, x: Tensor) -> Tensor:
        return torch.max(self.cSE(x), self.sSE(x))


class Block(nn.Module):
    def __init__(
        self, channels: int, filters: int, gate: type[nn.Module] | None
    ) -> None:
        super().__init__()
        self.SELayer = None if gate is None else gate(filters)
        for i, kernel in enumerate((5, 5, 1)):
            seen = channels + i * filters
            self.add_module(
                f"conv{i + 1}", nn.Conv2d(seen, filters, kernel, padding=kernel // 2)
            )
            self.add_module(f"batchnorm{i + 1}", nn.BatchNorm2d(seen))
        self.prelu = nn.PReLU()
        self.drop_out = nn.Dropout2d(0.3)

    def dense(self, x: Tensor) -> Tensor:
        for i in "123":
            y = getattr(self, f"conv{i}")(self.prelu(getattr(self, f"batchnorm{i}")(x)))
            x = torch.cat((x, y), 1)
        return y

    def forward(self, x: Tensor) -> Tensor:
        y = self.dense(x)
        return self.drop_out(y if self.SELayer is None else self.SELayer(y))


class Classifier(nn.Module):
    def __init__(self, filters: int, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(filters, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class QuickNat(nn.Module):
    def __init__(
        self,
        filters: int = 4,
        classes: int = 33,
        gate: type[nn.Module] | None = BothGates,
    ) -> None:
        super().__init__()
        for i in range(4):
            self.add_module(f"encode{i + 1}", Block(filters if i else 1, filters, gate))
            self.add_module(f"decode{i + 1}", Block(2 * filters, filters, gate))
        self.bottleneck = Block(filters, filters, gate)
        self.classifier = Classifier(filters, classes)

    def forward(self, x: Tensor) -> Tensor:
        passed = []
        for encoder in (self.encode1, self.encode2, self.encode3, self.encode4):
            skip = encoder(x)
            x, indices = nn.functional.max_pool2d(skip, 2, return_indices=True)
            passed.append((skip, indices))
        x = self.bottleneck.dense(x)
        for decoder in (self.decode4, self.decode1, self.decode2, self.decode3):
            skip, indices = passed.pop()
            x = decoder(torch.cat((skip, nn.functional.max_unpool2d(x, indices, 2)), 1))
        return self.classifier(x)


def trained(**settings: object) -> QuickNat:
    """Return a QuickNAT with random values everywhere, including norm statistics."""
    network = QuickNat(**settings)
    generator = torch.Generator().manual_seed(5)
    for name, tensor in network.state_dict().items():
        if tensor.is_floating_point():
            low, high = (0.5, 1.5) if "batchnorm" in name else (-0.3, 0.3)
            tensor.copy_(
                torch.rand(tensor.shape, generator=generator) * (high - low) + low
            )
    return network.eval()


def as_the_authors_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pickle these classes under the port's module names, importable only until the test ends."""
    homes = {
        "quicknat": (QuickNat,),
        "nn_common_modules.modules": (Block, Classifier),
        "squeeze_and_excitation.squeeze_and_excitation": (
            ChannelGate,
            SpatialGate,
            BothGates,
        ),
    }
    for home, classes in homes.items():
        monkeypatch.setitem(
            sys.modules, home.partition(".")[0], types.ModuleType("package")
        )
        module = types.ModuleType(home)
        monkeypatch.setitem(sys.modules, home, module)
        for kind in classes:
            setattr(module, kind.__name__, kind)
            monkeypatch.setattr(kind, "__module__", home)
