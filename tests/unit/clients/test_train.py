"""What one client does with a task, against formulas worked out here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from world import SEED, World

from antiphon.clients.client import Client, ClientRuntime
from antiphon.clients.train import clip, train
from antiphon.core import Task, Tensors, Update
from antiphon.data.batches import collate
from antiphon.tasks.local_training import LocalTraining, global_norm, measure_delta

ONE_STEP = LocalTraining(lr=0.1, steps=1, batch_seconds=0.0, clip_norm=0.0)


def task_of(params: Tensors, local: LocalTraining, seed: int = SEED) -> Task:
    config = {"lr": local.lr, "epochs": local.epochs, "steps": local.steps, "round": 0, "seed": seed}
    config |= {name: getattr(local, name) for name in ("batch_seconds", "clip_norm", "proximal")}
    return Task("train", params, config)


def mean_loss(runtime: ClientRuntime, params: Tensors, indices: np.ndarray) -> Tensor:
    """The objective as the docstring of `LocalTraining` has it: a mean over utterances of loss per token."""
    runtime.load(params)
    runtime.model.train()
    batch = collate(runtime.store, indices, runtime.tokens.encode)
    return (runtime.model.losses(batch) / batch.token_lengths).mean()


def gradient(runtime: ClientRuntime, params: Tensors, indices: np.ndarray) -> Tensors:
    loss = mean_loss(runtime, params, indices)
    grads = torch.autograd.grad(loss, [runtime.parameters[name] for name in params])
    return dict(zip(params, grads, strict=True))


def loss_at(client: Client, params: Tensors) -> float:
    return mean_loss(client.runtime, params, client.indices).item()


def norm(tensors: Tensors) -> float:
    return float(torch.cat([tensor.flatten() for tensor in tensors.values()]).norm())


@pytest.fixture
def runtime(world: World) -> ClientRuntime:
    return world.exact_runtime()


@pytest.fixture
def client(world: World, runtime: ClientRuntime) -> Client:
    return Client("speaker/s00", world.clients()["speaker/s00"], runtime)


@pytest.fixture
def params(world: World) -> Tensors:
    return world.params(dtype=torch.float64)


def assert_near(left: Tensors, right: Tensors, rtol: float = 1e-10) -> None:
    assert left.keys() == right.keys()
    scale = max(norm(left), norm(right))
    assert scale > 0
    assert norm({name: left[name] - right[name] for name in left}) <= rtol * scale


# --- One step, by hand ----------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["ctc", "las"])
def test_one_step_on_everything_is_the_learning_rate_times_the_gradient(world: World, model: str) -> None:
    runtime, params = world.exact_runtime(model), world.params(model, torch.float64)
    client = Client("speaker/s00", world.clients()["speaker/s00"], runtime)
    update = train(task_of(params, ONE_STEP), client)
    grads = gradient(runtime, params, client.indices)
    assert_near(update.mean, {name: 0.1 * grad for name, grad in grads.items()})


def test_the_gradient_is_that_of_the_reported_loss(client: Client, params: Tensors) -> None:
    """Along the client's own delta, by central differences."""
    update, step = train(task_of(params, ONE_STEP), client), 1e-5
    ahead, behind = (
        loss_at(client, {name: p + shift * update.mean[name] for name, p in params.items()})
        for shift in (step, -step)
    )
    slope = norm(update.mean) ** 2 / ONE_STEP.lr
    assert (ahead - behind) / (2 * step) == pytest.approx(slope, rel=1e-7)
    now = loss_at(client, params)
    assert update.reports[0].stats["loss"] == pytest.approx(now, rel=1e-12)


def test_two_steps_of_sgd_are_two_gradients(client: Client, params: Tensors) -> None:
    update = train(task_of(params, replace(ONE_STEP, steps=2)), client)
    first = gradient(client.runtime, params, client.indices)
    middle = {name: p - 0.1 * first[name] for name, p in params.items()}
    second = gradient(client.runtime, middle, client.indices)
    assert_near(update.mean, {name: 0.1 * (first[name] + second[name]) for name in params})


def test_the_reported_loss_is_the_mean_over_the_utterances_of_all_steps(
    client: Client, params: Tensors
) -> None:
    update = train(task_of(params, replace(ONE_STEP, steps=2)), client)
    first = gradient(client.runtime, params, client.indices)
    middle = {name: p - 0.1 * first[name] for name, p in params.items()}
    losses = [loss_at(client, at) for at in (params, middle)]
    assert update.reports[0].stats["loss"] == pytest.approx(sum(losses) / 2, rel=1e-10)


