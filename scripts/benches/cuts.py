"""Whether a field of view that cuts a brain is seen, with labels that are right: no network.

    scripts/bench cuts DATA

DATA has `freesurfer/`. Each head is cut in four ways, five strengths each, and graded by the check
of the field of view alone: seconds a case, where `scripts/bench damages` takes half a minute.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy import ndimage

from benches._damage_cache import HOLDING_HEADS, Heads
from benches._damage_kinds import KINDS, Damaged, Head, as_scan
from trinat.segmentation.inference.checks.evidence import Evidence
from trinat.segmentation.inference.checks.field import check_field_of_view, find_cut
from trinat.segmentation.inference.checks.limits import LIMITS
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.space.conform import conform

__all__ = ["run"]


def run(data: str) -> None:
    """Print the area of each cut and what is said of it."""
    heads = Heads(Path(data))
    for name in HOLDING_HEADS:
        head = heads.head(name)
        _say(
            f"{name} whole",
            head,
            Damaged(as_scan(head.image, head.affine), head.affine),
        )
        for kind in KINDS:
            if kind.name.startswith("cut"):
                for strength in kind.strengths:
                    damaged = kind.apply(head, strength, name)
                    _say(f"{name} {kind.name} {strength:g} {kind.unit}", head, damaged)


def _say(title: str, head: Head, damaged: Damaged) -> None:
    evidence = _labelled(head, damaged)
    area, _ = find_cut(evidence)
    verdict = "pass"
    for finding in check_field_of_view(evidence, LIMITS):
        verdict = "reject" if finding.rejects else "look"
    left = np.count_nonzero(evidence.indices.data) / max(
        np.count_nonzero(head.brain), 1
    )
    print(
        f"{verdict:6}  {area / 100:6.1f} cm²  {left:4.0%} of the brain left  {title}",
        flush=True,
    )


def _labelled(head: Head, damaged: Damaged) -> Evidence:
    """The head's own labels on the working grid of the damaged scan."""
    scheme = load_scheme("quicknat33")
    seen = conform(damaged.scan, shape=None)
    image = seen.volume
    classes = scheme.from_freesurfer(head.numbers)
    if damaged.gone is not None:
        classes = np.where(damaged.gone, np.uint8(0), classes)
    chain = np.linalg.inv(head.affine) @ image.affine
    labels = ndimage.affine_transform(classes, chain, output_shape=image.shape, order=0)
    # Beyond the end of the scan there is nothing to label.
    there = np.ones(damaged.scan.shape, np.uint8)
    to_scan = np.linalg.inv(damaged.scan.affine) @ image.affine
    labels *= ndimage.affine_transform(
        there, to_scan, output_shape=image.shape, order=0
    )
    scan = damaged.scan.grid
    return Evidence(image, Volume(labels, image.affine), scan, scheme, {}, None)
