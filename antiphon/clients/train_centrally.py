"""Client work of central training: AdamW on the one client that holds everything."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.adamw import adamw  # its class imports torch's compiler: two seconds at every start

from antiphon.clients.client import Client
from antiphon.clients.train import LossMeter, clip, gradients, report
from antiphon.core import Task, Tensors, Update
from antiphon.tasks.client_work import client_work
from antiphon.tasks.local_training import (
    LocalTraining,
    as_part,
    part_of,
    seed_of,
)

ADAMW: dict[str, Any] = {"beta1": 0.9, "beta2": 0.98, "eps": 1e-8, "amsgrad": False, "maximize": False}


@client_work("central", answers="everything")
def central(task: Task, client: Client) -> Update:
    """AdamW steps with moments that came with the task; the update holds the new values themselves."""
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
