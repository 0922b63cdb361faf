"""The network: its size, shapes, memory format and folding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional as F

from trinat.segmentation.models.quicknat import (
    FAST,
    PUBLISHED,
    QuickNat,
    QuickNatConfig,
)

SMALL = {"filters": 6, "classes": 5}


def config(**changes: object) -> QuickNatConfig:
    return QuickNatConfig.model_validate({**SMALL, **changes})


def parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def seeded(network: QuickNat) -> QuickNat:
    """Set random values everywhere, norm statistics too, so that nothing is trivially equal."""
    generator = torch.Generator().manual_seed(3)
    for name, tensor in network.state_dict().items():
        if tensor.is_floating_point():
            low, high = (
                (0.5, 1.5) if name.endswith(("norm.weight", "var")) else (-0.2, 0.2)
            )
            tensor.copy_(
                torch.rand(tensor.shape, generator=generator) * (high - low) + low
            )
    return network.eval()


def test_the_published_network_has_3_555_609_parameters_and_3_517_296_without_excitation() -> (
    None
):
    assert parameters(QuickNat(PUBLISHED)) == 3_555_609
    assert parameters(QuickNat(QuickNatConfig(excitation="none"))) == 3_517_296


def test_the_fast_network_has_a_tenth_of_the_parameters() -> None:
    # 32 filters of 3x3; worked out layer by layer:
    # first encoder (1, 33, 65 channels in)     288 +  9504 + 2080 + 3 * 64 norms =  12064
    # 3 encoders and bottleneck (32, 64, 96)   9216 + 18432 + 3072 + 192          =  30912 each
    # 4 decoders (64, 96, 128)                18432 + 27648 + 4096 + 192          =  50368 each
    # classifier                                 32 * 33 + 33                     =   1089
    assert (
        parameters(QuickNat(FAST))
        == 12_064 + 4 * 30_912 + 4 * 50_368 + 1_089
        == 338_273
    )


def test_squares_of_pixels_are_channels_inside_and_pixels_again_outside() -> None:
    shrunk = seeded(QuickNat(config(unshuffle=2, depth=1)))
    x = torch.randn(2, 1, 12, 8, generator=torch.Generator().manual_seed(0))
    # The same network without the option, on squares of four pixels that were put together by hand.
    inner = QuickNat(config(channels=1, depth=1, classes=4 * SMALL["classes"]))
    inner.encoders[0] = shrunk.encoders[0]
    for name in ("bottleneck", "decoders"):
        setattr(inner, name, getattr(shrunk, name))
    inner.classifier.load_state_dict(shrunk.classifier.state_dict())
    squares = torch.cat([x[..., i::2, j::2] for i in (0, 1) for j in (0, 1)], 1)
    with torch.inference_mode():
        got, expected = shrunk(x), inner.eval()(squares)
    assert got.shape == (2, 5, 12, 8)
    for i in (0, 1):
        for j in (0, 1):
            torch.testing.assert_close(
                got[..., i::2, j::2], expected[:, 2 * i + j :: 4]
            )


def test_the_rows_of_a_classifier_by_class_are_its_own() -> None:
    classifier = QuickNat(config(unshuffle=2)).classifier
    rows = classifier.by_class()
    assert rows["weight"].shape[:2] == rows["bias"].shape == (5, 4)
    rows["bias"][3] = -7
    assert classifier.bias.tolist()[12:16] == [-7] * 4


def test_gradients_reach_all_but_the_bottlenecks_excitation() -> None:
    network = QuickNat(PUBLISHED)
    network(torch.randn(1, 1, 32, 32)).square().sum().backward()
    without = {name: p for name, p in network.named_parameters() if p.grad is None}
    assert sum(p.numel() for p in without.values()) == 4_257
    assert all(name.startswith("bottleneck.excitation.") for name in without)
    assert all(
        p.grad.abs().sum() > 0 for p in network.parameters() if p.grad is not None
    )


@pytest.mark.parametrize("unshuffle", [1, 2])
@pytest.mark.parametrize("size", [(1, 1), (5, 9), (17, 33), (50, 37), (64, 48)])
def test_any_size_goes_in_and_comes_out(size: tuple[int, int], unshuffle: int) -> None:
    network = seeded(QuickNat(config(unshuffle=unshuffle)))
    multiple = network.config.multiple
    assert multiple == 16 * unshuffle
    x = torch.randn(2, 1, *size)
    padded = F.pad(x, (0, -size[1] % multiple, 0, -size[0] % multiple))
    with torch.inference_mode():
        logits = network(x)
        assert logits.shape == (2, 5, *size)
        torch.testing.assert_close(logits, network(padded)[..., : size[0], : size[1]])


@pytest.mark.parametrize(
    "changes",
    [
        {"channels": 5},
        {"kernel": 3, "depth": 2},
        {"unshuffle": 2, "depth": 2},
        {"excitation": "channel"},
        {"bottleneck": "convolution"},
        {
            "activation": "relu",
            "order": "convolution-norm-activation",
            "excitation": "none",
        },
    ],
    ids=str,
)
def test_each_member_of_the_family_learns(changes: dict[str, object]) -> None:
    network = QuickNat(config(**changes, dropout=0.0))
    optimiser = torch.optim.Adam(network.parameters(), 0.05)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2, network.config.channels, 16, 16, generator=generator)
    labels = (x[:, 0] * 5).long()
    losses = []
    for _ in range(12):
        loss = F.cross_entropy(network(x), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_the_convolution_bottleneck_is_one_layer() -> None:
    (layer,) = QuickNat(config(bottleneck="convolution")).bottleneck.layers
    assert layer.convolution.weight.shape == (6, 6, 5, 5)


def test_no_tensor_is_stored_twice() -> None:
    tensors = QuickNat(config()).state_dict().values()
    assert len({tensor.data_ptr() for tensor in tensors}) == len(tensors)


@pytest.mark.parametrize("bottleneck", ["dense", "convolution"])
def test_folding_keeps_the_logits_and_leaves_no_norm(bottleneck: str) -> None:
    network = seeded(
        QuickNat(
            FAST.model_copy(
                update={"filters": 6, "classes": 5, "bottleneck": bottleneck}
            )
        )
    )
    x = torch.randn(2, 1, 32, 20)
    with torch.inference_mode():
        before = network(x)
        folded = network.fold()
        torch.testing.assert_close(folded(x), before, rtol=0, atol=1e-5)
        torch.testing.assert_close(network(x), before, rtol=0, atol=0)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in folded.modules())
    assert not folded.training
    assert not any(p.requires_grad for p in folded.parameters())


def test_folding_the_published_order_is_a_copy_for_inference() -> None:
    network = seeded(QuickNat(config()))
    x = torch.randn(1, 1, 16, 16)
    with torch.inference_mode():
        torch.testing.assert_close(network.fold()(x), network(x), rtol=0, atol=0)


@pytest.mark.parametrize("kind", [FAST, PUBLISHED], ids=["fast", "published"])
def test_memory_stays_channels_last_from_end_to_end(kind: QuickNatConfig) -> None:
    network = QuickNat(kind.model_copy(update={"filters": 8}))
    wrong: list[str] = []

    def check(name: str):
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            # The tensor it is concatenated with determines the memory format of the whole, even
            # for one channel.
            seen = [output, *(inputs if isinstance(module, nn.Conv2d) else ())]
            if not all(
                x.is_contiguous(memory_format=torch.channels_last) for x in seen
            ):
                wrong.append(name)

        return hook

    for name, module in network.named_modules():
        module.register_forward_hook(check(name))
    network(torch.randn(2, network.config.channels, 32, 32))
    assert wrong == []


def test_under_autocast_no_convolution_is_given_more_than_bfloat16() -> None:
    network = QuickNat(PUBLISHED.model_copy(update={"filters": 8, "depth": 2})).eval()
    types: set[torch.dtype] = set()
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(
                lambda _m, inputs, _o: types.add(inputs[0].dtype)
            )
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        network(torch.randn(1, 1, 16, 16))
    assert types == {torch.bfloat16}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("kernel", 4),
        ("classes", 1),
        ("classes", 256),  # 255 is the label that losses ignore
        ("channels", 0),
        ("channels", 2),
        ("filters", 0),
        ("depth", 0),
        ("dropout", 1.0),
        ("excitation", "some"),
        ("order", "norm"),
        ("widht", 64),
    ],
)
def test_settings_that_make_no_network_are_refused(setting: str, value: object) -> None:
    with pytest.raises(ValidationError, match=setting):
        QuickNatConfig.model_validate({setting: value})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_network_compiles_whole_and_exports(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    network = seeded(QuickNat(config(depth=2)))
    x = torch.randn(2, 1, 16, 12)
    with torch.inference_mode():
        expected = network(x)
        compiled = torch.compile(network, fullgraph=True)
        torch.testing.assert_close(compiled(x), expected, rtol=0, atol=1e-5)
    batch = torch.export.Dim("batch", min=1, max=64)
    path = tmp_path / "quicknat.onnx"
    torch.onnx.export(
        network, (x,), path, dynamo=True, verbose=False, dynamic_shapes=({0: batch},)
    )
    session = onnxruntime.InferenceSession(path)
    (got,) = session.run(None, {session.get_inputs()[0].name: x[:1].numpy()})
    torch.testing.assert_close(torch.from_numpy(got), expected[:1], rtol=0, atol=1e-5)
