"""Connectionist temporal classification: A. Graves et al., ICML 2006. Token 0 is the blank.

The loss is deterministic to the last bit, also on a GPU, where PyTorch's gradient adds in any order. The
gradient here takes the backward variables from a second recursion and sums by token with a matrix product,
without atomic additions. With Triton, one kernel computes both recursions; otherwise the backward variables
are the forward variables of the reversed utterance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antiphon.data.batches import Batch
from antiphon.models.conformer import ConformerConfig
from antiphon.models.layers import Scored, at_least_float32, frame_mask, reversal
from antiphon.models.model import MODELS, EncoderConfig
from antiphon.models.noise import FUSED


@MODELS.register
@dataclass(frozen=True)
class CtcConfig:
    """A CTC recogniser on a Conformer or a bidirectional LSTM.

    >>> model = CtcConfig(ConformerConfig(dim=16, num_layers=1)).build(input_dim=80, num_tokens=29)
    >>> model.fits(3, [7, 7]), model.fits(2, [7, 7])
    (True, False)
    """

    encoder: EncoderConfig = field(default_factory=ConformerConfig)

    def build(self, input_dim: int, num_tokens: int) -> Ctc:
        return Ctc(self, input_dim, num_tokens)


class Framewise(Scored):
    """Base of all CTC models: the forward pass returns log probabilities of frames, and lengths."""

    def score(self, outputs: tuple[Tensor, ...], batch: Batch) -> Tensor:
        """Negative log likelihood of each text in nats: [B · N]; infinite where its tokens do not fit."""
        log_probs, lengths = (batch.per_text(output) for output in outputs)
        return ctc_losses(log_probs, lengths, batch.tokens, batch.token_lengths)

    @torch.no_grad()
    def greedy(self, batch: Batch) -> list[list[int]]:
        """The best token of every frame, with repeats collapsed and blanks removed."""
        log_probs, lengths = self(batch)
        return collapse(log_probs.argmax(dim=-1), lengths)


class Ctc(Framewise):
    """An encoder and one linear layer."""

    def __init__(self, config: CtcConfig, input_dim: int, num_tokens: int) -> None:
        super().__init__()
        self.encoder = config.encoder.build(input_dim)
        self.output = nn.Linear(self.encoder.dim, num_tokens)

    def forward(self, batch: Batch) -> tuple[Tensor, ...]:
        """Log probabilities [B, T', num_tokens] and numbers of real frames [B]."""
        frames, lengths = self.encoder(batch.features, batch.feature_lengths)
        return F.log_softmax(at_least_float32(self.output(frames)), dim=-1), lengths

    def fits(self, num_frames: int, tokens: Sequence[int]) -> bool:
        return ctc_fits(self.encoder.num_output_frames(num_frames), tokens)


def collapse(path: Tensor, lengths: Tensor) -> list[list[int]]:
    """The text of a path of tokens [B, T].

    >>> collapse(torch.tensor([[3, 3, 0, 3, 5, 5]]), torch.tensor([5]))
    [[3, 3, 5]]
    """
    previous = F.pad(path, (1, 0))[:, :-1]
    counts = (path != previous) & (path != 0) & frame_mask(lengths, path.shape[1])
    return [row[mask].tolist() for row, mask in zip(path.cpu(), counts.cpu(), strict=True)]


def ctc_fits(num_frames: int, tokens: Sequence[int]) -> bool:
    """Whether tokens have an alignment: each needs a frame, equal neighbours a blank between them."""
    repeats = sum(left == right for left, right in pairwise(tokens))
    return 1 <= len(tokens) <= num_frames - repeats


def ctc_losses(log_probs: Tensor, lengths: Tensor, tokens: Tensor, token_lengths: Tensor) -> Tensor:
    """Log probabilities [B, T, V], tokens [B, U] and both lengths [B] -> losses [B]."""
    if log_probs.is_cuda:
        return ExactCtc.apply(log_probs, lengths, tokens, token_lengths)
    return F.ctc_loss(log_probs.transpose(0, 1), tokens, lengths, token_lengths, blank=0, reduction="none")


class ExactCtc(torch.autograd.Function):
    """dL/d log p(t, v) = −Σ_{s: label s = v} γ(t, s), γ = α β / exp(−L), no emission in β (eq. 14–15)."""

    @staticmethod
    def forward(
        ctx: Any, log_probs: Tensor, lengths: Tensor, tokens: Tensor, token_lengths: Tensor
    ) -> Tensor:
        if not ctx.needs_input_grad[0]:
            return _forward_variables(log_probs, lengths, tokens, token_lengths)[0]
        labels = F.pad(tokens[..., None], (1, 0)).flatten(1)  # a blank before every token …
        labels = F.pad(labels, (0, 1))  # … and one after the last
        if FUSED and log_probs.is_cuda and log_probs.dtype == torch.float32:
            from antiphon.models.kernels import fused

            losses, alpha, beta = fused.ctc_recursions(log_probs, lengths, labels, 2 * token_lengths + 1)
        else:
            losses, alpha, beta = _recursions(log_probs, lengths, tokens, token_lengths, labels)
        gamma = alpha.add_(beta).add_(losses[:, None, None]).exp_()
        ctx.save_for_backward(gamma @ F.one_hot(labels, log_probs.shape[2]).to(gamma))
        return losses

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None, None]:
        (by_token,) = ctx.saved_tensors
        return -by_token * upstream[0][:, None, None], None, None, None


def _recursions(
    log_probs: Tensor, lengths: Tensor, tokens: Tensor, token_lengths: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses [B], log α with and log β without the emission at t [B, T, 2U + 1]; −∞ outside."""
    num_frames, num_states = log_probs.shape[1], labels.shape[1]
    frames, states = reversal(lengths, num_frames), reversal(2 * token_lengths + 1, num_states)
    losses, alpha = _forward_variables(log_probs, lengths, tokens, token_lengths)
    flipped = log_probs.gather(1, frames[..., None].expand_as(log_probs))
    flipped_tokens = tokens.gather(1, reversal(token_lengths, tokens.shape[1]))
    _, beta = _forward_variables(flipped, lengths, flipped_tokens, token_lengths)
    # PyTorch returns the states of the longest text only, however it is padded.
    alpha, beta = (F.pad(variables, (0, num_states - variables.shape[2])) for variables in (alpha, beta))
    beta = beta.gather(1, frames[..., None].expand_as(beta)).gather(2, states[:, None].expand_as(beta))
    emitted = log_probs.gather(2, labels[:, None].expand(-1, num_frames, -1))
    real_states = frame_mask(2 * token_lengths + 1, num_states)
    inside = frame_mask(lengths, num_frames)[:, :, None] & real_states[:, None]
    return losses, torch.where(inside, alpha, -torch.inf), torch.where(inside, beta - emitted, -torch.inf)


def _forward_variables(
    log_probs: Tensor, lengths: Tensor, tokens: Tensor, token_lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """Losses [B] and log α [B, T, 2U + 1], the emission at t included."""
    return torch._ctc_loss(log_probs.transpose(0, 1), tokens, lengths, token_lengths, 0, False)
