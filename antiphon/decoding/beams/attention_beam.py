"""Beam search for models that spell token after token (LAS, Whisper, Moonshine), all hypotheses in one step.

Length normalisation and coverage penalty: Y. Wu et al., "Google's Neural Machine Translation System",
2016, eq. 14:

    score = acoustic / lp + bonus · length + coverage_weight · cp
    lp = ((5 + length) / 6) ^ normalisation        cp = Σ_frames ln min(1, attention the frame has had)

with length the number of tokens, the end among them. Attention that stops early leaves frames unheard (cp far
below 0); one that loops adds tokens. A language model adds what `fusion` says, which is not normalised.

A hypothesis that has ended keeps its place in the beam and competes with those that go on. One that has
spelled as many tokens as it may is cut off without an end, as in greedy search: at one token a frame of the
encoder, or where a decoder's positions end. All tokens that may follow a hypothesis have the same length and
coverage, so that with a width of 1 the likeliest is taken: without a language model a beam of 1 is greedy,
whatever the penalties are.

With a language model the list is made of the best sentences that have ended anywhere on the way, as in
`sentences`; without one, of what the beam holds when all have ended.

Decoders from Hugging Face folders do not show their attention, so their hypotheses have no coverage. Their
probabilities are those of all tokens: one that is suppressed takes its share with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from antiphon.data.batches import Batch
from antiphon.data.tokens import BOUNDARY, Tokens
from antiphon.decoding.beams.spelling import Sentences
from antiphon.decoding.fusion import Fusion, Speller, surfaces
from antiphon.decoding.nbest import ACOUSTIC, COVERAGE, LENGTH, LM, WORDS, Hypothesis, best_first
from antiphon.models.huggingface.speech_models import HuggingFaceSeq2Seq
from antiphon.models.las import Decoder, Las
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
    def nbest(
        self, model: Las | HuggingFaceSeq2Seq, tokens: Tokens, batch: Batch
    ) -> list[tuple[Hypothesis, ...]]:
        """Hypotheses of each utterance of the batch. Call `model.eval()` first."""
        steps: Steps
        if isinstance(model, HuggingFaceSeq2Seq):
            steps = HiddenSteps(model, batch, self.width)
        else:
            steps = LasSteps(model, batch, self.width)
        beam = Beam.first(steps, self.width)
        if self.fusion is not None:
            return self._nbest_with_words(self.fusion, steps, tokens, beam)
        while beam.running.any():
            offers = _offers(steps, beam, self.penalties)
            beam = offers.kept(offers.scores.flatten(1).topk(self.width, dim=1).indices)
        scores = self.penalties.scores(beam.acoustic, beam.lengths, beam.coverage)
        return [
            best_first([_hypothesis(beam, row, number, own[number], tokens) for number in range(self.width)])
            for row, own in enumerate(scores.tolist())
        ]

    def _nbest_with_words(
        self, fusion: Fusion, steps: Steps, tokens: Tokens, beam: Beam
    ) -> list[tuple[Hypothesis, ...]]:
        sentences = Sentences(Speller(fusion, surfaces(tokens)), len(beam.running), self.width)
        ended: list[dict[int, Hypothesis]] = [{} for _ in sentences.tries]
        while beam.running.any():
            offers = _offers(steps, beam, self.penalties)
            choice = sentences.choose(offers.scores, offers.room)
            for row, offer, place in choice.ended:
                if place not in ended[row]:  # it stays in the beam, and ends again at every step
                    ended[row][place] = _ended(offers, sentences, row, offer, place, tokens)
            beam = offers.kept(choice.best)
        return [best_first(list(own.values()))[: self.width] for own in ended]


class Steps(Protocol):
    """A decoder at `width` hypotheses of each utterance, which all take a step at once.

    limits [B]: tokens that may be spelled, the end among them; mask [B, T]: frames that attention may go to.
    """

    limits: Tensor
    mask: Tensor

    def take(self, last: Tensor) -> tuple[Tensor, Tensor]:
        """After the last tokens [B, K]: ln p of the next [B, K, num_tokens], and attention [B, K, T]."""
        ...

    def reorder(self, rows: Tensor) -> None:
        """Row n of the decoder's state is the one at rows[n] now: [B · K]."""
        ...


class LasSteps:
    """Steps of a decoder whose attention is known."""

    def __init__(self, model: Las, batch: Batch, width: int) -> None:
        self.model, self.memory = model, model.listen(batch.features, batch.feature_lengths)
        self.mask, self.limits = self.memory.mask, self.memory.mask.sum(dim=-1)
        self.decoder = model.start(self.memory, width)

    def take(self, last: Tensor) -> tuple[Tensor, Tensor]:
        self.decoder = self.model.step(self.model.embedding(last.flatten()), self.decoder, self.memory)
        log_probs = at_least_float32(self.model.classify(self.decoder.seen)).log_softmax(dim=-1)
        return log_probs.unflatten(0, last.shape), self.decoder.weights.unflatten(0, last.shape)

    def reorder(self, rows: Tensor) -> None:
        decoder = self.decoder
        states = tuple((values[rows], carry[rows]) for values, carry in decoder.states)
        self.decoder = Decoder(states, decoder.context[rows], decoder.weights[rows], decoder.seen[rows])


