"""The lattice alone, and the joint network's chunks that feed it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from antiphon.models import rnnt_loss
from antiphon.models.rnnt_loss import next_log_probs, rnnt_losses, rnnt_losses_from_logits

LENGTHS, TOKEN_LENGTHS = [5, 3, 1, 4, 1], [3, 0, 2, 1, 0]


def random_lattice(seed: int = 0, num_frames: int = 5, num_tokens: int = 3) -> tuple[Tensor, Tensor]:
    """Blank and label log probabilities of five utterances, each pair less than 1 together."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(LENGTHS), num_frames, num_tokens + 1, 6)
    log_probs = torch.randn(shape, generator=generator, dtype=torch.float64).mul(2).log_softmax(-1)
    return log_probs[..., 0].contiguous(), log_probs[..., :-1, 1].contiguous()


def alignments(num_frames: int, num_tokens: int) -> Iterator[list[bool]]:
    """All orders of blanks (False) and labels (True) that end with a blank."""
    places = num_frames - 1 + num_tokens
    for labels in combinations(range(places), num_tokens):
        yield [place in labels for place in range(places)] + [False]


def enumerated(blank: Tensor, label: Tensor) -> Tensor:
    """One utterance's loss, alignment by alignment: [T, U + 1], [T, U] -> []."""
    ways = []
    for alignment in alignments(blank.shape[0], label.shape[1]):
        frame = token = 0
        way = torch.zeros((), dtype=blank.dtype)
        for is_label in alignment:
            way = way + (label if is_label else blank)[frame, token]
            frame, token = (frame, token + 1) if is_label else (frame + 1, token)
        ways.append(way)
    return -torch.stack(ways).logsumexp(0)


def test_two_frames_and_one_token_worked_out_by_hand() -> None:
    blank = torch.tensor([[[0.5, 0.4], [0.3, 0.8]]]).log()
    label = torch.tensor([[[0.2], [0.6]]]).log()
    # The token at the first frame, then two blanks; or a blank, the token, a blank.
    probability = 0.2 * 0.4 * 0.8 + 0.5 * 0.6 * 0.8
    loss = rnnt_losses(blank, label, torch.tensor([2]), torch.tensor([1]))
    assert float(loss.neg().exp()) == pytest.approx(probability)


@pytest.mark.parametrize("seed", range(3))
def test_losses_and_gradients_are_those_of_all_alignments_one_by_one(seed: int) -> None:
    blank, label = (tensor.requires_grad_() for tensor in random_lattice(seed))
    scale = torch.arange(1.0, 6.0, dtype=torch.float64)
    losses = rnnt_losses(blank, label, torch.tensor(LENGTHS), torch.tensor(TOKEN_LENGTHS))
    expected = torch.stack(
        [
            enumerated(blank[row, :frames, : tokens + 1], label[row, :frames, :tokens])
            for row, (frames, tokens) in enumerate(zip(LENGTHS, TOKEN_LENGTHS, strict=True))
        ]
    )
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)
    ours = torch.autograd.grad((losses * scale).sum(), (blank, label))
    theirs = torch.autograd.grad((expected * scale).sum(), (blank, label))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-11, atol=1e-13)


def test_the_gradient_is_that_of_finite_differences() -> None:
    lattice = tuple(tensor.requires_grad_() for tensor in random_lattice(4))
    lengths = torch.tensor(LENGTHS), torch.tensor(TOKEN_LENGTHS)
    assert torch.autograd.gradcheck(lambda *given: rnnt_losses(*given, *lengths), lattice)


def test_an_utterance_s_loss_is_the_same_alone_and_beside_padding_of_any_kind() -> None:
    blank, label = random_lattice(5)
    lengths, token_lengths = torch.tensor(LENGTHS), torch.tensor(TOKEN_LENGTHS)
    together = rnnt_losses(blank, label, lengths, token_lengths)
    for row, (frames, tokens) in enumerate(zip(LENGTHS, TOKEN_LENGTHS, strict=True)):
        blank[row, frames:] = torch.nan
        label[row, frames:] = torch.nan
        one = slice(row, row + 1)
        alone = rnnt_losses(
            blank[one, :frames, : tokens + 1], label[one, :frames, :tokens], lengths[one], token_lengths[one]
        )
        assert (alone - together[one]).abs().max() < 1e-10
    blank.requires_grad_(), label.requires_grad_()
    dirty = rnnt_losses(blank, label, lengths, token_lengths)
    assert (dirty - together).abs().max() < 1e-10
    gradients = torch.autograd.grad(dirty.sum(), (blank, label))
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_probabilities_of_taking_each_blank_and_label_add_up() -> None:
    blank, label = (tensor.requires_grad_() for tensor in random_lattice(6))
    losses = rnnt_losses(blank, label, torch.tensor(LENGTHS), torch.tensor(TOKEN_LENGTHS))
    blanks, labels = (-grad for grad in torch.autograd.grad(losses.sum(), (blank, label)))
    for row, (frames, tokens) in enumerate(zip(LENGTHS, TOKEN_LENGTHS, strict=True)):
        assert blanks[row].sum(1)[:frames].tolist() == pytest.approx([1.0] * frames)  # one a frame
        assert labels[row].sum(0)[:tokens].tolist() == pytest.approx([1.0] * tokens)  # each label once
        assert float(blanks[row].sum() + labels[row].sum()) == pytest.approx(frames + tokens)


