"""Beam searches for transducers: a fast one, and an exact one.

`TransducerBeam` goes from frame to frame, one symbol at each: the `modified_beam_search` of icefall (k2-fsa).
A symbol moves on to the next frame as a blank does, so a path through T frames has T symbols, prefixes of all
utterances advance together, and a prefix's acoustic part is the sum over the frames at which its tokens may
stand. With a width of 1 it is `Transducer.greedy` at one symbol a frame.

`ExactTransducerBeam` goes from token to token over all frames at once. It holds α(t, y) of a prefix y at
every frame (A. Graves, "Sequence Transduction with Recurrent Neural Networks", 2012, eq. 16), so its acoustic
part is ln p(tokens | speech) in full, the negative of `Transducer.losses`, whatever the width. What the width
decides is which prefixes are looked at, by their prefix probability Σ_t α(t, y) p(k | t, y), which no
continuation of y k can exceed (the prefix search of A. Graves et al., ICML 2006, §3.2, for transducers).
A search that never had to drop a prefix for want of width has found the best there are.

| symbol | name here |
| --- | --- |
| y, k | a prefix: its `place` in `Prefixes`; a token |
| α(t, y) | `alpha` (ln) |
| α(t, y) p(k ∣ t, y) | `entering` (ln): with it the prefix y k begins at frame t |

With a language model scores are those of `fusion`; there, a bonus for words may let a continuation exceed
what the exact search foresaw.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from antiphon.data.batches import Batch
from antiphon.data.tokens import BOUNDARY, Tokens
from antiphon.decoding.fusion import Fusion
from antiphon.decoding.hypothesis import Hypothesis
from antiphon.decoding.prefixes import Prefixes, highest, hypotheses, speller_for
from antiphon.models.rnnt_loss import running_sum
from antiphon.models.transducer import Transducer


@dataclass(frozen=True)
class TransducerBeam:
    """`nbest` gives up to `width` hypotheses an utterance, best first; at most one token a frame."""

    width: int = 8
    fusion: Fusion | None = None

    def __post_init__(self) -> None:
        _check_width(self.width)

    @torch.inference_mode()
    def nbest(self, model: Transducer, tokens: Tokens, batch: Batch) -> list[tuple[Hypothesis, ...]]:
        """Hypotheses of each utterance of the batch. Call `model.eval()` first."""
        frames, lengths = model.listen(batch)
        speller = speller_for(self.fusion, tokens)
        tries = [Prefixes(speller) for _ in range(len(frames))]
        beams = [Beam.first(model.config.context) for _ in tries]
        ends = lengths.tolist()
        for number, frame in enumerate(frames.unbind(dim=1)):
            contexts = np.stack([beam.padded_contexts(self.width) for beam in beams])
            states = model.predict(torch.from_numpy(contexts).to(frame.device))
            log_probs = _log_probs(model, frame[:, None], states).cpu().numpy()
            for row, (beam, prefixes) in enumerate(zip(beams, tries, strict=True)):
                if number < ends[row]:
                    known = log_probs[row, : len(beam.places)]
                    beams[row] = _advance(beam, known, prefixes, self.width)
        return [
            hypotheses(dict(zip(beam.places, beam.acoustic.tolist(), strict=True)), prefixes, tokens)
            for beam, prefixes in zip(beams, tries, strict=True)
        ]


@dataclass(frozen=True)
class ExactTransducerBeam:
    """`nbest` gives up to `width` hypotheses an utterance with their full likelihoods, best first.

    As with greedy search, no hypothesis has more than the model's `symbols_per_frame` tokens a frame.
    """

    width: int = 8
    fusion: Fusion | None = None

    def __post_init__(self) -> None:
        _check_width(self.width)

    @torch.inference_mode()
    def nbest(self, model: Transducer, tokens: Tokens, batch: Batch) -> list[tuple[Hypothesis, ...]]:
        """Hypotheses of each utterance of the batch. Call `model.eval()` first."""
        frames, lengths = model.listen(batch)
        speller = speller_for(self.fusion, tokens)
        found = []
        for own, length in zip(frames, lengths.tolist(), strict=True):
            prefixes = Prefixes(speller)
            finished = self._search(model, own[: max(length, 1)], prefixes)
            found.append(hypotheses(finished, prefixes, tokens))
        return found

    def _search(self, model: Transducer, frames: Tensor, prefixes: Prefixes) -> dict[int, float]:
        """The likeliest of all that ends somewhere: place -> ln p(tokens | frames [T, joint_dim])."""
        finished: dict[int, float] = {}
        scores: dict[int, float] = {}
        places, contexts = [0], model.start(1)
        entering = frames.new_full((1, len(frames)), -torch.inf, dtype=torch.float64)
        entering[0, 0] = 0.0
        for _ in range(model.config.symbols_per_frame * len(frames) + 1):
            log_probs = _log_probs(model, frames, model.predict(contexts)[:, None])
            alpha = _alpha(entering, log_probs[..., BOUNDARY])
            ended = (alpha[:, -1] + log_probs[:, -1, BOUNDARY]).tolist()
            for place, acoustic in zip(places, ended, strict=True):
                finished[place] = acoustic
                scores[place] = acoustic + prefixes.final_bonus(place)
            kept = sorted(finished, key=lambda place: -scores[place])[: self.width]
            finished = {place: finished[place] for place in kept}
            worth = scores[kept[-1]] if len(kept) == self.width else -np.inf
            rows, symbols = self._extensions(alpha, log_probs, places, prefixes, worth)
            if not len(rows):
                break
            places = [prefixes.child(places[row], int(k)) for row, k in zip(rows, symbols, strict=True)]
            row, symbol = (torch.from_numpy(chosen).to(frames.device) for chosen in (rows, symbols))
            entering = alpha[row] + log_probs[row, :, symbol]
            contexts = model.advance(contexts[row], symbol)
        return finished

    def _extensions(
        self, alpha: Tensor, log_probs: Tensor, places: list[int], prefixes: Prefixes, worth: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Which prefixes and tokens to go on with: those that may still end up above `worth`."""
        reached = torch.logsumexp(alpha[..., None] + log_probs, dim=1).cpu().numpy()  # [K, V]
        scores = reached + _bonuses(prefixes, places, reached.shape[1])
        scores[:, BOUNDARY] = -np.inf
        best = _best(scores.ravel(), self.width)
        return np.divmod(best[scores.ravel()[best] > worth], scores.shape[1])


