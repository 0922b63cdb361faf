"""Flows between images, and probabilities averaged along them."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from trinat.segmentation.longitudinal.joining import (
    Joining,
    find_flow,
    flows_from,
    inverse_of,
    warped,
)


def ball(radius: float, size: int = 41) -> torch.Tensor:
    """Return a bright ball on dark ground, its edge some voxels wide."""
    axis = torch.arange(size) - size // 2
    x, y, z = torch.meshgrid(axis, axis, axis, indexing="ij")
    distance = (x**2 + y**2 + z**2).sqrt()
    return torch.sigmoid((radius - distance) * 1.5)


def two_classes(inside: torch.Tensor) -> torch.Tensor:
    return torch.stack((1 - inside, inside), -1).half()


def test_a_ball_that_shrinks_draws_its_edge_inwards() -> None:
    flow = find_flow(ball(10.0), ball(9.7))
    # At the edge on the first axis, towards smaller indices; nothing across it.
    assert flow[0, 30, 20, 20] == pytest.approx(-0.3, abs=0.06)
    assert flow[1, 30, 20, 20] == pytest.approx(0, abs=0.01)
    assert flow[0, 10, 20, 20] == pytest.approx(0.3, abs=0.06)


def test_equal_images_have_no_flow() -> None:
    assert find_flow(ball(10.0), ball(10.0)).abs().max() < 1e-5


def test_a_warped_image_is_the_first_one() -> None:
    first, second = ball(10.0), ball(9.5)
    moved = warped(second[None], find_flow(first, second))[0]
    assert (moved - first).abs().mean() < 0.2 * (second - first).abs().mean()


def test_the_inverse_leads_back() -> None:
    flow = find_flow(ball(10.0), ball(9.5))
    there_and_back = inverse_of(flow) + warped(flow, inverse_of(flow))
    assert there_and_back.abs().max() < 0.01


def test_the_template_is_in_the_middle_of_all_flows() -> None:
    flows = flows_from(ball(10.0), [ball(9.8), ball(10.0), ball(10.4)])
    assert torch.stack(flows).sum(0).abs().max() < 1e-5


def test_where_images_agree_scans_get_the_same_probabilities() -> None:
    image = ball(10.0)
    joining = Joining(image, two_classes(ball(10.0)))
    still = torch.zeros(3, *image.shape)
    joining.add(two_classes(ball(10.6)), image, still)
    joining.add(two_classes(ball(9.4)), image, still)
    first, second = joining.of_scan(0), joining.of_scan(1)
    assert torch.equal(first, second)
    # The mean of 10.6, 9.4 and the template's 10.
    inside = (ball(10.6) + ball(9.4) + ball(10.0)) / 3
    assert first[..., 1].float() == pytest.approx(inside, abs=2e-3)


def test_a_template_of_fewer_views_counts_less() -> None:
    image = ball(10.0)
    joining = Joining(image, two_classes(ball(10.0)), weight=0.5)
    joining.add(two_classes(ball(10.6)), image, torch.zeros(3, *image.shape))
    # The template has a third of the total weight of 1.5.
    inside = (ball(10.6) + 0.5 * ball(10.0)) / 1.5
    assert joining.of_scan(0)[..., 1].float() == pytest.approx(inside, abs=2e-3)


def test_volumes_differ_as_images_do() -> None:
    template = ball(10.0)
    images = [ball(10.1), ball(9.9)]
    flows = flows_from(template, images)
    # The networks see no difference at all.
    joining = Joining(template, two_classes(ball(10.0)))
    for image, flow in zip(images, flows, strict=True):
        joining.add(two_classes(ball(10.0)), image, flow)
    volumes = [joining.of_scan(number)[..., 1].float().sum() for number in (0, 1)]
    assert volumes[0] / volumes[1] - 1 == pytest.approx((10.1 / 9.9) ** 3 - 1, rel=0.2)


def test_a_scan_keeps_its_own_answer_where_it_shows_something_else() -> None:
    template = ball(10.0) + 0.01 * torch.rand(41, 41, 41)
    image = template.clone()
    image[16:25, 16:25, 16:25] = 0.1
    own = two_classes(ball(10.0))
    own[16:25, 16:25, 16:25] = torch.tensor((1.0, 0.0)).half()
    joining = Joining(template, two_classes(ball(10.0)))
    still = torch.zeros(3, *image.shape)
    joining.add(own, image, still)
    joining.add(two_classes(ball(10.0)), template, still)
    assert joining.of_scan(0)[20, 20, 20, 1] < 0.05
    assert joining.of_scan(1)[20, 20, 20, 1] > 0.95
    # The kept probabilities can be changed separately: here the two classes change places.
    joining.change_own(lambda kept: kept.copy_(kept.flip(1)))
    assert joining.of_scan(0)[20, 20, 20, 1] > 0.95
    assert joining.of_scan(1)[20, 20, 20, 1] > 0.95


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_scan_that_shows_something_else_takes_no_weight_from_the_others(
    order: tuple[int, ...],
) -> None:
    template = torch.full((32, 32, 32), 0.7) + 0.01 * torch.rand(32, 32, 32)
    other = template.clone()
    other[12:20, 12:20, 12:20] -= 0.5
    scans = [(0.9, template), (0.9, template), (0.1, other)]
    start = two_classes(torch.full_like(template, 0.3))
    joining = Joining(template.clone(), start, weight=0.5)
    for number in order:
        inside, image = scans[number]
        still = torch.zeros(3, *template.shape)
        joining.add(
            two_classes(torch.full_like(template, inside)), image.clone(), still
        )
    # Weights of 0.5 for the template, 1, 1 and 0 for the scans.
    expected = (0.5 * 0.3 + 0.9 + 0.9) / 2.5
    assert float(joining.mean[16, 16, 16, 1]) == pytest.approx(expected, abs=2e-3)
