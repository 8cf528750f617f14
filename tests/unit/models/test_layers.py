from __future__ import annotations

import torch
from torch import nn

from antiphon.models.blstm import open_forget_gates
from antiphon.models.layers import (
    num_stacked,
    reversed_frames,
    rotary_angles,
    rotate,
    stack_frames,
)


def test_stacking_keeps_a_partial_group_filled_with_zeros():
    features = torch.arange(1.0, 11.0).view(1, 5, 2)
    stacked, lengths = stack_frames(features, torch.tensor([4]), stack=3)
    assert stacked.tolist() == [[[1, 2, 3, 4, 5, 6], [7, 8, 0, 0, 0, 0]]]
    assert lengths.tolist() == [2]


def test_stacked_lengths_are_what_num_stacked_says():
    for num_frames in range(1, 9):
        _, lengths = stack_frames(torch.zeros(1, 9, 1), torch.tensor([num_frames]), stack=4)
        assert lengths.item() == num_stacked(num_frames, 4)


def test_reversing_twice_changes_nothing():
    frames = torch.randn(3, 6, 2)
    lengths = torch.tensor([6, 1, 4])
    assert torch.equal(reversed_frames(reversed_frames(frames, lengths), lengths), frames)


def test_products_of_rotated_vectors_depend_on_their_distance_only():
    query, key = torch.randn(2, 6, dtype=torch.float64)
    angles = rotary_angles(20, 6, like=query)
    products = rotate(query.expand(20, 6), *angles) @ rotate(key.expand(20, 6), *angles).T
    for distance in range(-19, 20):
        along = products.diagonal(distance)
        assert (along - along[0]).abs().max() < 1e-12
    assert torch.allclose(products[0, 0], query @ key)
    assert products[0].std() > 1e-3


def test_rotation_keeps_16_bit_values_in_16_bits():
    values = torch.randn(4, 6, dtype=torch.bfloat16)
    assert rotate(values, *rotary_angles(4, 6, like=values)).dtype == torch.bfloat16


def test_forget_gates_start_open():
    lstm = nn.LSTM(3, 2)
    open_forget_gates(lstm)
    assert (lstm.bias_ih_l0 + lstm.bias_hh_l0)[2:4].tolist() == [1.0, 1.0]
    assert (lstm.bias_ih_l0 != 1.0).sum() == 6
