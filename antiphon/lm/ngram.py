"""Back-off n-gram language models over words: storage and scores.

p(w | h) is that of the longest n-gram "h' w" in the model, times the back-off weights of the contexts that
are too long (S. Katz 1987; the ARPA format). Scores are natural logarithms.

N-grams form a reversed trie (K. Heafield, "KenLM: Faster and Smaller Language Model Queries", 2011): the
parent of an n-gram is its suffix. So the search for p(w | h) visits every shorter n-gram, and ends at the
next state. An n-gram takes 16 bytes: a sorted 64-bit key (index of its suffix · vocabulary + its first word)
and two 32-bit numbers.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

UNKNOWN, START, END = "<unk>", "<s>", "</s>"
SPECIAL = (UNKNOWN, START, END)  # words 0, 1 and 2 of every model
UNKNOWN_ID, START_ID, END_ID = 0, 1, 2
NEVER = -99 * math.log(10)  # what ARPA files write for a probability of zero
NONE = -1  # in arrays of words or indices: there is none


class SentenceModel(Protocol):
    """A language model for second passes."""

    def score_sentences(self, texts: Sequence[str]) -> np.ndarray:
        """ln p of each text with its end: [len(texts)] float64."""


class State(NamedTuple):
    """The context of the next word: words, the last one first; backoffs[k] (ln) is that of the last k + 1."""

    words: tuple[int, ...] = ()
    backoffs: tuple[float, ...] = ()


@dataclass(frozen=True)
class Level:
    """All n-grams of one order, sorted by key: keys [m] int64, log_probs and backoffs [m] float32 (ln)."""

    keys: np.ndarray
    log_probs: np.ndarray
    backoffs: np.ndarray

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Indices of keys [n], NONE where there is no such n-gram."""
        if not len(self.keys):
            return np.full(len(keys), NONE)
        indices = np.searchsorted(self.keys, keys)
        indices[indices == len(self.keys)] = 0
        return np.where(self.keys[indices] == keys, indices, NONE)


@dataclass(frozen=True)
class Perplexity:
    """Perplexity of texts, per word and end of sentence; `num_unknown` words were scored as <unk>."""

    log_prob: float
    num_words: int
    num_sentences: int
    num_unknown: int = 0

    @property
    def value(self) -> float:
        return math.exp(-self.log_prob / (self.num_words + self.num_sentences))


@dataclass(frozen=True)
class NgramModel:
    """Words and n-grams of orders 1 to `order`.

    >>> from antiphon.lm.kneser_ney import estimate
    >>> model = estimate(["go on", "go home"], order=2)
    >>> state, first = model.score_id(model.begin(), model.ids["go"])
    >>> state, second = model.score_id(state, model.ids["home"])
    >>> _, end = model.score_id(state, END_ID)
    >>> bool(np.isclose(first + second + end, model.score_sentences(["go home"])[0]))
    True
    """

    words: tuple[str, ...]
    levels: tuple[Level, ...]

    @property
    def order(self) -> int:
        return len(self.levels)

    @cached_property
    def ids(self) -> dict[str, int]:
        """Ids of the words of texts: without <s> and </s>, which have no meaning inside a text."""
        return {word: id for id, word in enumerate(self.words) if id not in (START_ID, END_ID)}

    @cached_property
    def _sorted_words(self) -> list[str]:
        return sorted(self.ids)

    def has_prefix(self, text: str) -> bool:
        """Whether a word of the vocabulary begins with this text."""
        index = bisect_left(self._sorted_words, text)
        return index < len(self._sorted_words) and self._sorted_words[index].startswith(text)

    def begin(self) -> State:
        """The start of a sentence."""
        start = float(self.levels[0].backoffs[START_ID])
        return State((START_ID,), (start,)) if self.order > 1 else State()

    def score_id(self, state: State, word: int) -> tuple[State, float]:
        """The state after a word, and ln p(word | state)."""
        index, order = word, 1
        level = self.levels[0]
        log_prob = float(level.log_probs[index])
        backoffs = [float(level.backoffs[index])]
        for earlier in state.words:
            level = self.levels[order]
            key = index * len(self.words) + earlier
            index = int(level.keys.searchsorted(key))
            if index == len(level.keys) or level.keys[index] != key:
                break
            order += 1
            log_prob = float(level.log_probs[index])
            backoffs.append(float(level.backoffs[index]))
        log_prob += sum(state.backoffs[order - 1 :])
        length = min(order, self.order - 1)
        return State((word, *state.words)[:length], tuple(backoffs[:length])), log_prob

    def score_sentences(self, texts: Sequence[str]) -> np.ndarray:
        """ln p of each text with its end: [len(texts)] float64."""
        sentences = [self.encode(text) for text in texts]
        starts = np.cumsum([0, *map(len, sentences)])
        scores = np.concatenate([[0.0], np.cumsum(self._all_scores(sentences))])
        return np.diff(scores[starts])

    def perplexity(self, texts: Sequence[str]) -> Perplexity:
        sentences = [self.encode(text) for text in texts]
        total = float(self._all_scores(sentences).sum())
        num_unknown = sum(sentence.count(UNKNOWN_ID) for sentence in sentences)
        num_words = sum(map(len, sentences)) - len(sentences)
        return Perplexity(total, num_words, len(sentences), num_unknown)

    def encode(self, text: str) -> list[int]:
        """Ids of the words and of the end; a word not in the vocabulary is <unk>."""
        return [self.ids.get(word, UNKNOWN_ID) for word in text.split()] + [END_ID]

    def _all_scores(self, sentences: Iterable[list[int]]) -> np.ndarray:
        """ln p of every word of every sentence, in one array."""
        stream = np.array([id for sentence in sentences for id in (START_ID, *sentence)], dtype=np.int64)
        contexts = contexts_of(stream, self.order - 1)
        real = stream != START_ID
        return backed_off(self.levels, len(self.words), contexts[real], stream[real])

    def ngrams(self, order: int) -> np.ndarray:
        """Word ids of the n-grams of an order, as they stand in its level: [m, order] int32."""
        rows = np.arange(len(self.words), dtype=np.int32)[:, None]
        for level in self.levels[1:order]:
            suffix, first = np.divmod(level.keys, len(self.words))
            rows = np.concatenate([first[:, None].astype(np.int32), rows[suffix]], axis=1)
        return rows


