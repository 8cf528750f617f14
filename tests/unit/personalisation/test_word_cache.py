"""Counting words of N-best lists."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.decoding.nbest import Hypothesis, NBest
from antiphon.personalisation.marginal_adaptation import Unigram
from antiphon.personalisation.word_cache import Cache, rank_weights

VOCABULARY = Unigram(("<unk>", "a", "b", "c"), np.full(4, 0.25))


def nbest(*texts: str) -> NBest:
    return NBest("u", tuple(Hypothesis(text, score=-float(rank)) for rank, text in enumerate(texts)))


def counts(*texts: str, sigma: float, agreement: float = 0.0) -> list[float]:
    cache = Cache().observed(nbest(*texts), VOCABULARY.encode, sigma, agreement)
    found: list[float] = cache.dense(4).tolist()
    return found


def test_a_word_counts_by_the_rank_of_its_hypothesis() -> None:
    second, third = math.exp(-1 / 8), math.exp(-4 / 8)
    assert counts("a b a", "a c", "b", sigma=2.0) == pytest.approx([0, 2 + second, 1 + third, second])


@pytest.mark.parametrize("sigma", [0.0, 5e-324, 1e-200, 1e-3, 0.1])
def test_a_narrow_kernel_counts_the_best_hypothesis_alone(sigma: float) -> None:
    assert counts("a b a", "a c", "b", sigma=sigma) == pytest.approx([0, 2, 1, 0])


@pytest.mark.parametrize("sigma", [math.inf, 1e9])
def test_a_wide_kernel_counts_all_hypotheses_alike(sigma: float) -> None:
    assert counts("a b a", "a c", "b", sigma=sigma) == pytest.approx([0, 3, 2, 1])


def test_a_word_outside_the_vocabulary_counts_as_unknown() -> None:
    assert counts("a zebra <s>", sigma=0) == [2, 1, 0, 0]


def test_a_text_listed_twice_counts_once_and_the_others_move_up() -> None:
    assert counts("a", "a", "b", sigma=1.0) == pytest.approx(counts("a", "b", sigma=1.0))


@pytest.mark.parametrize("entry", [nbest(), nbest(""), nbest("", "  ")])
def test_a_list_without_words_adds_nothing(entry: NBest) -> None:
    before = Cache().plus(np.array([1]), np.array([2.0]))
    assert before.observed(entry, VOCABULARY.encode, 1.0) is before


def test_with_agreement_a_word_counts_by_the_share_of_hypotheses_that_have_it() -> None:
    # a stands in all three, b in two, c in one; hypotheses beyond the kernel are still looked at.
    assert counts("a b a", "a c", "b a", sigma=0, agreement=1) == pytest.approx([0, 2, 2 / 3, 0])
    assert counts("a b a", "a c", "b a", sigma=0, agreement=2) == pytest.approx([0, 2, 4 / 9, 0])
    second, third = math.exp(-1 / 8), math.exp(-4 / 8)
    expected = [0, 2 + second + third, (1 + third) * 2 / 3, second / 3]
    assert counts("a b a", "a c", "b a", sigma=2.0, agreement=1) == pytest.approx(expected)


def test_a_text_listed_twice_agrees_once() -> None:
    found = counts("a", "a", "b", sigma=0, agreement=1)
    assert found == pytest.approx([0, 0.5, 0, 0])


texts = st.lists(st.lists(st.sampled_from("abc"), max_size=4).map(" ".join), min_size=1, max_size=5)


@given(texts, st.floats(0, 8), st.floats(0, 8), st.floats(0, 4))
def test_the_more_agreement_is_asked_for_the_less_counts(
    given: list[str], one: float, other: float, sigma: float
) -> None:
    some, more = (np.array(counts(*given, sigma=sigma, agreement=a)) for a in sorted((one, other)))
    assert (more <= some + 1e-12).all()
    assert (some <= np.array(counts(*given, sigma=sigma)) + 1e-12).all()


def test_a_negative_agreement_is_refused() -> None:
    with pytest.raises(ValueError, match="agreement must not be negative"):
        counts("a", sigma=0, agreement=-1.0)


def test_a_negative_width_is_refused() -> None:
    for sigma in (-1.0, math.nan):
        with pytest.raises(ValueError, match="sigma must not be negative"):
            rank_weights(3, sigma)


pairs = st.lists(st.tuples(st.integers(0, 30), st.floats(0.01, 100)), max_size=40)


@given(pairs, pairs)
def test_a_cache_is_a_sparse_row_of_counts(
    first: list[tuple[int, float]], second: list[tuple[int, float]]
) -> None:
    dense = np.zeros(31)
    cache = Cache()
    for some in (first, second):
        for id, count in some:
            dense[id] += count
        cache = cache.plus(np.array([i for i, _ in some], dtype=np.int32), np.array([c for _, c in some]))
    np.testing.assert_allclose(cache.dense(31), dense)
    np.testing.assert_allclose(cache.at(np.arange(31)), dense)
    assert cache.total == pytest.approx(dense.sum())
    assert len(cache.ids) == np.count_nonzero(dense)


def test_memory_grows_with_different_words_and_never_with_the_vocabulary() -> None:
    """12 bytes a word that was said: 10,000 clients of 2,000 words each are 240 MB, in any vocabulary."""
    generator = np.random.default_rng(0)
    for size in (1_000, 100_000, 10_000_000):
        caches = []
        for _ in range(20):
            cache = Cache()
            for _ in range(10):
                cache = cache.plus(generator.integers(0, size, 50), np.ones(50))
            caches.append(cache)
        sizes = [cache.ids.nbytes + cache.counts.nbytes for cache in caches]
        assert sizes == [12 * len(cache.ids) for cache in caches]
        assert sum(sizes) <= 20 * 500 * 12
        assert all(array.base is None for cache in caches for array in (cache.ids, cache.counts))
