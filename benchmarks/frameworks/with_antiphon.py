"""antiphon: its engine, its FedAvg and its pools, with a worker for a model that is not a speech model."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.func import functional_call, vmap
from workload import SEED, Gate, Workload, client_names, load, local_sgd

from antiphon import __version__
from antiphon.algorithms.fedavg import fedavg
from antiphon.core import Report, Task, Tensors, Update, Worker
from antiphon.engine import Engine, Listener, Rounds
from antiphon.pools.process_group import ProcessGroup, SingleProcess
from antiphon.pools.rendezvous import find_rank, join
from antiphon.pools.spawning import run_processes
from antiphon.pools.torch_group import TorchGroup
from antiphon.tasks.local_training import LocalTraining


class SgdWorker:
    """What a researcher writes: clients one after another through one model."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.weights: Tensors = dict(workload.model.named_parameters())

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for client in clients:
            yield self._train(task, client)

    def _train(self, task: Task, client: str) -> Update:
        work, start = self.workload, list(task.tensors.values())
        weights = [self.weights[name] for name in task.tensors]
        with torch.no_grad():
            torch._foreach_copy_(weights, start)
        loss = local_sgd(work.model, work.batches[int(client)], task.config["lr"], work.epochs)
        with torch.no_grad():
            delta = torch._foreach_sub(start, weights)
        return update_of(client, dict(zip(task.tensors, delta, strict=True)), loss, work)


class StackedSgdWorker:
    """The same for all of them at once: weights [clients, …], one forward and one backward a step."""

    def __init__(self, workload: Workload) -> None:
        self.workload, model = workload, workload.model
        self.losses = vmap(lambda weights, *batch: functional_call(model, weights, batch))

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        names, start, work = list(task.tensors), list(task.tensors.values()), self.workload
        weights = [tensor.expand(len(clients), *tensor.shape).clone().requires_grad_() for tensor in start]
        steps = [work.batches[int(client)] for client in clients]
        total = torch.zeros(len(clients))
        for batches in zip(*steps, strict=True):
            batch = [torch.stack(parts) for parts in zip(*batches, strict=True)]
            losses = self.losses(dict(zip(names, weights, strict=True)), *batch)
            grads = torch.autograd.grad(losses.sum(), weights)
            with torch.no_grad():
                torch._foreach_add_(weights, grads, alpha=-task.config["lr"])
            total += losses.detach() / len(steps[0])
        with torch.no_grad():
            deltas = zip(*(delta.unbind() for delta in torch._foreach_sub(start, weights)), strict=True)
        for client, delta, loss in zip(clients, deltas, total.tolist(), strict=True):
            yield update_of(client, dict(zip(names, delta, strict=True)), loss, work)


def update_of(client: str, delta: Tensors, loss: float, workload: Workload) -> Update:
    return Update(delta, reports=(Report(client, {"loss": loss, "num_utterances": workload.num_samples}),))


class Turns(Listener):
    """After every turn the first process waits at the gate, and the others for it."""

    def __init__(self, gate: Gate | None, group: ProcessGroup, turn: int) -> None:
        self.gate, self.group, self.turn = gate, group, turn

    def finished(self, entry: Mapping[str, Any], clock: Mapping[str, Any]) -> None:
        if entry["round"] % self.turn == 0:
            self.group.on_rank_zero(lambda: self.gate.wait() if self.gate else None)


def train(arguments: argparse.Namespace, group: ProcessGroup) -> None:
    """In every process of the team."""
    workload: Workload = load(arguments.folder)
    worker: Worker = (StackedSgdWorker if arguments.stacked else SgdWorker)(workload)
    total, cohort = len(workload.cohorts), len(workload.cohorts[0])
    gate = Gate(workload, arguments.out) if group.is_rank_zero else None
    engine = Engine(
        fedavg(LocalTraining(lr=workload.lr)),
        group.pool(worker, lambda client: 1.0),
        client_names(workload.num_clients),
        Rounds(total, cohort, valid_every=0, save_every=arguments.save_every or total),
        arguments.out / "run",
        SEED,
        listener=Turns(gate, group, workload.turn),
        group=group,
    )
    outcome = engine.run(workload.params)
    if gate:
        gate.write(outcome.state.params, version=__version__)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("out", type=Path)
    parser.add_argument("--save-every", type=int, default=0, help="rounds between checkpoints; 0: at the end")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--gloo", action="store_true", help="processes exchange all messages by gloo")
    parser.add_argument("--stacked", action="store_true", help="train all clients of a process at once")
    arguments = parser.parse_args()
    process = find_rank(os.environ)
    if arguments.workers > 1 and process is None:
        return run_processes(arguments.workers)
    with join(process, "cpu") if process else nullcontext(SingleProcess()) as group:
        if arguments.gloo and isinstance(group, TorchGroup):
            group.links = None
        train(arguments, group)
    return 0


if __name__ == "__main__":
    sys.exit(main())
