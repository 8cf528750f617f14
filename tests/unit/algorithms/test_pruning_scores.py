"""Slices, scores and densities, by hand and by brute force."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from antiphon.algorithms.pruning_scores import (
    Adaptive,
    AdaptiveGrowth,
    ByMomentum,
    ByProduct,
    ByWeight,
    Unified,
    choose,
    keep_best,
    mean_sizes,
    num_kept,
    solve_densities,
)
from antiphon.algorithms.pruning_slices import HalfColumn, HalfRow, WholeColumn, WholeRow, cut, remaining
from antiphon.tasks.prunable_layers import EmbeddingLayer, Layer, LinearLayer, RecurrentLayer
from antiphon.tasks.submodel import Submodel, masked

PAIR: tuple[Layer, ...] = (LinearLayer("first", 3, 2, feeds="second"), LinearLayer("second", 2, 3))


def ones(layers: tuple[Layer, ...]) -> dict[str, torch.Tensor]:
    return {
        f"{layer.name}.weight": torch.ones(layer.num_outputs, layer.num_inputs)
        for layer in layers
        if isinstance(layer, LinearLayer)
    }


def mask_of(structure: tuple[Layer, ...], pattern, chosen: list[list[int]]) -> dict[str, list[list[float]]]:  # type: ignore[no-untyped-def]
    """Zeros and ones where slices are chosen by hand: lists of those kept, in the order of `cut`."""
    slices = cut(structure, pattern)
    kept = []
    for own, numbers in zip(slices, chosen, strict=True):
        kept.append(torch.zeros(own.size, dtype=torch.bool))
        kept[-1][numbers] = True
    return {
        n: m.tolist() for n, m in masked(ones(structure), remaining(slices, kept).submodel(structure)).items()
    }


def test_a_column_that_goes_takes_the_row_behind_it_along() -> None:
    found = mask_of(PAIR, WholeColumn(), [[0, 2], [1]])
    assert found["first.weight"] == [[1, 1], [0, 0], [1, 1]]  # outputs below each other
    assert found["second.weight"] == [[0, 0, 0], [1, 0, 1]]


def test_a_row_that_goes_takes_the_column_before_it_along() -> None:
    found = mask_of(PAIR, WholeRow(), [[1], [0, 1]])
    assert found["first.weight"] == [[0, 1], [0, 1], [0, 0]]
    assert found["second.weight"] == [[1, 1, 0], [1, 1, 0]]


def test_half_a_column_is_from_half_of_the_inputs() -> None:
    structure: tuple[Layer, ...] = (LinearLayer("a", 2, 4),)
    assert mask_of(structure, HalfColumn(), [[0], [1]])["a.weight"] == [[1, 1, 0, 0], [0, 0, 1, 1]]


def test_half_a_row_is_to_half_of_the_outputs() -> None:
    structure: tuple[Layer, ...] = (LinearLayer("a", 4, 2),)
    assert mask_of(structure, HalfRow(), [[0], [1]])["a.weight"] == [[1, 0], [1, 0], [0, 1], [0, 1]]


def test_a_hidden_unit_lives_while_half_of_its_column_does() -> None:
    found = mask_of(PAIR, HalfColumn(), [[0], [0, 1], [0, 1], [0, 1]])
    assert found["first.weight"] == [[1, 1], [0, 1], [0, 0]]
    assert found["second.weight"] == [[1, 1, 0], [1, 1, 0]]


def test_matrices_in_one_tensor_are_ranked_apart() -> None:
    structure: tuple[Layer, ...] = (LinearLayer("qkv", 6, 2, num_matrices=3),)
    slices = cut(structure, WholeColumn())
    params = {"qkv.weight": torch.arange(12.0).view(6, 2)}
    kept = choose(slices, params, {}, ByWeight(), Unified(), 0.5)
    assert [mask.tolist() for mask in kept] == [[False, True]] * 3
    assert len(remaining(slices, kept).submodel(structure).layers["qkv"].blocks) == 1  # type: ignore[union-attr]
    rows = cut(structure, WholeRow())
    assert (
        len(
            remaining(rows, [torch.tensor(m) for m in ([True, False], [False, True], [True, False])])
            .submodel(structure)
            .layers["qkv"]
            .blocks
        )
        == 2
    )  # type: ignore[union-attr]


def test_scores_by_hand() -> None:
    (slices,) = cut((LinearLayer("a", 2, 2),), WholeColumn())
    params = {"a.weight": torch.tensor([[3.0, -4.0], [1.0, 1.0]])}
    momentum = {"a.weight": torch.tensor([[0.0, 1.0], [2.0, -2.0]])}
    assert ByWeight()(slices, params, {}).tolist() == [7.0, 2.0]
    assert ByWeight(2)(slices, params, {}).tolist() == pytest.approx([5.0, 2.0**0.5])
    assert ByMomentum()(slices, params, momentum).tolist() == [1.0, 4.0]
    assert ByProduct()(slices, params, momentum).tolist() == [4.0, 4.0]
    assert ByProduct(2)(slices, params, momentum).tolist() == pytest.approx([4.0, 8.0**0.5])
    (rows,) = cut((LinearLayer("a", 2, 2),), WholeRow())
    assert ByWeight()(rows, params, {}).tolist() == [4.0, 5.0]
    with pytest.raises(ValueError, match="norm must be 1 or 2, not 3"):
        ByWeight(3)


def test_an_lstm_s_unit_is_scored_by_all_its_gates() -> None:
    (slices,) = cut((RecurrentLayer("lstm", 2, 3),), HalfRow())
    torch.manual_seed(0)
    params = {"lstm.weight_ih_l0": torch.randn(8, 3), "lstm.weight_hh_l0": torch.randn(8, 2)}
    expected = [
        sum(float(params[f"lstm.weight_{kind}_l0"][unit::2].abs().sum()) for kind in ("ih", "hh"))
        for unit in (0, 1)
    ]
    assert ByWeight()(slices, params, {}).tolist() == pytest.approx(expected)
    assert slices.num_weights == 8 * 5


def test_an_embedding_has_columns_and_no_rows() -> None:
    (slices,) = cut((EmbeddingLayer("e", 4, 2),), WholeColumn())
    weights = torch.tensor([[1.0, 2.0]] * 4)
    assert ByWeight()(slices, {"e.weight": weights}, {}).tolist() == [4.0, 8.0]
    with pytest.raises(ValueError, match="e: a row of an embedding is a token"):
        cut((EmbeddingLayer("e", 4, 2),), WholeRow())


def test_the_best_are_kept_and_of_equal_ones_the_first() -> None:
    assert keep_best(torch.tensor([1.0, 3.0, 1.0, 2.0]), 3).tolist() == [True, True, False, True]


def test_a_unit_of_an_lstm_is_not_heard_by_the_next_layer() -> None:
    structure: tuple[Layer, ...] = (
        RecurrentLayer("f", 2, 3),
        RecurrentLayer("b", 2, 3),
        RecurrentLayer("next", 2, 4, hears=("f", "b")),
    )
    kept = remaining(
        cut(structure[:2], WholeColumn()), [torch.tensor([True, False]), torch.tensor([False, True])]
    )
    found = kept.submodel(structure)
    assert found == Submodel.read(found.write())
    assert found.layers["next"].inputs == "4:90"  # type: ignore[union-attr]  # 1001: b's units come after f's


sizes = st.lists(st.tuples(st.floats(0.01, 10.0), st.integers(1, 1000)), min_size=1, max_size=8)


@given(sizes, st.floats(0.05, 1.0))
def test_densities_keep_what_was_asked_in_proportion_to_the_means(
    matrices: list[tuple[float, int]], density: float
) -> None:
    means, counts = [m for m, _ in matrices], [n for _, n in matrices]
    found = solve_densities(means, counts, density)
    assert sum(d * n for d, n in zip(found, counts, strict=True)) == pytest.approx(density * sum(counts))
    low, high = 0.0, 1e6  # the same c by bisection
    for _ in range(200):
        middle = (low + high) / 2
        total = sum(min(1.0, middle * m) * n for m, n in matrices)
        low, high = (middle, high) if total < density * sum(counts) else (low, middle)
    assert found == pytest.approx([min(1.0, low * m) for m in means], rel=1e-6, abs=1e-9)


def test_adaptive_sparsity_leaves_every_matrix_something() -> None:
    structure: tuple[Layer, ...] = (LinearLayer("a", 4, 2), LinearLayer("b", 4, 2))
    params = {"a.weight": torch.full((4, 2), 1e-9), "b.weight": torch.ones(4, 2)}
    kept = choose(cut(structure, WholeColumn()), params, {}, ByWeight(), Adaptive(), 0.5)
    assert [int(mask.sum()) for mask in kept] == [1, 4]


def test_a_layer_may_be_a_block_whose_matrices_all_keep_the_same_share() -> None:
    """By hand: means 2 and 0.5 over all weights of each block, of 32 and 48 weights; half of 80 is kept."""
    layers: tuple[Layer, ...] = (
        LinearLayer("encoder.layers.0.first", 4, 4),
        LinearLayer("encoder.layers.0.attention.query_key_value", 4, 4, num_matrices=2),
        LinearLayer("encoder.layers.1.first", 8, 4),
        LinearLayer("encoder.layers.1.second", 8, 2),
    )
    slices = cut(layers, WholeColumn())
    assert [s.block for s in slices] == ["encoder.layers.0"] * 3 + ["encoder.layers.1"] * 2
    two_matrices = torch.tensor([1.0, 5.0]).repeat_interleave(8).view(4, 4)
    params = {
        "encoder.layers.0.first.weight": torch.full((4, 4), -1.0),
        "encoder.layers.0.attention.query_key_value.weight": two_matrices,
        "encoder.layers.1.first.weight": torch.full((8, 4), 0.25),
        "encoder.layers.1.second.weight": torch.full((8, 2), -1.0),
    }
    # c (2 · 32 + 0.5 · 48) = 40, so c = 5/11: densities 10/11 and 5/22.
    by_block = Adaptive(by_block=True).densities(slices, params, 0.5)
    assert by_block == pytest.approx([10 / 11] * 3 + [5 / 22] * 2)
    # Matrix by matrix: means 1, 1, 5, 0.25, 1. The largest keeps all 8 weights, the others share 32.
    # c (16 + 8 + 0.25 · 32 + 16) = 32, so c = 2/3.
    assert Adaptive().densities(slices, params, 0.5) == pytest.approx([2 / 3, 2 / 3, 1.0, 1 / 6, 2 / 3])
    # A block that would keep more than all of it keeps all: 32 of 64, and the other 32 of its 48.
    assert Adaptive(by_block=True).densities(slices, params, 0.2) == pytest.approx([1.0] * 3 + [2 / 3] * 2)


def test_a_layer_without_a_number_is_a_block_of_its_own() -> None:
    layers: tuple[Layer, ...] = (LinearLayer("from_encoder", 4, 4), RecurrentLayer("cells.1", 4, 4))
    assert [s.block for s in cut(layers, WholeColumn())] == ["from_encoder", "cells.1"]


def test_growth_does_not_count_how_small_weights_were_drawn() -> None:
    layers: tuple[Layer, ...] = (LinearLayer("wide", 8, 16), LinearLayer("narrow", 32, 4))
    slices = cut(layers, WholeColumn())
    # Drawn up to 1/4 and 1/2, so 1/8 and 1/4 in the mean; grown to twice and to three times that.
    params = {"wide.weight": torch.full((8, 16), 0.25), "narrow.weight": torch.full((32, 4), -0.75)}
    assert AdaptiveGrowth().densities(slices, params, 0.5) == pytest.approx([0.4, 0.6])
    assert Adaptive().densities(slices, params, 0.5) == pytest.approx([0.25, 0.75])


@pytest.mark.parametrize(
    ("layer", "module"),
    [
        (LinearLayer("layer", 400, 300), nn.Linear(300, 400)),
        (RecurrentLayer("layer", 200, 300), nn.LSTM(300, 200)),
        (EmbeddingLayer("layer", 400, 300), nn.Embedding(400, 300)),
    ],
    ids=["linear", "lstm", "embedding"],
)
def test_weights_are_drawn_as_large_as_torch_draws_them(layer: Layer, module: nn.Module) -> None:
    (slices,) = cut((layer,), WholeColumn())
    params = {f"layer.{name}": p.detach() for name, p in module.named_parameters()}
    assert mean_sizes([slices], params) == pytest.approx([slices.drawn], rel=0.02)


def test_a_matrix_that_would_lose_everything_is_refused_by_name() -> None:
    (slices,) = cut((LinearLayer("tiny", 2, 8),), WholeColumn())
    with pytest.raises(ValueError, match=r"tiny would lose every unit \(2 of 2\)"):
        num_kept(slices, 0.1)
    assert num_kept(slices, 0.5) == 1


@given(st.integers(1, 600), st.floats(0.01, 1.0), st.sampled_from([1, 8, 16]))
def test_units_come_in_the_multiple_that_is_nearest(size: int, density: float, multiple: int) -> None:
    (slices,) = cut((LinearLayer("any", size, 2),), WholeColumn())
    wanted = size - round((1 - density) * size)
    if wanted == 0:
        return
    found = num_kept(slices, density, multiple)
    assert found == size or found % multiple == 0
    assert abs(found - wanted) <= multiple / 2 or found == min(multiple, size)
    assert multiple > 1 or found == wanted
