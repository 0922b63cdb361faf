"""Label tables in the forms that viewers read; docs/prediction.md says where each form is from."""

from __future__ import annotations

from typing import Literal

from segmentation.labels.scheme import LabelScheme

Viewer = Literal["freesurfer", "itksnap", "slicer", "fsleyes"]

# Lines before the table, and the line of a label; background is clear.
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
    """The scheme's labels for a viewer, in ascending order of their numbers in label maps."""
    header, line = _FORMS[viewer]
    rows = []
    for label in sorted(scheme.labels, key=lambda label: label.index if by_index else label.fs_id):
        if viewer == "fsleyes" and not label.index:
            continue  # or the scan would be hidden behind background
        r, g, b = label.color
        row = line.format(
            number=label.index if by_index else label.fs_id,
            name=label.name.replace(" ", "_"),
            shown=int(label.index > 0),
            opacity=255 if label.index else 0,
            **{"r": r, "g": g, "b": b, "red": r / 255, "green": g / 255, "blue": b / 255},
        )
        rows.append(row + "\n")
    return header.format(scheme=scheme.name, count=len(rows)) + "".join(rows)
