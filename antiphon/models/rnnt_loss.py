"""Loss of a transducer: a sum over all paths through a lattice of frames and tokens, with its exact gradient.

A. Graves, "Sequence Transduction with Recurrent Neural Networks", 2012, §2.4–2.5.

| symbol | name here |
| --- | --- |
| T, U, V | frames, tokens of an utterance, size of the vocabulary |
| ∅(t, u) | `blank` [B, T, U + 1]: log probability of going on to the next frame after u tokens |
| y(t, u) | `label` [B, T, U]: log probability of token u + 1 at frame t |
| α(t, u) | `forward_variables`, here [U + 1, B, T] |
| β(t, u) | the forward variables of the reversed lattice, without the last blank |

Deviations, and why:
- α of all frames after u tokens is computed from α after u − 1 tokens: with C(t, u) = Σ_{s<t} ∅(s, u), eq. 16
  is α(t, u) = C(t, u) + log Σ_{s≤t} exp(α(s, u−1) + y(s, u−1) − C(s, u)). That takes U + 1 parallel running
  sums instead of T · U steps or T + U diagonals; α and β are computed side by side.
- The lattice is computed in float64, because C is large. It is small compared with the logits.
- The B × T × U × V logits of the joint network, of which the loss needs two of each V, are computed a few
  frames at a time, and again in the backward pass (T. Chen et al., "Training Deep Nets with Sublinear Memory
  Cost", 2016).
- No atomic additions (gradients are products with one-hot matrices): results are equal to the last bit.

On a GPU with Triton, kernels compute the lattice (`kernels.lattice`) and what is between the products of the
joint network, whose logits are kept up to a limit (`kernels.joint`). Elsewhere, and in float64, all is
PyTorch's: what the kernels are compared with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphon.models.layers import at_least_float32, clients_first, frame_mask
from antiphon.models.noise import FUSED

MAX_VALUES = 2**24  # in a chunk of logits or of hidden units
MAX_FRAMES = 4096  # of an utterance whose lattice a kernel can keep


def fused(tensor: Tensor) -> bool:
    """Whether kernels of our own compute with this tensor; they have no float64."""
    return FUSED and tensor.is_cuda and tensor.dtype != torch.float64


def rnnt_losses(blank: Tensor, label: Tensor, lengths: Tensor, token_lengths: Tensor) -> Tensor:
    """Log probabilities [B, T, U + 1] and [B, T, U], lengths [B] of at least 1, token lengths [B] -> [B].

    >>> half = torch.full((1, 1, 2), 0.5).log()
    >>> rnnt_losses(half, half[..., :1], torch.tensor([1]), torch.tensor([1])).exp()
    tensor([4.])
    """
    return Lattice.apply(blank, label, lengths, token_lengths)


def rnnt_losses_from_logits(logits: Tensor, tokens: Tensor, lengths: Tensor, token_lengths: Tensor) -> Tensor:
    """Logits [B, T, U + 1, V], tokens [B, U], and both lengths as `rnnt_losses` takes them -> [B].

    >>> rnnt_losses_from_logits(torch.zeros(1, 1, 2, 2), torch.tensor([[1]]), *torch.tensor([[1], [1]])).exp()
    tensor([4.])
    """
    if fused(logits):
        blank, label = Picked.apply(logits, tokens)
    else:
        blank, label = _picked(logits, tokens.masked_fill(~frame_mask(token_lengths, tokens.shape[1]), 0))
    return rnnt_losses(blank, label, lengths, token_lengths)


def _picked(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """[..., t, U + 1, V], [..., U] -> log probabilities of blanks and labels [..., t, U + 1 or U]."""
    log_probs = F.log_softmax(at_least_float32(logits), dim=-1)
    blank, following = log_probs[..., 0].clone(), log_probs[..., :-1, :]  # a view would keep the whole part
    chosen = tokens[..., None, :, None].expand(*following.shape[:-1], 1)
    return blank, following.gather(-1, chosen).squeeze(-1)


class Picked(torch.autograd.Function):
    """`_picked` in one pass over the logits, and in another for their gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        from antiphon.models.kernels.between_products import pick

        logits, tokens = logits.contiguous(), tokens.contiguous()
        log_sums, blank = (logits.new_empty(logits.shape[:-1], dtype=torch.float32) for _ in range(2))
        label = logits.new_empty(*logits.shape[:2], tokens.shape[1], dtype=torch.float32)
        pick(logits, None, tokens, (0, logits.shape[1]), (log_sums, blank, label))
        ctx.save_for_backward(logits, tokens, log_sums)
        return blank, label

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        from antiphon.models.kernels.between_products import differences

        logits, tokens, log_sums = ctx.saved_tensors
        d_blank, d_label = (values.contiguous() for values in upstream)
        out = torch.empty_like(logits)
        differences(logits, None, tokens, (0, logits.shape[1]), (log_sums, d_blank, d_label), out)
        return out, None


