"""Base of the transforms in a recipe: a name, a share of slices, and a builder."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Le
from pydantic import AfterValidator, BaseModel, ConfigDict
from torch import Tensor

# Called with image (C, H, W) float32, labels (H, W) of any integer type, and a seed; returns
# both changed, in the same shapes. The seed determines the result.
SliceChange = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]


def rising(ends: tuple[float, float]) -> tuple[float, float]:
    """Return a range unchanged; raise ValueError if its first end is larger than its second."""
    if ends[0] > ends[1]:
        raise ValueError("the first number of a range is the smaller one")
    return ends


Finite = Annotated[float, Ge(-100), Le(100)]
Positive = Annotated[float, Ge(0), Le(1000)]
Fraction = Annotated[float, Ge(0), Le(0.9)]
Count = Annotated[int, Ge(1), Le(100)]
AtLeastThree = Annotated[int, Ge(3), Le(100)]
Factor = Annotated[float, Ge(0.1), Le(10)]
Coarseness = Annotated[float, Ge(1), Le(10)]
Share = Annotated[float, Ge(0), Le(1)]

Range = Annotated[tuple[Finite, Finite], AfterValidator(rising)]
PositiveRange = Annotated[tuple[Positive, Positive], AfterValidator(rising)]
Shares = Annotated[tuple[Share, Share], AfterValidator(rising)]
Counts = Annotated[tuple[Count, Count], AfterValidator(rising)]
ControlPoints = Annotated[tuple[AtLeastThree, AtLeastThree], AfterValidator(rising)]
Factors = Annotated[tuple[Factor, Factor], AfterValidator(rising)]
Coarsenings = Annotated[tuple[Coarseness, Coarseness], AfterValidator(rising)]


class SliceTransform(BaseModel):
    """Random transform of a slice; its neighbours, the other channels, change in the same way.

    Parameters have the names and meanings of the library; lengths are in pixels.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    library: ClassVar[str]
    # True if the transform moves voxels; the labels are then moved, too.
    moves: ClassVar[bool] = False

    name: str  # name of the library's class
    share: Share  # fraction of slices that are changed

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for the library's class.

        By default these are the settings under their own names.
        """
        return self.model_dump(exclude={"name", "share"})

    @abstractmethod
    def build(self) -> SliceChange:
        """Import the library, and return a function that applies the transform to one slice."""
