"""Prefixes of hypotheses for beams that spell token by token, and their words.

A language model scores a word when it is complete, and the end of a sentence after the token that ends it, or
where the beam has to cut it off. So a hypothesis that ends pays at once for its last word and its end, and
others do not yet pay for their current word. Ranked by what they paid, good sentences would lose against
hypotheses that are about to become worse. Therefore `Sentences` ranks twice:

- A hypothesis that just ended is compared with the others before it pays. If it is among the best, it is an
  `ended` sentence, with its full score.
- The beam is filled by full scores: a hypothesis that has ended stays while it is among the best.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from antiphon.data.tokens import BOUNDARY, Tokens
from antiphon.decoding.fusion import Fusion, Progress, Speller, surfaces
from antiphon.decoding.nbest import ACOUSTIC, LM, WORDS, Hypothesis

NOTHING = -1  # the last token of the empty prefix, and its parent
NUM_CANDIDATES = 2  # times the width: candidates that are spelled before the beam is filled


class Prefixes:
    """All prefixes that were ever in the beam, each once, by index."""

    def __init__(self, speller: Speller | None) -> None:
        self.speller = speller
        self.parents, self.tokens = [NOTHING], [NOTHING]
        self.children: dict[tuple[int, int], int] = {}
        self.progress = [] if speller is None else [speller.begin()]
        self.bonus = [0.0]  # the contribution of the words of each prefix to its score
        # Each prefix with its current word complete, and the bonus of that: None and NaN until needed.
        self.completed: list[Progress | None] = [None]
        self.completed_bonus = [math.nan]
        opens = [] if speller is None else [surface.startswith(" ") for surface in speller.surfaces]
        self.opens_word = np.array(opens, dtype=bool)
        self.opening = set(np.flatnonzero(self.opens_word).tolist())

    def child(self, parent: int, token: int) -> int:
        """The index of a prefix with one more token."""
        new = len(self.tokens)
        index = self.children.setdefault((parent, token), new)
        if index == new:
            self.parents.append(parent)
            self.tokens.append(token)
            if self.speller is not None:
                before = self._complete(parent) if token in self.opening else self.progress[parent]
                progress = self.speller.extend(before, token)
                self.progress.append(progress)
                self.bonus.append(self.speller.bonus(progress))
                self.completed.append(None)
                self.completed_bonus.append(math.nan)
        return index

    def spelled(self, index: int) -> tuple[int, ...]:
        """All tokens of a prefix."""
        reversed_tokens = []
        while index:
            reversed_tokens.append(self.tokens[index])
            index = self.parents[index]
        return tuple(reversed(reversed_tokens))

    def bonuses(self, indices: np.ndarray, offered: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The bonus of each prefix [..., K], and of each prefix with each offered token [..., K, C].

        indices: [..., K], below 0 where there is no prefix. offered: [..., C].
        """
        if self.speller is None:
            return np.zeros(indices.shape), np.zeros((*indices.shape, offered.shape[-1]))
        known = np.maximum(indices, 0).ravel().tolist()
        current = np.array([self.bonus[index] for index in known]).reshape(indices.shape)
        opening = self.opens_word[offered][..., None, :]
        if not opening.any():
            return current, np.repeat(current[..., None], offered.shape[-1], axis=-1)
        for index in known:
            if self.completed[index] is None:
                self._complete(index)
        completed = np.array([self.completed_bonus[index] for index in known]).reshape(indices.shape)
        return current, np.where(opening, completed[..., None], current[..., None])

    def final_bonus(self, index: int) -> float:
        """The bonus of all words and the end of the sentence."""
        return 0.0 if self.speller is None else self.speller.bonus(self.speller.finish(self.progress[index]))

    def _complete(self, index: int) -> Progress:
        """Return a prefix with its current word complete."""
        progress = self.completed[index]
        if progress is None:
            assert self.speller is not None
            progress = self.completed[index] = self.speller.finish_word(self.progress[index])
            self.completed_bonus[index] = self.speller.bonus(progress)
        return progress


def hypotheses(acoustics: Mapping[int, float], prefixes: Prefixes, tokens: Tokens) -> tuple[Hypothesis, ...]:
    """The hypotheses of these prefixes, each with its ln p(tokens | speech), best first.

    Prefixes with the same text are one hypothesis: the likeliest tokens, and the sum of the probabilities.
    """
    by_text: dict[str, list[int]] = {}
    for index in sorted(acoustics, key=lambda index: -acoustics[index]):
        by_text.setdefault(text_of(tokens, prefixes.spelled(index)), []).append(index)
    result = []
    for text, indices in by_text.items():
        acoustic = float(np.logaddexp.reduce([acoustics[index] for index in indices]))
        parts = {ACOUSTIC: acoustic, WORDS: float(len(text.split()))}
        if prefixes.speller is not None:
            words = prefixes.speller.finish(prefixes.progress[indices[0]])
            parts = {ACOUSTIC: acoustic, LM: words.lm, WORDS: float(words.num_words)}
        score = acoustic + prefixes.final_bonus(indices[0])
        result.append(Hypothesis(text, prefixes.spelled(indices[0]), score, parts))
    return tuple(sorted(result, key=lambda hypothesis: -hypothesis.score))


