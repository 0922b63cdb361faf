"""`trinat.segment_many`: `trinat predict` in this process, with a table as the result."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from natsort import natsorted
from pydantic import TypeAdapter, ValidationError

from trinat.pipelines.predict.engine import SerialEngine
from trinat.pipelines.predict.progress import listener
from trinat.pipelines.predict.run import Listener, predict
from trinat.pipelines.predict.settings import OutputSettings, PredictRequest
from trinat.pipelines.study.cases import Case, Found, Refusal
from trinat.pipelines.study.discovery import find_cases
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.ledger import ledgers_in, read_entries
from trinat.pipelines.study.naming import Product
from trinat.segmentation.errors import ConfigError, first_mistake, reason_of
from trinat.segmentation.io.files import given_path
from trinat.segmentation.io.foreign_images import is_foreign_image, is_subject
from trinat.segmentation.io.volume import ScanLike, Volume
from trinat.segmentation.models.zoo import find_model, warn_of_licence
from trinat.segmentation.space.views import View, chosen_views

if TYPE_CHECKING:
    import pandas as pd


def segment_many(
    paths: Iterable[ScanLike] | ScanLike,
    out: str | os.PathLike[str] | None = None,
    *,
    progress: bool = True,
    model: str | os.PathLike[str] = "fast",
    device: str = "auto",
    image: str | None = None,
    views: Iterable[View | str] | str | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """Segment many scans with a model that is loaded once; a scan that fails becomes a row.

    Parameters
    ----------
    paths : list of paths and images, or a single one
        Scans, folders of scans or glob patterns; images in all types of `trinat.segment`. If the
        third item of a list is an image, it is called image-3.
    out : path, optional
        Folder for all outputs of `trinat predict`; current results in it are kept. Without it only
        the table is returned.
    progress : bool
        Show progress and failures on stderr.
    model, device, image, views
        As in `trinat.segment`.
    **settings
        Options of `trinat predict` that affect the results: `mirror=True`, `stats=True`,
        `longitudinal=True`. Four have names of their own here: `samples` (`--uncertainty`),
        `picture` (`--pictures`), `smallest_lesion_mm3` (`--smallest-lesion`) and `fmriprep=True`
        (`--for fmriprep`).

    Returns
    -------
    DataFrame
        One row per scan, in natural order: `scan`, `status` (done, failed, skipped), `grade`,
        `reason`, `labels` (file, with `out`), and in mm³ `total_brain_mm3`, the measures of
        `Result.measures` and each structure.

    Raises
    ------
    ModelError
        If the model cannot be loaded.
    ConfigError
        If a setting is unknown or has an impossible value.
    DeviceError
        If the device does not exist.
    OutputError
        If `out` is a file, or a file of yours in it would be replaced.
    LockedError
        If another run uses the folder `out`.

    Examples
    --------
    >>> table = trinat.segment_many(["scan.nii.gz", "missing.nii.gz"], progress=False)
    >>> table.status.tolist()
    ['failed', 'done']
    """
    warn_of_licence(find_model(os.fspath(model)))
    chosen = chosen_views(views) or ()
    # In the order of the command line, whose results are then up to date.
    views_in_order = tuple(view.value for view in View if view in chosen)
    # Without an output folder these files would be discarded.
    written_files = dict.fromkeys(("picture", "brain_mask"), out is not None)
    output = _output_settings({**written_files, **settings, "views": views_in_order})
    with TemporaryDirectory() as temporary, TemporaryDirectory() as images:
        inputs, written, refused = _split_inputs(paths, Path(images), image, output)
        entries: list[Entry] = []
        folder = given_path(temporary if out is None else out)
        if inputs or written or refused:
            found = Found.of(written, refused)
            if inputs:
                by_path = find_cases(inputs, exclude=folder)
                if by_path.bids_root is not None and written:
                    raise ConfigError(
                        "images in memory are not part of a BIDS dataset",
                        where=by_path.bids_root,
                        remedy="segment them by a call of their own",
                    )
                found = Found.of(
                    (*by_path.cases, *written),
                    (*by_path.refusals, *refused),
                    by_path.bids_root,
                    by_path.remarks,
                )
            request = PredictRequest(
                inputs,
                folder,
                os.fspath(model),
                found=found,
                output=output,
            )
            entries = _predict(
                request, device, progress=progress, sum_up=out is not None
            )
        # Scans done by an earlier run have skipped entries; their results are in the ledger.
        known = read_entries(ledgers_in(folder))
    rows = [known.get(entry.case, entry) for entry in entries]
    return _result_table(rows, None if out is None else folder)


def _output_settings(settings: Mapping[str, Any]) -> OutputSettings:
    """Return settings given by name as `OutputSettings`; raise ConfigError if one is invalid."""
    # Norms require a table of participants, which `segment_many` does not take.
    known = [
        field.name for field in fields(OutputSettings) if field.name != "reference"
    ]
    for name in settings:
        if name not in known:
            raise ConfigError(
                f"unknown setting {name!r}", remedy=f"use {', '.join(known)}"
            )
    try:
        return TypeAdapter(OutputSettings).validate_python(settings)
    except ValidationError as error:
        raise ConfigError(first_mistake(error)) from error


def _is_array_with_affine(scans: Any) -> bool:
    """Return True for one scan as a tuple of an array and its affine."""
    if not isinstance(scans, tuple) or len(scans) != 2:
        return False
    # A tuple of two scans may end with such a tuple.
    is_scan = isinstance(scans[1], tuple) and len(scans[1]) == 2
    return not is_scan and np.shape(scans[1]) == (4, 4)


def _split_inputs(
    scans: Any, folder: Path, image: str | None, output: OutputSettings
) -> tuple[list[str], list[Case], list[Refusal]]:
    """Split the inputs of `segment_many` into paths, cases of images in memory, and refusals.

    `scans` is one input or an iterable of them. Images in memory are written to `folder`; those
    that cannot be used, and inputs of other types, are refused. `image` is the name of the image to
    take from a torchio.Subject; None for all other inputs. `output` has the settings of reading.
    """
    is_one = isinstance(scans, str | os.PathLike | Volume) or hasattr(scans, "dataobj")
    if is_one or is_foreign_image(scans) or _is_array_with_affine(scans):
        scans = [scans]
    inputs = []
    written = []
    refused = []
    for number, scan in enumerate(scans, start=1):
        if isinstance(scan, str | os.PathLike):
            inputs.append(os.fspath(scan))
            continue
        name = f"image-{number}"
        path = folder / f"{name}.nii"
        # Only Subjects have named images.
        name_in_subject = image if is_subject(scan) else None
        try:
            volume = Volume.of(
                scan,
                image=name_in_subject,
                trust_affine=output.trust_affine,
                fill_nonfinite=output.fill_nonfinite,
            )
            volume.write(path)
        except TypeError as error:
            refused.append(Refusal(path.name, str(error), case=name))
        except Exception as error:
            refused.append(Refusal(path.name, reason_of(error), case=name))
        else:
            written.append(Case(name, path, path.name))
    return inputs, written, refused


def _predict(
    request: PredictRequest, device: str, *, progress: bool, sum_up: bool
) -> list[Entry]:
    """Run a request in this process; return the ledger entries of its inputs as they end.

    With `progress`, failures and progress are shown on stderr. With `sum_up`, too, the run ends
    with a line of counts.
    """
    entries: list[Entry] = []
    engine = partial(SerialEngine, device=device)
    if not progress:
        request = replace(request, engine=engine)
        predict(request, Listener(on_entry=entries.append))
        return entries
    interactive = sys.stderr.isatty()
    with listener(quiet=False, as_json=False, interactive=interactive) as shown:

        def note(entry: Entry) -> None:
            entries.append(entry)
            shown.on_entry(entry)

        silent = Listener()
        callbacks = replace(shown, on_entry=note)
        if not sum_up:
            callbacks = replace(callbacks, on_end=silent.on_end)
        engine = partial(engine, on_stage=callbacks.on_stage)
        predict(replace(request, engine=engine), callbacks)
    return entries


def _result_table(entries: Iterable[Entry], out: Path | None) -> pd.DataFrame:
    """Return the table of `segment_many`, with a row for each ledger entry.

    `out` is the folder of the output files; None if there are none.
    """
    import pandas as pd

    rows = []
    for entry in natsorted(entries, key=lambda entry: entry.input):
        result = entry.result
        row: dict[str, Any] = {
            "scan": entry.input,
            "status": entry.status,
            "grade": result.grade or None,
            "reason": entry.why,
        }
        if out is not None:
            labels = Product.LABELS.among(entry.outputs)
            row["labels"] = str(out / labels) if labels else None
        row["total_brain_mm3"] = result.total_brain_mm3
        row.update(result.measures_mm3)
        row.update(result.volumes_mm3)
        rows.append(row)
    if not rows:
        columns = ["scan", "status", "grade", "reason", "labels", "total_brain_mm3"]
        if out is None:
            columns.remove("labels")
        return pd.DataFrame(columns=columns)
    return pd.DataFrame(rows)
