"""The transducer's loss: a sum over all ways through a lattice of frames and tokens, and its exact gradient.

A. Graves, "Sequence Transduction with Recurrent Neural Networks", 2012, §2.4–2.5.

| symbol | name here |
| --- | --- |
| T, U | frames and tokens of an utterance |
| ∅(t, u) | `blank` [B, T, U + 1]: log probability of going on to the next frame after u tokens |
| y(t, u) | `label` [B, T, U]: log probability of token u + 1 at frame t |
| α(t, u) | `forward_variables`, here [U + 1, B, T] |
| β(t, u) | the same of the lattice turned round, without the last blank |

Two numbers a node are all the lattice needs: see `joint` for how they come about without ever holding
T × U × (number of tokens) values.

Deviations, and why:
- α of all frames after u tokens follows from α after u − 1 tokens in one go: with C(t, u) = Σ_{s<t} ∅(s, u),
  eq. 16 is α(t, u) = C(t, u) + log Σ_{s≤t} exp(α(s, u−1) + y(s, u−1) − C(s, u)). That is U + 1 steps instead
  of T · U or of T + U diagonals, each a running sum that a GPU does in parallel, α and β side by side.
- It is computed in float64 whatever it is given, since C is large; the lattice is small beside the logits.
- No atomic additions: the same to the last bit every time.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def rnnt_losses(blank: Tensor, label: Tensor, lengths: Tensor, token_lengths: Tensor) -> Tensor:
    """Log probabilities [B, T, U + 1] and [B, T, U], lengths [B] of at least 1, token lengths [B] -> [B].

    One frame and one token: the token, then a blank.

    >>> half = torch.full((1, 1, 2), 0.5).log()
    >>> rnnt_losses(half, half[..., :1], torch.tensor([1]), torch.tensor([1])).exp()
    tensor([4.])
    """
    losses: Tensor = Lattice.apply(blank, label, lengths, token_lengths)
    return losses


class Lattice(torch.autograd.Function):
    """∂L/∂∅(t, u) = −P(the way takes that blank), and so for labels (eq. 20, before the softmax)."""

    @staticmethod
    def forward(ctx: Any, blank: Tensor, label: Tensor, lengths: Tensor, token_lengths: Tensor) -> Tensor:
        ends = Ends(lengths, token_lengths, *blank.shape[1:])
        exact = blank.double(), label.double()
        if any(ctx.needs_input_grad):
            turned = ends.blanks_after(exact[0]), ends.labels_after(exact[1])
            both = forward_variables(*(torch.cat(pair) for pair in zip(exact, turned, strict=True)))
            alpha, beta = both.permute(1, 2, 0).chunk(2)
            ctx.save_for_backward(*(taken.to(blank.dtype) for taken in _taken(*exact, alpha, beta, ends)))
        else:
            alpha = forward_variables(*exact).permute(1, 2, 0)
        return -(ends.last(alpha) + ends.last(exact[0])).to(blank.dtype)  # eq. 17

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, None, None]:
        blanks, labels = ctx.saved_tensors
        scale = -upstream[0][:, None, None]
        return scale * blanks, scale * labels, None, None


def forward_variables(blank: Tensor, label: Tensor) -> Tensor:
    """log α [U + 1, B, T] of lattices [B, T, U + 1] and [B, T, U]; α(0, 0) = 1, padding means nothing."""
    blank, label = blank.permute(2, 0, 1).contiguous(), label.permute(2, 0, 1).contiguous()
    waited = F.pad(running_sum(blank)[..., :-1], (1, 0))  # C
    # What is carried from token to token is α − C, so a step costs one addition and one running sum.
    steps = waited[:-1] + label - waited[1:]
    columns = [torch.zeros_like(waited[0])]
    for step in steps.unbind():
        columns.append(torch.logcumsumexp(columns[-1] + step, dim=-1))
    return torch.stack(columns) + waited


def running_sum(values: Tensor) -> Tensor:
    """Along the last dimension, by doubling: `torch.cumsum` on a GPU does not promise its last bit.

    >>> running_sum(torch.tensor([1, 2, 3, 4, 5])).tolist()
    [1, 3, 6, 10, 15]
    """
    shift = 1
    while shift < values.shape[-1]:
        values = values + F.pad(values[..., :-shift], (shift, 0))
        shift *= 2
    return values


class Ends:
    """Where each utterance of a batch ends, and its lattice as seen from there.

    Node (t, u) of the turned lattice is (T − 1 − t, U − u). A blank into it leaves one frame earlier, a
    label into it one token earlier. Places before the beginning are read as 0: they lead only to padding.
    """

    def __init__(self, lengths: Tensor, token_lengths: Tensor, num_frames: int, num_nodes: int) -> None:
        device = lengths.device
        self.rows = torch.arange(len(lengths), device=device)
        self.last_frame, self.last_node = lengths - 1, token_lengths
        self.frames = self.last_frame[:, None] - torch.arange(num_frames, device=device)  # left after each
        self.nodes = self.last_node[:, None] - torch.arange(num_nodes, device=device)

    def last(self, values: Tensor) -> Tensor:
        """[B, T, U + 1] -> [B]: at the last frame, after the last token."""
        return values[self.rows, self.last_frame, self.last_node]

    def blanks_after(self, values: Tensor) -> Tensor:
        """[B, T, U + 1] -> the same size: what stands where the turned lattice's blanks lead."""
        return self._at(values, self.frames - 1, self.nodes)

    def labels_after(self, values: Tensor) -> Tensor:
        """[B, T, U or U + 1] -> [B, T, U]: what stands where the turned lattice's labels lead."""
        return self._at(values, self.frames, self.nodes[:, :-1] - 1)

    def _at(self, values: Tensor, frames: Tensor, nodes: Tensor) -> Tensor:
        return values[self.rows[:, None, None], frames.clamp(min=0)[:, :, None], nodes.clamp(min=0)[:, None]]


def _taken(blank: Tensor, label: Tensor, alpha: Tensor, beta: Tensor, ends: Ends) -> tuple[Tensor, Tensor]:
    """Probabilities that each blank [B, T, U + 1] and each label [B, T, U] is taken, given the tokens.

    β lacks the last blank, which all ways share, as does the total α(T − 1, U) they are divided by.
    """
    total = ends.last(alpha)[:, None, None]
    frames, nodes = ends.frames[:, :, None], ends.nodes[:, None]
    log_blanks = alpha + blank + ends.blanks_after(beta) - total
    blanks = torch.where((frames > 0) & (nodes >= 0), log_blanks, -torch.inf).exp()
    blanks = torch.where((frames == 0) & (nodes == 0), 1.0, blanks)
    log_labels = alpha[..., :-1] + label + ends.labels_after(beta) - total
    return blanks, torch.where((frames >= 0) & (nodes[..., :-1] > 0), log_labels, -torch.inf).exp()
