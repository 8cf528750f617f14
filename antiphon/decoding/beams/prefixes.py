"""Prefixes of what may have been said, for beams that spell token by token, and what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from antiphon.data.tokens import Tokens
from antiphon.decoding.fusion import Fusion, Progress, Speller, surfaces
from antiphon.decoding.nbest import ACOUSTIC, LM, WORDS, Hypothesis

NOTHING = -1  # the last token of the empty prefix, and its parent


class Prefixes:
    """All prefixes that were ever in the beam: each is there once, whether it falls out and comes back."""

    def __init__(self, speller: Speller | None) -> None:
        self.speller = speller
        self.parents, self.tokens = [NOTHING], [NOTHING]
        self.children: dict[tuple[int, int], int] = {}
        self.progress = [] if speller is None else [speller.begin()]
        self.bonus = [0.0]  # what the words of each add to its score
        # By place: its word in hand finished, and the bonus.
        self.over: dict[int, tuple[Progress, float]] = {}
        opens = [] if speller is None else [surface.startswith(" ") for surface in speller.surfaces]
        self.opens_word = np.array(opens, dtype=bool)

    def child(self, parent: int, token: int) -> int:
        """The place of a prefix with one token more."""
        place = self.children.setdefault((parent, token), len(self.tokens))
        if place == len(self.tokens):
            self.parents.append(parent)
            self.tokens.append(token)
            if self.speller is not None:
                before = self._over(parent)[0] if self.opens_word[token] else self.progress[parent]
                self.progress.append(self.speller.extend(before, token))
                self.bonus.append(self.speller.bonus(self.progress[-1]))
        return place

    def spelled(self, place: int) -> tuple[int, ...]:
        """All tokens of a prefix."""
        reversed_tokens = []
        while place:
            reversed_tokens.append(self.tokens[place])
            place = self.parents[place]
        return tuple(reversed(reversed_tokens))

    def bonuses(self, places: list[int], offered: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What words add to each prefix [K], and to it with each offered token [K, C]."""
        if self.speller is None:
            return np.zeros(len(places)), np.zeros((len(places), len(offered)))
        own = np.array([self.bonus[place] for place in places])
        opening = self.opens_word[offered]
        if not opening.any():
            return own, np.repeat(own[:, None], len(offered), axis=1)
        over = np.array([self._over(place)[1] for place in places])
        return own, np.where(opening, over[:, None], own[:, None])

    def final_bonus(self, place: int) -> float:
        """What all words and the end of the sentence add."""
        if self.speller is None:
            return 0.0
        return self.speller.bonus(self.speller.finish(self.progress[place]))

    def _over(self, place: int) -> tuple[Progress, float]:
        assert self.speller is not None
        if place not in self.over:
            over = self.speller.finish_word(self.progress[place])
            self.over[place] = over, self.speller.bonus(over)
        return self.over[place]


def hypotheses(acoustics: Mapping[int, float], prefixes: Prefixes, tokens: Tokens) -> tuple[Hypothesis, ...]:
    """What these places, each with its ln p(tokens | speech), read; best first.

    Tokens that read the same are one hypothesis: its likeliest tokens, all its probability."""
    spelled: dict[str, list[int]] = {}
    for place in sorted(acoustics, key=lambda place: -acoustics[place]):
        text = " ".join(tokens.decode(prefixes.spelled(place)).split())
        spelled.setdefault(text, []).append(place)
    found = []
    for text, places in spelled.items():
        acoustic = float(np.logaddexp.reduce([acoustics[place] for place in places]))
        parts = {ACOUSTIC: acoustic, WORDS: float(len(text.split()))}
        if prefixes.speller is not None:
            over = prefixes.speller.finish(prefixes.progress[places[0]])
            parts = {ACOUSTIC: acoustic, LM: over.lm, WORDS: float(over.num_words)}
        score = acoustic + prefixes.final_bonus(places[0])
        found.append(Hypothesis(text, prefixes.spelled(places[0]), score, parts))
    return tuple(sorted(found, key=lambda hypothesis: -hypothesis.score))


def speller_for(fusion: Fusion | None, tokens: Tokens) -> Speller | None:
    return None if fusion is None else Speller(fusion, surfaces(tokens))


def highest(scores: np.ndarray, width: int) -> np.ndarray:
    """Places of the `width` highest scores [n], in no order."""
    return np.argpartition(-scores, width - 1)[:width] if len(scores) > width else np.arange(len(scores))
