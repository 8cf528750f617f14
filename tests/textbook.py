"""Clients for tests that compare an algorithm with its paper.

`ExactClients` are speakers in double precision, with a loss and a gradient that use none of the code that
trains. `Quadratics` are clients whose loss is a parabola, so that the best model is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from world import World, recording

from antiphon.clients.states import ClientStates
from antiphon.core import Report, Task, Tensors, Update
from antiphon.pools.local import LocalPool
from antiphon.pools.recording import RecordingPool
from antiphon.tasks.client_work import CLIENT_WORK
from antiphon.tasks.local_training import LocalSteps, LocalTraining, Trained
from antiphon.tasks.views import enter

# Full batches and no clipping: a step is a step along the gradient of the client's loss.
EXACT = LocalTraining(lr=0.2, steps=3, batch_seconds=0.0, clip_norm=0.0)


class ExactClients:
    """The speakers of the tiny world in double precision, without dropout and masks."""

    def __init__(self, world: World, folder: Path) -> None:
        self.names = sorted(world.clients())
        self.params = world.params(dtype=torch.float64)
        self.states = ClientStates(folder)
        self.worker = world.worker(world.clients(), world.exact_runtime(), self.states)
        self.pool = LocalPool(self.worker)
        self._runtime = world.exact_runtime()  # not the worker's

    def loss(self, params: Tensors, client: str) -> float:
        return self._loss(params, client)[0].item()

    def gradient(self, params: Tensors, client: str) -> Tensors:
        """Return the gradient of a client's loss: the mean over its utterances of loss / tokens."""
        loss, parameters = self._loss(params, client)
        return dict(zip(params, torch.autograd.grad(loss, parameters), strict=True))

    def descend(self, params: Tensors, client: str, local: LocalTraining, change: Any) -> Tensors:
        """Return the model after steps along gradient + change(model)."""
        model = params
        for _ in range(local.steps):
            gradient, added = self.gradient(model, client), change(model)
            model = {name: w - local.lr * (gradient[name] + added[name]) for name, w in model.items()}
        return model

    def _loss(self, params: Tensors, client: str) -> tuple[Tensor, list[Tensor]]:
        parameters = self._runtime.load(params)
        batch = self._runtime.feed(self.worker.clients[client])
        losses = self._runtime.model.losses(batch) / batch.token_lengths
        return losses.mean(), parameters

    def round(self, algorithm: Any, state: Any, cohort: Sequence[str]) -> tuple[Any, RecordingPool]:
        """Run a round; return the state after it and the pool that recorded it."""
        pool = recording(self.pool, cohort, state.round)
        return algorithm.round(state, cohort, pool)[0], pool

    def kept(self, client: str, round: int) -> Tensors:
        """Return what a client has kept when a round begins."""
        return self.states.read(client, (round, 0))


def zeros(params: Tensors) -> Tensors:
    return {name: torch.zeros_like(p) for name, p in params.items()}


def mean(tensors: Sequence[Tensors]) -> Tensors:
    return {name: torch.stack([group[name] for group in tensors]).mean(dim=0) for name in tensors[0]}


def assert_near(left: Tensors, right: Tensors, tolerance: float = 1e-10) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name], rtol=tolerance, atol=tolerance)


@dataclass(frozen=True)
class Quadratic:
    """A client with the loss curvature / 2 · (w − best)² + floor."""

    id: str
    curvature: float
    best: float
    state: Mapping[str, Tensor]
    floor: float = 0.0

    def mean_loss(self, params: Tensors) -> float:
        return self.floor + self.curvature / 2 * float((params["w"] - self.best) ** 2)

    def train(self, steps: LocalSteps) -> Trained:
        w, local = steps.start["w"], steps.local
        for _ in range(local.steps):
            gradient = self.curvature * (w - self.best) + steps.correction.get("w", 0.0)
            gradient = gradient + local.proximal * (w - steps.anchor.get("w", steps.start["w"]))
            w = w - local.lr * gradient
        delta = steps.start["w"] - w
        stats = {
            "loss": self.mean_loss(steps.start),
            "num_utterances": 1.0,
            "num_steps": float(local.steps),
            "norm": abs(float(delta)),
        }
        return Trained({"w": delta}, Report(self.id, stats))


class Quadratics:
    """A worker whose clients are parabolas: client -> (curvature, best model, floor)."""

    def __init__(self, folder: Path, clients: Mapping[str, tuple[float, float, float]]) -> None:
        self.states, self.clients = ClientStates(folder), clients

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for name in clients:
            curvature, best, floor = self.clients[name]
            state = self.states.read(name, task.moment)
            entered = enter(task, Quadratic(name, curvature, best, state, floor))
            update, changes = entered.leave(CLIENT_WORK[task.kind](entered.task, entered.client))
            if changes:
                self.states.write(name, task.moment, {**state, **changes})
            yield update

    def after(self, algorithm: Any, num_rounds: int) -> float:
        """Return the model after rounds with all clients, from 0."""
        cohort = sorted(self.clients)
        state = algorithm.init({"w": torch.zeros((), dtype=torch.float64)})
        for _ in range(num_rounds):
            state, _ = algorithm.round(state, cohort, recording(LocalPool(self), cohort, state.round))
        return float(state.params["w"])

    def losses(self, w: float) -> list[float]:
        return [floor + curvature / 2 * (w - best) ** 2 for curvature, best, floor in self.clients.values()]
