"""Client work: local steps, and AdamW for central training, on the client's own speech."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw  # the class would import torch's compiler, which takes two seconds

from antiphon.core import Report, Task, Tensors, Update
from antiphon.models.noise import noise_from
from antiphon.seeding import derive
from antiphon.tasks.client_storage import store, stored_bytes
from antiphon.tasks.client_work import client_work
from antiphon.tasks.local_training import (
    TRAINED,
    LocalSteps,
    LocalTraining,
    MeasuredDelta,
    Trained,
    as_part,
    global_norm,
    measure_delta,
    part_of,
    plan_local_steps,
    seed_of,
    training_work,
)

CENTRAL = {**TRAINED, "num_steps": replace(TRAINED["num_steps"], is_required=True)}
ADAMW: dict[str, Any] = {"beta1": 0.9, "beta2": 0.98, "eps": 1e-8, "amsgrad": False, "maximize": False}


@dataclass
class LossMeter:
    """The mean loss per token over utterances; reads the device once, at the end."""

    total: Tensor | float = 0.0
    num_utterances: int = 0
    num_steps: int = 0

    def add(self, losses: Tensor) -> None:
        self.total = self.total + losses.detach().sum()
        self.num_utterances += len(losses)
        self.num_steps += 1

    @property
    def mean(self) -> float:
        return float(self.total) / self.num_utterances


def gradients(
    client: Any, local: LocalTraining, parameters: list[Tensor], round_seed: int, meter: LossMeter
) -> Iterator[list[Tensor]]:
    """Yield the gradients of each step; the caller changes the parameters in between."""
    runtime = client.runtime
    runtime.model.train()
    for step in client.steps(local, round_seed):
        keys = runtime.keys([step.noise], step.indices[None]).flatten()
        batch = runtime.augmented(runtime.with_labels(runtime.feed(step.indices), client.labels.texts), keys)
        with runtime.products(batch):
            with noise_from(keys), runtime.autocast():
                losses = batch.per_token(runtime.model.losses(batch))
            found = list(torch.autograd.grad(losses.mean(), parameters))
        meter.add(losses)
        yield found


def clip(tensors: list[Tensor], limit: float) -> None:
    """Scale tensors in place so that their common l2 norm is at most `limit`; 0: no limit."""
    if limit > 0:
        scale = (limit / (global_norm(tensors) + 1e-12)).clamp(max=1.0)
        torch._foreach_mul_(tensors, scale)


def local_sgd(client: Any, steps: LocalSteps) -> Trained:
    """Take local steps (DGA eq. 1); the delta is Δ = w − w_k, old minus new (eq. 2)."""
    local, optimizer = steps.local, steps.local.optimizer
    parameters = client.runtime.load(steps.start)
    named, storage = dict(zip(steps.start, parameters, strict=True)), local.storage
    chosen = chosen_by(client, steps)
    if chosen:
        store(named, chosen, storage)
    start = [parameter.detach().clone() for parameter in parameters]
    correction = {i: steps.correction[name] for i, name in enumerate(steps.start) if name in steps.correction}
    anchor = [steps.anchor.get(name, p).to(p.device) for name, p in zip(steps.start, start, strict=True)]
    moments = [[torch.zeros_like(p) for _ in range(optimizer.num_moments)] for p in start]
    meter = LossMeter()
    for grads in gradients(client, local, parameters, steps.seed, meter):
        with torch.no_grad():
            for i, change in correction.items():
                grads[i] += change.to(grads[i].device)
            if local.proximal > 0:
                drift = torch._foreach_sub(parameters, anchor)
                torch._foreach_add_(grads, drift, alpha=local.proximal)
            clip(grads, local.clip_norm)
            if not local.is_plain:
                for i, (parameter, kept) in enumerate(zip(parameters, moments, strict=True)):
                    grads[i] = optimizer.direction(parameter, grads[i], kept, meter.num_steps)
            torch._foreach_add_(parameters, grads, alpha=-local.lr)
            if chosen:
                store(named, chosen, storage)
        del grads  # frees their memory for the next step's activations
    with torch.no_grad():
        torch._foreach_sub_(start, parameters)
    stats = measure_delta(start)
    delta = MeasuredDelta(dict(zip(steps.start, start, strict=True)), stats)
    return Trained(delta, report(client, meter.mean, meter.num_steps, **stats, **memory_stats(client, steps)))


def chosen_by(client: Any, steps: LocalSteps) -> frozenset[str]:
    """Return the parameters that a client does not store exactly in a round."""
    if steps.local.is_exact:
        return frozenset()
    shapes = {name: parameter.shape for name, parameter in steps.start.items()}
    return steps.local.storage.chosen(shapes, derive(steps.seed, client.id, "storage"))


def memory_stats(client: Any, steps: LocalSteps) -> dict[str, float]:
    """Return the bytes of the parameters that a client trains; nothing if they are stored as they are."""
    if steps.local.is_exact:
        return {}
    size = stored_bytes(steps.start, chosen_by(client, steps), steps.local.storage)
    return {"parameter_bytes": float(size)}


def mean_loss(client: Any, params: Tensors) -> float:
    """Return the mean loss per token over the client's utterances, without masks, dropout or training."""
    runtime, meter = client.runtime, LossMeter()
    runtime.load(params)
    runtime.model.eval()
    with torch.inference_mode(), runtime.autocast():
        for step in client.steps(LocalTraining(), round_seed=0):
            batch = runtime.with_labels(runtime.feed(step.indices), client.labels.texts)
            with runtime.products(batch):
                meter.add(batch.per_token(runtime.model.losses(batch)))
    return meter.mean


def report(client: Any, loss: float, num_steps: int, **more: float) -> Report:
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
def train(task: Task, client: Any, trained: Trained) -> Update:
    """Answer with the delta."""
    return Update(trained.delta, reports=(trained.report,))


@client_work("central", answers="everything", reports=CENTRAL)
def central(task: Task, client: Any) -> Update:
    """Take AdamW steps on the one client of central training; Adam's moments travel with the parameters."""
    local = LocalTraining.from_task(task.config)
    groups = {group: part_of(task.tensors, group) for group in ("params", "first", "second")}
    parameters = client.runtime.load(groups["params"])
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
    mean: Tensors = {}
    for group, tensors in after.items():
        mean |= as_part(dict(zip(groups["params"], tensors, strict=True)), group)
    return Update(mean, reports=(report(client, meter.mean, meter.num_steps),))