class Lattice(torch.autograd.Function):
    """∂L/∂∅(t, u) = −P(the path takes that blank), and the same for labels (eq. 20, before the softmax)."""

    @staticmethod
    def forward(ctx: Any, blank: Tensor, label: Tensor, lengths: Tensor, token_lengths: Tensor) -> Tensor:
        if fused(blank) and blank.shape[1] <= MAX_FRAMES:
            from antiphon.models.kernels.lattice import losses_and_posteriors

            losses, *found = losses_and_posteriors(
                blank, label, lengths, token_lengths, needs_posteriors=any(ctx.needs_input_grad)
            )
            ctx.save_for_backward(*(values.to(blank.dtype) for values in found))
            return losses.to(blank.dtype)
        ends = Ends(lengths, token_lengths, *blank.shape[1:])
        exact = blank.double(), label.double()
        if any(ctx.needs_input_grad):
            reverse = ends.blanks_after(exact[0]), ends.labels_after(exact[1])
            both = forward_variables(*(torch.cat(pair) for pair in zip(exact, reverse, strict=True)))
            alpha, beta = both.permute(1, 2, 0).chunk(2)
            posteriors = _posteriors(*exact, alpha, beta, ends)
            ctx.save_for_backward(*(values.to(blank.dtype) for values in posteriors))
        else:
            alpha = forward_variables(*exact).permute(1, 2, 0)
        return -(ends.last(alpha) + ends.last(exact[0])).to(blank.dtype)  # eq. 17

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, None, None]:
        blanks, labels = ctx.saved_tensors
        scale = -upstream[0][:, None, None]
        return scale * blanks, scale * labels, None, None


def forward_variables(blank: Tensor, label: Tensor) -> Tensor:
    """log α [U + 1, B, T] of lattices [B, T, U + 1] and [B, T, U]; α(0, 0) = 1."""
    blank, label = blank.permute(2, 0, 1).contiguous(), label.permute(2, 0, 1).contiguous()
    waited = F.pad(running_sum(blank)[..., :-1], (1, 0))  # C
    # The recursion is over α − C: each step is one addition and one running sum.
    steps = waited[:-1] + label - waited[1:]
    columns = [torch.zeros_like(waited[0])]
    for step in steps.unbind():
        columns.append(torch.logcumsumexp(columns[-1] + step, dim=-1))
    return torch.stack(columns) + waited


def running_sum(values: Tensor) -> Tensor:
    """Return the cumulative sum over the last dimension; `torch.cumsum` is not deterministic on a GPU.

    >>> running_sum(torch.tensor([1, 2, 3, 4, 5])).tolist()
    [1, 3, 6, 10, 15]
    """
    shift = 1
    while shift < values.shape[-1]:
        values = values + F.pad(values[..., :-shift], (shift, 0))
        shift *= 2
    return values


