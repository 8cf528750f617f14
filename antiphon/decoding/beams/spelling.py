"""The words of hypotheses that are spelled side by side, for a beam that ranks many utterances at once.

A language model scores a word once it is over, and the end of a sentence when nothing more will follow:
after the token that ends it, or where the beam has to cut it off. So a hypothesis that ends pays at once for
its last word and its end, while those that go on owe for the word in hand. Ranked by what they have paid,
good sentences would be pushed out by others that are about to become worse. Therefore:

- What has just ended is compared with the others before it pays. If it is among the best then, it is `ended`,
  for good, with its full score.
- The beam is filled by full scores: a hypothesis that has ended keeps its place while it deserves one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from antiphon.data.tokens import BOUNDARY
from antiphon.decoding.beams.prefixes import Prefixes
from antiphon.decoding.fusion import Progress, Speller

LOOKED_AT = 2  # times the width: so many candidates are spelled to the last token before the width is filled


@dataclass(frozen=True)
class Spelled:
    """A candidate: its place among the `Prefixes`, and what its words add.

    unpaid: what they add before it pays for its end, if it has ended.
    """

    prefix: int
    bonus: float
    unpaid: float
    has_ended: bool


IMPOSSIBLE = Spelled(0, 0.0, 0.0, has_ended=False)  # its score is −inf


@dataclass(frozen=True)
class Choice:
    """`best` [B, K]: places among the K · num_tokens candidates of an utterance.

    ended: (utterance, place among its candidates, place among its prefixes) of sentences that end here.
    """

    best: Tensor
    ended: list[tuple[int, int, int]]


class Sentences:
    """`width` hypotheses of each utterance; `places` are theirs among the `Prefixes` of the utterance."""

    def __init__(self, speller: Speller, num_utterances: int, width: int) -> None:
        self.speller, self.width = speller, width
        self.tries = [Prefixes(speller) for _ in range(num_utterances)]
        self.places = [[0] * width for _ in self.tries]

    def choose(self, scores: Tensor, room: Tensor) -> Choice:
        """The best continuations by their scores without words [B, K, num_tokens] and their words together.

        room [B, K] says whether yet another token may follow the next one.

        All are ranked by the words that are over before their last token; a token may show that the word in
        hand is no word, so the best of them are spelled, and ranked again.
        """
        offers = self._foreseen(scores).topk(LOOKED_AT * self.width, dim=1)
        possible = offers.values.isfinite().sum(dim=1).tolist()
        spelled = self._spell(offers.indices.tolist(), possible, scores.shape[-1], room)
        given = scores.flatten(1).gather(1, offers.indices)
        kept = self._best(given, [[one.bonus for one in own] for own in spelled])
        noted = self._best(given, [[one.unpaid for one in own] for own in spelled])
        chosen = kept.tolist()
        self.places = [[own[k].prefix for k in mine] for own, mine in zip(spelled, chosen, strict=True)]
        ended = [
            (row, int(offers.indices[row, k]), spelled[row][k].prefix)
            for row, (first, second) in enumerate(zip(chosen, noted.tolist(), strict=True))
            for k in dict.fromkeys(first + second)
            if spelled[row][k].has_ended
        ]
        return Choice(offers.indices.gather(1, kept), ended)

    def finished(self, row: int, place: int) -> Progress:
        """All words of a hypothesis that has ended, and the end of the sentence."""
        return self.speller.finish(self.tries[row].progress[place])

    def _foreseen(self, scores: Tensor) -> Tensor:
        """Scores with the words that are over before the last token: [B, K · num_tokens]."""
        tokens = np.arange(scores.shape[-1])
        known = [
            prefixes.bonuses(places, tokens)[1]
            for prefixes, places in zip(self.tries, self.places, strict=True)
        ]
        return (scores + torch.from_numpy(np.stack(known)).to(scores)).flatten(1)

    def _best(self, given: Tensor, bonuses: Sequence[Sequence[float]]) -> Tensor:
        return (given + given.new_tensor(bonuses)).topk(self.width, dim=1).indices

    def _spell(
        self, offers: Sequence[Sequence[int]], possible: Sequence[int], num_tokens: int, room: Tensor
    ) -> list[list[Spelled]]:
        """All offers to each utterance; only the first `possible` of them have a finite score."""
        found = []
        for row, (best, number, may_go_on) in enumerate(zip(offers, possible, room.tolist(), strict=True)):
            own = [self._spelled(row, divmod(offer, num_tokens), may_go_on) for offer in best[:number]]
            found.append(own + [IMPOSSIBLE] * (len(best) - number))
        return found

    def _spelled(self, row: int, offer: tuple[int, int], may_go_on: Sequence[bool]) -> Spelled:
        """A hypothesis of the beam, by its number, with one token more."""
        number, token = offer
        prefixes, place = self.tries[row], self.places[row][number]
        if token != BOUNDARY:
            place = prefixes.child(place, token)
        unpaid = prefixes.bonus[place]
        if token != BOUNDARY and may_go_on[number]:
            return Spelled(place, unpaid, unpaid, has_ended=False)
        return Spelled(place, prefixes.final_bonus(place), unpaid, has_ended=True)
