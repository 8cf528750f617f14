"""Marginal adaptation: a language model in which each word's probability is multiplied by its own factor.

Z. Liu and F. Peng, "Federated Marginal Personalization for ASR Rescoring", 2020, §2.1; after R. Kneser et
al., "Language Model Adaptation Using Dynamic Marginals", 1997.

| symbol | here |
| --- | --- |
| u(w) | `Marginals.background`: word 0 is <unk>, which stands for every word outside the vocabulary |
| q̄(w) | `Marginals.shared_words`: words of all clients, from the server; None before the first round |
| q_i(w) | `Marginals.client_words`: the client's cache |
| g(w) | (1 − α − β) u + α q̄ + β q_i, eq. 2 |
| α, β, λ, σ | `Mixture.alpha`, `.beta`, `.lam`, `.sigma` |

p'(w | h) ∝ (g(w) / u(w))^λ p(w | h), eq. 1. It is not normalised here: λ Σ ln(g/u) over the words of a text
is added to its ln p. This needs only ln p(text), so it works for models of words and of subwords. The end of
a sentence has no factor. `benchmarks/normalised_lm.py` divides by Z(h), for perplexity.

Smoothing, which the paper leaves open: both q̄ and q_i are mixed with a share `smoothing` of u. This is done
where they are used, not before they are sent. Eq. 6 is linear, so the result is the same, and clients send
counts. Hence g/u = 1 + (1 − smoothing) (α (q̄/u − 1) + β (q_i/u − 1)), which is exactly 1 before any word was
counted. Only the words of one list are looked up, so the cost does not grow with the vocabulary.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from antiphon.lm.ngram import SPECIAL, UNKNOWN, UNKNOWN_ID, SentenceModel
from antiphon.personalisation.word_cache import Cache, rank_weights


@dataclass(frozen=True)
class Unigram:
    """Words, <unk> first, and their probabilities [len(words)] float64.

    >>> background = estimate_unigram(["go on", "go home"], additive=0.5)
    >>> background.encode("go away")
    array([1, 0], dtype=int32)
    >>> background.probabilities.round(3).tolist()
    [0.083, 0.417, 0.25, 0.25]
    """

    words: tuple[str, ...]
    probabilities: np.ndarray

    def __post_init__(self) -> None:
        if self.words[:1] != (UNKNOWN,) or len(set(self.words)) < len(self.words):
            raise ValueError(f"a unigram needs distinct words, {UNKNOWN} the first")
        if self.probabilities.shape != (len(self.words),):
            raise ValueError(f"{self.probabilities.shape} probabilities for {len(self.words)} words")
        if not (self.probabilities > 0).all() or not np.isclose(self.probabilities.sum(), 1.0):
            raise ValueError("probabilities of a unigram must be above zero and add up to one")

    @property
    def size(self) -> int:
        return len(self.words)

    @cached_property
    def ids(self) -> dict[str, int]:
        return {word: id for id, word in enumerate(self.words)}

    @cached_property
    def digest(self) -> str:
        """A hash of the vocabulary: counts by word id are valid for one vocabulary only."""
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()[:16]

    def encode(self, text: str) -> np.ndarray:
        """Ids of the words of a text: int32."""
        ids = self.ids
        return np.array([ids.get(word, UNKNOWN_ID) for word in text.split()], dtype=np.int32)


def estimate_unigram(texts: Iterable[str], vocabulary: Iterable[str] = (), additive: float = 0.5) -> Unigram:
    """Relative frequencies of the words of the texts; `additive` is added to every count (Lidstone 1920).

    vocabulary: more words, such as those of the recogniser's dictionary. Without them, words that only
    clients say would all be <unk>.
    """
    if additive <= 0:
        raise ValueError(f"additive must be above 0, or unseen words have no probability: got {additive}")
    counts = Counter(word for text in texts for word in text.split())
    if not counts:
        raise ValueError("no text to estimate background frequencies from")
    words = (UNKNOWN, *sorted((counts.keys() | set(vocabulary)) - set(SPECIAL)))
    smoothed = np.array([counts.get(word, 0) for word in words], dtype=np.float64) + additive
    return Unigram(words, smoothed / smoothed.sum())


@dataclass(frozen=True)
class Mixture:
    """The paper's settings: weights of shared and own words (α, β), exponent (λ), width (σ)."""

    alpha: float = 0.5
    beta: float = 0.25
    lam: float = 0.5
    sigma: float = 1.0
    smoothing: float = 0.1

    def __post_init__(self) -> None:
        if not (self.alpha >= 0 and self.beta >= 0 and self.alpha + self.beta <= 1 + 1e-12):
            raise ValueError(
                "alpha and beta must not be negative, nor above 1 together, "
                f"got alpha={self.alpha} and beta={self.beta}"
            )
        if not (self.lam >= 0 and math.isfinite(self.lam)):
            raise ValueError(f"lam must be a finite number that is not negative, got {self.lam}")
        if not 0 <= self.smoothing <= 1:
            raise ValueError(f"smoothing must be between 0 and 1, got {self.smoothing}")
        rank_weights(1, self.sigma)


