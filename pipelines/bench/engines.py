"""One view's network run in every way there is here: seconds a slice, and what each costs in Dice.

    scripts/bench engines [MODEL] [VIEW] [THREADS] [REPETITIONS] [WAYS]

As trained and with norms folded, plain and channels-last, in bfloat16 where the processor has it,
compiled, and by ONNX Runtime in float32 and int8; WAYS are some of them, as "compiled,onnx int8".
Then the time of each part of the network, as `trinat predict` runs it. Slices are of a phantom.
"""

from __future__ import annotations

import copy
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pipelines.bench._steps import matrix_rate, operations, timing
from pipelines.common.process import prepare_process
from segmentation.inference.network import thick
from segmentation.labels.scheme import LabelScheme
from segmentation.metrics.overlap import dice, joint_histogram
from segmentation.models.base import Network
from segmentation.models.checkpoint import load_model
from segmentation.models.hardware import computes_bfloat16
from segmentation.space.conform import conform
from segmentation.space.resample import occupied_box
from segmentation.space.views import View, to_slices
from segmentation.synthetic.phantom import phantom

__all__ = ["run"]

Way = Callable[[Tensor], Tensor]  # slices (N, C, H, W) to logits (N, K, H, W)

USED = "folded channels-last"
_BATCH = 4
_EVERY = 12  # of the brain's slices are looked at
_ROOM = 16
_CALIBRATION = 4  # slices from which int8 learns its ranges
_EACH = 16  # sides are multiples of this


