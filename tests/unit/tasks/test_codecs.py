"""Codecs against their mathematics: expectations over all chances, bounds, and other implementations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from antiphon.tasks.codec import CODECS, Codec, Parts
from antiphon.tasks.codecs.low_rank import LowRank
from antiphon.tasks.codecs.random_projection import RandomProjection, hadamard, lift, project
from antiphon.tasks.codecs.small_floats import SmallFloats
from antiphon.tasks.codecs.stochastic_rounding import StochasticRounding, rounded
from antiphon.tasks.codecs.top_k import TopK

SHAPES = [(), (1,), (7,), (4, 6), (3, 5, 2), (0, 3), (1, 9), (9, 1), (40, 50)]
EVERY: list[Codec] = [
    *(StochasticRounding(bits, bucket) for bits in (2, 3, 4, 8) for bucket in (1, 5, 512)),
    *(TopK(share) for share in (0.01, 0.3, 1.0)),
    *(LowRank(rank) for rank in (1, 2, 100)),
    *(RandomProjection(share) for share in (0.1, 1.0)),
    *(SmallFloats(exponent, mantissa) for exponent, mantissa in ((1, 1), (2, 3), (3, 7), (6, 10))),
]


def tensor(shape: Sequence[int], seed: int = 0) -> Tensor:
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed))


def sent(codec: Codec, values: Tensor, seed: int = 3) -> Tensor:
    parts, _ = codec.encode(values, seed, None)
    return codec.decode(parts, tuple(values.shape), seed)


# --- Every codec ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("codec", EVERY, ids=repr)
def test_parts_have_the_types_and_sizes_of_the_layout(codec: Codec, shape: tuple[int, ...]) -> None:
    parts, _ = codec.encode(tensor(shape), 1, None)
    assert tuple((part.dtype.str.lstrip("|"), len(part)) for part in parts) == codec.layout(shape)
    arrived = codec.decode(parts, shape, 1)
    assert (arrived.shape, arrived.dtype) == (torch.Size(shape), torch.float32)


@pytest.mark.parametrize("codec", EVERY, ids=repr)
def test_zeros_arrive_as_zeros(codec: Codec) -> None:
    assert torch.equal(sent(codec, torch.zeros(6, 7)), torch.zeros(6, 7))


@pytest.mark.parametrize("codec", EVERY, ids=repr)
def test_the_seed_decides_every_bit(codec: Codec) -> None:
    values = tensor((40, 50))
    one, other = (codec.encode(values, 5, None)[0] for _ in range(2))
    assert all((a == b).all() for a, b in zip(one, other, strict=True))


def test_every_registered_codec_is_tested_here() -> None:
    own = {name for name in CODECS if CODECS[name].__module__.startswith("antiphon.")}
    assert {CODECS.name_of(type(codec)) for codec in EVERY} == own


# --- Stochastic rounding --------------------------------------------------------------------------


def test_rounding_is_exact_on_average_over_all_chances() -> None:
    """With chances 0, 1/64, …, 63/64, entries that are multiples of 1/64 of a step are right on average."""
    chances = torch.arange(64, dtype=torch.float64) / 64
    values = torch.arange(-64 * 3, 64 * 3 + 1, dtype=torch.float64) / 64
    all_of_them = rounded(values[None, :], chances[:, None])
    assert torch.equal(all_of_them.mean(dim=0), values)
    torch.testing.assert_close(all_of_them.var(dim=0, correction=0), (values % 1) * (1 - values % 1))


def test_a_codec_is_exact_on_average_over_all_chances(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way, from encoding to decoding, with every chance given to every entry once."""
    values = torch.tensor([[0.5, -7.0, 3.25], [0.0, 6.75, -0.25]])  # the step of 4 bits is 1
    total = torch.zeros(2, 3, dtype=torch.float64)
    for number in range(64):
        chance = number / 64

        def given(shape: torch.Size, chance: float = chance, **options: object) -> Tensor:
            return torch.full(shape, chance, dtype=torch.float64)

        monkeypatch.setattr(torch, "rand", given)
        total += sent(StochasticRounding(bits=4), values).double()
    assert torch.equal(total / 64, values.double())


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_many_seeds_come_close_to_the_tensor(bits: int) -> None:
    values, codec, number = tensor((20, 30)), StochasticRounding(bits, bucket=64), 2000
    mean = torch.stack([sent(codec, values, seed) for seed in range(number)]).mean(dim=0)
    step = float(values.abs().max()) / codec.num_levels
    assert float((mean - values).abs().max()) < 5 * step / 2 / math.sqrt(number)  # five standard errors


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_an_entry_is_off_by_less_than_a_step_of_its_bucket(bits: int) -> None:
    values, codec = tensor((1000,)) * torch.logspace(-3, 3, 1000), StochasticRounding(bits, bucket=100)
    steps = values.view(10, 100).abs().amax(dim=1) / codec.num_levels
    error = (sent(codec, values) - values).abs().view(10, 100)
    assert bool((error <= steps[:, None] * (1 + 1e-6)).all())


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_levels_arrive_as_they_are(bits: int) -> None:
    codec = StochasticRounding(bits)
    levels = torch.arange(-codec.num_levels, codec.num_levels + 1).float()
    assert torch.equal(sent(codec, levels), levels)


