"""Client work: train on the client's own speech, and answer with what changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw  # its class imports torch's compiler: two seconds at every start

from antiphon.clients.client import Client
from antiphon.core import Report, Task, Tensors, Update
from antiphon.local import LocalTraining
from antiphon.models.noise import drawing

ADAMW: dict[str, Any] = {"beta1": 0.9, "beta2": 0.98, "eps": 1e-8, "amsgrad": False, "maximize": False}


class LossMeter:
    """Mean loss per token over the utterances seen; reads the device once, at the end."""

    def __init__(self) -> None:
        self.total: Tensor | float = 0.0
        self.num_utterances = 0
        self.num_steps = 0

    def add(self, losses: Tensor) -> None:
        self.total = self.total + losses.detach().sum()
        self.num_utterances += len(losses)
        self.num_steps += 1

    @property
    def mean(self) -> float:
        return float(self.total) / self.num_utterances


def gradients(
    client: Client, local: LocalTraining, parameters: list[Tensor], round_seed: int, meter: LossMeter
) -> Iterator[list[Tensor]]:
    """Gradients of one step after another; the caller changes the parameters between them."""
    bench = client.bench
    bench.model.train()
    for step in client.steps(local, round_seed):
        keys = bench.keys([step.noise], step.indices[None]).flatten()
        batch = bench.augmented(bench.worded(bench.feed(step.indices), client.labels.texts), keys)
        with drawing(keys), bench.precision():
            losses = batch.per_token(bench.model.losses(batch))
        meter.add(losses)
        yield list(torch.autograd.grad(losses.mean(), parameters))


def seed_of(task: Task) -> int:
    """The seed of the task's round."""
    return int(task.config["seed"])  # type: ignore[arg-type]


def clip(tensors: list[Tensor], limit: float) -> None:
    """Scales tensors in place so that their common l2 norm is at most `limit`; 0 leaves them alone."""
    if limit > 0:
        scale = (limit / (global_norm(tensors) + 1e-12)).clamp(max=1.0)
        torch._foreach_mul_(tensors, scale)


def global_norm(tensors: list[Tensor]) -> Tensor:
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)))


def measure_delta(delta: list[Tensor]) -> dict[str, float]:
    """What a report says of a delta; one read of the device.

    Sums of float32 on a CPU are good to about four digits here: enough for what they are used for.
    """
    total = torch.stack(torch._foreach_norm(delta, 1)).sum()
    norm, total_magnitude = torch.stack([global_norm(delta), total]).tolist()
    return delta_stats(norm, total_magnitude, sum(tensor.numel() for tensor in delta))


def delta_stats(norm: float, total_magnitude: float, num_entries: int) -> dict[str, float]:
    """Norm of a delta, and mean and variance of |entry| over its entries, from their two sums.

    >>> delta_stats(norm=5.0, total_magnitude=7.0, num_entries=2)  # of 3 and −4
    {'norm': 5.0, 'magnitude_mean': 3.5, 'magnitude_variance': 0.25}
    """
    mean = total_magnitude / num_entries
    # Rounding of the sums may take a variance of nothing below 0.
    variance = max(0.0, norm * norm / num_entries - mean * mean)
    return {"norm": norm, "magnitude_mean": mean, "magnitude_variance": variance}


def train(task: Task, client: Client) -> Update:
    """Local SGD (DGA eq. 1); the update is Δ = w − w_k (eq. 2, sign as in SPEC: old minus new)."""
    local = LocalTraining.from_task(task.config)
    parameters = client.bench.load(task.tensors)
    start = [parameter.detach().clone() for parameter in parameters]
    meter = LossMeter()
    for grads in gradients(client, local, parameters, seed_of(task), meter):
        with torch.no_grad():
            if local.proximal > 0:
                drift = torch._foreach_sub(parameters, start)
                torch._foreach_add_(grads, drift, alpha=local.proximal)
            clip(grads, local.clip_norm)
            torch._foreach_add_(parameters, grads, alpha=-local.lr)
        del grads  # or the next step's activations could not have their memory
    with torch.no_grad():
        torch._foreach_sub_(start, parameters)
    delta: Tensors = dict(zip(task.tensors, start, strict=True))
    told = report(client, meter.mean, meter.num_steps, **measure_delta(start))
    return Update(delta, reports=(told,))


def central(task: Task, client: Client) -> Update:
    """AdamW steps with moments that came with the task; the update holds the new values themselves."""
    local = LocalTraining.from_task(task.config)
    groups = {group: _group(task.tensors, group) for group in ("params", "first", "second")}
    parameters = client.bench.load(groups["params"])
    decay, step = float(task.config["weight_decay"]), float(task.config["step"])  # type: ignore[arg-type]
    pairs = list(zip(groups["params"], parameters, strict=True))
    first = [groups["first"][name].to(parameter.device, copy=True) for name, parameter in pairs]
    second = [groups["second"][name].to(parameter.device, copy=True) for name, parameter in pairs]
    steps = [torch.tensor(step) for _ in pairs]
    meter = LossMeter()
    for grads in gradients(client, local, parameters, seed_of(task), meter):
        clip(grads, local.clip_norm)
        with torch.no_grad():
            adamw(parameters, grads, first, second, [], steps, lr=local.lr, weight_decay=decay, **ADAMW)
    values = [parameter.detach().clone() for parameter in parameters]
    after = {"params": values, "first": first, "second": second}
    mean = {
        f"{group}/{name}": tensor
        for group, tensors in after.items()
        for name, tensor in zip(groups["params"], tensors, strict=True)
    }
    return Update(mean, reports=(report(client, meter.mean, meter.num_steps),))


def _group(tensors: Tensors, group: str) -> Tensors:
    prefix = f"{group}/"
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def report(client: Client, loss: float, num_steps: int, **more: float) -> Report:
    stats = {
        "loss": loss,
        "num_utterances": float(len(client.usable)),
        "num_steps": float(num_steps),
        "seconds": client.seconds,
        **client.labels.stats,
        **more,
    }
    return Report(client.id, stats)