@dataclass(frozen=True)
class Marginals:
    """Word frequencies that a client knows. shared_words: [background.size], the same for all clients."""

    background: Unigram
    mixture: Mixture = Mixture()
    shared_words: np.ndarray | None = None
    client_words: Cache = field(default_factory=Cache)

    def log_ratios(self, ids: np.ndarray) -> np.ndarray:
        """Return ln(g/u) of these words."""
        usual = self.background.probabilities[ids]
        change = np.zeros(len(ids))
        if self.shared_words is not None:
            change += self.mixture.alpha * (self.shared_words[ids] / usual - 1)
        if (total := self.client_words.total) > 0:
            change += self.mixture.beta * (self.client_words.at(ids) / total / usual - 1)
        # With α + β = 1 and no smoothing, the ratio of a word that nobody said is zero.
        smallest = np.finfo(np.float64).tiny
        return np.log(np.maximum(1 + (1 - self.mixture.smoothing) * change, smallest))

    def log_factors(self, ids: np.ndarray) -> np.ndarray:
        """Return λ ln(g/u) of these words: what adaptation adds to ln p, before normalisation."""
        return self.mixture.lam * self.log_ratios(ids)


@dataclass(frozen=True)
class WordsOfTexts:
    """The words of several texts. Each different word is stored once, so that its factor is looked up once.

    different [m]: word ids. places [n]: the words of all texts in a row, as indices into `different`.
    texts [n]: the text that each of them belongs to.
    """

    different: np.ndarray
    places: np.ndarray
    texts: np.ndarray
    num_texts: int

    @classmethod
    def of(cls, texts: Sequence[str], vocabulary: Unigram) -> WordsOfTexts:
        rows = [vocabulary.encode(text) for text in texts]
        stream = np.concatenate([np.zeros(0, dtype=np.int32), *rows])
        different, places = np.unique(stream, return_inverse=True)
        return cls(different, places, np.repeat(np.arange(len(rows)), list(map(len, rows))), len(rows))

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Sum values of the different words [m] over the words of each text: [num_texts]."""
        return np.bincount(self.texts, values[self.places], minlength=self.num_texts)


def log_ratio_sums(known: Sequence[Marginals], words: Sequence[WordsOfTexts], mixture: Mixture) -> np.ndarray:
    """Return Σ ln(g/u) of all texts of all lists, in a row; λ and σ of the mixture play no part.

    known: what was known when each list was decoded. words: those of its texts.
    """
    return np.concatenate(
        [
            texts.sums(replace(marginals, mixture=mixture).log_ratios(texts.different))
            for marginals, texts in zip(known, words, strict=True)
        ]
    )


@dataclass(frozen=True)
class AdaptedLm:
    """A `SentenceModel` that computes p' of eq. 1 without normalisation."""

    lm: SentenceModel
    marginals: Marginals

    def score_sentences(self, texts: Sequence[str]) -> np.ndarray:
        """Return ln p'(text) without normalisation, with the end of the sentence: [len(texts)] float64."""
        words = WordsOfTexts.of(texts, self.marginals.background)
        return self.lm.score_sentences(texts) + words.sums(self.marginals.log_factors(words.different))