@pytest.mark.parametrize(("bits", "size"), [(2, 3), (3, 5), (4, 5), (8, 9)])
def test_codes_fill_their_bytes(bits: int, size: int) -> None:
    assert StochasticRounding(bits).layout((9,))[1] == ("u1", size)


def test_the_first_code_is_in_the_highest_bits() -> None:
    (_, codes), _ = StochasticRounding(bits=4).encode(torch.tensor([7.0, -7.0, 0.0]), 0, None)
    assert codes.tolist() == [0xE0, 0x70]  # 14 0, 7 and padding


def test_codes_of_three_bits_are_two_in_a_byte() -> None:
    (_, codes), _ = StochasticRounding(bits=3).encode(torch.tensor([3.0, -3.0, 0.0]), 0, None)
    assert codes.tolist() == [0b110_000_00, 0b011_000_00]  # 6 and 0, then 3 and padding


@pytest.mark.parametrize("bits", [0, 1, 5, 16])
def test_other_numbers_of_bits_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match=f"bits are 2, 3, 4 or 8, not {bits}"):
        StochasticRounding(bits)


def test_one_bit_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="one bit has no level for 0, and without a memory its error stays"):
        StochasticRounding(bits=1)


def test_an_empty_bucket_is_refused() -> None:
    with pytest.raises(ValueError, match="a bucket has at least 1 entry, not 0"):
        StochasticRounding(bucket=0)


# --- Top-k ----------------------------------------------------------------------------------------


def test_the_largest_entries_arrive_and_the_others_are_zero() -> None:
    values = torch.tensor([[0.5, -8.0, 0.25], [2.0, 0.0, -1.0]])
    assert sent(TopK(share=1 / 3), values).tolist() == [[0.0, -8.0, 0.0], [2.0, 0.0, 0.0]]


def test_values_are_exact_to_16_bits() -> None:
    values = tensor((30, 40))
    arrived = sent(TopK(share=1.0), values)
    assert float((arrived - values).abs().max()) <= float(values.abs().max()) * 2**-11


def test_top_k_is_a_contraction() -> None:
    """|x − comp_k(x)|² ≤ (1 − k / d) |x|²: Definition 2.1, here with the rounding of values."""
    for seed in range(20):
        values = tensor((500,), seed)
        left = (values - sent(TopK(share=0.1), values)).square().sum()
        assert left <= 0.9 * values.square().sum()


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1])
@pytest.mark.parametrize("kind", [TopK, RandomProjection])
def test_a_share_outside_its_range_is_refused(kind: type[TopK], share: float) -> None:
    with pytest.raises(ValueError, match="needs a share above 0 and at most 1"):
        kind(share)


# --- Low rank -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_a_matrix_of_the_rank_arrives_whole(rank: int) -> None:
    matrix = tensor((30, rank), 1) @ tensor((rank, 20), 2)
    torch.testing.assert_close(sent(LowRank(rank), matrix), matrix, rtol=1e-5, atol=1e-5)


def test_a_tensor_of_three_dimensions_is_a_matrix_of_its_first_one() -> None:
    kernel = (tensor((30, 2), 1) @ tensor((2, 20), 2)).view(30, 4, 5)
    torch.testing.assert_close(sent(LowRank(2), kernel), kernel, rtol=1e-5, atol=1e-5)


def test_with_warm_starts_the_factors_become_those_of_the_singular_value_decomposition() -> None:
    matrix, codec = tensor((30, 4), 1) @ tensor((4, 20), 2) + 0.05 * tensor((30, 20), 3), LowRank(4)
    left, values, right = torch.linalg.svd(matrix)
    best = left[:, :4] @ values[:4].diag() @ right[:4]
    kept, errors = None, []
    for _ in range(30):
        parts, kept = codec.encode(matrix, 0, kept)
        errors.append(float((codec.decode(parts, (30, 20), 0) - matrix).norm()))
    assert errors[0] > errors[-1] * 1.0001
    assert errors[-1] == pytest.approx(float((best - matrix).norm()), rel=1e-4)


