"""Bidirectional LSTMs as the LSTM operator of ONNX, which reverses each utterance within its own length."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from antiphon.models.blstm import BlstmLayer
from antiphon.models.reduced import ReducedBlstmLayer, Units


class OnnxDirection(nn.Module):
    """One direction of an LSTM over frames [B, T, D]: [B, T, H]. It can be traced, not computed."""

    def __init__(self, lstm: nn.LSTM, direction: str) -> None:
        super().__init__()
        self.size, self.direction = lstm.hidden_size, direction
        from_input, from_hidden, *biases = (in_onnx_order(p.detach()) for p in lstm.all_weights[0])
        self.from_input, self.from_hidden = nn.Parameter(from_input[None]), nn.Parameter(from_hidden[None])
        self.biases = nn.Parameter(torch.cat(biases)[None])

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        rows, num_frames, _ = frames.shape
        inputs = (frames.transpose(0, 1), self.from_input, self.from_hidden, self.biases, lengths.int())
        hidden = torch.onnx.ops.symbolic(
            "LSTM",
            inputs,
            {"hidden_size": self.size, "direction": self.direction},
            dtype=frames.dtype,
            shape=(num_frames, 1, rows, self.size),
            version=18,
        )
        return hidden[:, 0].transpose(0, 1)


def in_onnx_order(gates: Tensor) -> Tensor:
    """Reorder gates [4 H, …]: torch has input, forget, cell, output; ONNX has input, output, forget, cell."""
    first, forget, cell, output = gates.chunk(4)
    return torch.cat((first, output, forget, cell))


class OnnxBlstmLayer(nn.Module):
    """A layer of a bidirectional LSTM, pruned or not, with the operators of ONNX."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.forwards = OnnxDirection(layer.forwards, "forward")
        self.backwards = OnnxDirection(layer.backwards, "reverse")
        self.norm = layer.norm
        is_pruned = isinstance(layer, ReducedBlstmLayer)
        self.inputs: Units | None = layer.inputs if is_pruned else None
        self.units: Units | None = layer.units if is_pruned else None

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        if self.inputs is not None:
            frames = self.inputs.take(frames)
        both = torch.cat((self.forwards(frames, lengths), self.backwards(frames, lengths)), dim=-1)
        normed: Tensor = self.norm(both if self.units is None else self.units.scatter(both))
        return normed


def with_onnx_lstms(model: Any) -> Any:
    """Replace the bidirectional layers of a model, in place."""
    for module in list(model.modules()):
        for name, part in list(module.named_children()):
            if isinstance(part, BlstmLayer | ReducedBlstmLayer):
                setattr(module, name, OnnxBlstmLayer(part))
    return model