@contextmanager
def without_collection() -> Iterator[None]:
    """Pause the garbage collector: a search makes many objects that live until it ends, and no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def text_of(tokens: Tokens, ids: Sequence[int]) -> str:
    return " ".join(tokens.decode(ids).split())


def speller_for(fusion: Fusion | None, tokens: Tokens) -> Speller | None:
    return None if fusion is None else Speller(fusion, surfaces(tokens))


def highest(scores: np.ndarray, width: int) -> np.ndarray:
    """Indices of the `width` highest scores in the last axis, in no order; all of them if there are fewer."""
    if scores.shape[-1] > width:
        return np.argpartition(-scores, width - 1, axis=-1)[..., :width]
    return np.broadcast_to(np.arange(scores.shape[-1]), scores.shape)


@dataclass(frozen=True)
class Candidate:
    """A hypothesis with one more token: index in `Prefixes`, bonus, and bonus before it pays for its end."""

    prefix: int
    bonus: float
    unpaid: float
    has_ended: bool


IMPOSSIBLE = Candidate(0, 0.0, 0.0, has_ended=False)  # its score is −inf


class Sentences:
    """The words of `width` hypotheses of each utterance; `indices` are those of their prefixes."""

    def __init__(self, speller: Speller, num_utterances: int, width: int) -> None:
        self.speller, self.width = speller, width
        self.tries = [Prefixes(speller) for _ in range(num_utterances)]
        self.indices = [[0] * width for _ in self.tries]

    def choose(self, scores: Tensor, room: Tensor) -> tuple[Tensor, list[tuple[int, int, int]]]:
        """Choose continuations by their scores without words [B, K, num_tokens] and the bonus of their words.

        room [B, K]: whether yet another token may follow. All are ranked by their complete words, then the
        best are spelled and ranked again, because the last token may show that a word is unknown. Returns the
        best [B, K] of K · num_tokens, and (utterance, candidate, index of the prefix) of sentences that end.
        """
        offers = self._with_complete_words(scores).topk(NUM_CANDIDATES * self.width, dim=1)
        num_possible = offers.values.isfinite().sum(dim=1).tolist()
        spelled = self._spell(offers.indices.tolist(), num_possible, scores.shape[-1], room)
        plain = scores.flatten(1).gather(1, offers.indices)
        best = self._best(plain, [[candidate.bonus for candidate in row] for row in spelled])
        best_unpaid = self._best(plain, [[candidate.unpaid for candidate in row] for row in spelled])
        chosen = best.tolist()
        self.indices = [[row[k].prefix for k in ks] for row, ks in zip(spelled, chosen, strict=True)]
        ended = [
            (row, int(offers.indices[row, k]), spelled[row][k].prefix)
            for row, (paid, unpaid) in enumerate(zip(chosen, best_unpaid.tolist(), strict=True))
            for k in dict.fromkeys(paid + unpaid)
            if spelled[row][k].has_ended
        ]
        return offers.indices.gather(1, best), ended

    def _with_complete_words(self, scores: Tensor) -> Tensor:
        """Scores and the bonus of the words that are complete before the last token: [B, K · num_tokens]."""
        tokens = np.arange(scores.shape[-1])
        pairs = zip(self.tries, self.indices, strict=True)
        bonuses = np.stack([prefixes.bonuses(np.array(indices), tokens)[1] for prefixes, indices in pairs])
        return (scores + torch.from_numpy(bonuses).to(scores)).flatten(1)

    def _best(self, scores: Tensor, bonuses: Sequence[Sequence[float]]) -> Tensor:
        return (scores + scores.new_tensor(bonuses)).topk(self.width, dim=1).indices

    def _spell(
        self, offers: Sequence[Sequence[int]], num_possible: Sequence[int], num_tokens: int, room: Tensor
    ) -> list[list[Candidate]]:
        """All offers to each utterance; only the first `num_possible` of them have a finite score."""
        result = []
        for row, (best, count, may_go_on) in enumerate(zip(offers, num_possible, room.tolist(), strict=True)):
            possible = [self._candidate(row, divmod(offer, num_tokens), may_go_on) for offer in best[:count]]
            result.append(possible + [IMPOSSIBLE] * (len(best) - count))
        return result

    def _candidate(self, row: int, offer: tuple[int, int], may_go_on: Sequence[bool]) -> Candidate:
        number, token = offer
        prefixes, index = self.tries[row], self.indices[row][number]
        if token != BOUNDARY:
            index = prefixes.child(index, token)
        unpaid = prefixes.bonus[index]
        if token != BOUNDARY and may_go_on[number]:
            return Candidate(index, unpaid, unpaid, has_ended=False)
        return Candidate(index, prefixes.final_bonus(index), unpaid, has_ended=True)
