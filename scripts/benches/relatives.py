"""Share of false positives of the comparison of groups if participants are relatives.

`scripts/bench relatives [STUDIES]` prints the table of docs/notes/statistics.md. Studies without an
effect are compared by the model of `trinat report`, with the families and as if all participants
were independent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from trinat.pipelines.report.group_model import Coding
from trinat.segmentation.metrics.linear_model import Estimate, LinearModel

_STRUCTURES = 32
_SIGNIFICANT = 0.05


@dataclass(frozen=True)
class _Cell:
    """Families of one size: their number, their patients' share, and the correlation of members.

    With `within`, the members of a family are patients and controls in turn. With `weighted`,
    participants have random weights, as changes over time have.
    """

    families: int
    members: int
    correlation: float
    patients: float = 0.5
    within: bool = False
    weighted: bool = False

    @property
    def name(self) -> str:
        """Cell of the printed table."""
        name = f"{self.families} x {self.members}"
        if self.within:
            name += ", both groups in each family"
        elif self.patients != 0.5:
            name += f", {self.patients:.0%} of the families patients"
        if self.weighted:
            name += ", weighted"
        return name

    def draw(self, draw: np.random.Generator) -> tuple[pd.DataFrame, np.ndarray]:
        """Return a study without an effect: participants, and their values of all structures."""
        family = np.repeat(np.arange(self.families), self.members)
        count = len(family)
        is_patient = draw.permutation(self.families) < self.patients * self.families
        is_patient = is_patient[family]
        if self.within:
            is_patient = np.arange(count) % 2 == 0
        facts = pd.DataFrame(
            {
                "family": family,
                "group": np.where(is_patient, "patient", "control"),
                "sex": draw.choice(["F", "M"], count),
                "age": draw.uniform(20, 60, self.families)[family],
            }
        )
        if self.weighted:
            facts["weight"] = draw.uniform(0.2, 1, count)
        shared = draw.normal(size=(_STRUCTURES, self.families))[:, family]
        own = draw.normal(size=(_STRUCTURES, count))
        values = np.sqrt(self.correlation) * shared
        values += np.sqrt(1 - self.correlation) * own
        return facts, 4000 + 400 * values


_CELLS = (
    _Cell(20, 2, 0.0),
    _Cell(20, 2, 0.5),
    _Cell(20, 2, 0.8),
    _Cell(20, 4, 0.5),
    _Cell(8, 2, 0.5),
    _Cell(20, 2, 0.8, patients=0.2),
    _Cell(20, 2, 0.5, within=True),
    _Cell(20, 2, 0.5, weighted=True),
)


def run(studies: str = "200") -> None:
    """Print a row for each cell: percentages of p below 0.05, and mean degrees of freedom."""
    print("| families x members | correlation | independent | by family | df |")
    print("|---|---|---|---|---|")
    for cell in _CELLS:
        alone = []
        clustered = []
        for seed in range(int(studies)):
            participants, values = cell.draw(np.random.default_rng(seed))
            independent = participants.assign(family=range(len(participants)))
            alone += _differences(independent, values)
            clustered += _differences(participants, values)
        shares = [
            f"{np.mean([found.p < _SIGNIFICANT for found in estimates]):.1%}"
            for estimates in (alone, clustered)
        ]
        freedom = np.mean([found.freedom for found in clustered])
        print(
            f"| {cell.name} | {cell.correlation} | {shares[0]} | {shares[1]} | {freedom:.1f} |",
            flush=True,
        )


def _differences(participants: pd.DataFrame, values: np.ndarray) -> list[Estimate]:
    """Return the difference between controls and patients in each structure."""
    coding = Coding(participants, ["group", "age", "sex"])
    contrast = coding.difference("group", "control", "patient")
    return [
        LinearModel(of_structure, coding.design).estimate(contrast)
        for of_structure in values
    ]
