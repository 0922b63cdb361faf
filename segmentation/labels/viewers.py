"""The tables by which viewers name and colour labels."""

from __future__ import annotations

from typing import Literal

from trinat.segmentation.labels.scheme import LabelScheme

Viewer = Literal["freesurfer", "itksnap", "slicer", "fsleyes"]

# Lines before a viewer's table, and the line of a label; background is clear. docs/prediction.md
# says where each form is from.
_FORMS: dict[Viewer, tuple[str, str]] = {
    "freesurfer": ("#No. Label Name: R G B A\n", "{number} {name} {r} {g} {b} 0"),
    "itksnap": (
        "# ITK-SnAP Label Description File\n# IDX -R- -G- -B- -A- VIS MSH LABEL\n",
        '{number} {r} {g} {b} {shown} {shown} {shown} "{name}"',
    ),
    "slicer": (
        "# Color table file {scheme}.ctbl\n# {count} values\n",
        "{number} {name} {r} {g} {b} {opacity}",
    ),
    "fsleyes": ("", "{number} {red:.5f} {green:.5f} {blue:.5f} {name}"),
}


def viewer_table(scheme: LabelScheme, viewer: Viewer, *, by_index: bool = False) -> str:
    """The scheme's labels for a viewer, in ascending order of their numbers in label maps.

    Those are FreeSurfer's numbers, or with `by_index` the class indices.
    """
    header, line = _FORMS[viewer]
    numbered = [
        (label.index if by_index else label.fs_id, label) for label in scheme.labels
    ]
    numbered.sort(key=lambda pair: pair[0])
    rows = []
    for number, label in numbered:
        if viewer == "fsleyes" and label.index == 0:
            continue  # or the scan would be hidden behind background
        # Background is not shown.
        is_shown = label.index > 0
        r, g, b = label.color
        row = line.format(
            number=number,
            name=label.name.replace(" ", "_"),
            shown=int(is_shown),
            opacity=255 if is_shown else 0,
            r=r,
            g=g,
            b=b,
            red=r / 255,
            green=g / 255,
            blue=b / 255,
        )
        rows.append(row + "\n")
    beginning = header.format(scheme=scheme.name, count=len(rows))
    return beginning + "".join(rows)
