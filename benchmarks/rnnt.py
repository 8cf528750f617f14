"""The transducer's loss, forward and backward, beside torchaudio's `rnnt_loss`: time, memory, agreement.

Two questions, each asked of every way there is to answer it:

  logits   logits [B, T, U + 1, V] are there -> losses and the logits' gradient. What `rnnt_loss` is made for.
             fused       `models.rnnt_loss.rnnt_losses_from_logits`
             picked      log-softmax by PyTorch, blanks and labels picked, `models.rnnt_loss.rnnt_losses`
             torchaudio  `rnnt_loss` with its fused log-softmax
  joint    frames, states and the joint network's output layer -> losses and all their gradients. What a
           training step asks.
             parts       `models.rnnt_loss`, as `Transducer` does: hidden units of a few frames at a time
             whole       all hidden units and logits at once through autograd, then `fused`
             torchaudio  all hidden units and logits at once, then `rnnt_loss`

Without torchaudio its rows are missing; without a GPU memory is not measured. Ways take turns, and the first
of each question is compared with the others. The peak of memory is of what a way adds to its inputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from common import parse_arguments, print_table, write_result
from torch import Tensor

from antiphon.experiment.preparation import choose_device, device_name
from antiphon.models.rnnt_loss import next_log_probs, rnnt_losses, rnnt_losses_from_logits

Loss = Callable[..., Tensor]  # leaves -> losses [B]


@dataclass(frozen=True)
class Size:
    """As the issue asks; the joint network's width is that of most published transducers."""

    batch: int = 16
    frames: int = 200
    tokens: int = 40
    vocabulary: int = 500
    joint_dim: int = 640


def torchaudio_loss() -> Callable[..., Tensor] | None:
    """`rnnt_loss`, if this machine has a torchaudio that still holds it."""
    try:
        from torchaudio.functional import rnnt_loss
    except (ImportError, OSError):
        return None
    loss: Callable[..., Tensor] = rnnt_loss
    return loss


@dataclass(frozen=True)
class Question:
    """Tensors to be differentiated, and the ways from them to losses."""

    leaves: tuple[Tensor, ...]
    ways: dict[str, Loss]
    padding: Tensor | None = None  # where gradients are not compared


def all_logits(frames: Tensor, states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """[B, T, J], [B, U + 1, J], [V, J], [V] -> [B, T, U + 1, V]."""
    hidden = torch.tanh(frames[:, :, None] + states[:, None])
    return torch.nn.functional.linear(hidden, weight, bias)


def questions(size: Size, device: torch.device) -> dict[str, Question]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*shape, generator=generator)).to(device).requires_grad_()

    tokens = torch.randint(1, size.vocabulary, (size.batch, size.tokens), generator=generator).to(device)
    lengths = torch.full((size.batch,), size.frames, device=device)
    token_lengths = torch.full((size.batch,), size.tokens, device=device)
    reference = torchaudio_loss()

    def fused(logits: Tensor) -> Tensor:
        return rnnt_losses_from_logits(logits, tokens, lengths, token_lengths)

    def picked(logits: Tensor) -> Tensor:
        log_probs = logits.log_softmax(dim=-1)
        chosen = tokens[:, None, :, None].expand(-1, size.frames, -1, 1)
        label = log_probs[:, :, :-1].gather(-1, chosen).squeeze(-1)
        return rnnt_losses(log_probs[..., 0], label, lengths, token_lengths)

    def theirs(logits: Tensor) -> Tensor:
        assert reference is not None
        given = (tokens.int(), lengths.int(), token_lengths.int())
        return reference(logits, *given, blank=0, reduction="none")

    def parts(*leaves: Tensor) -> Tensor:
        return rnnt_losses(*next_log_probs(*leaves, tokens), lengths, token_lengths)

    from_logits: dict[str, Loss] = {"fused": fused, "picked": picked}
    from_joint: dict[str, Loss] = {"parts": parts, "whole": lambda *leaves: fused(all_logits(*leaves))}
    if reference is not None:
        from_logits["torchaudio"] = theirs
        from_joint["torchaudio"] = lambda *leaves: theirs(all_logits(*leaves))
    width = size.joint_dim
    joint = (
        *(normal(size.batch, size.frames, width), normal(size.batch, size.tokens + 1, width)),
        *(normal(size.vocabulary, width, scale=width**-0.5), normal(size.vocabulary)),
    )
    logits = normal(size.batch, size.frames, size.tokens + 1, size.vocabulary)
    return {"logits": Question((logits,), from_logits), "joint": Question(joint, from_joint)}


