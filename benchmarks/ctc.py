"""The CTC loss and its gradient beside PyTorch's own: time, memory, agreement.

Texts of a stacked step: 48 utterances of 8 to 15 s on a frozen encoder (41.7 frames a second), 14 letters a
second, 30 tokens. PyTorch's gradient adds up in any order on a GPU, so its deterministic mode is off here;
ours comes out the same every time in both modes. On a CPU both are PyTorch's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import parse_arguments, write_result
from rnnt import Question, measure
from torch import Tensor

from antiphon.experiment.preparation import choose_device, device_name
from antiphon.models.ctc import ctc_losses

FRAMES_PER_SECOND, LETTERS_PER_SECOND, VOCABULARY = 41.7, 14.0, 30


def question(batch: int, longest: float, device: torch.device) -> Question:
    """Logits of `batch` utterances of about half to all of `longest` seconds, and two ways to losses."""
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

    return Question((logits.to(device).requires_grad_(),), {"ours": ours, "pytorch": pytorch})


def main() -> None:
    arguments = parse_arguments(__doc__, "ctc")
    device = choose_device("auto")
    torch.set_deterministic_debug_mode("default")  # in deterministic mode, PyTorch refuses its own gradient
    batch, longest, repeats = (2, 2.0, 2) if arguments.quick else (48, 15.0, 20)
    found = measure("logits", question(batch, longest, device), repeats, device)
    write_result(arguments, {"device": device_name(device), "batch": batch, "seconds": longest, **found})


if __name__ == "__main__":
    main()