def run(
    model: str = "fast",
    view: str = "coronal",
    threads: str = "1",
    repetitions: str = "3",
    ways: str = "",
) -> None:
    prepare_process(int(threads))
    loaded = load_model(model)
    network, scheme = loaded.networks[View(view)], loaded.scheme
    if loaded.is_merged(View(view)):
        scheme = scheme.merged.scheme
    slices, truth = _slices(View(view), network.config.channels, scheme)
    batch = slices[len(slices) // 2 :][:_BATCH]
    work = operations(lambda: network(batch)) / len(batch)
    rate = matrix_rate(torch.float32)
    print(
        f"{model}, {view}, slices of {'×'.join(map(str, slices.shape[2:]))}, {threads} threads: "
        f"{work / 1e9:.1f} GFLOP a slice, matrix product {rate / 1e9:.0f} GFLOP/s of a processor"
    )
    print(
        "| way | clock, ms a slice | processor, ms | of the matrix product | same labels | Dice |"
    )
    print("|---|---|---|---|---|---|")
    chosen = ways.split(",") if ways else list(_WAYS)
    expected: NDArray[Any] | None = None
    for name in dict.fromkeys((USED, *chosen)):
        with _made(name, network, slices, int(threads)) as way:
            clock, processor = timing(partial(way, batch), int(repetitions))
            found = np.concatenate(
                [way(part).argmax(1).numpy() for part in torch.split(slices, _BATCH)]
            )
        expected = found if expected is None else expected
        values = dice(joint_histogram(truth, found, len(scheme)))[1:]
        print(
            f"| {name} | {1e3 * clock / len(batch):.1f} | {1e3 * processor / len(batch):.1f} "
            f"| {work * len(batch) / processor / rate:.0%} "
            f"| {(found == expected).mean():.4%} | {np.nanmean(values):.4f} |",
            flush=True,
        )
    print(f"\n{USED}, part by part:")
    for part, seconds in _parts(network.fold(), batch, int(repetitions)).items():
        print(f"  {part:12} {1e3 * seconds / len(batch):7.1f} ms a slice")


def _slices(view: View, channels: int, scheme: LabelScheme) -> tuple[Tensor, NDArray[np.uint8]]:
    """Some slices (N, C, H, W) through a phantom's brain, and their classes (N, H, W)."""
    scan, labels = phantom(1)
    seen = conform(scan, shape=None)
    numbers = conform(labels, labels=True, plan=seen.plan).volume.data
    box = tuple(
        slice(first := max(0, s.start - _ROOM), first + min(n - first, s.stop + _ROOM - first))
        for s, n in zip(occupied_box(numbers != 0), numbers.shape, strict=True)
    )
    # Whole multiples, as ONNX wants them.
    box = tuple(slice(s.start, s.stop - (s.stop - s.start) % _EACH) for s in box)
    image = torch.from_numpy(seen.volume.data[box].copy())
    classes = to_slices(scheme.from_freesurfer(numbers[box]), view)
    middle = slice(_ROOM, -_ROOM, _EVERY)
    return thick(to_slices(image, view), channels)[middle].contiguous(), classes[middle].copy()


@contextmanager
def _made(name: str, network: Network, slices: Tensor, threads: int) -> Iterator[Way]:
    with (
        tempfile.TemporaryDirectory(prefix="trinat-") as folder,
        torch.inference_mode(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield _WAYS[name](network, slices, threads, Path(folder))


def _plain(network: Network, *_: Any) -> Way:
    return _arranged(copy.deepcopy(network).eval(), torch.contiguous_format)


def _last(network: Network, *_: Any) -> Way:
    return _arranged(copy.deepcopy(network).eval(), torch.channels_last)


def _folded_plain(network: Network, *_: Any) -> Way:
    return _arranged(network.fold(), torch.contiguous_format)


def _folded_last(network: Network, *_: Any) -> Way:
    return network.fold()


def _bfloat16(network: Network, *_: Any) -> Way:
    folded = network.fold()
    for module in folded.modules():
        if isinstance(module, nn.Conv2d | nn.PReLU):
            module.bfloat16()
    return lambda batch: folded(batch.bfloat16()).float()


def _compiled(network: Network, *_: Any) -> Way:
    compiled: Way = torch.compile(network.fold())
    return compiled


def _onnx(network: Network, _: Tensor, threads: int, folder: Path) -> Way:
    return _session(_exported(network, folder), threads)


def _int8(network: Network, slices: Tensor, threads: int, folder: Path) -> Way:
    """Convolutions alone, their ranges taken from a few of the slices."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            step = max(1, len(slices) // _CALIBRATION)
            self._rest = iter(torch.split(slices[::step], 1))

        def get_next(self) -> dict[str, Any] | None:
            part = next(self._rest, None)
            return None if part is None else {"slices": part.numpy()}

    whole, small = _exported(network, folder), folder / "int8.onnx"
    # Seven bits of weights: without VNNI the sums of eight overflow.
    quantize_static(
        str(whole),
        str(small),
        Reader(),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=["Conv"],
        per_channel=True,
        reduce_range=True,
    )
    return _session(small, threads)


_WAYS: dict[str, Callable[[Network, Tensor, int, Path], Way]] = {
    USED: _folded_last,
    "folded plain": _folded_plain,
    "trained channels-last": _last,
    "trained plain": _plain,
    **({"bfloat16": _bfloat16} if computes_bfloat16(torch.device("cpu")) else {}),
    "compiled": _compiled,
    "onnx": _onnx,
    "onnx int8": _int8,
}


def _arranged(network: Network, layout: torch.memory_format) -> Way:
    network.arrange(layout)
    return network


def _exported(network: Network, folder: Path) -> Path:
    from pipelines.models.export import export_network

    path = folder / "network.onnx"
    with torch.inference_mode(mode=False):
        export_network(network.fold(), path)
    return path


def _session(path: Path, threads: int) -> Way:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda batch: torch.from_numpy(session.run(None, {"slices": batch.numpy()})[0])


def _parts(network: Any, batch: Tensor, repetitions: int) -> dict[str, float]:
    """Seconds of the processor in each block, the mean of some runs; the rest moves and pools."""
    spent: dict[str, float] = defaultdict(float)
    began: dict[str, float] = {}
    blocks: list[tuple[str, nn.Module]] = [
        *((f"encoder {n}", block) for n, block in enumerate(network.encoders, 1)),
        # Of the bottleneck the layers alone run.
        *(("bottleneck", layer) for layer in network.bottleneck.layers),
        *((f"decoder {n}", block) for n, block in enumerate(network.decoders, 1)),
        ("classifier", network.classifier),
    ]

    def start(name: str) -> None:
        began[name] = time.process_time()

    def stop(name: str) -> None:
        spent[name] += time.process_time() - began[name]

    for name, block in blocks:
        block.register_forward_pre_hook(lambda *_, name=name: start(name))
        block.register_forward_hook(lambda *_, name=name: stop(name))
    with torch.inference_mode():
        network(batch)
        spent.clear()
        whole = time.process_time()
        for _ in range(repetitions):
            network(batch)
        whole = time.process_time() - whole
    found = {name: seconds / repetitions for name, seconds in spent.items()}
    return {
        **found,
        "the rest": whole / repetitions - sum(found.values()),
        "all": whole / repetitions,
    }