def solved(loss: Loss, leaves: Sequence[Tensor]) -> tuple[Tensor, ...]:
    losses = loss(*leaves)
    return losses.detach(), *torch.autograd.grad(losses.sum(), leaves)


def timed(question: Question, repeats: int, device: torch.device) -> dict[str, dict[str, Any]]:
    """Seconds of each way, taking turns, after two rounds to warm up; and its peak of memory in MiB."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    seconds: dict[str, list[float]] = {way: [] for way in question.ways}
    peaks = dict.fromkeys(question.ways, 0.0)
    for turn in range(repeats + 2):
        for way, loss in question.ways.items():
            before = 0
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            wait()
            start = time.perf_counter()
            solved(loss, question.leaves)
            wait()
            if turn >= 2:
                seconds[way].append(time.perf_counter() - start)
            if device.type == "cuda":
                peaks[way] = (torch.cuda.max_memory_allocated() - before) / 2**20
    return {
        way: {"seconds": float(np.median(own)), "all": own, "peak_mib": peaks[way]}
        for way, own in seconds.items()
    }


def differences(question: Question) -> dict[str, dict[str, float]]:
    """Of each way from the first: of the losses, and the largest of the gradients, relative to their size."""
    first, *others = question.ways

    def answer(way: str) -> list[Tensor]:
        losses, *gradients = solved(question.ways[way], question.leaves)
        if question.padding is not None:
            gradients = [gradient.masked_fill(question.padding, 0.0) for gradient in gradients]
        return [losses, *gradients]

    mine = answer(first)
    found = {}
    for way in others:
        theirs = answer(way)
        pairs = zip(mine, theirs, strict=True)
        apart = [float((a - b).norm() / b.norm()) for a, b in pairs]
        found[way] = {"losses": apart[0], "gradients": max(apart[1:])}
    return found


def measure(name: str, question: Question, repeats: int, device: torch.device) -> dict[str, Any]:
    result: dict[str, Any] = {"ways": timed(question, repeats, device), "differences": differences(question)}
    first, *others = question.ways
    ours = result["ways"][first]
    rows = []
    for way, own in result["ways"].items():
        own["over_ours"] = own["seconds"] / ours["seconds"]
        apart = result["differences"].get(way, {"losses": 0.0, "gradients": 0.0})
        rows.append([name, way, f"{1000 * own['seconds']:.2f}", f"{own['over_ours']:.2f}"])
        rows[-1] += [f"{own['peak_mib']:.0f}", f"{apart['losses']:.1e}", f"{apart['gradients']:.1e}"]
    print_table(["from", "way", "ms", "times ours", "MiB", "losses apart", "gradients apart"], rows)
    for way in others:
        theirs = result["ways"][way]
        memory = ""
        if theirs["peak_mib"] > 0:
            memory = f", with {ours['peak_mib'] / theirs['peak_mib']:.2f} of its memory"
        print(f"{first}: {theirs['over_ours']:.2f} times the speed of {way}{memory}")
    print(flush=True)
    return result


def main() -> None:
    arguments = parse_arguments(__doc__, "rnnt")
    device = choose_device("auto")
    size, repeats = (Size(2, 20, 5, 30, 16), 2) if arguments.quick else (Size(), 20)
    found = {name: measure(name, q, repeats, device) for name, q in questions(size, device).items()}
    if torchaudio_loss() is None:
        print("no torchaudio with rnnt_loss on this machine: ours alone was measured")
    tf32 = torch.backends.cuda.matmul.allow_tf32
    about = {"device": device_name(device), "tf32": tf32, "size": asdict(size)}
    write_result(arguments, {**about, "from": found})


if __name__ == "__main__":
    main()
