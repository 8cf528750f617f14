"""Marginal adaptation: a language model whose words are made likelier or rarer, each by a factor of its own.

Z. Liu and F. Peng, "Federated Marginal Personalization for ASR Rescoring", 2020, §2.1; after R. Kneser et
al., "Language Model Adaptation Using Dynamic Marginals", 1997.

| symbol | here |
| --- | --- |
| u(w) | `Marginals.background` |
| q̄(w) | `Marginals.shared_words`: of all clients, from the server; None before the first round |
| q_i(w) | `Marginals.client_words`: the client's cache |
| g(w) | (1 − α − β) u + α q̄ + β q_i, eq. 2 |
| α, β, λ, σ | `Mixture.alpha`, `.beta`, `.lam`, `.sigma` |

p'(w | h) ∝ (g(w) / u(w))^λ p(w | h), eq. 1. Not normalised here: a text gets λ Σ ln(g/u) over its words on
top of its ln p. That needs nothing of the model but ln p(text), so it is the same for a model of words and
one of subwords: there, a word's factor is paid where the word ends. The end of a sentence has none.
`benchmarks/normalised_lm.py` divides by Z(h), for perplexity.

Smoothing, which the paper leaves open: both q̄ and q_i are mixed with `smoothing` parts of u. It is done
where they are used, not before they are sent: eq. 6 is linear, so both come to the same, and what travels
stays a count. Hence g/u = 1 + (1 − smoothing) (α (q̄/u − 1) + β (q_i/u − 1)), which is exactly 1 before
anything was heard. Only words of the list at hand are looked at: the cost does not grow with the
vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from antiphon.lm.ngram import SentenceModel
from antiphon.lm.unigram import Unigram
from antiphon.personalisation.word_cache import Cache, rank_weights


@dataclass(frozen=True)
class Mixture:
    """How much everyone's words count, how much one's own, and how sharply: the paper's settings."""

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
    """What a client knows of how often words are said. everyone [background.size] is shared by clients."""

    background: Unigram
    mixture: Mixture = Mixture()
    shared_words: np.ndarray | None = None
    client_words: Cache = field(default_factory=Cache)

    def log_ratios(self, ids: np.ndarray) -> np.ndarray:
        """ln(g/u) of these words."""
        usual = self.background.probabilities[ids]
        change = np.zeros(len(ids))
        if self.shared_words is not None:
            change += self.mixture.alpha * (self.shared_words[ids] / usual - 1)
        if (total := self.client_words.total) > 0:
            change += self.mixture.beta * (self.client_words.at(ids) / total / usual - 1)
        # α + β = 1 without smoothing leaves nothing of u: a word nobody said has a ratio of zero.
        smallest = np.finfo(np.float64).tiny
        return np.log(np.maximum(1 + (1 - self.mixture.smoothing) * change, smallest))

    def log_factors(self, ids: np.ndarray) -> np.ndarray:
        """λ ln(g/u) of these words: what adaptation adds to ln p, before normalisation."""
        return self.mixture.lam * self.log_ratios(ids)


class Factors(Protocol):
    """What adaptation adds to ln p of every word."""

    def log_factors(self, ids: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class WordsOfTexts:
    """Words of several texts, each different word once, so that its factor is looked up once.

    different [m]; places [n]: the words of all texts in a row, as places in `different`; texts [n]: whose
    they are.
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
        """Sums over the words of each text [num_texts], of values of the different words [m]."""
        return np.bincount(self.texts, values[self.places], minlength=self.num_texts)


@dataclass(frozen=True)
class AdaptedLm:
    """A `SentenceModel`: p' of eq. 1 without its normalisation."""

    lm: SentenceModel
    background: Unigram
    factors: Factors

    def score_sentences(self, texts: Sequence[str]) -> np.ndarray:
        """ln p'(text) up to normalisation, the end included: [len(texts)] float64."""
        words = WordsOfTexts.of(texts, self.background)
        return self.lm.score_sentences(texts) + words.sums(self.factors.log_factors(words.different))
