"""Gradients of stacked clients lie where their parameters lie."""

from __future__ import annotations

import torch

from antiphon.models.gradient_rows import GradientRows, current_gradients, gradients_to


def parts_of(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return rows[:, :6].view(len(rows), 2, 3), rows[:, 8:12]


def test_a_gradient_has_the_place_of_its_parameter() -> None:
    parameters = torch.arange(24.0).view(2, 12)
    places = GradientRows(parameters)
    assert not places.is_used
    for part in parts_of(parameters):
        places.place(part.detach().requires_grad_()).copy_(part)
    assert places.is_used
    for found, part in zip(parts_of(places.rows), parts_of(parameters), strict=True):
        assert torch.equal(found, part)
    assert places.rows.data_ptr() != parameters.data_ptr()


def test_the_second_gradient_of_a_parameter_does_not_overwrite_the_first() -> None:
    parameters = torch.zeros(2, 12)
    places = GradientRows(parameters)
    weight, _ = parts_of(parameters)
    first, second = places.place(weight), places.place(weight)
    first.fill_(1.0)
    second.fill_(2.0)
    assert torch.equal(parts_of(places.rows)[0], torch.ones(2, 2, 3))
    assert torch.equal(second, torch.full((2, 2, 3), 2.0))


def test_parameters_that_lie_elsewhere_get_memory_of_their_own() -> None:
    parameters = torch.zeros(2, 12)
    places = GradientRows(parameters)
    for other in (torch.zeros(2, 3), parameters[:1, :6], torch.zeros(3).expand(2, 3)):
        assert places.place(other).shape == other.shape
    assert not places.is_used


def test_a_forward_pass_finds_the_rows_of_its_context() -> None:
    places = GradientRows(torch.zeros(1, 1))
    with gradients_to(places):
        assert current_gradients() is places
    assert current_gradients() is None
