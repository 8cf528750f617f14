"""The CTC loss and its gradient beside PyTorch's own: time, memory, agreement.

Texts of a stacked step: 48 utterances of 8 to 15 s on a frozen encoder (41.7 frames a second), 14 letters a
second, 30 tokens.

  ours     `models.ctc.ctc_losses`
  pytorch  `F.ctc_loss`. Its gradient adds up in any order on a GPU, so PyTorch's deterministic mode is off
           here; ours comes out the same every time in both modes.
  cudnn    cuDNN's, with the deterministic algorithm, as `F.ctc_loss` calls it. That does so only for float32,
           32-bit tokens on the CPU in one row, fewer than 256 of them a text, and utterances of one length.
           Here lengths differ, so it is called by its own name, with everything on the GPU.

Gradients of padding, which cuDNN may leave in any state, are not compared. On a CPU ours is PyTorch's, and
there is no cuDNN.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import parse_arguments, write_result
from rnnt import Question, measure
from torch import Tensor

from antiphon.experiment.preparation import choose_device, device_name
from antiphon.models.ctc import ctc_losses
from antiphon.models.layers import frame_mask

FRAMES_PER_SECOND, LETTERS_PER_SECOND, VOCABULARY = 41.7, 14.0, 30


def question(batch: int, longest: float, device: torch.device) -> Question:
    """Logits of `batch` utterances of about half to all of `longest` seconds, and the ways to losses."""
    generator = torch.Generator().manual_seed(0)
    seconds = longest * (1 + torch.rand(batch, generator=generator)) / 2
    lengths, token_lengths = (
        (seconds * rate).long().clamp(min=1).to(device) for rate in (FRAMES_PER_SECOND, LETTERS_PER_SECOND)
    )
    shape = (batch, int(token_lengths.max()))
    tokens = torch.randint(1, VOCABULARY, shape, generator=generator).to(device)
    logits = torch.randn(batch, int(lengths.max()), VOCABULARY, generator=generator)

    def ours(given: Tensor) -> Tensor:
        return ctc_losses(given.log_softmax(dim=-1), lengths, tokens, token_lengths)

    def pytorch(given: Tensor) -> Tensor:
        log_probs = given.log_softmax(dim=-1).transpose(0, 1)
        return F.ctc_loss(log_probs, tokens, lengths, token_lengths, reduction="none")

    real = frame_mask(token_lengths, shape[1])
    for_cudnn = [given.int() for given in (tokens[real], lengths, token_lengths)]

    def cudnn(given: Tensor) -> Tensor:
        log_probs = given.log_softmax(dim=-1).transpose(0, 1).contiguous()
        losses: Tensor = torch._cudnn_ctc_loss(log_probs, *for_cudnn, 0, True, False)[0]
        return losses

    leaf = logits.to(device).requires_grad_()
    ways = {"ours": ours, "pytorch": pytorch}
    if device.type == "cuda" and torch._use_cudnn_ctc_loss(leaf.transpose(0, 1), *for_cudnn, 0):
        ways["cudnn"] = cudnn
    return Question((leaf,), ways, ~frame_mask(lengths, logits.shape[1])[..., None])


def main() -> None:
    arguments = parse_arguments(__doc__, "ctc")
    device = choose_device("auto")
    torch.set_deterministic_debug_mode("default")  # in deterministic mode, PyTorch refuses its own gradient
    batch, longest, repeats = (2, 2.0, 2) if arguments.quick else (48, 15.0, 20)
    asked = question(batch, longest, device)
    found = measure("logits", asked, repeats, device)
    if "cudnn" not in asked.ways:
        print("no cuDNN that takes this question on this machine")
    write_result(arguments, {"device": device_name(device), "batch": batch, "seconds": longest, **found})


if __name__ == "__main__":
    main()