def test_fedprox_adds_its_pull_towards_the_server_to_the_second_step(client: Client, params: Tensors) -> None:
    """Li et al. 2020, h(w) = F(w) + μ/2 ‖w − w_t‖²: the pull μ(w − w_t) is zero in the first step."""
    mu = 0.7
    update = train(task_of(params, replace(ONE_STEP, steps=2, proximal=mu)), client)
    first = gradient(client.runtime, params, client.indices)
    middle = {name: p - 0.1 * first[name] for name, p in params.items()}
    second = gradient(client.runtime, middle, client.indices)
    pull = {name: mu * (middle[name] - params[name]) for name in params}
    assert_near(update.mean, {name: 0.1 * (first[name] + second[name] + pull[name]) for name in params})


def test_fedprox_gradient_is_that_of_the_penalised_objective(client: Client, params: Tensors) -> None:
    """The second step's gradient by central differences of F(w) + μ/2 ‖w − w_t‖²."""
    mu, h = 0.7, 1e-5
    first = train(task_of(params, ONE_STEP), client).mean
    both = train(task_of(params, replace(ONE_STEP, steps=2, proximal=mu)), client).mean
    grad = {name: (both[name] - first[name]) / 0.1 for name in params}
    middle = {name: p - first[name] for name, p in params.items()}

    def objective(shift: float) -> float:
        at = {name: p + shift * grad[name] for name, p in middle.items()}
        distance = norm({name: at[name] - params[name] for name in params})
        return loss_at(client, at) + mu / 2 * distance**2

    slope = (objective(h) - objective(-h)) / (2 * h)
    assert slope == pytest.approx(norm(grad) ** 2, rel=1e-6)


# --- Clipping -------------------------------------------------------------------------------------


def test_clipping_scales_all_tensors_by_one_factor() -> None:
    tensors = [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])]
    clip(tensors, 1.0)
    torch.testing.assert_close(tensors, [torch.tensor([0.6, 0.0]), torch.tensor([[0.8]])])


@pytest.mark.parametrize("limit", [0.0, 5.0, 100.0])
def test_clipping_leaves_what_is_short_enough_and_everything_when_it_is_off(limit: float) -> None:
    tensors = [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])]
    clip(tensors, limit)
    assert torch.equal(tensors[0], torch.tensor([3.0, 0.0]))
    assert torch.equal(tensors[1], torch.tensor([[4.0]]))


def test_clipping_leaves_zeros_alone() -> None:
    tensors = [torch.zeros(3)]
    clip(tensors, 1.0)
    assert torch.equal(tensors[0], torch.zeros(3))
    assert float(global_norm(tensors)) == 0.0


def test_a_clipped_step_has_the_length_of_the_limit_and_the_direction_of_the_gradient(
    client: Client, params: Tensors
) -> None:
    limit = 0.01
    free = train(task_of(params, ONE_STEP), client).mean
    clipped = train(task_of(params, replace(ONE_STEP, clip_norm=limit)), client).mean
    assert norm(free) > 0.1 * limit
    assert norm(clipped) == pytest.approx(0.1 * limit, rel=1e-9)
    factor = norm(clipped) / norm(free)
    assert_near(clipped, {name: factor * delta for name, delta in free.items()}, rtol=1e-9)


# --- Reports --------------------------------------------------------------------------------------


def test_the_reported_norm_is_that_of_the_delta(client: Client, params: Tensors) -> None:
    update = train(task_of(params, LocalTraining(batch_seconds=1.0)), client)
    assert update.reports[0].stats["norm"] == pytest.approx(norm(update.mean), rel=1e-12)


def test_a_report_says_how_much_speech_there_was(client: Client, params: Tensors, world: World) -> None:
    stats = train(task_of(params, replace(ONE_STEP, steps=4)), client).reports[0].stats
    assert stats["num_utterances"] == len(client.indices) == 5
    assert stats["num_steps"] == 4
    assert stats["seconds"] == pytest.approx(float(world.store.seconds[client.indices].sum()))


def test_epochs_go_through_every_utterance_that_many_times(client: Client) -> None:
    steps = client.steps(LocalTraining(batch_seconds=0.5, epochs=3), round_seed=1)
    seen = [i for step in steps for i in step.indices.tolist()]
    assert sorted(seen) == sorted(client.indices.tolist() * 3)


def test_batches_hold_no_more_audio_than_asked_for(client: Client, world: World) -> None:
    frames = world.store.num_frames
    for step in client.steps(LocalTraining(batch_seconds=1.0, epochs=2), round_seed=1):
        batch = step.indices
        assert len(batch) == 1 or len(batch) * frames[batch].max() <= 1.0 * world.store.frames_per_second