class Ends:
    """The end of each utterance of a batch, and its lattice in reverse order.

    Node (t, u) of the reversed lattice is (T − 1 − t, U − u). A blank into it starts one frame earlier, a
    label one token earlier. Negative indices are read as 0: only padding uses them.
    """

    def __init__(self, lengths: Tensor, token_lengths: Tensor, num_frames: int, num_nodes: int) -> None:
        self.rows, frames, nodes = (
            torch.arange(size, device=lengths.device) for size in (len(lengths), num_frames, num_nodes)
        )
        self.last_frame, self.last_node = lengths - 1, token_lengths
        self.frames, self.nodes = self.last_frame[:, None] - frames, self.last_node[:, None] - nodes  # left

    def last(self, values: Tensor) -> Tensor:
        """[B, T, U + 1] -> [B]: the values at the last frame, after the last token."""
        return values[self.rows, self.last_frame, self.last_node]

    def blanks_after(self, values: Tensor) -> Tensor:
        """[B, T, U + 1] -> the same: the values where the blanks of the reversed lattice end."""
        return self._at(values, self.frames - 1, self.nodes)

    def labels_after(self, values: Tensor) -> Tensor:
        """[B, T, U or U + 1] -> [B, T, U]: the values where the labels of the reversed lattice end."""
        return self._at(values, self.frames, self.nodes[:, :-1] - 1)

    def _at(self, values: Tensor, frames: Tensor, nodes: Tensor) -> Tensor:
        return values[self.rows[:, None, None], frames.clamp(min=0)[:, :, None], nodes.clamp(min=0)[:, None]]


def _posteriors(
    blank: Tensor, label: Tensor, alpha: Tensor, beta: Tensor, ends: Ends
) -> tuple[Tensor, Tensor]:
    """Posterior probabilities of each blank [B, T, U + 1] and each label [B, T, U], given the tokens.

    β and the total α(T − 1, U) both lack the last blank, which all paths share.
    """
    total = ends.last(alpha)[:, None, None]
    frames, nodes = ends.frames[:, :, None], ends.nodes[:, None]
    log_blanks = alpha + blank + ends.blanks_after(beta) - total
    blanks = torch.where((frames > 0) & (nodes >= 0), log_blanks, -torch.inf).exp()
    blanks = torch.where((frames == 0) & (nodes == 0), 1.0, blanks)
    log_labels = alpha[..., :-1] + label + ends.labels_after(beta) - total
    return blanks, torch.where((frames >= 0) & (nodes[..., :-1] > 0), log_labels, -torch.inf).exp()


def next_log_probs(
    frames: Tensor, states: Tensor, weight: Tensor, bias: Tensor, tokens: Tensor
) -> tuple[Tensor, Tensor]:
    """Return ln softmax(weight · tanh(frame + state) + bias) at the blank and at the next token.

    frames [B, T, J], states [B, U + 1, J], weight [V, J], bias [V], tokens [B, U]
    -> blank [B, T, U + 1] and label [B, T, U], in float32 at least.
    """
    given = (tensor.unsqueeze(0) for tensor in (frames, states, weight, bias, tokens))
    blank, label = _of_networks(*given)
    return blank.squeeze(0), label.squeeze(0)


def _of_networks(*given: Tensor) -> tuple[Tensor, Tensor]:
    needs_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
    blank, label, *_ = NextLogProbs.apply(*given, needs_gradient)
    return blank, label


