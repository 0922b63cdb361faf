"""Which DICOM images are part of a scan of the head: T1-weighted and 3D, or of any contrast."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trinat.segmentation.io.dicom.parsing import functional_group, several

if TYPE_CHECKING:
    from pydicom import Dataset

_MR = "1.2.840.10008.5.1.4.1.1.4"
# MR, enhanced MR and legacy converted enhanced MR images.
_MR_CLASSES = (_MR, f"{_MR}.1", f"{_MR}.4")
_MODALITY = re.compile("[A-Z]{2}|SEG|RT[A-Z]{1,8}")
_MAX_ECHO_MS = 25.0

# Words of ImageType.
_PHASES = frozenset({"P", "PHASE", "PHASE MAP", "R", "REAL", "I", "IMAGINARY"})
_DERIVED = frozenset({"DERIVED", "SECONDARY", "MPR", "PROJECTION IMAGE", "REFORMATTED"})
# Words of descriptions, in small letters.
_T1 = re.compile(r"t1|mp2?rage|spgr|bravo|tfe")
# Where a word begins: "headcoil" has "adc" in it.
_OTHER_CONTRAST = re.compile("(?<![a-z])(t2|flair|ciss|fiesta)")
_NO_ANATOMY = re.compile(
    "(?<![a-z])(swi|tof|angio|dwi|dti|diff|adc|bold|asl|perf|field|phase)"
)
_SCOUT = re.compile(r"locali[sz]er|scout|survey")


def why_left_out(dataset: Dataset, *, any_contrast: bool = False) -> str:
    """Why an image is no part of a T1-weighted 3D scan, in words that are not its header's.

    With `any_contrast`, why it is no part of an anatomical scan, 3D or in slices. Empty if it may
    be one. What the header does not say speaks for the image: headers of old and of anonymous
    files say little. The first reason that holds is given.
    """
    modality = str(dataset.get("Modality"))
    if modality != "MR" or dataset.get("SOPClassUID") not in _MR_CLASSES:
        # Only a modality of the standard's form is repeated.
        if _MODALITY.fullmatch(modality):
            return f"no MR image ({modality})"
        return "no MR image"
    reasons = _no_anatomy(dataset)
    if not any_contrast:
        reasons.update(_not_t1(dataset))
    for reason, holds in reasons.items():
        if holds:
            return reason
    return ""


def _no_anatomy(dataset: Dataset) -> dict[str, object]:
    """Reasons against an anatomical scan of any contrast, and whether each holds."""
    kinds = [str(kind).upper() for kind in several(dataset.get("ImageType"))]
    words = _words(dataset)
    pulses = several(dataset.get("ScanningSequence"))
    echo_planar_pulse = dataset.get("EchoPlanarPulseSequence") == "YES"
    return {
        "a localiser": "LOCALIZER" in kinds or _SCOUT.search(words),
        "a mosaic": "MOSAIC" in kinds,
        "derived from other images": _DERIVED.intersection(kinds),
        "no magnitude image": _PHASES.intersection(kinds[2:]),
        "echo-planar": "EP" in pulses or echo_planar_pulse,
        "an angiogram": dataset.get("AngioFlag") == "Y",
        "its description names another kind of image": (
            _NO_ANATOMY.search(words) and not _T1.search(words)
        ),
    }


def _not_t1(dataset: Dataset) -> dict[str, object]:
    """Reasons against a T1-weighted 3D scan, and whether each holds."""
    words = _words(dataset)
    contrast = dataset.get("AcquisitionContrast") or "UNKNOWN"
    return {
        "a 2D acquisition": dataset.get("MRAcquisitionType") == "2D",
        "its contrast is not T1": contrast not in ("T1", "UNKNOWN", "MIXED"),
        f"its echo time is above {_MAX_ECHO_MS:g} ms": _has_long_echo(dataset),
        "its description names another contrast": (
            _OTHER_CONTRAST.search(words) and not _T1.search(words)
        ),
    }


def _words(dataset: Dataset) -> str:
    """What people call the series and its protocol, in small letters."""
    description = dataset.get("SeriesDescription")
    return f"{description} {dataset.get('ProtocolName')}".lower()


def _has_long_echo(dataset: Dataset) -> bool:
    """Whether the echo time is known and too long for T1 weighting."""
    echo_ms = dataset.get("EchoTime")
    if not echo_ms:
        echo_ms = functional_group(dataset, 0, "MREcho").get("EffectiveEchoTime")
    if not echo_ms:
        return False
    return float(echo_ms) > _MAX_ECHO_MS
