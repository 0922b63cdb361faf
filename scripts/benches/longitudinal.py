"""Simulated and repeated scans with known changes, to validate predict --longitudinal.

    scripts/bench longitudinal sessions SUBJECTS_DIR OUT hippocampus
    trinat predict OUT --longitudinal --sessions OUT/sessions.tsv --out RESULT
    scripts/bench longitudinal found OUT RESULT

`sessions` writes five scans of each head of a SUBJECTS_DIR: two without change, and three in
which the hippocampus, the ventricles or the cortex changed by 1, 2 and 3 %. Each scan has its
own rotation, shift, shading and noise. `sessions SUBJECTS_DIR OUT cortex 2 0,0,2` writes three
scans of each of the first two heads, with these changes; `... cortex 2 0,0 1,1.2` writes two of
each, the second with voxels of 1.2 mm. `found` compares the true changes with those that were
found.

For people who were scanned twice, with one output or more (for example with and without
--longitudinal):

    scripts/bench longitudinal retest TABLE OUTPUT ...

TABLE is the table given to --sessions. It prints the mean absolute difference in per cent of
each structure, and of each parcel where an output has parcels. The measurement noise that the
page of changes shows is written from an output with --longitudinal by

    scripts/bench longitudinal noise TABLE OUTPUT > configs/retest/MODEL.tsv

The ICC of each structure with its 95 % interval, from the first two scans of each participant in
several outputs with --longitudinal:

    scripts/bench longitudinal icc OUTPUT ...
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from benches._sessions import Protocol, deformation, session
from trinat.pipelines.study.record import FURTHER, unit_of
from trinat.segmentation.data.sources.freesurfer import find_image, find_labels
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.metrics.statistics import icc_2_1, mean_squares
from trinat.segmentation.space.conform import conform

# By FreeSurfer number, the sign of the change: tissue is lost, fluid is gained.
_STRUCTURES = {
    "hippocampus": ((17, 53), -1),
    "ventricles": ((4, 43), 1),
    "cortex": ((3, 42), -1),
}
_NAMES = {
    "hippocampus": ("Left-Hippocampus", "Right-Hippocampus"),
    "ventricles": ("Left-Lateral-Ventricle", "Right-Lateral-Ventricle"),
    "cortex": ("Left-Cerebral-Cortex", "Right-Cerebral-Cortex"),
}
_PERCENTS = "0,0,1,2,3"
_TABLE = "sessions.tsv"


def run(what: str = "", *arguments: str) -> None:
    commands: dict[str, Callable[..., None]] = {
        "sessions": _write_sessions,
        "found": _print_found,
        "retest": _print_retest,
        "noise": _print_noise,
        "icc": _print_icc,
    }
    if what not in commands:
        raise SystemExit(f"say {', '.join(commands)}")
    commands[what](*arguments)


def _write_sessions(
    subjects_dir: str,
    out: str,
    structure: str,
    most: str = "9",
    percents: str = _PERCENTS,
    voxels_mm: str = "1",
) -> None:
    numbers, sign = _STRUCTURES[structure]
    changes = [float(percent) for percent in percents.split(",")]
    sizes = [float(size) for size in voxels_mm.split(",")]
    folder = Path(out)
    folder.mkdir(parents=True)
    rows = []
    mris = sorted(path.parent for path in Path(subjects_dir).glob("*/mri/aseg.mgz"))
    for seed, mri in enumerate(mris[: int(most)]):
        image = find_image(mri.parent, "T1")
        labels = find_labels(mri.parent, "aseg")
        if image is None or labels is None:
            print(f"{mri}: no T1.mgz, left out")
            continue
        conformed = conform(Volume.read(image), shape=None)
        truth = Volume.read(labels, labels=True)
        truth = conform(truth, labels=True, plan=conformed.plan).volume
        draw = np.random.default_rng(seed)
        for number, percent in enumerate(changes, start=1):
            field = None
            if percent:
                inside = np.isin(truth.data, numbers)
                field = deformation(inside, sign * percent / 100)
            name = f"{mri.parent.name}_MR{number}.nii.gz"
            # Voxel sizes are used in rotation.
            size = sizes[(number - 1) % len(sizes)]
            protocol = Protocol(spacing_mm=(size, size, size))
            session(conformed.volume, field, protocol, draw).write(folder / name)
            change = sign * percent if percent else 0.0
            rows.append((name, mri.parent.name, number, change, structure))
            print(folder / name, flush=True)
    columns = ["scan", "participant", "date", "percent", "structure"]
    frame = pd.DataFrame(rows, columns=columns)
    frame.to_csv(folder / _TABLE, sep="\t", index=False)


def _print_found(out: str, result: str) -> None:
    table = pd.read_csv(Path(out) / _TABLE, sep="\t")
    points = _volumes(Path(result))
    for participant, sessions in table.groupby("participant"):
        for name in _NAMES[sessions["structure"].iloc[0]]:
            cases = sessions["scan"].str.removesuffix(".nii.gz")
            volumes = points[name].loc[list(cases)].to_numpy()
            found = 100 * (volumes / volumes[0] - 1)
            slope = slope_of(sessions["percent"].to_numpy(float), found)
            text = " ".join(f"{value:+.2f}" for value in found)
            print(f"{participant} {name}: {text}, slope {slope:.2f}")


def slope_of(true: np.ndarray, found: np.ndarray) -> float:
    """Return the slope of the least-squares line of found changes over true changes."""
    return float(np.polyfit(true, found, 1)[0])


def _print_retest(table: str, *outputs: str) -> None:
    participants = pd.read_csv(table, sep="\t", dtype={"scan": str})
    found = {
        output: differences(participants, _volumes(Path(output))) for output in outputs
    }
    for output, all_structures in found.items():
        frame = all_structures.drop(index="CSF", errors="ignore")
        both = frame.loc[["Left-Hippocampus", "Right-Hippocampus"]]
        print(
            f"{output}: {len(frame)} structures, mean {frame['mean'].mean():.2f} %, "
            f"hippocampus {both['mean'].mean():.2f} %, "
            f"median {frame['mean'].median():.2f} %, largest {frame['mean'].max():.2f} %"
        )
    for output in outputs:
        path = Path(output) / "parcels.tsv"
        if path.exists():
            means = differences(participants, _parcels(path))["mean"]
            print(
                f"{output}: {len(means)} parcels, mean {means.mean():.2f} %, median "
                f"{means.median():.2f} %, largest {means.max():.2f} % {means.idxmax()}"
            )
    print(pd.concat(found, axis=1).round(3).to_string())


def _print_noise(table: str, output: str) -> None:
    participants = pd.read_csv(table, sep="\t", dtype={"scan": str})
    tables = [_volumes(Path(output)), *_further(Path(output))]
    frame = pd.concat([differences(participants, each) for each in tables])
    count = participants["participant"].nunique()
    print("structure\tsd_percent\tfreedom")
    for name, sd, freedom in pooled(frame["sd"], count):
        print(f"{name}\t{sd:.3f}\t{freedom}")


def _print_icc(*outputs: str) -> None:
    pairs = []
    for output in outputs:
        path = Path(output) / "timepoints.tsv"
        # Read case names as text, also where all of them are digits.
        points = pd.read_csv(path, sep="\t", dtype={"case": str})
        volumes = _volumes(Path(output))
        for _, of_participant in points.groupby("participant"):
            cases = of_participant["case"].iloc[:2]
            pairs.append(volumes.loc[cases])
    print(f"{len(pairs)} participants")
    print("structure\ticc\tlow\thigh")
    for name in pairs[0]:
        measured = np.stack([pair[name].to_numpy() for pair in pairs])
        low, high = icc_interval(measured)
        print(f"{name}\t{icc_2_1(measured):.3f}\t{low:.3f}\t{high:.3f}")


def icc_interval(measured: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of `icc_2_1` of measurements (P, raters).

    Follows McGraw and Wong (1996, table 7, ICC(A,1)). No value may be NaN.
    """
    n, k = measured.shape
    of_participants, of_raters, of_rest = mean_squares(measured)
    icc = icc_2_1(measured)
    # Both are n (1 - icc) times the paper's a and b, which leaves the degrees of freedom
    # unchanged.
    a = k * icc * of_raters
    b = (n * (1 - icc) + k * icc * (n - 1)) * of_rest
    freedom = (a + b) ** 2 / (a**2 / (k - 1) + b**2 / ((n - 1) * (k - 1)))
    noise = k * of_raters + (k * n - k - n) * of_rest
    upper_f = stats.f.ppf(0.975, n - 1, freedom)
    lower_f = stats.f.ppf(0.975, freedom, n - 1)
    low = (
        n
        * (of_participants - upper_f * of_rest)
        / (upper_f * noise + n * of_participants)
    )
    high = (
        n
        * (lower_f * of_participants - of_rest)
        / (noise + n * lower_f * of_participants)
    )
    return float(low), float(high)