@dataclass(frozen=True)
class Beam:
    """K prefixes: places, ln of what leads there [K], and their last tokens [K, context]."""

    places: list[int]
    acoustic: np.ndarray
    contexts: np.ndarray

    @classmethod
    def first(cls, context: int) -> Beam:
        """Nothing was said yet."""
        return cls([0], np.zeros(1), np.zeros((1, context), dtype=np.int64))

    def padded_contexts(self, width: int) -> np.ndarray:
        return np.pad(self.contexts, ((0, width - len(self.places)), (0, 0)))


def _advance(beam: Beam, log_probs: np.ndarray, prefixes: Prefixes, width: int) -> Beam:
    """One frame further: every prefix stays (by a blank) or takes a token; log_probs [K, V]."""
    reached = beam.acoustic[:, None] + log_probs
    # A prefix that another in the beam grows into is one with it: what leads there is added up.
    where = {place: row for row, place in enumerate(beam.places)}
    for place, row in where.items():
        parent = where.get(prefixes.parents[place])
        if parent is not None:
            grown = parent, prefixes.tokens[place]
            reached[row, BOUNDARY] = np.logaddexp(reached[row, BOUNDARY], reached[grown])
            reached[grown] = -np.inf
    scores = reached + _bonuses(prefixes, beam.places, reached.shape[1])
    best = _best(scores.ravel(), width)
    rows, symbols = np.divmod(best[scores.ravel()[best] > -np.inf], scores.shape[1])
    places = [
        prefixes.child(beam.places[row], int(symbol)) if symbol != BOUNDARY else beam.places[row]
        for row, symbol in zip(rows, symbols, strict=True)
    ]
    old = beam.contexts[rows]
    new = np.concatenate([old[:, 1:], symbols[:, None]], axis=1)
    return Beam(places, reached[rows, symbols], np.where(symbols[:, None] == BOUNDARY, old, new))


def _alpha(entering: Tensor, blank: Tensor) -> Tensor:
    """ln α [K, T] of prefixes that begin with `entering` [K, T] at each frame and wait by `blank` [K, T]."""
    waited = F.pad(running_sum(blank)[:, :-1], (1, 0))  # as in `rnnt_loss`
    return torch.logcumsumexp(entering - waited, dim=-1) + waited


def _log_probs(model: Transducer, frames: Tensor, states: Tensor) -> Tensor:
    return F.log_softmax(model.classify(frames, states).double(), dim=-1)


def _bonuses(prefixes: Prefixes, places: list[int], num_tokens: int) -> np.ndarray:
    """What words add to each prefix as it is (column 0) and with each token more: [K, num_tokens]."""
    own, extended = prefixes.bonuses(places, np.arange(1, num_tokens))
    return np.concatenate([own[:, None], extended], axis=1)


def _best(scores: np.ndarray, width: int) -> np.ndarray:
    """Places of the `width` highest scores [n], highest first."""
    best = highest(scores, width)
    return best[np.argsort(-scores[best], kind="stable")]


def _check_width(width: int) -> None:
    if width < 1:
        raise ValueError(f"a beam needs a width of at least 1, not {width}")
