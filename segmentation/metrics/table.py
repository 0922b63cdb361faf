"""One truth and one prediction compared, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from segmentation.io.volume import Scan, Volume
from segmentation.labels.scheme import load_scheme
from segmentation.metrics.common_grid import labelled_slices, on_grid_of
from segmentation.metrics.pair import compare

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray


def evaluate(
    truth: Scan | NDArray[Any],
    prediction: Scan | NDArray[Any],
    *,
    labels: str = "quicknat33",
    resample: bool = False,
) -> pd.DataFrame:
    """Compare a prediction with the truth: all metrics of docs/metrics.md, by structure.

    Parameters
    ----------
    truth, prediction : path, nibabel image, (array, affine), array, Volume or Result
        Label maps of FreeSurfer numbers, (X, Y, Z). An array alone is on the grid of the other
        map; two arrays have voxels of 1 mm.
    labels : str or path
        Label scheme: "quicknat33", "tissue4", "left4" or a TSV file.
    resample : bool
        Bring the prediction to the truth's grid where they differ; otherwise that is an error.

    Returns
    -------
    DataFrame
        One row a structure (index: its name), one column a metric: shares from 0 to 1, distances
        in mm, volumes in mm³, differences in %. `note` says which of the two maps lacks it;
        NaN is undefined.

    Examples
    --------
    >>> scan, truth = trinat.phantom(seed=0, spacing_mm=(3, 3, 3))
    >>> table = trinat.evaluate(truth, truth)
    >>> float(table.dice["Left-Thalamus"])
    1.0
    """
    import pandas as pd

    unknown = getattr(prediction, "not_predicted", ())
    pair = [getattr(given, "labels", given) for given in (truth, prediction)]
    placed = [Volume.of(each, labels=True) for each in pair if not isinstance(each, np.ndarray)]
    affine = placed[0].affine if placed else np.eye(4)
    true, predicted = (
        Volume.of((each, affine) if isinstance(each, np.ndarray) else each, labels=True)
        for each in pair
    )
    predicted, _ = on_grid_of(predicted, true, resample=resample)
    scheme, spacing_mm = load_scheme(labels), true.spacing_mm
    a, b = (scheme.from_freesurfer(v.data, spacing_mm=spacing_mm) for v in (true, predicted))
    found = compare(*labelled_slices(a, b, spacing_mm), scheme, unknown)
    table = pd.DataFrame(found.values, index=pd.Index(scheme.names, name="structure"))
    table.insert(0, "freesurfer", scheme.fs_ids)
    table["note"] = [absence or "" for absence in found.absences]
    return table.iloc[1:]
