"""Predicted time of one head on a GPU, computed from its operations and never measured.

    scripts/bench computed

The prediction of a scan runs on the `meta` device, which knows shapes alone and refuses to read
a value. Each operation takes as long as its arithmetic, its bytes or its launch, whichever is
longest.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from trinat.segmentation.inference.localisation import BrainRegion
from trinat.segmentation.inference.network import DeviceNetworks, ViewNetwork
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.inference.runtime import TorchRuntime
from trinat.segmentation.models.architectures import PUBLISHED, build
from trinat.segmentation.space.conform import conform
from trinat.segmentation.space.views import View
from trinat.segmentation.synthetic.phantom import phantom

# Dense bfloat16 rate and memory bandwidth of the SXM modules, from the maker's data sheets.
_GPUS = {"H100": (989e12, 3.35e12), "A100": (312e12, 2.04e12)}
# Assumptions: the shares of both that are reached, the shortest time of a kernel, the host's
# time to launch one, and the bandwidth to pageable memory of the host.
_ARITHMETIC, _MEMORY, _KERNEL_S, _START_S, _TO_HOST = 0.4, 0.7, 3e-6, 10e-6, 5e9


class Operation(NamedTuple):
    name: str
    flops: float
    bytes: float
    from_host: bool


class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operations on `meta` within this block, except views."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        packet = func._overloadpacket
        if packet not in flop_registry:
            # In inference mode operations arrive as they were called, not decomposed.
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        given, made = (
            [t for t in tree_leaves(v) if isinstance(t, Tensor)] for v in (args, out)
        )
        known = {t.untyped_storage()._cdata for t in given}
        is_view = not func._schema.is_mutable and all(
            t.untyped_storage()._cdata in known for t in made
        )
        if is_view or not any(t.is_meta for t in made):
            return out
        flops = (
            flop_registry[packet](*args, **kwargs, out_val=out)
            if packet in flop_registry
            else 0
        )
        # A value that is expanded to many is read once.
        moved = sum(
            t.element_size()
            * min(t.numel(), t.untyped_storage().nbytes() // t.element_size())
            for t in (*given, *made)
        )
        from_host = any(t.device.type == "cpu" and t.dim() for t in given)
        self.operations.append(Operation(str(packet), flops, moved, from_host))
        return out

    def seconds(self, gpu: str) -> list[float]:
        """Return the seconds of each operation on a GPU that is kept busy."""
        peak, memory = _GPUS[gpu]
        return [
            max(o.flops / peak / _ARITHMETIC, o.bytes / memory / _MEMORY)
            for o in self.operations
        ]


def on_meta(segmenter: Predictor) -> Predictor:
    """Return the same model on the device without values, in bfloat16 as on a GPU."""
    segmenter._networks = DeviceNetworks(
        segmenter.model, segmenter.views, torch.device("meta"), precision="bfloat16"
    )
    return segmenter


def count(
    segmenter: Predictor, image: Tensor, region: BrainRegion, *, mirror: bool = False
) -> Counted:
    """Count the operations of localisation, all views and their fusion."""
    view = segmenter.views[0]
    axes = segmenter.model.info.preprocessing.slice_axes(view)
    image = image.to("meta")
    counted = Counted()
    with counted:
        for _ in segmenter._networks.of_view[view].probabilities(image, axes, every=8):
            pass
        fusion, _maps = segmenter._add_views(
            image[region.box],
            segmenter.views,
            region.mask,
            mirror,
            segmenter.model.fusion_weights(segmenter.views),
        )
        fusion.finish()
    return counted


def run() -> None:
    """Print operations, bytes and the expected seconds of `fast` and the published network."""
    segmenter = Predictor("fast", device="cpu")
    # In a field of view of 256³, as scanners and FreeSurfer give it.
    scan = conform(phantom(0)[0]).volume
    image = torch.from_numpy(segmenter.prepare(scan).volume.data)
    region = segmenter.find_brain(image)
    on_meta(segmenter)
    voxels = [side.stop - side.start for side in region.box]
    result = 2 * voxels[0] * voxels[1] * voxels[2] * len(segmenter.model.scheme)
    print(f"head {tuple(image.shape)}, networks within {tuple(voxels)}")
    print(
        f"probabilities to the host: {result / 1e6:.0f} MB, {result / _TO_HOST:.3f} s"
    )
    for name in ("fast", "published"):
        if name == "published":
            for view, ready in segmenter._networks.of_view.items():
                network = build(PUBLISHED.model_copy(update={"classes": ready.classes}))
                runtime = TorchRuntime(network.eval(), segmenter.device, torch.bfloat16)
                segmenter._networks.of_view[view] = ViewNetwork(network.config, runtime)
        found = count(segmenter, image, region)
        done = len(found.operations)
        batch = segmenter._networks.of_view[View.CORONAL].batch
        print(
            f"{name}: batches of {batch}, {done} operations, "
            f"{sum(o.flops for o in found.operations) / 1e12:.1f} TFLOP, "
            f"{sum(o.bytes for o in found.operations) / 1e9:.0f} GB; "
            f"host {done * _START_S:.2f} s to start them"
        )
        for gpu in _GPUS:
            seconds = found.seconds(gpu)
            small = [s for s in seconds if s < _KERNEL_S]
            least = sum(max(s, _KERNEL_S) for s in seconds)
            print(
                f"  {gpu} {least:.3f} s, of these {len(small) * _KERNEL_S:.3f} s in "
                f"{len(small)} operations that do not fill it"
            )
