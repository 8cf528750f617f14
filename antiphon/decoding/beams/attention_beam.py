"""Beam search for models that predict token after token: LAS, Whisper, Moonshine.

Length normalisation and coverage penalty: Y. Wu et al., "Google's Neural Machine Translation System",
2016, eq. 14:

    score = acoustic / lp + bonus · length + coverage_weight · cp
    lp = ((5 + length) / 6) ^ normalisation        cp = Σ_frames ln min(1, total attention to the frame)

with length the number of tokens, the end included. If attention stops early, it misses frames (cp far below
0); if it loops, there are more tokens. A language model adds the terms of `fusion`, which are not normalised.

A hypothesis that has ended stays in the beam and competes with the others. One with the largest number of
tokens is cut off without an end, as in greedy search: one token per frame of the encoder, or the number of
positions of the decoder. All continuations of a hypothesis have the same length and coverage. So without a
language model a beam of 1 is greedy, with any penalties.

With a language model the result is the best sentences that ended at any step (see `prefixes`); without one,
it is the beam when all have ended. Hugging Face decoders do not return their attention, so there is no
coverage. Their probabilities include suppressed tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from antiphon.data.batches import Batch
from antiphon.data.tokens import BOUNDARY, Tokens
from antiphon.decoding.beams.prefixes import Sentences, text_of
from antiphon.decoding.fusion import Fusion, Speller, surfaces
from antiphon.decoding.nbest import ACOUSTIC, COVERAGE, LENGTH, LM, WORDS, Hypothesis, best_first
from antiphon.models.huggingface.speech_models import HuggingFaceSeq2Seq
from antiphon.models.las import Decoder, Las
from antiphon.models.layers import at_least_float32

MIN_COVERAGE = 1e-4  # of a frame: its logarithm stays finite


@dataclass(frozen=True)
class Penalties:
    """Terms against hypotheses that end early, miss speech or loop."""

    normalisation: float = 0.0
    bonus: float = 0.0
    coverage_weight: float = 0.0

    def scores(self, acoustic: Tensor, lengths: Tensor, coverage: Tensor) -> Tensor:
        """The scores by which hypotheses are ranked."""
        lengths = lengths.to(acoustic.dtype)
        penalty = ((5 + lengths) / 6) ** self.normalisation
        return acoustic / penalty + self.bonus * lengths + self.coverage_weight * coverage


@dataclass(frozen=True)
class AttentionBeam:
    """`nbest` returns up to `width` hypotheses per utterance, best first."""

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
        kind: Any = HiddenSteps if isinstance(model, HuggingFaceSeq2Seq) else LasSteps
        steps: Steps = kind(model, batch, self.width)
        beam = Beam.first(steps, self.width)
        if self.fusion is not None:
            return self._nbest_with_words(self.fusion, steps, tokens, beam)
        while beam.running.any():
            offers = _offers(steps, beam, self.penalties)
            beam = offers.chosen(offers.scores.flatten(1).topk(self.width, dim=1).indices)
        scores = self.penalties.scores(beam.acoustic, beam.lengths, beam.coverage).tolist()
        return [
            best_first(_hypothesis(beam, row, k, score, tokens) for k, score in enumerate(of_row))
            for row, of_row in enumerate(scores)
        ]

    def _nbest_with_words(
        self, fusion: Fusion, steps: Steps, tokens: Tokens, beam: Beam
    ) -> list[tuple[Hypothesis, ...]]:
        sentences = Sentences(Speller(fusion, surfaces(tokens)), len(beam.running), self.width)
        ended: list[dict[int, Hypothesis]] = [{} for _ in sentences.tries]
        while beam.running.any():
            offers = _offers(steps, beam, self.penalties)
            best, ended_here = sentences.choose(offers.scores, offers.room)
            for row, offer, index in ended_here:
                if index not in ended[row]:  # it stays in the beam, and ends again at every step
                    ended[row][index] = _ended(offers, sentences, row, offer, index, tokens)
            beam = offers.chosen(best)
        return [best_first(by_index.values())[: self.width] for by_index in ended]


class LasSteps:
    """A LAS decoder with `width` hypotheses of each utterance, which all take a step at once.

    limits [B]: the largest numbers of tokens, the end included; mask [B, T]: frames that attention may see.
    """

    def __init__(self, model: Las, batch: Batch, width: int) -> None:
        self.model, self.memory = model, model.listen(batch.features, batch.feature_lengths)
        self.mask, self.limits = self.memory.mask, self.memory.mask.sum(dim=-1)
        self.decoder = model.start(self.memory, width)

    def take(self, last: Tensor) -> tuple[Tensor, Tensor]:
        """Read the last tokens [B, K]; return ln p of the next [B, K, num_tokens] and attention [B, K, T]."""
        self.decoder = self.model.step(self.model.embedding(last.flatten()), self.decoder, self.memory)
        log_probs = at_least_float32(self.model.classify(self.decoder.seen)).log_softmax(dim=-1)
        return log_probs.unflatten(0, last.shape), self.decoder.weights.unflatten(0, last.shape)

    def reorder(self, rows: Tensor) -> None:
        """Move the decoder's state at rows[n] to row n: [B · K]."""
        decoder = self.decoder
        states = tuple((values[rows], carry[rows]) for values, carry in decoder.states)
        self.decoder = Decoder(states, decoder.context[rows], decoder.weights[rows], decoder.seen[rows])


