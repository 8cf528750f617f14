"""The transducer beside itself written out, and among stacked clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from world import MASKS, World

from antiphon.clients.client import ClientRuntime
from antiphon.clients.stacked.stacked_worker import StackedWorker
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Task
from antiphon.data.batches import Batch
from antiphon.models.blstm import BlstmConfig
from antiphon.models.conformer import ConformerConfig
from antiphon.models.transducer import MEDIUM, PUBLISHED, SMALL, Transducer, TransducerConfig
from antiphon.tasks.local_training import LocalTraining

CONFORMER = TransducerConfig(
    ConformerConfig(dim=8, num_layers=1, num_heads=2, kernel_size=3, stack=2), prediction_dim=6, joint_dim=7
)
BLSTM = TransducerConfig(BlstmConfig(dim=4, num_layers=1, stack=3), prediction_dim=5, context=1, joint_dim=4)
CONFIGS = {"conformer": CONFORMER, "blstm": BLSTM}
FRAMES, TOKENS = [13, 22, 9, 17], [[1, 2], [3, 3, 1, 4], [5], []]
BatchOf = Callable[..., Batch]


@pytest.fixture(params=CONFIGS)
def model(request: pytest.FixtureRequest) -> Transducer:
    return build(CONFIGS[request.param])


def build(config: TransducerConfig) -> Transducer:
    torch.manual_seed(0)
    model = config.build(5, 7).double().eval()
    with torch.no_grad():  # a model that cares what was said before
        model.prediction.project.weight.mul_(5)
        model.from_prediction.weight.mul_(3)
    return model


def naive_log_probs(model: Transducer, frame: Tensor, said: list[int]) -> Tensor:
    """One frame [dim] of the encoder and all labels so far -> log probabilities [7]. As in the papers."""
    last = [0] * model.config.context + said
    last = last[len(last) - model.config.context :]
    prediction = model.prediction
    read = prediction.project(torch.cat([prediction.embedding.weight[label] for label in last]))
    read = (read - read.mean()) / (read.var(correction=0) + 1e-5).sqrt()
    read = read * torch.sigmoid(read)
    hidden = torch.tanh(
        model.from_encoder.weight @ frame + model.from_encoder.bias + model.from_prediction.weight @ read
    )
    return (model.output.weight @ hidden + model.output.bias).log_softmax(0)


def naive_loss(model: Transducer, frames: Tensor, tokens: list[int]) -> Tensor:
    """Graves 2012, eq. 16 and 17, node by node."""
    log_probs = [
        [naive_log_probs(model, frame, tokens[:u]) for u in range(len(tokens) + 1)] for frame in frames
    ]
    alpha: dict[tuple[int, int], Tensor] = {(0, 0): torch.zeros((), dtype=torch.float64)}
    for t in range(len(frames)):
        for u in range(len(tokens) + 1):
            ways = []
            if t > 0:
                ways.append(alpha[t - 1, u] + log_probs[t - 1][u][0])
            if u > 0:
                ways.append(alpha[t, u - 1] + log_probs[t][u - 1][tokens[u - 1]])
            alpha[t, u] = torch.stack(ways).logsumexp(0) if ways else alpha[0, 0]
    return -(alpha[len(frames) - 1, len(tokens)] + log_probs[-1][len(tokens)][0])


def encoded(model: Transducer, batch: Batch) -> list[Tensor]:
    frames, lengths = model.encoder(batch.features, batch.feature_lengths)
    return [own[:length] for own, length in zip(frames, lengths, strict=True)]


@torch.no_grad()
def test_losses_agree_with_the_papers_equations_node_by_node(model: Transducer, batch_of: BatchOf) -> None:
    batch = batch_of(FRAMES, TOKENS, padding=2)
    expected = [naive_loss(model, f, t) for f, t in zip(encoded(model, batch), TOKENS, strict=True)]
    assert (model.losses(batch) - torch.stack(expected)).abs().max() < 1e-10


def test_an_utterance_and_its_gradient_are_the_same_alone_and_in_a_padded_batch(
    model: Transducer, batch_of: BatchOf
) -> None:
    parameters = list(model.parameters())
    together = model.losses(batch_of(FRAMES, TOKENS, padding=6))
    alone = [model.losses(batch_of([n], [t])) for n, t in zip(FRAMES, TOKENS, strict=True)]
    assert (together - torch.cat(alone)).abs().max() < 1e-10
    gradients = [torch.autograd.grad(losses.sum(), parameters) for losses in (together, *alone)]
    for whole, *parts in zip(*gradients, strict=True):
        assert (whole - torch.stack(parts).sum(0)).abs().max() < 1e-10


def test_what_stands_in_the_padding_changes_nothing(model: Transducer, batch_of: BatchOf) -> None:
    batch = batch_of(FRAMES, TOKENS, padding=3)
    features, tokens = batch.features.clone(), batch.tokens.clone()
    for row in range(len(FRAMES)):
        features[row, FRAMES[row] :] = torch.nan
        tokens[row, len(TOKENS[row]) :] = 5
    dirty = replace(batch, features=features, tokens=tokens)
    assert torch.equal(model.losses(dirty), model.losses(batch))
    assert model.greedy(dirty) == model.greedy(batch)


def test_a_placeholder_has_a_finite_loss_and_gradient(model: Transducer) -> None:
    nothing = Batch(
        *(torch.zeros(2, 1, 5, dtype=torch.float64), torch.ones(2, dtype=torch.int64)),
        *(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(2, dtype=torch.int64), (-1, -1)),
    )
    losses = model.losses(nothing)
    assert losses.isfinite().all()
    gradients = torch.autograd.grad(losses.sum(), list(model.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert model.greedy(nothing)[0] == model.greedy(nothing)[1]


@pytest.mark.parametrize("limit", [1, 3])
@torch.no_grad()
def test_greedy_takes_the_best_token_until_a_blank_or_the_limit(
    model: Transducer, batch_of: BatchOf, limit: int
) -> None:
    model.config = replace(model.config, symbols_per_frame=limit)
    batch = batch_of(FRAMES, TOKENS)
    expected: list[list[int]] = []
    for frames in encoded(model, batch):
        said: list[int] = []
        for frame in frames:
            for _ in range(limit):
                best = int(naive_log_probs(model, frame, said).argmax())
                if best == 0:
                    break
                said.append(best)
        expected.append(said)
    assert model.greedy(batch) == expected
    assert any(expected)


@torch.no_grad()
def test_greedy_of_a_model_that_only_waits_is_empty_and_of_one_that_never_does_is_full(
    model: Transducer, batch_of: BatchOf
) -> None:
    frames = [len(own) for own in encoded(model, batch_of(FRAMES, TOKENS))]
    model.output.bias[0] = 1e9
    assert model.greedy(batch_of(FRAMES, TOKENS)) == [[]] * 4
    model.output.bias[0] = -1e9
    assert [len(said) for said in model.greedy(batch_of(FRAMES, TOKENS))] == [4 * n for n in frames]


def test_it_keeps_the_promises_of_every_model(model: Transducer) -> None:
    assert not list(model.buffers())
    assert model.fits(1, [1, 2, 3])
    assert not model.fits(0, [1])
    assert not model.fits(10, [])


def test_presets_have_the_sizes_they_say() -> None:
    def size(module: nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    with torch.device("meta"):
        small, medium, published = (preset.build(80, 500) for preset in (SMALL, MEDIUM, PUBLISHED))
    assert [round(size(preset) / 1e6, 1) for preset in (small, medium, published)] == [3.7, 13.2, 107.7]
    # Two feed-forward modules 512 ↔ 2048 and four attention matrices 512 × 512 in each of 17 layers.
    prunable = [
        parameter.numel()
        for name, parameter in published.encoder.layers.named_parameters()
        if parameter.dim() == 2 and "convolution" not in name
    ]
    assert sum(prunable) == 17 * (4 * 512 * 2048 + 4 * 512 * 512)
    assert published.prediction.embedding.weight.shape == (500, 640)
    assert published.output.weight.shape == (500, 2048)


def test_sizes_that_cannot_be_built_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        TransducerConfig(context=0)


# --- Many clients at once -------------------------------------------------------------------------


class Doubled:
    """Feeds in float64, so that what differs is the algorithm and not the rounding."""

    def __init__(self, runtime: ClientRuntime) -> None:
        self.feed = runtime.feed

    def __call__(self, places: np.ndarray) -> Batch:
        batch = self.feed(places)
        return replace(batch, features=batch.features.double())

    def one_by_one(self, plan: Iterable[np.ndarray]) -> Iterator[Batch]:
        return map(self, plan)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [("conformer", ""), ("conformer", "encoder."), ("conformer", "prediction."), ("blstm", "")],
)
def test_stacked_clients_get_what_each_gets_alone(world: World, name: str, pattern: str) -> None:
    torch.manual_seed(3)
    model = CONFIGS[name].build(world.store.dim, world.tokens.size).double()
    base = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    runtime = ClientRuntime(world.store, world.tokens, model, base, MASKS)
    runtime.feed = Doubled(runtime)
    clients = {
        name: own[: 1 + number % 5] for number, (name, own) in enumerate(sorted(world.clients().items()))
    }
    config = {**LocalTraining(lr=0.3, batch_seconds=1.0).to_task(), "round": 0, "seed": 11}
    task = Task("train", {n: tensor for n, tensor in base.items() if n.startswith(pattern)}, config)
    worker = StackedWorker(runtime, clients)
    stacked = list(worker.run(task, list(clients)))
    assert worker.trainer(runtime)._can_stack
    for left, right in zip(stacked, SpeechWorker(runtime, clients).run(task, list(clients)), strict=True):
        assert left.reports[0].stats == pytest.approx(right.reports[0].stats, rel=1e-10)
        for tensor, expected in zip(left.mean.values(), right.mean.values(), strict=True):
            torch.testing.assert_close(tensor, expected, rtol=1e-10, atol=1e-10)
