"""Beam search for attention models, all hypotheses of all utterances in one step.

Length normalisation and coverage penalty: Y. Wu et al., "Google's Neural Machine Translation System",
2016, eq. 14:

    score = acoustic / lp + bonus · length + coverage_weight · cp
    lp = ((5 + length) / 6) ^ normalisation        cp = Σ_frames ln min(1, attention the frame has had)

with length the number of tokens, the end among them. Attention that stops early leaves frames unheard (cp far
below 0); one that loops adds tokens. A language model adds what `fusion` says, which is not normalised.

A hypothesis that has ended keeps its place in the beam and competes with those that go on. At one token a
frame of the encoder it is cut off without an end, as in `Las.greedy`. All tokens that may follow a hypothesis
have the same length and coverage, so that with a width of 1 the likeliest is taken: without a language model
a beam of 1 is greedy, whatever the penalties are.

With a language model the list is made of the best sentences that have ended anywhere on the way, as in
`sentences`; without one, of what the beam holds when all have ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon.data.batches import Batch
from antiphon.data.tokens import BOUNDARY, Tokens
from antiphon.decoding.fusion import Fusion, Speller, surfaces
from antiphon.decoding.hypothesis import ACOUSTIC, COVERAGE, LENGTH, LM, WORDS, Hypothesis, best_first
from antiphon.decoding.sentences import Sentences
from antiphon.models.las import Decoder, Las, Memory
from antiphon.models.layers import at_least_float32

UNHEARD = 1e-4  # a frame is never less covered than this: its logarithm stays finite


@dataclass(frozen=True)
class Penalties:
    """What keeps hypotheses from ending early, from leaving speech out and from going round in circles."""

    normalisation: float = 0.0
    bonus: float = 0.0
    coverage_weight: float = 0.0

    def scores(self, acoustic: Tensor, lengths: Tensor, coverage: Tensor) -> Tensor:
        """What hypotheses are ranked by."""
        lengths = lengths.to(acoustic.dtype)
        penalty = ((5 + lengths) / 6) ** self.normalisation
        return acoustic / penalty + self.bonus * lengths + self.coverage_weight * coverage


@dataclass(frozen=True)
class AttentionBeam:
    """`nbest` gives up to `width` hypotheses an utterance, best first."""

    width: int = 8
    penalties: Penalties = Penalties()
    fusion: Fusion | None = None

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"a beam needs a width of at least 1: {self}")

    @torch.inference_mode()
    def nbest(self, model: Las, tokens: Tokens, batch: Batch) -> list[tuple[Hypothesis, ...]]:
        """Hypotheses of each utterance of the batch. Call `model.eval()` first."""
        memory = model.listen(batch.features, batch.feature_lengths)
        beam = Beam.first(model.start(memory, self.width), memory, self.width)
        if self.fusion is not None:
            return self._nbest_with_words(self.fusion, model, tokens, beam, memory)
        while beam.running.any():
            offers = _offers(model, beam, memory, self.penalties)
            beam = offers.kept(offers.scores.flatten(1).topk(self.width, dim=1).indices)
        scores = self.penalties.scores(beam.acoustic, beam.lengths, beam.coverage)
        return [
            best_first([_hypothesis(beam, row, number, own[number], tokens) for number in range(self.width)])
            for row, own in enumerate(scores.tolist())
        ]

    def _nbest_with_words(
        self, fusion: Fusion, model: Las, tokens: Tokens, beam: Beam, memory: Memory
    ) -> list[tuple[Hypothesis, ...]]:
        sentences = Sentences(Speller(fusion, surfaces(tokens)), len(beam.running), self.width)
        ended: list[dict[int, Hypothesis]] = [{} for _ in sentences.tries]
        while beam.running.any():
            offers = _offers(model, beam, memory, self.penalties)
            choice = sentences.choose(offers.scores, offers.room)
            for row, offer, place in choice.ended:
                if place not in ended[row]:  # it stays in the beam, and ends again at every step
                    ended[row][place] = _ended(offers, sentences, row, offer, place, tokens)
            beam = offers.kept(choice.best)
        return [best_first(list(own.values()))[: self.width] for own in ended]


def _offers(model: Las, beam: Beam, memory: Memory, penalties: Penalties) -> Offers:
    """All that hypotheses may become with one token more."""
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
    scores = penalties.scores(acoustic, lengths[:, :, None], coverage[:, :, None])
    return Offers(beam, decoder, acoustic, lengths, coverage, attention, scores)


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
        mask = memory.mask
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


@dataclass(frozen=True)
class Offers:
    """Every hypothesis of a beam with every token after it: acoustic and scores [B, K, num_tokens].

    Of the token's choice only they depend: decoder, lengths, coverage and attention are those of the `Beam`
    one step further.
    """

    beam: Beam
    decoder: Decoder
    acoustic: Tensor
    lengths: Tensor
    coverage: Tensor
    attention: Tensor
    scores: Tensor

    @property
    def room(self) -> Tensor:
        """Whether another token may follow this one: [B, K]."""
        return self.lengths < self.beam.mask.sum(dim=-1, keepdim=True)

    def kept(self, best: Tensor) -> Beam:
        """The beam of those at [B, K] places among the K · num_tokens of an utterance."""
        num_tokens = self.scores.shape[-1]
        parents, last = best // num_tokens, best % num_tokens
        goes_on = self.beam.running & self.room
        return Beam(
            _reordered(self.decoder, parents),
            torch.cat((_of(self.beam.spelled, parents), last[:, :, None]), dim=2),
            self.acoustic.flatten(1).gather(1, best),
            self.lengths.gather(1, parents),
            self.coverage.gather(1, parents),
            _of(self.attention, parents),
            goes_on.gather(1, parents) & (last != BOUNDARY),
            self.beam.mask,
        )


def _coverage(attention: Tensor, mask: Tensor) -> Tensor:
    """cp of attention so far [B, K, T] over real frames [B, T]: [B, K]."""
    return attention.clamp(UNHEARD, 1.0).log().masked_fill(~mask[:, None], 0.0).sum(dim=-1)


def _of(values: Tensor, parents: Tensor) -> Tensor:
    """Values [B, K, D] of the parents [B, K]."""
    return values.gather(1, parents[:, :, None].expand(-1, -1, values.shape[2]))


def _reordered(decoder: Decoder, parents: Tensor) -> Decoder:
    """Its rows, those of the parents [B, K]."""
    first = torch.arange(len(parents), device=parents.device)[:, None] * parents.shape[1]
    rows = (first + parents).flatten()
    states = tuple((values[rows], carry[rows]) for values, carry in decoder.states)
    return Decoder(states, decoder.context[rows], decoder.weights[rows], decoder.seen[rows])


def _hypothesis(beam: Beam, row: int, number: int, score: float, tokens: Tokens) -> Hypothesis:
    """One of a beam."""
    spelled = tuple(token for token in beam.spelled[row, number].tolist() if token != BOUNDARY)
    text = " ".join(tokens.decode(spelled).split())
    parts = {
        ACOUSTIC: beam.acoustic[row, number].item(),
        LENGTH: float(beam.lengths[row, number]),
        COVERAGE: beam.coverage[row, number].item(),
        WORDS: float(len(text.split())),
    }
    return Hypothesis(text, spelled, score, parts)


def _ended(
    offers: Offers, sentences: Sentences, row: int, offer: int, place: int, tokens: Tokens
) -> Hypothesis:
    """A candidate that ends, with all its words."""
    number, token = divmod(offer, offers.scores.shape[-1])
    spelled, words = sentences.tries[row].spelled(place), sentences.finished(row, place)
    parts = {
        ACOUSTIC: offers.acoustic[row, number, token].item(),
        LM: words.lm,
        WORDS: float(words.num_words),
        LENGTH: float(offers.lengths[row, number]),
        COVERAGE: offers.coverage[row, number].item(),
    }
    score = offers.scores[row, number, token].item() + sentences.speller.bonus(words)
    return Hypothesis(" ".join(tokens.decode(spelled).split()), spelled, score, parts)