class HiddenSteps:
    """The same for a Hugging Face decoder, which does not return its attention."""

    def __init__(self, model: HuggingFaceSeq2Seq, batch: Batch, width: int) -> None:
        encoded = model.listen(batch)
        self.model, self.encoded, self.limits = model, encoded.repeated(width), encoded.limits
        self.mask = torch.zeros(len(batch), 0, dtype=torch.bool, device=encoded.limits.device)
        self.cache: Any = None

    def take(self, last: Tensor) -> tuple[Tensor, Tensor]:
        log_probs, self.cache = self.model.spell(self.encoded, last.flatten(), self.cache)
        return log_probs.unflatten(0, last.shape), log_probs.new_zeros(*last.shape, 0)

    def reorder(self, rows: Tensor) -> None:
        self.cache.reorder_cache(rows)


Steps = LasSteps | HiddenSteps


def _offers(steps: Steps, beam: Beam, penalties: Penalties) -> Offers:
    """All continuations of the hypotheses with one more token."""
    log_probs, weights = steps.take(beam.spelled[:, :, -1])
    attention = beam.attention + weights
    running = beam.running
    covered = attention.clamp(MIN_COVERAGE, 1.0).log().masked_fill(~steps.mask[:, None], 0.0).sum(dim=-1)
    coverage = torch.where(running, covered, beam.coverage)
    longer = replace(beam, lengths=beam.lengths + running, coverage=coverage, attention=attention)
    ended = torch.full_like(log_probs, -torch.inf)
    ended[:, :, BOUNDARY] = 0.0  # a hypothesis that has ended does not change
    acoustic = beam.acoustic[:, :, None] + torch.where(running[:, :, None], log_probs, ended)
    scores = penalties.scores(acoustic, longer.lengths[:, :, None], coverage[:, :, None])
    return Offers(longer, steps, acoustic, scores)


@dataclass(frozen=True)
class Beam:
    """K hypotheses of each of B utterances.

    spelled [B, K, U]: tokens, zeros after the end; acoustic, lengths, coverage, running [B, K]; attention
    [B, K, T]: the sum over all tokens.
    """

    spelled: Tensor
    acoustic: Tensor
    lengths: Tensor
    coverage: Tensor
    attention: Tensor
    running: Tensor

    @classmethod
    def first(cls, steps: Steps, width: int) -> Beam:
        """One empty hypothesis; the others are impossible."""
        limits = steps.limits[:, None].expand(-1, width)
        lengths = torch.zeros_like(limits)
        acoustic = torch.zeros(limits.shape, device=limits.device)
        acoustic[:, 1:] = -torch.inf
        attention = acoustic.new_zeros(*limits.shape, steps.mask.shape[1])
        spelled = torch.full_like(lengths[:, :, None], BOUNDARY)
        return cls(spelled, acoustic, lengths, torch.zeros_like(acoustic), attention, limits > 0)

    def parts(self, row: int, number: int) -> dict[str, float]:
        """Length and coverage of a hypothesis; no coverage if the attention is not known."""
        coverage = {COVERAGE: self.coverage[row, number].item()} if self.attention.shape[2] else {}
        return {LENGTH: float(self.lengths[row, number]), **coverage}


@dataclass(frozen=True)
class Offers:
    """Every hypothesis of a beam with every next token: acoustic and scores [B, K, num_tokens].

    Lengths, coverage and attention of the `beam` include the next token, because they are the same for all.
    """

    beam: Beam
    steps: Steps
    acoustic: Tensor
    scores: Tensor

    @property
    def room(self) -> Tensor:
        """Whether another token may follow this one: [B, K]."""
        return self.beam.lengths < self.steps.limits[:, None]

    def chosen(self, best: Tensor) -> Beam:
        """The beam of the offers with indices [B, K] among the K · num_tokens of an utterance."""
        num_tokens = self.scores.shape[-1]
        parents, last = best // num_tokens, best % num_tokens
        first = torch.arange(len(parents), device=parents.device)[:, None] * parents.shape[1]
        self.steps.reorder((first + parents).flatten())
        running = self.beam.running & self.room
        return Beam(
            torch.cat((_of(self.beam.spelled, parents), last[:, :, None]), dim=2),
            self.acoustic.flatten(1).gather(1, best),
            self.beam.lengths.gather(1, parents),
            self.beam.coverage.gather(1, parents),
            _of(self.beam.attention, parents),
            running.gather(1, parents) & (last != BOUNDARY),
        )


def _of(values: Tensor, parents: Tensor) -> Tensor:
    """Values [B, K, D] of the parents [B, K]."""
    return values.gather(1, parents[:, :, None].expand(-1, -1, values.shape[2]))


def _hypothesis(beam: Beam, row: int, number: int, score: float, tokens: Tokens) -> Hypothesis:
    """A hypothesis of the beam when all have ended."""
    spelled = tuple(token for token in beam.spelled[row, number].tolist() if token != BOUNDARY)
    text = text_of(tokens, spelled)
    parts = {ACOUSTIC: beam.acoustic[row, number].item(), **beam.parts(row, number)}
    return Hypothesis(text, spelled, score, parts | {WORDS: float(len(text.split()))})


def _ended(
    offers: Offers, sentences: Sentences, row: int, offer: int, index: int, tokens: Tokens
) -> Hypothesis:
    """A candidate that ends, with all its words."""
    number, token = divmod(offer, offers.scores.shape[-1])
    prefixes = sentences.tries[row]
    spelled, words = prefixes.spelled(index), sentences.speller.finish(prefixes.progress[index])
    acoustic = offers.acoustic[row, number, token].item()
    parts = {ACOUSTIC: acoustic, LM: words.lm, WORDS: float(words.num_words)}
    score = offers.scores[row, number, token].item() + sentences.speller.bonus(words)
    return Hypothesis(text_of(tokens, spelled), spelled, score, parts | offers.beam.parts(row, number))
