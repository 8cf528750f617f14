"""Interpolated modified Kneser-Ney n-gram models from text, counted with sorted arrays.

S. Chen and J. Goodman, "An Empirical Study of Smoothing Techniques for Language Modeling", 1998, §3; with the
conventions of lmplz (K. Heafield et al., "Scalable Modified Kneser-Ney Language Model Estimation", 2013).

| symbol | name here |
| --- | --- |
| a(w_1..w_n) | `adjusted`: the count at the highest order; below, the number of different words before it |
| D_1, D_2, D_3+ | `discounts` of an order |
| S(h), γ(h) | `totals`, `weights`: of the contexts of an order |

p(w | h) = (a(hw) − D(a(hw))) / S(h) + γ(h) p(w | h'), h' being h without its first word; S(h) = Σ_w a(hw).
Conventions: an n-gram that begins with <s> has no word before it and keeps its count. Unigrams are
interpolated with the uniform distribution over all words, </s> and <unk>; <s> is never predicted. N-grams
rarer than `min_counts` are left out after everything was counted; what they had goes to γ.
Where a corpus is too small for D (a count of counts is zero), it takes 0.5, 1 and 1.5, as lmplz can. Every
number is that of lmplz, up to rounding: the tests hold its output.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence
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
    places_in_sentence,
)

FALLBACK = (0.5, 1.0, 1.5)


@dataclass(frozen=True)
class Counted:
    """Different n-grams of one order, sorted by key.

    keys [m] as in `Level`; counts [m]; contexts [m]: the place of the first n − 1 words among the n-grams of
    the order below.
    """

    keys: np.ndarray
    counts: np.ndarray
    contexts: np.ndarray


@dataclass(frozen=True)
class Estimated:
    """N-grams of one order: p(w | h) [m], γ of the contexts they continue [m of the order below]."""

    probabilities: np.ndarray
    weights: np.ndarray


def estimate(
    texts: Iterable[str],
    order: int = 5,
    min_counts: Sequence[int] = (),
    vocabulary: Collection[str] | None = None,
) -> NgramModel:
    """A model of the texts, a sentence each.

    min_counts: n-grams of order n seen less often than min_counts[n − 1] are left out; it begins with 1 and
    never falls; its last entry holds for all higher orders. vocabulary: other words count as <unk>.
    """
    least = _least_counts(order, min_counts)
    words, stream = _encode(texts, vocabulary)
    counted = count(stream, len(words), order)
    adjusted = [
        _adjusted(own, above, len(words)) for own, above in zip(counted, [*counted[1:], None], strict=True)
    ]
    adjusted[0][START_ID] = 0  # it is a context, and never predicted
    estimated = [_unigrams(adjusted[0])]
    for n in range(2, order + 1):
        kept = counted[n - 1].counts >= least[n - 1]
        estimated.append(
            _interpolated(
                counted[n - 1],
                adjusted[n - 1],
                kept,
                estimated[-1].probabilities[counted[n - 1].keys // len(words)],
                num_contexts=len(counted[n - 2].keys),
            )
        )
    return NgramModel(words, _levels(counted, estimated, least, len(words)))


def discounts(adjusted: np.ndarray) -> tuple[float, float, float]:
    """D_1, D_2 and D_3+ from how many n-grams have adjusted counts of 1, 2, 3 and 4 (Chen & Goodman, eq. 26).

    >>> [round(d, 3) for d in discounts(np.repeat([1, 2, 3, 4], [40, 20, 10, 6]))]
    [0.5, 1.25, 1.8]
    """
    ones, twos, threes, fours = (int((adjusted == count).sum()) for count in (1, 2, 3, 4))
    if min(ones, twos, threes) == 0:
        return FALLBACK
    share = ones / (ones + 2 * twos)
    found = (1 - 2 * share * twos / ones, 2 - 3 * share * threes / twos, 3 - 4 * share * fours / threes)
    return found if all(0 < found[k] <= k + 1 for k in range(3)) else FALLBACK


def count(stream: np.ndarray, num_words: int, order: int) -> list[Counted]:
    """N-grams of every order in a stream of sentences, each from <s> to </s>."""
    occurrences = np.bincount(stream, minlength=num_words)
    counted = [Counted(np.arange(num_words), occurrences, np.zeros(num_words, dtype=np.int64))]
    place = places_in_sentence(stream)
    ids = stream  # of the n-gram that ends at each word; right only where the sentence reaches so far back
    for n in range(2, order + 1):
        ends = np.flatnonzero(place >= n - 1)
        keys, example, inverse, counts = np.unique(
            ids[ends] * num_words + stream[ends - n + 1],
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        counted.append(Counted(keys, counts, ids[ends[example] - 1]))
        ids = np.zeros_like(stream)
        ids[ends] = inverse
    return counted


def _adjusted(own: Counted, above: Counted | None, num_words: int) -> np.ndarray:
    if above is None:
        return own.counts.copy()
    different = np.bincount(above.keys // num_words, minlength=len(own.keys))
    starts = own.keys % num_words == START_ID  # their first word is <s>
    return np.where(starts, own.counts, different)


def _taken(adjusted: np.ndarray) -> np.ndarray:
    """D(a) of each n-gram."""
    table = np.array([0.0, *discounts(adjusted)])
    return table[np.minimum(adjusted, 3)]


def _unigrams(adjusted: np.ndarray) -> Estimated:
    taken = _taken(adjusted)
    total = adjusted.sum()
    probabilities = (adjusted - taken) / total + taken.sum() / total / (len(adjusted) - 1)
    probabilities[START_ID] = np.exp(NEVER)
    return Estimated(probabilities, np.ones(1))


def _interpolated(
    own: Counted, adjusted: np.ndarray, kept: np.ndarray, lower: np.ndarray, num_contexts: int
) -> Estimated:
    """lower [m]: p(w | h') of each n-gram hw."""
    taken = _taken(adjusted)
    totals = np.bincount(own.contexts, weights=adjusted, minlength=num_contexts)
    left = np.bincount(own.contexts, weights=np.where(kept, taken, adjusted), minlength=num_contexts)
    weights = np.divide(left, totals, out=np.ones(num_contexts), where=totals > 0)
    probabilities = (adjusted - taken) / totals[own.contexts] + weights[own.contexts] * lower
    return Estimated(probabilities, weights)


def _levels(
    counted: Sequence[Counted], estimated: Sequence[Estimated], least: Sequence[int], num_words: int
) -> tuple[Level, ...]:
    """N-grams that are kept, with the back-off weights that the order above gave them."""
    levels: list[Level] = []
    renamed = np.arange(num_words)  # old places of the order below to new ones
    above = [*(entry.weights for entry in estimated[1:]), np.ones(len(counted[-1].keys))]
    for own, entry, weights, threshold in zip(counted, estimated, above, least, strict=True):
        kept = own.counts >= threshold if levels else np.ones(num_words, dtype=bool)
        keys = own.keys[kept]
        if levels:
            keys = renamed[keys // num_words] * num_words + keys % num_words
        log_probs, backoffs = np.log(entry.probabilities[kept]), np.log(weights[kept])
        levels.append(Level(keys, log_probs.astype(np.float32), backoffs.astype(np.float32)))
        renamed = np.cumsum(kept) - 1
    return tuple(levels)


def _encode(texts: Iterable[str], vocabulary: Collection[str] | None) -> tuple[tuple[str, ...], np.ndarray]:
    """All words, and the sentences as ids in a row, each from <s> to </s>."""
    ids = {word: place for place, word in enumerate((*SPECIAL, *sorted({*(vocabulary or ())} - {*SPECIAL})))}
    # Written in a text, <s> and </s> do not start or end anything.
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


def _least_counts(order: int, min_counts: Sequence[int]) -> list[int]:
    least = [*min_counts, *[min_counts[-1] if min_counts else 1] * order][:order]
    if order < 1 or least[0] != 1 or least != sorted(least):
        raise ValueError(
            f"an order of at least 1 and min_counts that begin with 1 and never fall are needed, "
            f"got order={order}, min_counts={list(min_counts)}"
        )
    return least
