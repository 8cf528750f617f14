"""Beam search for attention models, all hypotheses of all utterances in one step.

Length normalisation and coverage penalty: Y. Wu et al., "Google's Neural Machine Translation System",
2016, eq. 14:

    score = acoustic / lp + bonus · length + coverage_weight · cp
    lp = ((5 + length) / 6) ^ normalisation        cp = Σ_frames ln min(1, attention the frame has had)

with length the number of tokens, the end among them. Attention that stops early leaves frames unheard (cp far
below 0); one that loops adds tokens.

A hypothesis that has ended keeps its place in the beam and competes with those that go on. At one token a
frame of the encoder it is cut off without an end, as in `Las.greedy`. All tokens that may follow a hypothesis
have the same length and coverage, so that with a width of 1 the likeliest is taken: a beam of 1 is greedy,
whatever the penalties are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon.data.batches import Batch
from antiphon.data.tokens import BOUNDARY, Tokens
from antiphon.decoding.hypothesis import ACOUSTIC, COVERAGE, LENGTH, WORDS, Hypothesis
from antiphon.models.las import Decoder, Las, Memory
from antiphon.models.layers import at_least_float32

UNHEARD = 1e-4  # a frame is never less covered than this: its logarithm stays finite


@dataclass(frozen=True)
class AttentionBeam:
    """`nbest` gives up to `width` hypotheses an utterance, best first."""

    width: int = 8
    normalisation: float = 0.0
    bonus: float = 0.0
    coverage_weight: float = 0.0

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"a beam needs a width of at least 1: {self}")

    @torch.inference_mode()
    def nbest(self, model: Las, tokens: Tokens, batch: Batch) -> list[tuple[Hypothesis, ...]]:
        """Hypotheses of each utterance of the batch. Call `model.eval()` first."""
        memory = _repeated(model.listen(batch.features, batch.feature_lengths), self.width)
        beam = Beam.first(model.start(memory), memory, self.width)
        while beam.running.any():
            beam = self._advance(model, beam, memory)
        scores = self.scores(beam.acoustic, beam.lengths, beam.coverage)
        return [_listed(beam, scores, row, tokens) for row in range(len(scores))]

    def scores(self, acoustic: Tensor, lengths: Tensor, coverage: Tensor) -> Tensor:
        """What hypotheses are ranked by."""
        lengths = lengths.to(acoustic.dtype)
        penalty = ((5 + lengths) / 6) ** self.normalisation
        return acoustic / penalty + self.bonus * lengths + self.coverage_weight * coverage

    def _advance(self, model: Las, beam: Beam, memory: Memory) -> Beam:
        """One token further."""
        decoder = model.step(model.embedding(beam.last.flatten()), beam.decoder, memory)
        log_probs = (
            at_least_float32(model.classify(decoder.seen)).log_softmax(dim=-1).unflatten(0, beam.last.shape)
        )
        attention = beam.attention + decoder.weights.unflatten(0, beam.last.shape)
        running = beam.running
        coverage = torch.where(running, _coverage(attention, beam.mask), beam.coverage)
        lengths = beam.lengths + running
        ended = torch.full_like(log_probs, -torch.inf)
        ended[:, :, BOUNDARY] = 0.0  # what has ended goes on as it is
        acoustic = beam.acoustic[:, :, None] + torch.where(running[:, :, None], log_probs, ended)
        scores = self.scores(acoustic, lengths[:, :, None], coverage[:, :, None]).flatten(1)
        best = scores.topk(self.width, dim=1).indices
        parents, last = best // log_probs.shape[-1], best % log_probs.shape[-1]
        spelled = torch.cat((_of(beam.spelled, parents), last[:, :, None]), dim=2)
        lengths = lengths.gather(1, parents)
        room = lengths < beam.mask.sum(dim=-1, keepdim=True)
        return Beam(
            _reordered(decoder, parents),
            spelled,
            acoustic.flatten(1).gather(1, best),
            lengths,
            coverage.gather(1, parents),
            _of(attention, parents),
            running.gather(1, parents) & (last != BOUNDARY) & room,
            beam.mask,
        )


@dataclass(frozen=True)
class Beam:
    """K hypotheses of each of B utterances; the decoder's state has B · K rows.

    spelled [B, K, U]: tokens, zeros after the end; acoustic, lengths, coverage, running [B, K]; attention
    [B, K, T]: what each frame has had; mask [B, T]: the real frames.
    """

    decoder: Decoder
    spelled: Tensor
    acoustic: Tensor
    lengths: Tensor
    coverage: Tensor
    attention: Tensor
    running: Tensor
    mask: Tensor

    @property
    def last(self) -> Tensor:
        return self.spelled[:, :, -1]

    @classmethod
    def first(cls, decoder: Decoder, memory: Memory, width: int) -> Beam:
        """One hypothesis with nothing spelled; the others cannot be."""
        mask = memory.mask[::width]
        shape = len(mask), width
        acoustic = at_least_float32(memory.frames.new_zeros(shape))
        acoustic[:, 1:] = -torch.inf
        nothing = torch.zeros_like(acoustic)
        return cls(
            decoder,
            torch.full((*shape, 1), BOUNDARY, device=mask.device),
            acoustic,
            torch.zeros(shape, dtype=torch.int64, device=mask.device),
            nothing,
            acoustic.new_zeros(*shape, mask.shape[1]),
            torch.ones(shape, dtype=torch.bool, device=mask.device),
            mask,
        )


def _coverage(attention: Tensor, mask: Tensor) -> Tensor:
    """cp of attention so far [B, K, T] over real frames [B, T]: [B, K]."""
    return attention.clamp(UNHEARD, 1.0).log().masked_fill(~mask[:, None], 0.0).sum(dim=-1)


def _repeated(memory: Memory, width: int) -> Memory:
    frames, keys, mask = (
        tensor.repeat_interleave(width, dim=0) for tensor in (memory.frames, memory.keys, memory.mask)
    )
    return Memory(frames, keys, memory.location_filters, mask)


def _of(values: Tensor, parents: Tensor) -> Tensor:
    """Values [B, K, D] of the parents [B, K]."""
    return values.gather(1, parents[:, :, None].expand(-1, -1, values.shape[2]))


def _reordered(decoder: Decoder, parents: Tensor) -> Decoder:
    """Its rows, those of the parents [B, K]."""
    first = torch.arange(len(parents), device=parents.device)[:, None] * parents.shape[1]
    rows = (first + parents).flatten()
    states = tuple((values[rows], carry[rows]) for values, carry in decoder.states)
    return Decoder(states, decoder.context[rows], decoder.weights[rows], decoder.seen[rows])


def _listed(beam: Beam, scores: Tensor, row: int, tokens: Tokens) -> tuple[Hypothesis, ...]:
    """Hypotheses of one utterance; of those that read the same, the best."""
    found: dict[str, Hypothesis] = {}
    for place in scores[row].argsort(descending=True).tolist():
        acoustic = beam.acoustic[row, place].item()
        if acoustic == -torch.inf:
            continue
        spelled = tuple(token for token in beam.spelled[row, place].tolist() if token != BOUNDARY)
        text = " ".join(tokens.decode(spelled).split())
        parts = {
            ACOUSTIC: acoustic,
            LENGTH: float(beam.lengths[row, place]),
            COVERAGE: beam.coverage[row, place].item(),
            WORDS: float(len(text.split())),
        }
        found.setdefault(text, Hypothesis(text, spelled, scores[row, place].item(), parts))
    return tuple(found.values())