def test_what_is_sent_is_a_projection_on_the_basis() -> None:
    """P̂ᵀ P̂ = 1 and M̂ = P̂ P̂ᵀ M, so what is left is orthogonal to what is sent."""
    matrix = tensor((30, 20))
    (basis, _), _ = LowRank(3).encode(matrix, 0, None)
    columns = torch.from_numpy(basis).view(30, 3)
    torch.testing.assert_close(columns.T @ columns, torch.eye(3), rtol=0.0, atol=1e-5)
    arrived = sent(LowRank(3), matrix, 0)
    torch.testing.assert_close(arrived, columns @ (columns.T @ matrix), rtol=1e-4, atol=1e-5)
    assert float(((matrix - arrived) * arrived).sum()) == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("shape", [(), (9,), (1, 9), (4, 4), (5, 3)])
def test_what_is_shorter_than_its_factors_is_sent_as_it_is(shape: tuple[int, ...]) -> None:
    values = tensor(shape)
    assert torch.equal(sent(LowRank(2), values), values)


def test_a_start_that_does_not_fit_is_not_used() -> None:
    matrix = tensor((30, 20))
    fresh, _ = LowRank(2).encode(matrix, 7, None)
    other, _ = LowRank(2).encode(matrix, 7, torch.ones(19, 2))
    assert all((a == b).all() for a, b in zip(fresh, other, strict=True))


def test_a_rank_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="low_rank needs a rank of at least 1, not 0"):
        LowRank(0)


# --- Random projection ----------------------------------------------------------------------------


def test_the_hadamard_transform_is_that_of_the_matrix_and_its_own_inverse() -> None:
    two = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    matrix = torch.kron(torch.kron(two, two), two) / math.sqrt(8)
    values = tensor((8,)).double()
    torch.testing.assert_close(hadamard(values), matrix @ values)
    torch.testing.assert_close(hadamard(hadamard(values)), values)


def test_the_mean_over_all_rows_is_the_tensor() -> None:
    values, signs = tensor((16,)).double(), torch.tensor([1.0, -1.0, -1.0, 1.0] * 4, dtype=torch.float64)
    lifted = []
    for row in range(16):
        rows = torch.tensor([row])
        lifted.append(lift(project(values, signs, rows), signs, rows))
    torch.testing.assert_close(torch.stack(lifted).mean(dim=0), values)


def test_the_mean_squared_error_is_that_of_the_subsampling() -> None:
    """E |x̂ − x|² = (d / k − 1) |x|², over all single rows."""
    values, signs = tensor((16,)).double(), torch.ones(16, dtype=torch.float64)
    gaps = []
    for row in range(16):
        rows = torch.tensor([row])
        gaps.append((lift(project(values, signs, rows), signs, rows) - values).square().sum())
    torch.testing.assert_close(torch.stack(gaps).mean(), 15 * values.square().sum())


def test_all_coordinates_of_a_power_of_two_are_the_tensor() -> None:
    values = tensor((8, 8))
    torch.testing.assert_close(sent(RandomProjection(share=1.0), values), values, rtol=1e-5, atol=1e-6)


def test_seeds_choose_other_coordinates() -> None:
    values = tensor((64,))
    one, other = (sent(RandomProjection(0.25), values, seed) for seed in (1, 2))
    assert not torch.equal(one, other)


# --- Parts that make no sense ---------------------------------------------------------------------


def damaged(codec: Codec, shape: tuple[int, ...], place: int, value: float) -> Parts:
    parts, _ = codec.encode(tensor(shape), 0, None)
    parts[place].flat[-1] = value
    return parts


@pytest.mark.parametrize(
    ("codec", "place", "value", "message"),
    [
        (StochasticRounding(bits=8), 1, 255, "a level above 127"),
        (StochasticRounding(bits=4), 1, 255, "a level above 7"),
        (TopK(share=0.5), 0, 0, "named twice"),
        (TopK(share=0.5), 0, 1000, "outside the tensor"),
        (TopK(share=0.5), 0, 2**32 - 1, "outside the tensor"),
    ],
)
def test_parts_that_no_tensor_has_are_refused(codec: Codec, place: int, value: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        codec.decode(damaged(codec, (10, 10), place, value), (10, 10), 0)
