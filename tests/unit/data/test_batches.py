from __future__ import annotations

import numpy as np
import pytest
import torch

from antiphon.data.batches import collate, plan_batches


class Store:
    """Two utterances: frames 1 1 1 with text "ab", and frames 2 2 with text "c", in two dimensions."""

    dim = 2
    num_frames = np.array([3, 2], dtype=np.int32)

    def features(self, index: int) -> np.ndarray:
        return np.full((self.num_frames[index], self.dim), index + 1, dtype=np.float16)

    def text(self, index: int) -> str:
        return ("ab", "c")[index]


def encode(text: str) -> list[int]:
    return [ord(character) - ord("a") + 2 for character in text]


def test_collate_pads_with_zeros_at_the_end_and_keeps_the_order_given() -> None:
    batch = collate(Store(), np.array([1, 0]), encode)
    assert batch.features[:, :, 0].tolist() == [[2, 2, 0], [1, 1, 1]]
    assert batch.features.dtype == torch.float32
    assert batch.features.shape == (2, 3, 2)
    assert batch.feature_lengths.tolist() == [2, 3]
    assert batch.tokens.tolist() == [[4, 0], [2, 3]]
    assert batch.token_lengths.tolist() == [1, 2]
    assert batch.indices == (1, 0)
    assert {t.dtype for t in (batch.feature_lengths, batch.tokens, batch.token_lengths)} == {torch.int64}


def test_a_batch_of_empty_texts_has_no_tokens() -> None:
    batch = collate(Store(), [0, 1], lambda text: [])
    assert batch.tokens.shape == (2, 0)
    assert batch.token_lengths.tolist() == [0, 0]


def test_a_batch_moves_with_all_its_tensors() -> None:
    moved = collate(Store(), [0, 1], encode).to("meta")
    tensors = (moved.features, moved.feature_lengths, moved.tokens, moved.token_lengths)
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert len(moved) == 2


def test_batches_go_from_short_to_long() -> None:
    lengths = np.array([50, 10, 40, 20, 30, 10])
    plan = plan_batches(lengths, np.arange(6), max_frames=60, generator=None)
    assert [batch.tolist() for batch in plan] == [[1, 5, 3], [4], [2], [0]]


def test_the_generator_decides_who_meets() -> None:
    lengths = np.random.default_rng(0).integers(50, 500, 100)
    plans = [
        [b.tolist() for b in plan_batches(lengths, np.arange(100), 2000, np.random.default_rng(seed))]
        for seed in (1, 1, 2)
    ]
    assert plans[0] == plans[1] != plans[2]
    assert {tuple(sorted(batch)) for batch in plans[0]} != {tuple(sorted(batch)) for batch in plans[2]}


def test_random_batches_waste_little_on_padding() -> None:
    lengths = np.random.default_rng(0).integers(100, 1000, 500)
    plan = plan_batches(lengths, np.arange(500), 8000, np.random.default_rng(0))
    padded = sum(len(batch) * lengths[batch].max() for batch in plan)
    assert lengths.sum() / padded > 0.85


def test_only_the_indices_given_are_planned() -> None:
    plan = plan_batches(np.array([5, 6, 7]), np.array([2, 0]), 100, None)
    assert [batch.tolist() for batch in plan] == [[0, 2]]
    assert plan_batches(np.array([5, 6, 7]), np.array([], dtype=np.int64), 100, None) == []


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one frame"):
        plan_batches(np.array([5]), np.array([0]), 0, None)


def test_a_placeholder_is_one_frame_of_zeros_without_tokens() -> None:
    batch = collate(Store(), [-1, 1], encode)
    assert batch.features[0].abs().sum() == 0
    assert batch.feature_lengths.tolist() == [1, 2]
    assert batch.token_lengths.tolist() == [0, 1]
    assert batch.indices == (-1, 1)
