"""The CTC loss of many utterances, the same to the last bit every time, on a GPU too.

A. Graves et al., "Connectionist temporal classification", ICML 2006. PyTorch's CUDA gradient adds up in
any order. The gradient here takes the backward variables from a second recursion and collects by token with
a matrix product: no atomic additions. It is computed with the loss, in one kernel for both recursions where
there is Triton; else the backward variables are the forward variables of the reversed utterance.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphon.models.layers import frame_mask, reversal
from antiphon.models.noise import FUSED


def ctc_losses(log_probs: Tensor, lengths: Tensor, tokens: Tensor, token_lengths: Tensor) -> Tensor:
    """Log probabilities [B, T, V], tokens [B, U] and both lengths [B] -> losses [B]; token 0 is the blank."""
    if log_probs.is_cuda:
        losses: Tensor = ExactCtc.apply(log_probs, lengths, tokens, token_lengths)
        return losses
    return F.ctc_loss(log_probs.transpose(0, 1), tokens, lengths, token_lengths, blank=0, reduction="none")


def ctc_fits(num_frames: int, tokens: Sequence[int]) -> bool:
    """Whether tokens have an alignment: each takes a frame, and a blank must part two equal neighbours.

    >>> ctc_fits(3, [7, 7]), ctc_fits(2, [7, 7])
    (True, False)
    """
    repeats = sum(left == right for left, right in pairwise(tokens))
    return 1 <= len(tokens) <= num_frames - repeats


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
            from antiphon.models.kernels.fused_ctc import recursions

            losses, alpha, beta = recursions(log_probs, lengths, labels, 2 * token_lengths + 1)
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
    # States are those of the longest text, however it is padded.
    alpha, beta = (F.pad(each, (0, num_states - each.shape[2])) for each in (alpha, beta))
    beta = beta.gather(1, frames[..., None].expand_as(beta)).gather(2, states[:, None].expand_as(beta))
    emitted = log_probs.gather(2, labels[:, None].expand(-1, num_frames, -1))
    real_states = frame_mask(2 * token_lengths + 1, num_states)
    inside = frame_mask(lengths, num_frames)[:, :, None] & real_states[:, None]
    return losses, torch.where(inside, alpha, -torch.inf), torch.where(inside, beta - emitted, -torch.inf)


def _forward_variables(
    log_probs: Tensor, lengths: Tensor, tokens: Tensor, token_lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """Losses [B] and log α [B, T, 2U + 1], the emission at t included."""
    losses, alpha = torch._ctc_loss(log_probs.transpose(0, 1), tokens, lengths, token_lengths, 0, False)
    return losses, alpha
