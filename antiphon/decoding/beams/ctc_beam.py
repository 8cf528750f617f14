"""Prefix beam search for CTC, with or without an n-gram language model.

A. Hannun et al., "First-Pass Large Vocabulary Continuous Speech Recognition using Bi-Directional Recurrent
DNNs", 2014, algorithm 1 (after A. Graves and N. Jaitly, ICML 2014): a beam of prefixes, each with the summed
probability of its alignments that end in a blank and of those that end in its last token.

| symbol | name here |
| --- | --- |
| ℓ | a prefix: its index in `Prefixes` |
| p_b(ℓ; x_1:t), p_nb(ℓ; x_1:t) | `blank`, `nonblank` (ln) of the `Beam` |
| k, α, β | `width`, `Fusion.weight`, `Fusion.word_bonus` |

A frame offers its `tokens_per_frame` best tokens, but never more than `width`. So:
- With all tokens and a width of at least the number of prefixes, the search is exact: the acoustic part is
  ln p(tokens | speech), summed over all alignments.
- With a width of 1 a frame offers its best token only, and the beam holds one alignment, the best path. Its
  tokens are those of `Ctc.greedy`, and its acoustic part is the probability of that path.
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
        speller = speller_for(self.fusion, tokens)
        return [
            self.read(frames[row, :length], tokens, speller) for row, length in enumerate(lengths.tolist())
        ]

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
    current, extended = prefixes.bonuses(beam.indices, symbols)
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
