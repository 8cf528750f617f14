"""Interpolated modified Kneser-Ney n-gram models from text, counted with sorted arrays.

S. Chen and J. Goodman, "An Empirical Study of Smoothing Techniques for Language Modeling", 1998, §3; with the
conventions of lmplz (K. Heafield et al., "Scalable Modified Kneser-Ney Language Model Estimation", 2013),
whose numbers the tests compare with.

| symbol | name here |
| --- | --- |
| a(w_1..w_n) | `adjusted`: the count at the highest order; below, the number of different words before it |
| D_1, D_2, D_3+ | `discounts` of an order |
| S(h), γ(h) | `totals`, `weights` of the contexts of an order |

p(w | h) = (a(hw) − D(a(hw))) / S(h) + γ(h) p(w | h'), h' being h without its first word; S(h) = Σ_w a(hw).
Conventions: an n-gram that begins with <s> has no word before it and keeps its count. Unigrams are
interpolated with the uniform distribution over all words, </s> and <unk>; <s> is never predicted. N-grams
rarer than `min_counts` are removed after counting, and γ gets their probability. Where a corpus is too small
for D (a count of counts is zero), D is 0.5, 1 and 1.5, as lmplz can.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.lm.ngram import (
    END_ID,
    NEVER,
    SPECIAL,
    START_ID,
    UNKNOWN_ID,
    Level,
    NgramModel,
    positions_in_sentence,
)

Progress = Callable[[int, int], None]  # steps done, all steps: two for each order
FALLBACK = (0.5, 1.0, 1.5)


@dataclass(frozen=True)
class Counted:
    """Distinct n-grams of one order: sorted keys as in `Level` [m], counts [m], and contexts [m].

    A context is the index of the first n − 1 words among the n-grams of the order below.
    """

    keys: np.ndarray
    counts: np.ndarray
    contexts: np.ndarray


def estimate(
    texts: Iterable[str],
    order: int = 5,
    min_counts: Sequence[int] = (),
    vocabulary: Collection[str] | None = None,
    progress: Progress = lambda done, total: None,
) -> NgramModel:
    """Estimate a model from sentences.

    min_counts: n-grams of order n seen less often than min_counts[n − 1] are left out; it begins with 1 and
    never falls; its last entry holds for all higher orders. vocabulary: other words count as <unk>.
    """
    thresholds = _thresholds(order, min_counts)
    words, stream = _encode(texts, vocabulary)
    total = 2 * order
    counted = count(stream, len(words), order, lambda n: progress(n, total))
    above: list[Counted | None] = [*counted[1:], None]
    adjusted = [_adjusted(*pair, len(words)) for pair in zip(counted, above, strict=True)]
    adjusted[0][START_ID] = 0  # it is a context, and never predicted
    probabilities, weights = [_unigrams(adjusted[0])], []
    for n in range(1, order):
        lower = probabilities[-1][counted[n].keys // len(words)]
        is_frequent, num_contexts = counted[n].counts >= thresholds[n], len(counted[n - 1].keys)
        of_ngrams, of_contexts = _interpolated(counted[n], adjusted[n], is_frequent, lower, num_contexts)
        probabilities.append(of_ngrams)
        weights.append(of_contexts)
        progress(order + n, total)
    weights.append(np.ones(len(counted[-1].keys)))
    estimates = list(zip(probabilities, weights, strict=True))
    levels = _levels(counted, estimates, thresholds)
    progress(total, total)
    return NgramModel(words, levels)


def discounts(adjusted: np.ndarray) -> tuple[float, float, float]:
    """D_1, D_2 and D_3+ from the numbers of n-grams with adjusted counts 1, 2, 3, 4 (Chen & Goodman, eq. 26).

    >>> [round(d, 3) for d in discounts(np.repeat([1, 2, 3, 4], [40, 20, 10, 6]))]
    [0.5, 1.25, 1.8]
    """
    ones, twos, threes, fours = (int((adjusted == count).sum()) for count in (1, 2, 3, 4))
    if min(ones, twos, threes) == 0:
        return FALLBACK
    share = ones / (ones + 2 * twos)
    result = (1 - 2 * share * twos / ones, 2 - 3 * share * threes / twos, 3 - 4 * share * fours / threes)
    return result if all(0 < result[k] <= k + 1 for k in range(3)) else FALLBACK


def count(
    stream: np.ndarray, num_words: int, order: int, report: Callable[[int], None] = lambda n: None
) -> list[Counted]:
    """N-grams of every order in a stream of sentences, each from <s> to </s>."""
    occurrences = np.bincount(stream, minlength=num_words)
    counted = [Counted(np.arange(num_words), occurrences, np.zeros(num_words, dtype=np.int64))]
    report(1)
    position = positions_in_sentence(stream)
    ids = stream  # of the n-gram that ends at each word; valid only if the sentence has that many words
    for n in range(2, order + 1):
        ends = np.flatnonzero(position >= n - 1)
        keys, example, inverse, counts = np.unique(
            ids[ends] * num_words + stream[ends - n + 1],
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        counted.append(Counted(keys, counts, ids[ends[example] - 1]))
        ids = np.zeros_like(stream)
        ids[ends] = inverse
        report(n)
    return counted


def _adjusted(ngrams: Counted, above: Counted | None, num_words: int) -> np.ndarray:
    if above is None:
        return ngrams.counts.copy()
    num_words_before = np.bincount(above.keys // num_words, minlength=len(ngrams.keys))
    return np.where(ngrams.keys % num_words == START_ID, ngrams.counts, num_words_before)


def _discounted(adjusted: np.ndarray) -> np.ndarray:
    """D(a) of each n-gram."""
    return np.array([0.0, *discounts(adjusted)])[np.minimum(adjusted, 3)]


def _unigrams(adjusted: np.ndarray) -> np.ndarray:
    """p(w) of each word."""
    discounted, total = _discounted(adjusted), adjusted.sum()
    probabilities = (adjusted - discounted) / total + discounted.sum() / total / (len(adjusted) - 1)
    probabilities[START_ID] = np.exp(NEVER)
    return probabilities


def _interpolated(
    ngrams: Counted, adjusted: np.ndarray, is_frequent: np.ndarray, lower: np.ndarray, num_contexts: int
) -> tuple[np.ndarray, np.ndarray]:
    """p(w | h) [m] of n-grams hw, from `lower` = p(w | h') [m], and γ of their contexts [num_contexts]."""
    contexts, discounted = ngrams.contexts, _discounted(adjusted)
    totals = np.bincount(contexts, weights=adjusted, minlength=num_contexts)
    left = np.bincount(contexts, np.where(is_frequent, discounted, adjusted), minlength=num_contexts)
    weights = np.divide(left, totals, out=np.ones(num_contexts), where=totals > 0)
    return (adjusted - discounted) / totals[contexts] + weights[contexts] * lower, weights


def _levels(
    counted: Sequence[Counted], estimates: Sequence[tuple[np.ndarray, np.ndarray]], thresholds: Sequence[int]
) -> tuple[Level, ...]:
    """The n-grams that are frequent enough, and γ of each as a context."""
    levels: list[Level] = []
    num_words = len(counted[0].keys)
    new_index = np.arange(num_words)  # of each n-gram of the order below
    for ngrams, (p, gamma), threshold in zip(counted, estimates, thresholds, strict=True):
        is_frequent = ngrams.counts >= threshold if levels else np.ones(num_words, dtype=bool)
        keys = ngrams.keys[is_frequent]
        if levels:
            keys = new_index[keys // num_words] * num_words + keys % num_words
        log_probs, backoffs = np.log(p[is_frequent]), np.log(gamma[is_frequent])
        levels.append(Level(keys, log_probs.astype(np.float32), backoffs.astype(np.float32)))
        new_index = np.cumsum(is_frequent) - 1
    return tuple(levels)


def _encode(texts: Iterable[str], vocabulary: Collection[str] | None) -> tuple[tuple[str, ...], np.ndarray]:
    """All words, and the ids of all sentences in one array, each from <s> to </s>."""
    ids = {word: id for id, word in enumerate((*SPECIAL, *sorted({*(vocabulary or ())} - {*SPECIAL})))}
    # Inside a text, <s> and </s> have no meaning.
    boundaries = {SPECIAL[START_ID]: UNKNOWN_ID, SPECIAL[END_ID]: UNKNOWN_ID}
    stream = array("q")
    for text in texts:
        stream.append(START_ID)
        for word in text.split():
            if vocabulary is None:
                ids.setdefault(word, len(ids))
            stream.append(boundaries.get(word, ids.get(word, UNKNOWN_ID)))
        stream.append(END_ID)
    if len(stream) == 0:
        raise ValueError("no text to estimate a language model from")
    return tuple(ids), np.frombuffer(stream, dtype=np.int64)


def _thresholds(order: int, min_counts: Sequence[int]) -> list[int]:
    thresholds = [*min_counts, *[min_counts[-1] if min_counts else 1] * order][:order]
    if order < 1 or thresholds[0] != 1 or thresholds != sorted(thresholds):
        needed = "--order must be at least 1; --min-counts begin with 1 and never fall"
        raise ValueError(f"{needed} (in Python: order={order}, min_counts={list(min_counts)})")
    return thresholds
