"""The picture of a case: what is shown, and what must be hidden."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from trinat.pipelines.report.case_view import CaseView, view_case, view_result
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme

AFFINE = np.diag([-1.0, 1.0, 1.0, 1.0])  # the first axis increases to the left


@pytest.fixture(scope="module")
def scheme() -> LabelScheme:
    return load_scheme("quicknat33")


def head() -> tuple[Volume, Volume, Volume]:
    """Return a truth, a prediction (one structure too far), and a scan with a bright face."""
    truth = np.zeros((40, 48, 36), np.uint8)
    truth[12:28, 8:26, 10:26] = 13
    prediction = truth.copy()
    prediction[14:18, 26:29, 12:16] = 9
    scan = np.where(truth > 0, 500, 100).astype(np.int16)
    scan[:, 40:, :] = 999
    return Volume(truth, AFFINE), Volume(prediction, AFFINE), Volume(scan, AFFINE)


def unpacked(view: CaseView, uri: str) -> np.ndarray:
    """Return the volume (X, Y, Z) that the page's script makes of a picture."""
    picture = np.asarray(
        Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("L")
    )
    x, y, z = view.shape
    tiles = picture.reshape(-1, y, view.columns, x).swapaxes(1, 2).reshape(-1, y, x)
    return tiles[:z].transpose(2, 1, 0)


def test_labels_survive_the_picture(scheme: LabelScheme) -> None:
    truth, prediction, _ = head()
    view = view_case(truth, prediction, scheme)
    for volume, uri in ((truth, view.truth), (prediction, view.prediction)):
        shown = unpacked(view, uri)
        assert np.count_nonzero(shown) == np.count_nonzero(volume.data)
        assert set(np.unique(shown)) == set(np.unique(volume.data))


def test_the_persons_right_is_at_the_high_end(scheme: LabelScheme) -> None:
    truth = np.zeros((20, 20, 20), np.uint8)
    truth[2:6, 5:15, 5:15] = (
        26  # low voxel index: the right, as the first axis increases to the left
    )
    truth[12:16, 5:15, 5:15] = 8
    view = view_case(Volume(truth, AFFINE), Volume(truth, AFFINE), scheme)
    shown = unpacked(view, view.truth)
    assert np.argwhere(shown == 26)[:, 0].min() > np.argwhere(shown == 8)[:, 0].max()


def test_the_first_slices_pass_through_the_errors(scheme: LabelScheme) -> None:
    truth, prediction, _ = head()
    view = view_case(truth, prediction, scheme, focus=9)
    wrong = unpacked(view, view.truth) != unpacked(view, view.prediction)
    for axis in range(3):
        assert wrong.take(view.start[axis], axis).any()


def test_the_face_is_black_unless_asked_for(scheme: LabelScheme) -> None:
    truth, prediction, scan = head()
    hidden = view_case(truth, prediction, scheme, image=scan)
    whole = view_case(truth, prediction, scheme, image=scan, show_head=True)
    gray = unpacked(hidden, hidden.gray)
    assert hidden.shape[1] < whole.shape[1]
    assert gray.max() < 245
    assert unpacked(whole, whole.gray)[:, -4:].min() > 245
    # Black from 6 mm in front of the truth, though the prediction reaches farther.
    behind_front = np.flatnonzero(unpacked(hidden, hidden.truth).any((0, 2))).max()
    assert gray[:, behind_front + 8 :].max(initial=0) < 20
    assert gray[:, behind_front + 3].max() > 40


def test_a_coarse_grid_is_shown_in_millimetres(scheme: LabelScheme) -> None:
    truth = np.zeros((10, 12, 8), np.uint8)
    truth[3:7, 4:8, 3:5] = 13
    affine = np.diag([1.0, 1.0, 4.0, 1.0])
    view = view_case(Volume(truth, affine), Volume(truth, affine), scheme)
    shown = unpacked(view, view.truth)
    assert np.count_nonzero(shown) == np.count_nonzero(truth) * 4


def test_equal_maps_and_empty_ones_can_be_shown(scheme: LabelScheme) -> None:
    truth, _, _ = head()
    assert view_case(truth, truth, scheme).start
    empty = Volume(np.zeros((8, 8, 8), np.uint8), AFFINE)
    assert view_case(empty, empty, scheme).shape == (8, 8, 8)


def test_a_result_is_shown_without_its_face_first_where_the_focus_is() -> None:
    _, prediction, scan = head()
    labels = Volume(prediction.data, np.eye(4))
    scheme = load_scheme("quicknat33")
    view = view_result(Volume(scan.data, np.eye(4)), labels, scheme, focus=9)
    shown, gray = unpacked(view, view.prediction), unpacked(view, view.gray)
    for axis in range(3):
        assert (shown == 9).any(tuple({0, 1, 2} - {axis}))[view.start[axis]]
    assert np.count_nonzero(shown == 9) == np.count_nonzero(prediction.data == 9)
    # The face is 11 mm in front of the brain, of which 8 mm are in the box.
    assert gray[shown == 13].min() > 150
    behind_front = np.flatnonzero((shown > 0).any((0, 2))).max()
    assert gray[:, behind_front + 8 :].max(initial=0) < 20


def test_what_is_not_compared_is_no_error(scheme: LabelScheme) -> None:
    """A structure that the truth defines differently is no error, nor the place to start at."""
    truth, prediction, scan = head()
    plain = view_case(truth, prediction, scheme, image=scan, show_head=True)
    view = view_case(
        truth, prediction, scheme, image=scan, show_head=True, not_compared=[9]
    )
    assert view.not_compared == (9,)

    def errors_of(shown: CaseView) -> set[tuple[int, ...]]:
        """Return the colours in the lowest third of the still picture, which shows the errors."""
        with Image.open(io.BytesIO(shown.still_png)) as still:
            pixels = np.asarray(still.convert("RGB"))
        lowest = pixels[2 * len(pixels) // 3 :]
        colored = lowest.max(2).astype(int) - lowest.min(2) > 40
        return set(map(tuple, lowest[colored]))

    assert errors_of(plain)
    assert not errors_of(view)
    # Without an error the view starts in the middle.
    assert view.start == (20, 24, 18)