class HiddenSteps:
    """Steps of a decoder that does not show its attention."""

    def __init__(self, model: HuggingFaceSeq2Seq, batch: Batch, width: int) -> None:
        heard = model.listen(batch)
        self.model, self.heard, self.limits = model, heard.repeated(width), heard.limits
        self.mask = torch.zeros(len(batch), 0, dtype=torch.bool, device=heard.limits.device)
        self.cache: Any = None

    def take(self, last: Tensor) -> tuple[Tensor, Tensor]:
        given = None if self.cache is None else last.flatten()
        log_probs, self.cache = self.model.spell(self.heard, given, self.cache)
        return log_probs.unflatten(0, last.shape), log_probs.new_zeros(*last.shape, 0)

    def reorder(self, rows: Tensor) -> None:
        self.cache.reorder_cache(rows)


def _offers(steps: Steps, beam: Beam, penalties: Penalties) -> Offers:
    """All that hypotheses may become with one token more."""
    log_probs, weights = steps.take(beam.spelled[:, :, -1])
    attention = beam.attention + weights
    running = beam.running
    coverage = torch.where(running, _coverage(attention, steps.mask), beam.coverage)
    longer = replace(beam, lengths=beam.lengths + running, coverage=coverage, attention=attention)
    ended = torch.full_like(log_probs, -torch.inf)
    ended[:, :, BOUNDARY] = 0.0  # what has ended goes on as it is
    acoustic = beam.acoustic[:, :, None] + torch.where(running[:, :, None], log_probs, ended)
    scores = penalties.scores(acoustic, longer.lengths[:, :, None], coverage[:, :, None])
    return Offers(longer, steps, acoustic, scores)


@dataclass(frozen=True)
class Beam:
    """K hypotheses of each of B utterances.

    spelled [B, K, U]: tokens, zeros after the end; acoustic, lengths, coverage, running [B, K]; attention
    [B, K, T]: what each frame has had.
    """

    spelled: Tensor
    acoustic: Tensor
    lengths: Tensor
    coverage: Tensor
    attention: Tensor
    running: Tensor

    @classmethod
    def first(cls, steps: Steps, width: int) -> Beam:
        """One hypothesis with nothing spelled; the others cannot be."""
        limits = steps.limits[:, None].expand(-1, width)
        lengths = torch.zeros_like(limits)
        acoustic = torch.zeros(limits.shape, device=limits.device)
        acoustic[:, 1:] = -torch.inf
        attention = acoustic.new_zeros(*limits.shape, steps.mask.shape[1])
        spelled = torch.full_like(lengths[:, :, None], BOUNDARY)
        return cls(spelled, acoustic, lengths, torch.zeros_like(acoustic), attention, limits > 0)


@dataclass(frozen=True)
class Offers:
    """Every hypothesis of a beam with every token after it: acoustic and scores [B, K, num_tokens].

    Of the token's choice only they depend: lengths, coverage and attention of the `beam` are those of the
    hypotheses with one token more, whichever it is.
    """

    beam: Beam
    steps: Steps
    acoustic: Tensor
    scores: Tensor

    @property
    def room(self) -> Tensor:
        """Whether another token may follow this one: [B, K]."""
        return self.beam.lengths < self.steps.limits[:, None]

    def kept(self, best: Tensor) -> Beam:
        """The beam of those at [B, K] places among the K · num_tokens of an utterance."""
        num_tokens = self.scores.shape[-1]
        parents, last = best // num_tokens, best % num_tokens
        first = torch.arange(len(parents), device=parents.device)[:, None] * parents.shape[1]
        self.steps.reorder((first + parents).flatten())
        goes_on = self.beam.running & self.room
        return Beam(
            torch.cat((_of(self.beam.spelled, parents), last[:, :, None]), dim=2),
            self.acoustic.flatten(1).gather(1, best),
            self.beam.lengths.gather(1, parents),
            self.beam.coverage.gather(1, parents),
            _of(self.beam.attention, parents),
            goes_on.gather(1, parents) & (last != BOUNDARY),
        )


def _coverage(attention: Tensor, mask: Tensor) -> Tensor:
    """cp of attention so far [B, K, T] over real frames [B, T]: [B, K]."""
    return attention.clamp(UNHEARD, 1.0).log().masked_fill(~mask[:, None], 0.0).sum(dim=-1)


def _of(values: Tensor, parents: Tensor) -> Tensor:
    """Values [B, K, D] of the parents [B, K]."""
    return values.gather(1, parents[:, :, None].expand(-1, -1, values.shape[2]))


def _hypothesis(beam: Beam, row: int, number: int, score: float, tokens: Tokens) -> Hypothesis:
    """One of a beam."""
    spelled = tuple(token for token in beam.spelled[row, number].tolist() if token != BOUNDARY)
    text = " ".join(tokens.decode(spelled).split())
    parts = {ACOUSTIC: beam.acoustic[row, number].item(), LENGTH: float(beam.lengths[row, number])}
    if beam.attention.shape[2]:
        parts[COVERAGE] = beam.coverage[row, number].item()
    return Hypothesis(text, spelled, score, parts | {WORDS: float(len(text.split()))})


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
        LENGTH: float(offers.beam.lengths[row, number]),
        COVERAGE: offers.beam.coverage[row, number].item(),
    }
    score = offers.scores[row, number, token].item() + sentences.speller.bonus(words)
    return Hypothesis(" ".join(tokens.decode(spelled).split()), spelled, score, parts)
