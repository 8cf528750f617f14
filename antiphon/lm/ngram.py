"""Back-off n-gram language models over words: how they are kept, and how they score.

p(w | h) is that of the longest n-gram "h' w" the model holds, times the back-off weights of the contexts
that had to be given up (S. Katz 1987; the ARPA format). Scores are natural logarithms.

N-grams are a trie read backwards (K. Heafield, "KenLM: Faster and Smaller Language Model Queries", 2011):
an n-gram hangs on its suffix, so the walk that finds p(w | h) meets every shorter n-gram on its way, and ends
at the next state. An n-gram is one sorted 64-bit key (place of its suffix · vocabulary + its first word) and
two 32-bit numbers: 16 bytes.
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
NONE = -1  # in arrays of contexts: nothing stands here


class SentenceModel(Protocol):
    """A language model as a second pass sees it."""

    def score_sentences(self, texts: Sequence[str]) -> np.ndarray:
        """ln p of each text with its end: [len(texts)] float64."""
        ...


class State(NamedTuple):
    """What the next word's probability depends on: words, the last one first, and back-offs (ln).

    backoffs[k] is that of the context of the last k + 1 words.
    """

    words: tuple[int, ...] = ()
    backoffs: tuple[float, ...] = ()


@dataclass(frozen=True)
class Level:
    """All n-grams of one order, sorted by key: keys [m] int64, log_probs and backoffs [m] float32 (ln)."""

    keys: np.ndarray
    log_probs: np.ndarray
    backoffs: np.ndarray

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Places of keys [n], NONE where there is no such n-gram."""
        places = np.searchsorted(self.keys, keys)
        places[places == len(self.keys)] = 0
        found = (self.keys[places] == keys) if len(self.keys) else np.zeros(len(keys), dtype=bool)
        return np.where(found, places, NONE)


@dataclass(frozen=True)
class Perplexity:
    """Of texts, per word: every word and every end of sentence is one prediction.

    `num_unknown` predictions were of a word outside the vocabulary, and paid the price of <unk>.
    """

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
    >>> state, first = model.score_next(model.begin(), "go")
    >>> state, second = model.score_next(state, "home")
    >>> bool(np.isclose(first + second + model.score_end(state), model.score_sentences(["go home"])[0]))
    True
    """

    words: tuple[str, ...]
    levels: tuple[Level, ...]

    @property
    def order(self) -> int:
        return len(self.levels)

    @cached_property
    def ids(self) -> dict[str, int]:
        """Of what can be said: a text in which "<s>" is written does not start anew."""
        return {word: id for id, word in enumerate(self.words) if id not in (START_ID, END_ID)}

    @cached_property
    def _sorted_words(self) -> list[str]:
        return sorted(self.ids)

    def has_prefix(self, text: str) -> bool:
        """Whether a word of the vocabulary begins so."""
        place = bisect_left(self._sorted_words, text)
        return place < len(self._sorted_words) and self._sorted_words[place].startswith(text)

    def begin(self) -> State:
        """The start of a sentence."""
        start = float(self.levels[0].backoffs[START_ID])
        return State((START_ID,), (start,)) if self.order > 1 else State()

    def score_next(self, state: State, word: str) -> tuple[State, float]:
        """The state after a word, and ln p(word | state). A word not in the vocabulary counts as <unk>."""
        return self.score_id(state, self.ids.get(word, UNKNOWN_ID))

    def score_end(self, state: State) -> float:
        """ln p(end of sentence | state)."""
        return self.score_id(state, END_ID)[1]

    def score_id(self, state: State, word: int) -> tuple[State, float]:
        place, order = word, 1
        level = self.levels[0]
        log_prob = float(level.log_probs[place])
        backoffs = [float(level.backoffs[place])]
        for earlier in state.words:
            level = self.levels[order]
            key = place * len(self.words) + earlier
            place = int(level.keys.searchsorted(key))
            if place == len(level.keys) or level.keys[place] != key:
                break
            order += 1
            log_prob = float(level.log_probs[place])
            backoffs.append(float(level.backoffs[place]))
        log_prob += sum(state.backoffs[order - 1 :])
        kept = min(order, self.order - 1)
        return State((word, *state.words)[:kept], tuple(backoffs[:kept])), log_prob

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
        """Ids of the words and of the end."""
        return [self.ids.get(word, UNKNOWN_ID) for word in text.split()] + [END_ID]

    def _all_scores(self, sentences: Iterable[list[int]]) -> np.ndarray:
        """ln p of every word of every sentence, in a row."""
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
    place = places_in_sentence(stream)
    for distance in range(1, min(length + 1, len(stream))):
        inside = place[distance:] >= distance
        contexts[distance:, distance - 1] = np.where(inside, stream[:-distance], NONE)
    return contexts


def places_in_sentence(stream: np.ndarray) -> np.ndarray:
    """How many words of its sentence stand before each word, its start being the first."""
    everywhere = np.arange(len(stream))
    return everywhere - np.maximum.accumulate(np.where(stream == START_ID, everywhere, 0))


def backed_off(
    levels: Sequence[Level], num_words: int, contexts: np.ndarray, words: np.ndarray
) -> np.ndarray:
    """ln p of words [n] after contexts [n, length] (the nearest word first, NONE where it ends): [n]."""
    log_probs = np.zeros(len(words))
    matched = np.zeros(len(words), dtype=np.int64)  # the order of the longest n-gram found
    for order, places in walk(levels, num_words, words, contexts):
        found = places != NONE
        log_probs[found] = levels[order - 1].log_probs[places[found]]
        matched[found] = order
    if contexts.shape[1]:
        for order, places in walk(levels, num_words, contexts[:, 0], contexts[:, 1:]):
            given_up = (places != NONE) & (order >= matched)
            log_probs[given_up] += levels[order - 1].backoffs[places[given_up]]
    return log_probs


def walk(
    levels: Sequence[Level], num_words: int, last: np.ndarray, earlier: np.ndarray
) -> Iterator[tuple[int, np.ndarray]]:
    """Orders from 1 up, and the places of the n-grams that end in `last` [n] and reach as far back."""
    places = last
    yield 1, places
    for order in range(2, min(len(levels), earlier.shape[1] + 1) + 1):
        before = earlier[:, order - 2]
        found = levels[order - 1].find(places * num_words + before)
        places = np.where((places == NONE) | (before == NONE), NONE, found)
        yield order, places
