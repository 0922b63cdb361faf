"""What a notebook shows of a result: HTML without a style sheet, in the notebook's own font."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from trinat.segmentation.report.page import data_uri

if TYPE_CHECKING:
    import pandas as pd

# Notebooks set tables smaller, to the right and in the middle: by rules for these elements, which
# only an element's own style overrides.
_TABLE = "font: inherit; margin: .3em 0; border-collapse: collapse; table-layout: auto"
_CELL = "padding: .1em .6em; vertical-align: top"
_TEXT = f"{_CELL}; text-align: left"
_NAME = f"{_TEXT}; font-weight: normal"
_NUMBER = f"{_CELL}; text-align: right; white-space: nowrap"


def notebook_html(
    title: str,
    reasons: Sequence[str],
    picture: bytes,
    volumes: pd.DataFrame,
) -> str:
    """Title, reasons of the grade, a PNG no wider than the notebook, and volumes to unfold.

    `volumes` is the table of `Result.volumes`.
    """
    items = [f"<li>{escape(reason)}</li>" for reason in reasons]
    listed = ""
    if items:
        listed = f"<ul>{''.join(items)}</ul>"
    return (
        f'<div style="overflow-x: auto"><p>{escape(title)}</p>{listed}'
        f'<img src="{data_uri("png", picture)}" alt="slices" '
        'style="max-width: 100%; height: auto">'
        f"<details><summary>volumes</summary>{_table(volumes)}</details></div>"
    )


def _table(volumes: pd.DataFrame) -> str:
    """Name, volume, share and grade of each structure: the sides stand in the names."""
    rows = [
        f'<tr><th style="{_TEXT}">structure</th><th style="{_NUMBER}">mm³</th>'
        f'<th style="{_NUMBER}">% of brain</th><th style="{_TEXT}">grade</th></tr>'
    ]
    for row in volumes.to_dict("records"):
        share = ""
        if np.isfinite(row["share"]):
            share = f"{100 * row['share']:.2f}"
        rows.append(
            f'<tr><th scope="row" style="{_NAME}">{escape(row["structure"])}</th>'
            f'<td style="{_NUMBER}">{row["mm3"]:,.0f}</td>'
            f'<td style="{_NUMBER}">{share}</td>'
            f'<td style="{_TEXT}">{row["grade"]}</td></tr>'
        )
    return f'<table style="{_TABLE}">{"".join(rows)}</table>'