class NextLogProbs(torch.autograd.Function):
    """`next_log_probs` of S joint networks: every tensor has dimension S first."""

    @staticmethod
    def forward(
        frames: Tensor, states: Tensor, weight: Tensor, bias: Tensor, tokens: Tensor, needs_gradient: bool
    ) -> tuple[Tensor, ...]:
        if fused(frames):
            from antiphon.models.kernels import joint

            with torch.autocast(frames.device.type, enabled=False):  # as the backward pass
                return joint.log_probs((frames, states, weight, bias, tokens), needs_gradient)
        blanks, labels = [], []
        for (part,) in _parts(states, weight, frames):
            blank, label = _picked(_logits(_hidden(part, states), weight, bias), tokens)
            blanks.append(blank)
            labels.append(label)
        return torch.cat(blanks, dim=2), torch.cat(labels, dim=2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:5], *output[2:])
        ctx.mark_non_differentiable(*output[2:])
        ctx.set_materialize_grads(False)  # no zeros for what is only saved
        ctx.has_logits = True

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        frames, states, weight, bias, tokens, *saved = ctx.saved_tensors
        shape, num_nodes = (*states.shape[:2], frames.shape[2]), states.shape[2]
        some = next((grad for grad in upstream[:2] if grad is not None), None)
        if some is None:
            return (None,) * 6
        d_blanks, d_labels = (
            some.new_zeros(*shape, size) if grad is None else grad
            for grad, size in zip(upstream[:2], (num_nodes, num_nodes - 1), strict=True)
        )
        if fused(frames):
            from antiphon.models.kernels import joint

            saved, ctx.has_logits = saved if ctx.has_logits else saved[:1], False
            given = frames, states, weight, bias, tokens
            with torch.autocast(frames.device.type, enabled=False):
                return (
                    *joint.gradients(given, saved, (d_blanks, d_labels), ctx.needs_input_grad[2]),
                    None,
                    None,
                )
        vocabulary = torch.arange(weight.shape[1], device=tokens.device)
        one_hot = (F.pad(tokens, (0, 1))[:, :, None, :, None] == vocabulary).to(some.dtype)
        d_frames = []
        d_states, d_weight, d_bias = (
            torch.zeros_like(values, dtype=at_least_float32(values).dtype)
            for values in (states, weight, bias)
        )
        for part, d_blank, d_label in _parts(states, weight, frames, d_blanks, F.pad(d_labels, (0, 1))):
            hidden = _hidden(part, states)
            d_logits = F.softmax(_logits(hidden, weight, bias), dim=-1, dtype=d_blank.dtype)
            d_logits *= -(d_blank + d_label)[..., None]
            d_logits[..., 0] += d_blank
            d_logits = d_logits.addcmul_(one_hot, d_label[..., None]).flatten(1, 3)
            d_bias += d_logits.sum(dim=1)
            d_logits = d_logits.to(hidden.dtype)
            if ctx.needs_input_grad[2]:
                d_weight += d_logits.mT @ hidden.flatten(1, 3)
            d_hidden = (d_logits @ weight.to(hidden.dtype)).view_as(hidden)
            d_sum = torch.ops.aten.tanh_backward(d_hidden, hidden)
            d_frames.append(d_sum.sum(dim=3))
            d_states += d_sum.sum(dim=2, dtype=d_states.dtype)
        summed = zip((d_states, d_weight, d_bias), (states, weight, bias), strict=True)
        return torch.cat(d_frames, dim=2), *(grad.to(tensor.dtype) for grad, tensor in summed), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> Any:
        """Clients are more joint networks."""
        stacked = clients_first(info.batch_size, in_dims[:5], *inputs[:5])
        outputs = _of_networks(*(tensor.flatten(0, 1) for tensor in stacked))
        return tuple(output.unflatten(0, (info.batch_size, -1)) for output in outputs), (0, 0)


def _parts(states: Tensor, weight: Tensor, *by_frame: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Split tensors [S, B, T, ...] into parts of frames that make at most MAX_VALUES values each."""
    per_frame = math.prod(states.shape[:3]) * max(weight.shape[1:])
    num_frames = max(1, MAX_VALUES // per_frame)
    return zip(*(tensor.split(num_frames, dim=2) for tensor in by_frame), strict=True)


def _hidden(part: Tensor, states: Tensor) -> Tensor:
    """[S, B, t, J], [S, B, U + 1, J] -> [S, B, t, U + 1, J]."""
    return (part[:, :, :, None] + states[:, :, None]).tanh_()


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """[S, B, t, U + 1, J] -> [S, B, t, U + 1, V]."""
    weight, bias = weight.to(hidden.dtype), bias.to(hidden.dtype)
    logits = torch.baddbmm(bias[:, None], hidden.flatten(1, 3), weight.mT)
    return logits.view(*hidden.shape[:-1], -1)