def test_clients_of_a_round_go_through_long_and_short_in_the_same_order(world: World) -> None:
    runtime, frames = world.runtime(), world.store.num_frames
    local = LocalTraining(batch_seconds=0.01)  # every utterance a batch of its own
    ranks = set()
    for name, own in world.clients().items():
        steps = Client(name, own[:4], runtime).steps(local, round_seed=5)
        ranks.add(tuple(np.argsort([frames[step.indices].max() + 0.001 * n for n, step in enumerate(steps)])))
    assert len(ranks) < len(world.clients()) / 2  # jitter may swap neighbours of nearly equal length


def test_every_step_of_every_client_has_noise_of_its_own(world: World) -> None:
    runtime = world.runtime()
    noise = [
        step.noise
        for name, own in world.clients().items()
        for step in Client(name, own, runtime).steps(LocalTraining(batch_seconds=1.0, epochs=2), round_seed=5)
    ]
    assert len(set(noise)) == len(noise)


# --- Nobody else matters --------------------------------------------------------------------------


def test_same_seed_same_delta_another_seed_another_delta(world: World) -> None:
    client = Client("speaker/s00", world.clients()["speaker/s00"], world.runtime())
    local, params = LocalTraining(batch_seconds=1.0), world.params()

    def delta(seed: int, at: Client = client) -> Tensor:
        update = train(task_of(params, local, seed), at)
        return torch.cat([t.flatten() for t in update.mean.values()])

    assert torch.equal(delta(1), delta(1))
    assert not torch.equal(delta(1), delta(2))
    same_data_other_name = Client("speaker/other", client.indices, client.runtime)
    assert not torch.equal(delta(1), delta(1, same_data_other_name))


def test_a_client_s_delta_depends_neither_on_the_others_nor_on_the_order(world: World) -> None:
    clients = world.clients()
    task = task_of(world.params(), LocalTraining(batch_seconds=1.0))

    def answers(names: list[str]) -> dict[str, Update]:
        torch.rand(3)  # the process's own randomness is nobody's business
        return dict(zip(names, world.worker(clients).run(task, names), strict=True))

    names = sorted(clients)[:4]
    forwards, backwards = answers(names), answers(names[::-1])
    alone = answers(names[2:3])
    for name, update in forwards.items():
        for other in (backwards[name], alone.get(name, update)):
            assert update.reports == other.reports
            assert all(torch.equal(update.mean[n], other.mean[n]) for n in update.mean)


def test_training_leaves_the_process_s_own_randomness_alone(world: World) -> None:
    client = Client("speaker/s00", world.clients()["speaker/s00"], world.runtime())
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    train(task_of(world.params(), LocalTraining()), client)
    assert torch.equal(torch.rand(2), expected)


def test_a_task_with_a_parameter_the_model_lacks_is_refused_by_name(client: Client, params: Tensors) -> None:
    with pytest.raises(ValueError, match=r"no parameter 'decoder\.extra'"):
        train(task_of({**params, "decoder.extra": torch.zeros(1)}, ONE_STEP), client)


def test_parameters_that_do_not_travel_are_those_the_run_began_with(world: World) -> None:
    runtime = world.runtime()
    everything = {name: p + 1 for name, p in world.params().items()}
    runtime.load(everything)
    runtime.load({"output.bias": everything["output.bias"]})
    held: dict[str, Any] = dict(runtime.model.named_parameters())
    for name, p in world.params().items():
        assert torch.equal(held[name], everything[name] if name == "output.bias" else p)
        assert held[name].requires_grad == (name == "output.bias")


def test_the_reported_magnitudes_are_mean_and_variance_over_all_entries(
    client: Client, params: Tensors
) -> None:
    update = train(task_of(params, ONE_STEP), client)
    sizes = torch.cat([tensor.flatten() for tensor in update.mean.values()]).abs()
    stats = update.reports[0].stats
    assert stats["magnitude_mean"] == pytest.approx(float(sizes.mean()), rel=1e-12)
    assert stats["magnitude_variance"] == pytest.approx(float(sizes.var(correction=0)), rel=1e-10)
    assert stats["magnitude_variance"] > 0


def test_magnitudes_that_are_all_alike_vary_by_nothing_below_zero() -> None:
    stats = measure_delta([torch.full((1000,), 0.1), torch.full((3, 3), -0.1)])
    assert stats["magnitude_mean"] == pytest.approx(0.1, rel=1e-4)
    assert 0 <= stats["magnitude_variance"] < 1e-3 * 0.1**2
