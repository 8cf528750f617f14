"""Beam search for transducers: time-synchronous decoding.

G. Saon et al., "Alignment-Length Synchronous Decoding for RNN Transducer", ICASSP 2020: the search takes up
to `symbols_per_frame` tokens at each frame. In the first step of a frame all prefixes are open. Each takes a
token and stays open for another step, or takes a blank and waits for the next frame. Waiting prefixes with
the same tokens are merged, and their probabilities are added. The tokens of the last step need no blank, as
in `Transducer.greedy`; with one symbol per frame this is the `modified_beam_search` of icefall (k2-fsa).

Deviation: waiting and open prefixes share one beam of `width`; in the paper, each has its own. So a width of
1 is `Transducer.greedy` with as many symbols per frame, and most frames need only a step or two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from antiphon.data.batches import Batch
from antiphon.data.tokens import BOUNDARY, Tokens
from antiphon.decoding.beams.prefixes import Prefixes, highest, hypotheses, speller_for
from antiphon.decoding.fusion import Fusion
from antiphon.decoding.nbest import Hypothesis
from antiphon.models.transducer import Transducer


@dataclass(frozen=True)
class TransducerBeam:
    """`nbest` returns up to `width` hypotheses per utterance, best first."""

    width: int = 8
    symbols_per_frame: int = 1
    fusion: Fusion | None = None

    def __post_init__(self) -> None:
        if min(self.width, self.symbols_per_frame) < 1:
            raise ValueError(f"a beam needs a width of at least 1 and at least 1 symbol a frame: {self}")

    @torch.inference_mode()
    def nbest(self, model: Transducer, tokens: Tokens, batch: Batch) -> list[tuple[Hypothesis, ...]]:
        """Hypotheses of each utterance of the batch. Call `model.eval()` first."""
        frames, lengths = model.listen(batch)
        speller = speller_for(self.fusion, tokens)
        tries = [Prefixes(speller) for _ in range(len(frames))]
        beams = [Beam.first(model.config.context) for _ in tries]
        ends = lengths.tolist()
        for number, frame in enumerate(frames.unbind(dim=1)):
            running = [row for row, end in enumerate(ends) if number < end]
            for row in running:
                beams[row] = replace(beams[row], is_open=np.ones(len(beams[row].indices), dtype=bool))
            for left in reversed(range(self.symbols_per_frame)):
                running = [row for row in running if beams[row].is_open.any()]
                for row, log_probs in zip(running, _offers(model, frame, beams, running), strict=True):
                    beams[row] = _advance(beams[row], log_probs, tries[row], self.width, may_stay=left > 0)
        return [
            hypotheses(dict(zip(beam.indices, beam.acoustic.tolist(), strict=True)), prefixes, tokens)
            for beam, prefixes in zip(beams, tries, strict=True)
        ]


@dataclass(frozen=True)
class Beam:
    """K prefixes: indices, ln p of their alignments [K], last tokens [K, context], and which are open [K].

    A prefix can be there twice: open, and waiting for the next frame.
    """

    indices: list[int]
    acoustic: np.ndarray
    contexts: np.ndarray
    is_open: np.ndarray

    @classmethod
    def first(cls, context: int) -> Beam:
        """The empty prefix."""
        return cls([0], np.zeros(1), np.zeros((1, context), dtype=np.int64), np.ones(1, dtype=bool))


def _offers(model: Transducer, frame: Tensor, beams: Sequence[Beam], rows: Sequence[int]) -> list[np.ndarray]:
    """For these rows of the batch, ln p [open, V] of the next symbol of open prefixes at frame [B, D]."""
    if not rows:
        return []
    contexts = [beams[row].contexts[beams[row].is_open] for row in rows]
    sizes = list(map(len, contexts))
    states = model.predict(torch.from_numpy(np.concatenate(contexts)).to(frame.device))
    logits = model.classify(frame[np.repeat(rows, sizes)], states)
    return np.split(logits.double().log_softmax(dim=-1).cpu().numpy(), np.cumsum(sizes)[:-1])


def _advance(beam: Beam, log_probs: np.ndarray, prefixes: Prefixes, width: int, may_stay: bool) -> Beam:
    """Every open prefix takes a blank or a token, by log_probs [open, V]; with a token it may stay open."""
    reached = np.full((len(beam.indices), log_probs.shape[1]), -np.inf)
    reached[:, BOUNDARY] = beam.acoustic
    reached[beam.is_open] = beam.acoustic[beam.is_open, None] + log_probs
    _merge(beam, reached, prefixes, may_stay)
    current, extended = prefixes.bonuses(np.array(beam.indices), np.arange(1, log_probs.shape[1]))
    scores = reached + np.concatenate([current[:, None], extended], axis=1)
    best = highest(scores.ravel(), width)
    best = best[np.argsort(-scores.ravel()[best], kind="stable")]
    rows, symbols = np.divmod(best[scores.ravel()[best] > -np.inf], scores.shape[1])
    indices = [
        prefixes.child(beam.indices[row], int(symbol)) if symbol != BOUNDARY else beam.indices[row]
        for row, symbol in zip(rows, symbols, strict=True)
    ]
    grows = symbols != BOUNDARY
    old = beam.contexts[rows]
    new = np.concatenate([old[:, 1:], symbols[:, None]], axis=1)
    return Beam(indices, reached[rows, symbols], np.where(grows[:, None], new, old), grows & may_stay)


def _merge(beam: Beam, reached: np.ndarray, prefixes: Prefixes, may_stay: bool) -> None:
    """Add up the probabilities of equal prefixes that will wait for the next frame."""
    is_open = beam.is_open.tolist()
    opened = {index: row for row, index in enumerate(beam.indices) if is_open[row]}
    waiting = {index: row for row, index in enumerate(beam.indices) if not is_open[row]}
    for index, row in (opened | waiting).items():
        others = [(opened[index], BOUNDARY)] if index in opened and index in waiting else []
        parent = opened.get(prefixes.parents[index])
        if parent is not None and not may_stay:
            others.append((parent, prefixes.tokens[index]))
        for other in others:
            reached[row, BOUNDARY] = np.logaddexp(reached[row, BOUNDARY], reached[other])
            reached[other] = -np.inf
