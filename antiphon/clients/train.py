"""Client work: local SGD on the client's own speech, answered with what changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from antiphon.core import Report, Task, Tensors, Update
from antiphon.models.noise import noise_from
from antiphon.tasks.local_training import LocalSteps, LocalTraining, Trained, plan_local_steps, training_work


class SpeechClient(Protocol):
    """What training needs of a client."""

    @property
    def id(self) -> str: ...
    @property
    def runtime(self) -> Any: ...
    @property
    def labels(self) -> Any: ...
    @property
    def usable(self) -> np.ndarray: ...
    @property
    def seconds(self) -> float: ...
    def steps(self, local: LocalTraining, round_seed: int) -> Iterator[Any]: ...


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
    client: SpeechClient, local: LocalTraining, parameters: list[Tensor], round_seed: int, meter: LossMeter
) -> Iterator[list[Tensor]]:
    """Gradients of one step after another; the caller changes the parameters between them."""
    runtime = client.runtime
    runtime.model.train()
    for step in client.steps(local, round_seed):
        keys = runtime.keys([step.noise], step.indices[None]).flatten()
        batch = runtime.augmented(runtime.with_labels(runtime.feed(step.indices), client.labels.texts), keys)
        with noise_from(keys), runtime.precision():
            losses = batch.per_token(runtime.model.losses(batch))
        meter.add(losses)
        yield list(torch.autograd.grad(losses.mean(), parameters))


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


def local_sgd(client: SpeechClient, steps: LocalSteps) -> Trained:
    """Local SGD (DGA eq. 1); the delta is Δ = w − w_k (eq. 2, sign as in SPEC: old minus new)."""
    local = steps.local
    parameters = client.runtime.load(steps.start)
    start = [parameter.detach().clone() for parameter in parameters]
    correction = {place: steps.correction[n] for place, n in enumerate(steps.start) if n in steps.correction}
    anchor = _anchor(steps, start)
    meter = LossMeter()
    for grads in gradients(client, local, parameters, steps.seed, meter):
        with torch.no_grad():
            for place, change in correction.items():
                grads[place] += change.to(grads[place].device)
            if local.proximal > 0:
                drift = torch._foreach_sub(parameters, anchor)
                torch._foreach_add_(grads, drift, alpha=local.proximal)
            clip(grads, local.clip_norm)
            torch._foreach_add_(parameters, grads, alpha=-local.lr)
        del grads  # or the next step's activations could not have their memory
    with torch.no_grad():
        torch._foreach_sub_(start, parameters)
    delta: Tensors = dict(zip(steps.start, start, strict=True))
    return Trained(delta, report(client, meter.mean, meter.num_steps, **measure_delta(start)))


def mean_loss(client: SpeechClient, params: Tensors) -> float:
    """Mean loss per token over the client's utterances, without masks, dropout or training."""
    runtime, meter = client.runtime, LossMeter()
    runtime.load(params)
    runtime.model.eval()
    with torch.inference_mode(), runtime.precision():
        for step in client.steps(LocalTraining(), round_seed=0):
            batch = runtime.with_labels(runtime.feed(step.indices), client.labels.texts)
            meter.add(batch.per_token(runtime.model.losses(batch)))
    return meter.mean


def _anchor(steps: LocalSteps, start: list[Tensor]) -> list[Tensor]:
    if not steps.anchor:
        return start
    named = zip(steps.start, start, strict=True)
    return [steps.anchor[n].to(own.device) if n in steps.anchor else own for n, own in named]


def report(client: SpeechClient, loss: float, num_steps: int, **more: float) -> Report:
    stats = {
        "loss": loss,
        "num_utterances": float(len(client.usable)),
        "num_steps": float(num_steps),
        "seconds": client.seconds,
        **client.labels.stats,
        **more,
    }
    return Report(client.id, stats)


@training_work("train", plan=plan_local_steps, answers="parameters")
def train(task: Task, client: SpeechClient, trained: Trained) -> Update:
    """Answer with what changed."""
    return Update(trained.delta, reports=(trained.report,))
