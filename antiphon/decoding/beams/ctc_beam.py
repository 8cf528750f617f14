"""Prefix beam search for CTC, with or without an n-gram language model.

A. Hannun et al., "First-Pass Large Vocabulary Continuous Speech Recognition using Bi-Directional Recurrent
DNNs", 2014, algorithm 1 (after A. Graves and N. Jaitly, ICML 2014): a beam of prefixes, each with the summed
probability of its alignments that end in a blank and of those that end in its last token.

| symbol | name here |
| --- | --- |
| ℓ | a prefix: its `place` in `Prefixes` |
| p_b(ℓ; x_1:t), p_nb(ℓ; x_1:t) | `blank`, `nonblank` (ln) of the `Beam` |
| k, α, β | `width`, `Fusion.weight`, `Fusion.word_bonus` |

A frame offers its `tokens_per_frame` best tokens, but never more than `width`. So:
- With a width of at least the number of prefixes there are, and all tokens, the search is exact: the acoustic
  part is ln p(tokens | speech), summed over all alignments.
- With a width of 1 a frame offers its one best token, and the beam holds one alignment: the best path. Its
  tokens are those of `Ctc.greedy` and its acoustic part is the probability of that path. (One prefix with
  all tokens on offer would be no greedy search: where blank 0.3 and a repeat 0.3 meet a new token of 0.4, the
  prefix that stays has 0.6, and greedy takes the new token.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from antiphon.data.batches import Batch
from antiphon.data.tokens import BOUNDARY, Tokens
from antiphon.decoding.beams.prefixes import NOTHING, Prefixes, highest, hypotheses, speller_for
from antiphon.decoding.fusion import Fusion, Speller
from antiphon.decoding.nbest import Hypothesis
from antiphon.models.ctc import Framewise


@dataclass(frozen=True)
class CtcBeam:
    """`nbest` gives up to `width` hypotheses an utterance, best first."""

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
        speller = speller_for(self.fusion, tokens)
        return [
            self.read(frames[row, :length], tokens, speller) for row, length in enumerate(lengths.tolist())
        ]

    def read(self, log_probs: np.ndarray, tokens: Tokens, speller: Speller | None) -> tuple[Hypothesis, ...]:
        """Hypotheses of one utterance: log_probs [T, num_tokens]."""
        prefixes = Prefixes(speller)
        beam = Beam.first()
        num_offered = min(self.tokens_per_frame, self.width)
        # Stable: among equals the first, as argmax has it.
        offers = np.argsort(-log_probs, axis=1, kind="stable")[:, :num_offered]
        for frame, offered in zip(log_probs, offers, strict=True):
            beam = _advance(beam, frame, offered, prefixes, self.width)
        acoustics = np.logaddexp(beam.blank, beam.nonblank).tolist()
        return hypotheses(dict(zip(beam.places, acoustics, strict=True)), prefixes, tokens)


@dataclass(frozen=True)
class Beam:
    """K prefixes: places, parents and last tokens [K]; ln of alignments that end in a blank or do not [K]."""

    places: list[int]
    parents: np.ndarray
    last: np.ndarray
    blank: np.ndarray
    nonblank: np.ndarray

    @classmethod
    def first(cls) -> Beam:
        """Nothing was said yet."""
        nothing = np.array([NOTHING])
        return cls([0], nothing, nothing, np.zeros(1), np.full(1, -np.inf))


def _advance(beam: Beam, frame: np.ndarray, offered: np.ndarray, prefixes: Prefixes, width: int) -> Beam:
    """One frame [num_tokens] further: every prefix stays or takes one of the offered tokens."""
    allowed = np.full(len(frame) + 1, -np.inf)  # one more, so that the last token NOTHING is never repeated
    allowed[offered] = frame[offered]
    symbols = offered[offered != BOUNDARY]
    total = np.logaddexp(beam.blank, beam.nonblank)
    blank = total + allowed[BOUNDARY]
    nonblank = beam.nonblank + allowed[beam.last]
    # A token twice in a row needs a blank between.
    begun = np.where(symbols == beam.last[:, None], beam.blank[:, None], total[:, None]) + frame[symbols]
    _merge(beam, symbols, nonblank, begun)
    own, extended = prefixes.bonuses(beam.places, symbols)
    scores = np.concatenate([np.logaddexp(blank, nonblank) + own, (begun + extended).ravel()])
    best = highest(scores, width)
    best = best[scores[best] > -np.inf]
    stay, go = best[best < len(total)], best[best >= len(total)] - len(total)
    places = [beam.places[place] for place in stay]
    for row, column in zip(*np.divmod(go, max(len(symbols), 1)), strict=True):
        places.append(prefixes.child(beam.places[row], int(symbols[column])))
    return Beam(
        places,
        np.array([prefixes.parents[place] for place in places]),
        np.array([prefixes.tokens[place] for place in places]),
        np.concatenate([blank[stay], np.full(len(go), -np.inf)]),
        np.concatenate([nonblank[stay], begun.ravel()[go]]),
    )


def _merge(beam: Beam, symbols: np.ndarray, nonblank: np.ndarray, begun: np.ndarray) -> None:
    """A prefix reached by a token from its parent, and itself in the beam, is one: its sums are added."""
    is_parent = beam.parents[:, None] == np.array(beam.places)
    child, parent = np.nonzero(is_parent)
    row, column = np.nonzero(beam.last[child][:, None] == symbols)
    child, parent = child[row], parent[row]
    nonblank[child] = np.logaddexp(nonblank[child], begun[parent, column])
    begun[parent, column] = -np.inf
