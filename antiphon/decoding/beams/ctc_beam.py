"""Prefix beam search for CTC, with or without an n-gram language model.

A. Hannun et al., "First-Pass Large Vocabulary Continuous Speech Recognition using Bi-Directional Recurrent
DNNs", 2014, algorithm 1 (after A. Graves and N. Jaitly, ICML 2014): a beam of prefixes, each with the summed
probability of its alignments that end in a blank and of those that end in its last token.

| symbol | name here |
| --- | --- |
| ℓ | a prefix: its index in `Prefixes` |
| p_b(ℓ; x_1:t), p_nb(ℓ; x_1:t) | `blank`, `nonblank` (ln) of the `Beams` |
| k, α, β | `width`, `Fusion.weight`, `Fusion.word_bonus` |

A frame offers its `tokens_per_frame` best tokens, but never more than `width`. So:
- With all tokens and a width of at least the number of prefixes, the search is exact: the acoustic part is
  ln p(tokens | speech), summed over all alignments.
- With a width of 1 a frame offers its best token only, and the beam holds one alignment, the best path. Its
  tokens are those of `Ctc.greedy`, and its acoustic part is the probability of that path.

The utterances of a batch are searched together: a frame of all of them is one array operation. They also
share the words that the language model has scored.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from antiphon.data.batches import Batch
from antiphon.data.tokens import BOUNDARY, Tokens
from antiphon.decoding.beams.prefixes import (
    NOTHING,
    Prefixes,
    highest,
    hypotheses,
    speller_for,
    without_collection,
)
from antiphon.decoding.fusion import Fusion, Speller
from antiphon.decoding.nbest import Hypothesis
from antiphon.models.ctc import Framewise

EMPTY = -2  # the index of a place without a prefix


@dataclass(frozen=True)
class CtcBeam:
    """`nbest` returns up to `width` hypotheses per utterance, best first."""

    width: int = 16
    tokens_per_frame: int = 20
    fusion: Fusion | None = None

    def __post_init__(self) -> None:
        if min(self.width, self.tokens_per_frame) < 1:
            raise ValueError(f"a beam needs a width and tokens_per_frame of at least 1: {self}")

    @torch.inference_mode()
    def nbest(self, model: Framewise, tokens: Tokens, batch: Batch) -> list[tuple[Hypothesis, ...]]:
        """Hypotheses of each utterance of the batch. Call `model.eval()` first."""
        log_probs, lengths = model(batch)
        frames = log_probs.double().cpu().numpy()
        return self.read(frames, lengths.cpu().numpy(), tokens, speller_for(self.fusion, tokens))

    @without_collection()
    def read(
        self, log_probs: np.ndarray, lengths: np.ndarray, tokens: Tokens, speller: Speller | None
    ) -> list[tuple[Hypothesis, ...]]:
        """Hypotheses of each utterance: log_probs [B, T, num_tokens], lengths [B]."""
        order = np.argsort(-lengths, kind="stable")  # the longest first: those that go on are the first rows
        frames, ends = log_probs[order], lengths[order]
        prefixes, beams = Prefixes(speller), Beams.first(len(order))
        found: list[tuple[Hypothesis, ...]] = [()] * len(order)
        for time in range(frames.shape[1] + 1):
            num_left = int((ends > time).sum())
            for row in range(num_left, len(beams.indices)):
                found[order[row]] = hypotheses(beams.acoustics(row), prefixes, tokens)
            if not num_left:
                break
            beams = self._advance(beams.rows(num_left), frames[:num_left, time], prefixes)
        return found

    def _advance(self, beams: Beams, frame: np.ndarray, prefixes: Prefixes) -> Beams:
        """Read a frame [B, num_tokens]: every prefix stays or takes one of the offered tokens."""
        # Stable: of equal ones the first, as with argmax.
        num_offered = min(self.tokens_per_frame, self.width)
        offered = np.argsort(-frame, axis=1, kind="stable")[:, :num_offered]
        offers = np.take_along_axis(frame, offered, axis=1)
        # One more for the last token NOTHING, which is never repeated.
        allowed = np.full((len(frame), frame.shape[1] + 1), -np.inf)
        np.put_along_axis(allowed, offered, offers, axis=1)
        total = np.logaddexp(beams.blank, beams.nonblank)
        blank = total + allowed[:, BOUNDARY, None]
        nonblank = beams.nonblank + np.take_along_axis(allowed, beams.last, axis=1)
        stay = replace(beams, blank=blank, nonblank=nonblank)
        # A repeated token needs a blank between. The blank itself is no token of a prefix.
        repeats = offered[:, None] == beams.last[:, :, None]
        begun = np.where(repeats, beams.blank[:, :, None], total[:, :, None])
        begun += np.where(offered == BOUNDARY, -np.inf, offers)[:, None]
        _merge(stay, offered, begun)
        current, extended = prefixes.bonuses(beams.indices, offered)
        scores = [np.logaddexp(blank, nonblank) + current, (begun + extended).reshape(len(frame), -1)]
        return _select(highest(np.concatenate(scores, axis=1), self.width), stay, offered, begun, prefixes)


@dataclass(frozen=True)
class Beams:
    """The beam of each utterance, all [B, K].

    indices, parents and last tokens of prefixes; ln of their alignments that end in a blank, or not. An
    utterance with fewer prefixes has `EMPTY` places.
    """

    indices: np.ndarray
    parents: np.ndarray
    last: np.ndarray
    blank: np.ndarray
    nonblank: np.ndarray

    @classmethod
    def first(cls, num_utterances: int) -> Beams:
        """The empty prefix."""
        nothing = np.full((num_utterances, 1), NOTHING)
        return cls(nothing + 1, nothing, nothing, np.zeros(nothing.shape), np.full(nothing.shape, -np.inf))

    def rows(self, number: int) -> Beams:
        """The beams of the first utterances."""
        return Beams(*(getattr(self, one.name)[:number] for one in fields(self)))

    def acoustics(self, row: int) -> dict[int, float]:
        """ln p(prefix | speech) of the prefixes of an utterance, by index."""
        both = np.logaddexp(self.blank[row], self.nonblank[row]).tolist()
        return {i: value for i, value in zip(self.indices[row].tolist(), both, strict=True) if i != EMPTY}


def _merge(stay: Beams, offered: np.ndarray, begun: np.ndarray) -> None:
    """Add the alignments that reach a prefix of the beam with a token after its parent."""
    row, child, parent = np.nonzero(stay.parents[:, :, None] == stay.indices[:, None])
    at, column = np.nonzero(stay.last[row, child][:, None] == offered[row])
    row, child, parent = row[at], child[at], parent[at]
    stay.nonblank[row, child] = np.logaddexp(stay.nonblank[row, child], begun[row, parent, column])
    begun[row, parent, column] = -np.inf


def _select(
    best: np.ndarray, stay: Beams, offered: np.ndarray, begun: np.ndarray, prefixes: Prefixes
) -> Beams:
    """Return the best candidates [B, width] of the prefixes that stay, and those with an offered token."""
    rows, num_staying = np.arange(len(best))[:, None], stay.indices.shape[1]
    goes = best >= num_staying
    place, column = np.divmod(best - num_staying, offered.shape[1])
    place, column = np.where(goes, place, best), np.where(goes, column, 0)
    parents, tokens = stay.indices[rows, place], offered[rows, column]
    blank = np.where(goes, -np.inf, stay.blank[rows, place])
    nonblank = np.where(goes, begun[rows, place, column], stay.nonblank[rows, place])
    is_possible = np.maximum(blank, nonblank) > -np.inf
    indices = np.where(is_possible, parents, EMPTY)
    new = goes & is_possible
    pairs = zip(parents[new].tolist(), tokens[new].tolist(), strict=True)
    indices[new] = [prefixes.child(parent, token) for parent, token in pairs]
    chosen = Beams(
        indices,
        np.where(is_possible, np.where(goes, parents, stay.parents[rows, place]), NOTHING),
        np.where(is_possible, np.where(goes, tokens, stay.last[rows, place]), NOTHING),
        blank,
        nonblank,
    )
    return chosen if is_possible.all() else _without_empty_columns(chosen)


def _without_empty_columns(beams: Beams) -> Beams:
    """Move empty places to the end, and leave out those that are empty in all beams."""
    order = np.argsort(beams.indices == EMPTY, axis=1, kind="stable")
    num_places = max(1, int((beams.indices != EMPTY).sum(axis=1).max()))
    moved = (np.take_along_axis(getattr(beams, one.name), order, axis=1) for one in fields(beams))
    return Beams(*(values[:, :num_places] for values in moved))