def contexts_of(stream: np.ndarray, length: int) -> np.ndarray:
    """Words before each word of a stream of sentences, the nearest first, NONE before a start: [n, length].

    >>> contexts_of(np.array([START_ID, 7, END_ID, START_ID, 8]), 2).tolist()
    [[-1, -1], [1, -1], [7, 1], [-1, -1], [1, -1]]
    """
    contexts = np.full((len(stream), length), NONE, dtype=np.int64)
    position = positions_in_sentence(stream)
    for distance in range(1, min(length + 1, len(stream))):
        inside = position[distance:] >= distance
        contexts[distance:, distance - 1] = np.where(inside, stream[:-distance], NONE)
    return contexts


def positions_in_sentence(stream: np.ndarray) -> np.ndarray:
    """The position of each word in its sentence; that of <s> is 0."""
    indices = np.arange(len(stream))
    return indices - np.maximum.accumulate(np.where(stream == START_ID, indices, 0))


def backed_off(
    levels: Sequence[Level], num_words: int, contexts: np.ndarray, words: np.ndarray
) -> np.ndarray:
    """ln p of words [n] after contexts [n, length] (the nearest word first, NONE where it ends): [n]."""
    log_probs = np.zeros(len(words))
    matched = np.zeros(len(words), dtype=np.int64)  # the order of the longest n-gram in the model
    for order, indices in walk(levels, num_words, words, contexts):
        exists = indices != NONE
        log_probs[exists] = levels[order - 1].log_probs[indices[exists]]
        matched[exists] = order
    if contexts.shape[1]:
        for order, indices in walk(levels, num_words, contexts[:, 0], contexts[:, 1:]):
            too_long = (indices != NONE) & (order >= matched)
            log_probs[too_long] += levels[order - 1].backoffs[indices[too_long]]
    return log_probs


def walk(
    levels: Sequence[Level], num_words: int, last: np.ndarray, earlier: np.ndarray
) -> Iterator[tuple[int, np.ndarray]]:
    """For each order from 1 up, the indices of the n-grams of that order that end in `last` [n]."""
    indices = last
    yield 1, indices
    for order in range(2, min(len(levels), earlier.shape[1] + 1) + 1):
        before = earlier[:, order - 2]
        longer = levels[order - 1].find(indices * num_words + before)
        indices = np.where((indices == NONE) | (before == NONE), NONE, longer)
        yield order, indices
