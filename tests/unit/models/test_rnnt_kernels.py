"""The transducer's loss by kernels of our own, beside PyTorch's functions in float64 on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from antiphon.models import rnnt_loss
from antiphon.models.rnnt_loss import next_log_probs, rnnt_losses, rnnt_losses_from_logits

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and rnnt_loss.FUSED), reason="needs a GPU and Triton"
)

# Utterances, frames, tokens, vocabulary, width of the joint network
BATCHES = {
    "one frame, no tokens": ([1], [0], 3, 2),
    "one frame": ([1, 1], [3, 1], 6, 5),
    "no tokens": ([4, 9], [0, 0], 40, 16),
    "ragged": ([9, 1, 7, 4], [5, 2, 0, 4], 40, 24),
    "aligned": ([40, 33], [15, 11], 512, 128),
    "more tokens than a block": ([30, 12], [75, 20], 33, 36),
    "more frames than a warp": ([300, 129, 257], [12, 3, 9], 29, 20),
    "a large vocabulary": ([20, 11], [6, 6], 1300, 33),
}
Batch = tuple[list[Tensor], Tensor, Tensor, Tensor]  # frames, states, weight, bias; tokens; both lengths


@pytest.fixture(autouse=True)
def _exactly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def batch_of(name: str, *networks: int, seed: int = 0) -> Batch:
    lengths, token_lengths, size, dim = BATCHES[name]
    batch, num_frames, num_tokens = len(lengths), max(lengths), max(token_lengths)
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, num_frames, dim), (batch, num_tokens + 1, dim), (size, dim), (size,)]
    joint = [
        torch.randn(*networks, *shape, generator=generator, dtype=torch.float64).float() for shape in shapes
    ]
    tokens = torch.randint(1, size, (*networks, batch, num_tokens), generator=generator)
    return joint, tokens, torch.tensor(lengths), torch.tensor(token_lengths)


def with_gradients(
    work: Callable[..., Tensor], leaves: list[Tensor], to: Any = DEVICE, dtype: torch.dtype | None = None
) -> list[Tensor]:
    """Losses of the leaves as `to` and `dtype`, and the gradients of a weighted sum, all in float64."""
    moved = [leaf.detach().to(to, dtype).requires_grad_() for leaf in leaves]
    losses = work(*moved)
    scale = torch.arange(1, losses.numel() + 1, device=losses.device, dtype=losses.dtype)
    found = losses.detach(), *torch.autograd.grad((losses.flatten() * scale).sum(), moved)
    return [tensor.cpu().double() for tensor in found]


def joint_losses(batch: Batch, to: str = DEVICE) -> Callable[..., Tensor]:
    others = [tensor.to(to) for tensor in batch[1:]]
    return lambda *joint: rnnt_losses(*next_log_probs(*joint, others[0]), *others[1:])


def apart(ours: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [
        float((mine - right).norm() / right.norm().clamp(min=1e-9))
        for mine, right in zip(ours, exact, strict=True)
    ]


@pytest.mark.parametrize("name", BATCHES)
def test_losses_and_gradients_from_the_joint_network_are_those_of_float64(name: str) -> None:
    batch = batch_of(name)
    ours = with_gradients(joint_losses(batch), batch[0])
    exact = with_gradients(joint_losses(batch, "cpu"), batch[0], "cpu", torch.float64)
    assert max(apart(ours, exact)) < 1e-5


@pytest.mark.parametrize("kept", [0, 9000, 10**9])
def test_parts_of_any_size_kept_or_computed_again_give_the_same(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from antiphon.models.kernels import joint

    batch = batch_of("ragged")
    exact = with_gradients(joint_losses(batch, "cpu"), batch[0], "cpu", torch.float64)
    monkeypatch.setattr(joint, "KEPT_VALUES", kept)
    for most in (1, 1300, 10**9):
        monkeypatch.setattr(joint, "PART_VALUES", most)
        assert max(apart(with_gradients(joint_losses(batch), batch[0]), exact)) < 1e-5


@pytest.mark.parametrize("name", BATCHES)
def test_losses_and_gradients_from_logits_are_those_of_float64_whatever_padding_holds(name: str) -> None:
    _, tokens, lengths, token_lengths = batch_of(name)
    generator = torch.Generator().manual_seed(1)
    shape = (*tokens.shape[:1], int(lengths.max()), tokens.shape[1] + 1, BATCHES[name][2])
    logits = torch.randn(shape, generator=generator).mul(3)

    def run(to: str, given: Tensor, dtype: torch.dtype) -> list[Tensor]:
        others = [tensor.to(to) for tensor in (tokens, lengths, token_lengths)]
        return with_gradients(lambda leaf: rnnt_losses_from_logits(leaf, *others), [given], to, dtype)

    exact = run("cpu", logits, torch.float64)
    dirty = logits.clone()
    for row, (frames, nodes) in enumerate(zip(lengths.tolist(), (token_lengths + 1).tolist(), strict=True)):
        dirty[row, frames:] = dirty[row, :, nodes:] = torch.nan
    assert max(apart(run(DEVICE, dirty, torch.float32), exact)) < 1e-5


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.bfloat16, 2e-2), (torch.float16, 3e-3), (torch.float32, 1e-5)]
)
def test_under_autocast_results_are_as_exact_as_what_is_given(dtype: torch.dtype, most: float) -> None:
    (frames, states, weight, bias), tokens, *lengths = batch = batch_of("aligned")
    leaves = [frames.to(dtype), states.to(dtype), weight.div(11).to(dtype).float(), bias]
    others = [tensor.to(DEVICE) for tensor in (tokens, *lengths)]

    def under_autocast(*joint: Tensor) -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16 if dtype == torch.float32 else dtype):
            return rnnt_losses(*next_log_probs(*joint, others[0]), *others[1:])

    ours = with_gradients(under_autocast, leaves)
    exact = with_gradients(joint_losses(batch, "cpu"), leaves, "cpu", torch.float64)
    assert max(apart(ours, exact)) < most


def test_gradients_have_the_types_of_what_they_are_of() -> None:
    joint, *others = batch_of("ragged")
    moved = [values.to(DEVICE, torch.bfloat16).requires_grad_() for values in joint]
    tokens, *lengths = (tensor.to(DEVICE) for tensor in others)
    blank, label = next_log_probs(*moved, tokens)
    assert blank.dtype == label.dtype == torch.float32
    gradients = torch.autograd.grad(rnnt_losses(blank, label, *lengths).sum(), moved)
    assert [gradient.dtype for gradient in gradients] == [torch.bfloat16] * 4


@pytest.mark.parametrize("shared", [(), (0,), (2, 3), (4,)])
def test_stacked_joint_networks_give_what_each_gives_alone(shared: tuple[int, ...]) -> None:
    joint, tokens, lengths, token_lengths = batch_of("ragged", 3)
    given = [*joint, tokens]
    given = [tensor[0] if place in shared else tensor for place, tensor in enumerate(given)]
    in_dims = tuple(None if place in shared else 0 for place in range(5))

    def stacked(to: str) -> Callable[..., Tensor]:
        ends = lengths.to(to).repeat(3), token_lengths.to(to).repeat(3)

        def losses(*leaves: Tensor) -> Tensor:
            found = torch.func.vmap(next_log_probs, in_dims)(*leaves, given[4].to(to))
            return rnnt_losses(*(tensor.flatten(0, 1) for tensor in found), *ends)

        return losses

    ours = with_gradients(stacked(DEVICE), given[:4])
    exact = with_gradients(stacked("cpu"), given[:4], "cpu", torch.float64)
    assert max(apart(ours, exact)) < 1e-5


def test_what_is_frozen_has_no_gradient_and_changes_no_other() -> None:
    batch = batch_of("ragged")
    _, d_frames, d_states, _, d_bias = with_gradients(joint_losses(batch), batch[0])
    frames, states, weight, bias = batch[0]
    partly = with_gradients(
        lambda *some: joint_losses(batch)(*some, weight.to(DEVICE), bias.to(DEVICE)), [frames, states]
    )
    assert torch.equal(partly[1], d_frames)
    assert torch.equal(partly[2], d_states)
    only_bias = with_gradients(
        lambda some: joint_losses(batch)(*(leaf.to(DEVICE) for leaf in (frames, states, weight)), some),
        [bias],
    )
    assert torch.equal(only_bias[1], d_bias)


def test_a_gradient_asked_for_twice_is_the_same_though_the_logits_are_gone() -> None:
    batch = batch_of("more frames than a warp")
    leaves = [leaf.to(DEVICE).requires_grad_() for leaf in batch[0]]
    losses = joint_losses(batch)(*leaves)
    first = torch.autograd.grad(losses.sum(), leaves, retain_graph=True)
    second = torch.autograd.grad(losses.sum(), leaves)
    assert all(map(torch.equal, first, second))


def test_every_run_gives_the_same_bits() -> None:
    batch = batch_of("aligned")
    first, *others = (with_gradients(joint_losses(batch), batch[0]) for _ in range(5))
    assert all(all(map(torch.equal, first, other)) for other in others)


def test_a_captured_graph_gives_what_the_kernels_give_one_by_one() -> None:
    batch, changed = batch_of("ragged"), batch_of("ragged", seed=1)
    leaves = [leaf.to(DEVICE).requires_grad_() for leaf in batch[0]]
    tokens, *lengths = (tensor.to(DEVICE) for tensor in batch[1:])

    def step() -> tuple[Tensor, ...]:
        losses = rnnt_losses(*next_log_probs(*leaves, tokens), *lengths)
        return losses.detach(), *torch.autograd.grad(losses.sum(), leaves)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        for leaf, values in zip((*leaves, tokens), (*changed[0], changed[1]), strict=True):
            leaf.copy_(values)
    for _ in range(2):  # the second time, the memory holds what the first left there
        graph.replay()
        assert all(map(torch.equal, captured, step()))


def test_long_utterances_lose_nothing_to_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    log_probs = torch.randn(2, 1500, 121, 30, generator=generator).mul(4).log_softmax(-1)
    lattice = [log_probs[..., 0], log_probs[..., :-1, 1]]

    def run(to: str, dtype: torch.dtype) -> list[Tensor]:
        ends = torch.tensor([1500, 900], device=to), torch.tensor([120, 77], device=to)
        return with_gradients(lambda *given: rnnt_losses(*given, *ends), lattice, to, dtype)

    exact = run("cpu", torch.float64)
    ours = run(DEVICE, torch.float32)
    assert max(apart(ours, exact)) < 1e-5
    monkeypatch.setattr(rnnt_loss, "MAX_FRAMES", 1499)  # PyTorch's functions
    assert max(apart(run(DEVICE, torch.float32), ours)) < 1e-5


def test_memory_for_logits_and_hidden_units_does_not_grow_with_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from antiphon.models.kernels import joint

    frames, nodes, dim, size = 400, 41, 64, 500
    monkeypatch.setattr(joint, "KEPT_VALUES", 2**20)
    monkeypatch.setattr(joint, "PART_VALUES", 2**18)
    peaks = []
    for batch in (4, 4, 16):  # the first gives cuBLAS its workspace
        shapes = [(batch, frames, dim), (batch, nodes, dim), (size, dim), (size,)]
        leaves = [torch.randn(shape, device=DEVICE, requires_grad=True) for shape in shapes]
        tokens = torch.randint(1, size, (batch, nodes - 1), device=DEVICE)
        ends = [torch.full((batch,), most, device=DEVICE) for most in (frames, nodes - 1)]
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        torch.autograd.grad(rnnt_losses(*next_log_probs(*leaves, tokens), *ends).sum(), leaves)
        peaks.append((torch.cuda.max_memory_allocated() - before) / 4)
    values_per_node = (peaks[2] - peaks[1]) / (12 * frames * nodes)
    assert values_per_node < dim < size
