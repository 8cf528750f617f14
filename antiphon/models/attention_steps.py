"""One step of location-aware attention for many rows, and its gradient, into memory that is there already.

The equations are those of `Attention` in `models.las`. The gradient computes tanh(…) again instead of keeping
it for every token. On a GPU with Triton, a step is two kernels (`kernels.attention`); elsewhere PyTorch's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphon.data.batches import repeated
from antiphon.models.lstm_steps import is_fused


@dataclass(frozen=True)
class Heard:
    """What every token attends to: S clients of B utterances, R rows (texts of utterances) each.

    frames [S · B, T, dim], keys [S · B, T, A], mask [S · B, T] (int8), filters [S, width, A], energy [S, A].
    """

    frames: Tensor
    keys: Tensor
    mask: Tensor
    filters: Tensor
    energy: Tensor

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.frames, self.keys, self.mask, self.filters, self.energy

    @property
    def width(self) -> int:
        return self.filters.shape[1]

    def attend(self, query: Tensor, before: Tensor, out: tuple[Tensor, Tensor]) -> None:
        """Write the attention [S · R, T] and the context [S · R, dim]; query [S · R, A], last attention."""
        if is_fused(query):
            from antiphon.models.kernels import attention

            return attention.attend(self.tensors, query, before, out)
        energies = (self._squashed(query, before) * _for_rows(self.energy[:, None], len(query))).sum(dim=-1)
        hidden = _for_rows(self.mask, len(query)) == 0
        weights = energies.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        out[0].copy_(weights)
        out[1].copy_((weights.unflatten(0, (len(self.frames), -1)) @ self.frames).flatten(0, 1))
        return None

    def weight_gradients(self, d_context: Tensor, d_taps: Tensor | None) -> Tensor:
        """The gradient of the attention [S · R, T]: of its context, and of the taps of the token after."""
        if is_fused(d_context):
            from antiphon.models.kernels import attention

            return attention.weight_gradients(self.frames, d_context, d_taps, self.width)
        d_weights = (d_context.unflatten(0, (len(self.frames), -1)) @ self.frames.mT).flatten(0, 1)
        if d_taps is None:
            return d_weights
        # Tap w of frame t looked at frame t + w − half: frame j was seen by tap w of frame j − w + half.
        around = F.pad(d_taps, (0, 0, self.width // 2, self.width // 2)).flip(2).unfold(1, self.width, 1)
        return d_weights + around.diagonal(dim1=2, dim2=3).sum(dim=-1)

    def energy_gradients(
        self,
        step: tuple[Tensor, Tensor, Tensor],
        d_weights: Tensor,
        d_energy: Tensor,
        out: tuple[Tensor, Tensor, Tensor],
    ) -> None:
        """Write the gradients of key + query + location [S · R, T, A], of the query and of the taps.

        `step` holds the query and the attention before and after. The taps [S · R, T, width] are the
        attention before that each frame sees. `d_energy` [S · R, blocks, A] grows by its gradient.
        """
        if is_fused(d_weights):
            from antiphon.models.kernels import attention

            return attention.energy_gradients(self.tensors, step, d_weights, d_energy, out)
        query, before, weights = step
        squashed = self._squashed(query, before)
        d_frames = (weights * (d_weights - (weights * d_weights).sum(dim=-1, keepdim=True)))[..., None]
        d_energy.add_((d_frames * squashed).sum(dim=1, keepdim=True))
        d_summed = d_frames * _for_rows(self.energy[:, None], len(query)) * (1 - squashed * squashed)
        out[0].copy_(d_summed)
        out[1].copy_(d_summed.sum(dim=1))
        out[2].copy_(self._times(d_summed, self.filters.mT))
        return None

    def no_energy(self, num_rows: int) -> Tensor:
        """Zeros for `d_energy`, a block for each program that has a part of a row."""
        blocks = 1
        if is_fused(self.frames):
            from antiphon.models.kernels import attention

            blocks = attention.num_blocks(self.frames.shape[1])
        return self.energy.new_zeros(num_rows, blocks, self.energy.shape[1])

    def _squashed(self, query: Tensor, before: Tensor) -> Tensor:
        """tanh(W s + V h + U f + b) of all frames [S · R, T, A]."""
        located = self._times(windows(before, self.width), self.filters)
        return (_for_rows(self.keys, len(query)) + query[:, None] + located).tanh()

    def _times(self, rows: Tensor, factors: Tensor) -> Tensor:
        """Rows [S · R, T, I], factors [S, I, O] -> [S · R, T, O]."""
        return (rows.unflatten(0, (len(factors), -1)) @ factors[:, None]).flatten(0, 1)


def _for_rows(values: Tensor, num_rows: int) -> Tensor:
    """Values of clients or of utterances, for each of their rows."""
    return repeated(values, num_rows // len(values))


def windows(weights: Tensor, width: int) -> Tensor:
    """The attention around each frame: [..., T] -> [..., T, width]."""
    return F.pad(weights, (width // 2, width // 2)).unfold(-1, width, 1)