def pooled(sds: pd.Series, participants: int) -> list[tuple[str, float, int]]:
    """Return (structure, SD pooled over both sides, number of differences) for each structure."""
    rows = []
    for name in sds.index:
        sides = []
        for left, right in (("Left-", "Right-"), ("lh_", "rh_")):
            plain = str(name).removeprefix(left).removeprefix(right)
            if plain != name:
                sides = [side for side in (left + plain, right + plain) if side in sds]
        values = sds[sides or [name]]
        sd = float(np.sqrt((values**2).mean()))
        rows.append((str(name), sd, participants * len(values)))
    return rows


def _volumes(output: Path) -> pd.DataFrame:
    """Return volumes by case: from the table of changes if there is one, else of the label maps."""
    path = output / "timepoints.tsv"
    if not path.exists():
        path = output / "volumes.tsv"
    # Read case names as text, also where all of them are digits.
    frame = pd.read_csv(path, sep="\t", dtype={"case": str}).set_index("case")
    volumes = frame.rename(columns=lambda name: name.removesuffix("_mm3"))
    names = load_scheme("quicknat33").names[1:]
    return volumes[[name for name in names if name in volumes]]


def _further(output: Path) -> list[pd.DataFrame]:
    """Return the columns of each further output by case, such as the thickness of parcels."""
    tables = []
    for name in FURTHER:
        path = output / f"{name}.tsv"
        if path.exists():
            frame = pd.read_csv(path, sep="\t", dtype={"case": str}).set_index("case")
            # Profiles have numbered columns, and no changes.
            columns = [
                column
                for column in map(str, frame)
                if unit_of(column) and not re.search(r"_\d\d_mm$", column)
            ]
            tables.append(frame[columns])
    return tables


def _parcels(path: Path) -> pd.DataFrame:
    """Return the volumes of parcels by case."""
    table = pd.read_csv(path, sep="\t", dtype={"case": str})
    return table.pivot(index="case", columns="parcel", values="mm3")


def differences(participants: pd.DataFrame, volumes: pd.DataFrame) -> pd.DataFrame:
    """Return by structure the mean |difference| in %, SD and ICC of the first two scans.

    The SD is that of differences whose mean is taken as 0.
    """
    pairs = []
    for _, sessions in participants.groupby("participant"):
        cases = sessions["scan"].str.removesuffix(".nii.gz").iloc[:2]
        pairs.append(volumes.loc[list(cases)].to_numpy())
    measured = np.stack(pairs)
    first, second = measured[:, 0], measured[:, 1]
    percents = 200 * (second - first) / (second + first)
    return pd.DataFrame(
        {
            "mean": np.abs(percents).mean(axis=0),
            "sd": np.sqrt((percents**2).mean(axis=0)),
            "icc": [
                icc_2_1(of_structure) for of_structure in np.moveaxis(measured, 2, 0)
            ],
        },
        index=volumes.columns,
    )
