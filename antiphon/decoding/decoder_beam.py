"""Beam search for decoders from Hugging Face folders (Whisper, Moonshine), all hypotheses in one step.

A hypothesis that has ended keeps its place in the beam and competes with those that go on; one that has
spelled as many tokens as it may is cut off without an end, as in `HuggingFaceSeq2Seq.greedy`. A beam of 1 is
greedy. Probabilities are those of all tokens: one that is suppressed takes its share with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from antiphon.data.batches import Batch
from antiphon.data.tokens import BOUNDARY, Tokens
from antiphon.decoding.hypothesis import ACOUSTIC, LENGTH, WORDS, Hypothesis, best_first
from antiphon.models.huggingface import HuggingFaceSeq2Seq


@dataclass(frozen=True)
class DecoderBeam:
    """`nbest` gives up to `width` hypotheses an utterance, best first."""

    width: int = 8

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"a beam needs a width of at least 1: {self}")

    @torch.inference_mode()
    def nbest(self, model: HuggingFaceSeq2Seq, tokens: Tokens, batch: Batch) -> list[tuple[Hypothesis, ...]]:
        """Hypotheses of each utterance of the batch. Call `model.eval()` first."""
        heard, cache, last = model.listen(batch).repeated(self.width), None, None
        limits = heard.limits.unflatten(0, (-1, self.width))
        beam = Beam.first(limits)
        while beam.running.any():
            log_probs, cache = model.spell(heard, last, cache)
            parents, beam = beam.extended(log_probs.unflatten(0, limits.shape), limits)
            rows = (torch.arange(len(limits), device=limits.device)[:, None] * self.width + parents).flatten()
            cache.reorder_cache(rows)
            last = beam.spelled[:, :, -1].flatten()
        return [best_first(_hypotheses(beam, row, tokens)) for row in range(len(limits))]


@dataclass(frozen=True)
class Beam:
    """K hypotheses of each of B utterances: tokens, zeros after the end [B, K, U]; the others [B, K]."""

    spelled: Tensor
    acoustic: Tensor
    lengths: Tensor
    running: Tensor

    @classmethod
    def first(cls, limits: Tensor) -> Beam:
        """One hypothesis with nothing spelled; the others cannot be."""
        acoustic = torch.zeros(limits.shape, device=limits.device)
        acoustic[:, 1:] = -torch.inf
        return cls(limits.new_zeros(*limits.shape, 0), acoustic, torch.zeros_like(limits), limits > 0)

    def extended(self, log_probs: Tensor, limits: Tensor) -> tuple[Tensor, Beam]:
        """One token further: whose child each hypothesis is [B, K], and the hypotheses."""
        ended = torch.full_like(log_probs, -torch.inf)
        ended[:, :, BOUNDARY] = 0.0  # what has ended goes on as it is
        acoustic = self.acoustic[:, :, None] + torch.where(self.running[:, :, None], log_probs, ended)
        best = acoustic.flatten(1).topk(self.spelled.shape[1], dim=1)
        parents, last = best.indices // log_probs.shape[-1], best.indices % log_probs.shape[-1]
        running = self.running.gather(1, parents)
        lengths = self.lengths.gather(1, parents) + running
        before = self.spelled.gather(1, parents[:, :, None].expand_as(self.spelled))
        spelled = torch.cat((before, last[:, :, None]), dim=2)
        running = running & (last != BOUNDARY) & (lengths < limits)
        return parents, Beam(spelled, best.values, lengths, running)


def _hypotheses(beam: Beam, row: int, tokens: Tokens) -> Iterator[Hypothesis]:
    """All of one utterance."""
    columns: list[Any] = [values[row].tolist() for values in (beam.spelled, beam.acoustic, beam.lengths)]
    for path, acoustic, length in zip(*columns, strict=True):
        spelled = tuple(token for token in path if token != BOUNDARY)
        text = " ".join(tokens.decode(spelled).split())
        parts = {ACOUSTIC: acoustic, LENGTH: float(length), WORDS: float(len(text.split()))}
        yield Hypothesis(text, spelled, acoustic, parts)
