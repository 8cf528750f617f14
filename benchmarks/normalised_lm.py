"""The adapted model with its normalisation: p'(w | h) = f(w) p(w | h) / Z(h), for perplexity.

Liu and Peng, "Federated Marginal Personalization for ASR Rescoring", 2020, eq. 1, with f(w) = (g(w)/u(w))^λ.

Z(h) = Σ_w f(w) p(w | h) runs over the vocabulary. For a back-off model it need not: where h' is h without its
first word and b(h) the back-off weight,

    Z(h) = Σ_{w: hw is in the model} f(w) (p(w | h) − b(h) p(w | h')) + b(h) Z(h'),

so one pass over its n-grams gives Z of all contexts. A neural model of words has all p(w | h) at hand. A
model of subwords has no Z that could be computed: its words are without number.

The end of a sentence has the factor 1; words the model does not know have that of <unk>, all together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch

from antiphon.data.tokens import Words
from antiphon.lm.neural_lm import MAX_LOGITS, NeuralLm, plan_text_batches, text_batch
from antiphon.lm.ngram import END_ID, NONE, START_ID, NgramModel, contexts_of, walk
from antiphon.personalisation.marginal_adaptation import Unigram


class Factors(Protocol):
    """What adaptation adds to ln p of every word."""

    def log_factors(self, ids: np.ndarray) -> np.ndarray: ...


class Normalised(Protocol):
    """A model that can be adapted and still add up to one."""

    def score_sentences(self, texts: Sequence[str], factors: Factors) -> np.ndarray:
        """ln p' of each text with its end: [len(texts)] float64."""
        ...


def normalised(model: NgramModel | NeuralLm, background: Unigram) -> Normalised:
    """The model with factors for the words of the background."""
    return (
        NormalisedNgram(model, background)
        if isinstance(model, NgramModel)
        else NormalisedNeural(model, background)
    )


@dataclass(frozen=True)
class Above:
    """N-grams of one order as continuations: their contexts, their last words, their suffixes. All [m]."""

    contexts: np.ndarray
    last: np.ndarray
    suffixes: np.ndarray


@dataclass(frozen=True)
class NormalisedNgram:
    """A back-off model of words."""

    model: NgramModel
    background: Unigram

    @cached_property
    def _above(self) -> list[Above]:
        """Of orders 2 and up."""
        size = len(self.model.words)
        contexts, last = np.zeros(size, dtype=np.int64), np.arange(size)
        found: list[Above] = []
        for order in range(2, self.model.order + 1):
            suffixes, first = np.divmod(self.model.levels[order - 1].keys, size)
            # Without its last word: what its suffix is without it, and its first word before that.
            places = first
            if order > 2:
                places = self.model.levels[order - 2].find(contexts[suffixes] * size + first)
            if (places == NONE).any():
                raise ValueError(f"the model holds n-grams of order {order} whose beginning it does not hold")
            contexts, last = places, last[suffixes]
            found.append(Above(contexts, last, suffixes))
        return found

    def log_factors(self, factors: Factors) -> np.ndarray:
        """ln f of the model's words, 0 for the ends of a sentence."""
        ids = self.background.ids
        known = np.array([ids.get(word, 0) for word in self.model.words])
        found = factors.log_factors(known)
        found[[START_ID, END_ID]] = 0.0
        return found

    def normalisers(self, log_factors: np.ndarray) -> list[np.ndarray]:
        """Z of the empty context, of contexts of one word, of two, …: [1], [m of order 1], …"""
        levels = self.model.levels
        weights = np.exp(log_factors)
        own = np.exp(levels[0].log_probs.astype(np.float64))
        own[START_ID] = 0.0  # never predicted
        found = [np.array([(weights * own).sum()])]
        shorter = np.zeros(len(self.model.words), dtype=np.int64)  # the context without its first word
        for order, above in enumerate(self._above, 1):
            backoffs = np.exp(levels[order - 1].backoffs.astype(np.float64))
            seen = np.exp(levels[order].log_probs.astype(np.float64))
            lower = np.exp(levels[order - 1].log_probs[above.suffixes].astype(np.float64))
            more = weights[above.last] * (seen - backoffs[above.contexts] * lower)
            summed = np.bincount(above.contexts, more, minlength=len(backoffs))
            found.append(backoffs * found[-1][shorter] + summed)
            shorter = above.suffixes
        return found

    def score_sentences(self, texts: Sequence[str], factors: Factors) -> np.ndarray:
        log_factors = self.log_factors(factors)
        normalisers = self.normalisers(log_factors)
        sentences = [self.model.encode(text) for text in texts]
        stream = np.array([id for sentence in sentences for id in (START_ID, *sentence)], dtype=np.int64)
        real = stream != START_ID
        contexts = contexts_of(stream, self.model.order - 1)[real]
        scores = log_factors[stream[real]] - np.log(self._z(contexts, normalisers))
        starts = np.cumsum([0, *map(len, sentences)])
        sums = np.concatenate([[0.0], np.cumsum(scores)])
        return self.model.score_sentences(texts) + np.diff(sums[starts])

    def _z(self, contexts: np.ndarray, normalisers: Sequence[np.ndarray]) -> np.ndarray:
        """Z after contexts [n, length], the nearest word first: that of the longest the model holds."""
        found = np.full(len(contexts), normalisers[0][0])
        if contexts.shape[1]:
            levels = self.model.levels[:-1]
            for order, places in walk(levels, len(self.model.words), contexts[:, 0], contexts[:, 1:]):
                held = places != NONE
                found[held] = normalisers[order][places[held]]
        return found


@dataclass(frozen=True)
class NormalisedNeural:
    """A neural model of whole words."""

    lm: NeuralLm
    background: Unigram

    def __post_init__(self) -> None:
        if not isinstance(self.lm.tokens, Words):
            raise ValueError(
                "a model of subwords cannot be normalised over words: train one with --subwords 0, "
                "or rescore, which needs no normalisation"
            )

    @torch.inference_mode()
    def score_sentences(self, texts: Sequence[str], factors: Factors) -> np.ndarray:
        tokens = self.lm.tokens
        assert isinstance(tokens, Words)
        ids = self.background.ids
        known = np.array([0, 0, *(ids.get(word, 0) for word in tokens.vocabulary)])
        log_factors = torch.from_numpy(factors.log_factors(known)).float()
        log_factors[0] = 0.0  # the end of a sentence
        self.lm.model.eval()
        encoded = [tokens.encode(text) for text in texts]
        scores = np.zeros(len(texts))
        for chosen in plan_text_batches(encoded, max(1, MAX_LOGITS // tokens.size), None):
            batch = text_batch([encoded[place] for place in chosen])
            (logits,) = self.lm.model(batch)
            losses = self.lm.model.score((logits + log_factors,), batch)
            scores[chosen] = -losses.double().numpy()
        return scores
