"""Prefix beam search for CTC, one utterance at a time: an oracle for the search of many at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphon.data.tokens import BOUNDARY, Tokens
from antiphon.decoding.beams.prefixes import NOTHING, Prefixes, highest, hypotheses
from antiphon.decoding.fusion import Speller
from antiphon.decoding.nbest import Hypothesis


@dataclass(frozen=True)
class OneUtteranceBeam:
    """`read` returns up to `width` hypotheses, best first."""

    width: int = 16
    tokens_per_frame: int = 20

    def read(self, log_probs: np.ndarray, tokens: Tokens, speller: Speller | None) -> tuple[Hypothesis, ...]:
        """Hypotheses of one utterance: log_probs [T, num_tokens]."""
        prefixes = Prefixes(speller)
        beam = Beam.first()
        num_offered = min(self.tokens_per_frame, self.width)
        # Stable: of equal ones the first, as with argmax.
        offers = np.argsort(-log_probs, axis=1, kind="stable")[:, :num_offered]
        for frame, offered in zip(log_probs, offers, strict=True):
            beam = _advance(beam, frame, offered, prefixes, self.width)
        acoustics = np.logaddexp(beam.blank, beam.nonblank).tolist()
        return hypotheses(dict(zip(beam.indices, acoustics, strict=True)), prefixes, tokens)


@dataclass(frozen=True)
class Beam:
    """K prefixes: indices, parents and last tokens [K]; ln of alignments that end in a blank, or not [K]."""

    indices: list[int]
    parents: np.ndarray
    last: np.ndarray
    blank: np.ndarray
    nonblank: np.ndarray

    @classmethod
    def first(cls) -> Beam:
        """The empty prefix."""
        nothing = np.array([NOTHING])
        return cls([0], nothing, nothing, np.zeros(1), np.full(1, -np.inf))


def _advance(beam: Beam, frame: np.ndarray, offered: np.ndarray, prefixes: Prefixes, width: int) -> Beam:
    """Read a frame [num_tokens]: every prefix stays or takes one of the offered tokens."""
    allowed = np.full(len(frame) + 1, -np.inf)  # one more for the last token NOTHING, which is never repeated
    allowed[offered] = frame[offered]
    symbols = offered[offered != BOUNDARY]
    total = np.logaddexp(beam.blank, beam.nonblank)
    blank = total + allowed[BOUNDARY]
    nonblank = beam.nonblank + allowed[beam.last]
    # A repeated token needs a blank between.
    begun = np.where(symbols == beam.last[:, None], beam.blank[:, None], total[:, None]) + frame[symbols]
    _merge(beam, symbols, nonblank, begun)
    current, extended = prefixes.bonuses(np.array(beam.indices), symbols)
    scores = np.concatenate([np.logaddexp(blank, nonblank) + current, (begun + extended).ravel()])
    best = highest(scores, width)
    best = best[scores[best] > -np.inf]
    stay, go = best[best < len(total)], best[best >= len(total)] - len(total)
    indices = [beam.indices[row] for row in stay]
    for row, column in zip(*np.divmod(go, max(len(symbols), 1)), strict=True):
        indices.append(prefixes.child(beam.indices[row], int(symbols[column])))
    return Beam(
        indices,
        np.array([prefixes.parents[index] for index in indices]),
        np.array([prefixes.tokens[index] for index in indices]),
        np.concatenate([blank[stay], np.full(len(go), -np.inf)]),
        np.concatenate([nonblank[stay], begun.ravel()[go]]),
    )


def _merge(beam: Beam, symbols: np.ndarray, nonblank: np.ndarray, begun: np.ndarray) -> None:
    """Add the alignments that reach a prefix of the beam with a token after its parent."""
    is_parent = beam.parents[:, None] == np.array(beam.indices)
    child, parent = np.nonzero(is_parent)
    row, column = np.nonzero(beam.last[child][:, None] == symbols)
    child, parent = child[row], parent[row]
    nonblank[child] = np.logaddexp(nonblank[child], begun[parent, column])
    begun[parent, column] = -np.inf