def test_long_utterances_in_float32_lose_nothing_to_rounding() -> None:
    torch.manual_seed(0)
    log_probs = torch.randn(2, 1500, 121, 30).mul(4).log_softmax(-1)
    lengths = torch.tensor([1500, 900]), torch.tensor([120, 77])

    def run(dtype: torch.dtype) -> tuple[Tensor, ...]:
        given = [log_probs[..., 0].to(dtype), log_probs[..., :-1, 1].to(dtype)]
        lattice = [tensor.clone().requires_grad_() for tensor in given]
        losses = rnnt_losses(*lattice, *lengths)
        return losses.detach(), *torch.autograd.grad(losses.sum(), lattice)

    for rough, exact in zip(run(torch.float32), run(torch.float64), strict=True):
        torch.testing.assert_close(rough.double(), exact, rtol=1e-6, atol=1e-7)


def test_losses_from_logits_are_those_of_picked_log_probabilities_whatever_the_padding_tokens() -> None:
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(len(LENGTHS), 5, 4, 6, generator=generator, dtype=torch.float64).requires_grad_()
    tokens = torch.randint(1, 6, (len(LENGTHS), 3), generator=generator)
    log_probs = logits.log_softmax(dim=-1)
    label = log_probs[:, :, :-1].gather(-1, tokens[:, None, :, None].expand(-1, 5, -1, 1)).squeeze(-1)
    lengths, token_lengths = torch.tensor(LENGTHS), torch.tensor(TOKEN_LENGTHS)
    expected = rnnt_losses(log_probs[..., 0], label, lengths, token_lengths)
    padded = torch.where(torch.arange(3) < token_lengths[:, None], tokens, -1)
    found = rnnt_losses_from_logits(logits, padded, lengths, token_lengths)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    ours, theirs = (torch.autograd.grad(losses.square().sum(), logits)[0] for losses in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


# --- The joint network ----------------------------------------------------------------------------


def random_joint(num_networks: int | None = None, seed: int = 0, num_frames: int = 7) -> list[Tensor]:
    """Frames, states, weight and bias of two utterances, 4 hidden units and 6 tokens; and the tokens."""
    generator = torch.Generator().manual_seed(seed)
    many = [] if num_networks is None else [num_networks]
    shapes = [(2, num_frames, 4), (2, 4, 4), (6, 4), (6,)]
    given = [torch.randn(*many, *shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [*given, torch.randint(1, 6, (*many, 2, 3), generator=generator)]


def plain(
    frames: Tensor, states: Tensor, weight: Tensor, bias: Tensor, tokens: Tensor
) -> tuple[Tensor, Tensor]:
    """All logits at once, as in the papers."""
    hidden = torch.tanh(frames[:, :, None] + states[:, None])
    log_probs = (hidden @ weight.T + bias).log_softmax(-1)
    chosen = tokens[:, None, :, None].expand(-1, frames.shape[1], -1, 1)
    return log_probs[..., 0], log_probs[:, :, :-1].gather(-1, chosen).squeeze(-1)


def with_gradients(work: Any, given: list[Tensor], seed: int = 9) -> tuple[Tensor, ...]:
    leaves = [tensor.clone().requires_grad_() for tensor in given[:4]]
    outputs = work(*leaves, given[4])
    generator = torch.Generator().manual_seed(seed)
    upstream = [torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o) for o in outputs]
    return *outputs, *torch.autograd.grad(outputs, leaves, upstream)


@pytest.mark.parametrize("most", [1, 100, 10**6])
def test_chunks_of_any_size_give_what_all_logits_at_once_give(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rnnt_loss, "MAX_VALUES", most)
    given = random_joint()
    for ours, expected in zip(
        with_gradients(next_log_probs, given), with_gradients(plain, given), strict=True
    ):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


def test_the_joint_s_gradient_is_that_of_finite_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rnnt_loss, "MAX_VALUES", 100)
    *given, tokens = random_joint(seed=1)
    leaves = [tensor.requires_grad_() for tensor in given]
    assert torch.autograd.gradcheck(lambda *given: next_log_probs(*given, tokens), leaves)


@pytest.mark.parametrize("shared", [(), (0,), (2, 3), (4,)])
def test_stacked_joint_networks_give_what_each_gives_alone(shared: tuple[int, ...]) -> None:
    given = random_joint(num_networks=3)
    given = [tensor[0] if place in shared else tensor for place, tensor in enumerate(given)]
    in_dims = tuple(None if place in shared else 0 for place in range(5))

    def one(number: int) -> list[Tensor]:
        return [tensor if place in shared else tensor[number] for place, tensor in enumerate(given)]

    leaves = [tensor.clone().requires_grad_() for tensor in given[:4]]
    outputs = torch.func.vmap(next_log_probs, in_dims)(*leaves, given[4])
    gradients = torch.autograd.grad([output.sum() for output in outputs], leaves)
    summed = [torch.zeros_like(leaf) for leaf in leaves]
    for number in range(3):
        alone = [tensor.clone().requires_grad_() for tensor in one(number)[:4]]
        expected = next_log_probs(*alone, one(number)[4])
        for stacked, mine in zip(outputs, expected, strict=True):
            torch.testing.assert_close(stacked[number], mine, rtol=1e-12, atol=1e-12)
        for place, grad in enumerate(torch.autograd.grad([o.sum() for o in expected], alone)):
            summed[place] += (
                grad
                if place in shared
                else torch.stack([grad if other == number else torch.zeros_like(grad) for other in range(3)])
            )
    for stacked, mine in zip(gradients, summed, strict=True):
        torch.testing.assert_close(stacked, mine, rtol=1e-11, atol=1e-12)


class Largest(TorchDispatchMode):
    """Watches how many values the largest tensor holds that any operation makes."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                # The memory behind it: broadcast views cost nothing.
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


def test_no_tensor_holds_all_logits_neither_forward_nor_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rnnt_loss, "MAX_VALUES", 2**14)
    batch, frames, nodes, hidden, vocabulary = 3, 40, 11, 16, 50
    torch.manual_seed(0)
    leaves = [
        torch.randn(*shape, requires_grad=True)
        for shape in [(batch, frames, hidden), (batch, nodes, hidden), (vocabulary, hidden), (vocabulary,)]
    ]
    tokens = torch.randint(1, vocabulary, (batch, nodes - 1))
    saved: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    with Largest() as largest, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        lattice = next_log_probs(*leaves, tokens)
        losses = rnnt_losses(*lattice, torch.full((batch,), frames), torch.full((batch,), nodes - 1))
        torch.autograd.grad(losses.sum(), leaves)
    assert largest.numel <= 2**14 < batch * frames * nodes * vocabulary / 4
    assert max(saved) <= max(batch * frames * max(nodes, hidden), vocabulary * hidden)


def test_sixteen_bits_in_give_float32_out_and_gradients_as_given() -> None:
    given = [tensor.bfloat16() if tensor.is_floating_point() else tensor for tensor in random_joint()]
    found = with_gradients(next_log_probs, given)
    assert [tensor.dtype for tensor in found] == [torch.float32] * 2 + [torch.bfloat16] * 4
    for ours, expected in zip(found, with_gradients(plain, random_joint()), strict=True):
        torch.testing.assert_close(ours.double(), expected, rtol=0.1, atol=0.2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_losses_are_those_of_the_cpu_and_the_same_every_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    given = random_joint(num_frames=300)
    lengths = torch.tensor([300, 251]), torch.tensor([3, 2])

    def run(device: str) -> tuple[Tensor, ...]:
        leaves = [tensor.to(device).requires_grad_(tensor.is_floating_point()) for tensor in given]
        losses = rnnt_losses(*next_log_probs(*leaves), *(length.to(device) for length in lengths))
        return losses.detach().cpu(), *(g.cpu() for g in torch.autograd.grad(losses.sum(), leaves[:4]))

    torch.use_deterministic_algorithms(True)
    try:
        first, second = run("cuda"), run("cuda")
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(map(torch.equal, first, second))
    for moved, expected in zip(first, run("cpu"), strict=True):
        torch.testing.assert_close(moved, expected, rtol=1e-9, atol=1e-9)
