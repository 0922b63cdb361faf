"""Which of a run's slices each view has: views take turns, slice by slice."""

from __future__ import annotations

from collections.abc import Sequence

from trinat.segmentation.space.views import View


def deal_to_views(
    first: int, count: int, views: Sequence[View]
) -> list[tuple[View, int, int]]:
    """Slices first..first+count-1 of a run, dealt to the views in turn.

    Returns, for each view that gets any, the number of its first slice, counted in that view, and
    how many. Over a few steps all views get the same, whatever the batch.
    """
    groups = []
    for place, view in enumerate(views):
        before = _dealt_before(first, place, len(views))
        after = _dealt_before(first + count, place, len(views))
        if after > before:
            groups.append((view, before, after - before))
    return groups


def _dealt_before(number: int, place: int, views: int) -> int:
    """How many of a run's slices before `number` the view at `place` has had.

    They are those whose number leaves the remainder `place` when divided by the number of views.
    """
    return (number - place + views - 1) // views
