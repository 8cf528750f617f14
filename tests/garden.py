"""A task with known good and bad clients: a model that should follow a moving target.

Good clients pull it towards the target. Bad ones send noise, all of whose entries have one size. A model's
error rate grows with its distance to the target. `ALGORITHM` is the DGA-RL that is to tell them apart.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from antiphon.algorithms.dga_rl import DgaRl, DgaRlState, Rewards
from antiphon.algorithms.fedavg import dga
from antiphon.core import Report, Task, Tensors, Update, Worker
from antiphon.pools.local import LocalPool
from antiphon.pools.recording import RecordingPool
from antiphon.seeding import derive
from antiphon.server.optimizers import Sgd
from antiphon.tasks.local_training import measure_delta

DIM = 16
GOOD = [f"good/{number:02d}" for number in range(14)]
BAD = [f"bad/{number}" for number in range(6)]
CLIENTS = sorted(GOOD + BAD)
VALID = ("valid/0", "valid/1")
LOUD = 1.8  # bad clients are given away by their losses
QUIET = 0.3  # the softmax is fooled: bad clients have the lowest losses
INNER = dga(beta=1.0, server=Sgd(lr=0.1))
ALGORITHM = DgaRl(INNER, rewards=Rewards(threshold=1e-4), validation=VALID)


def normal(*names: str | int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(derive(0, *names))
    return torch.randn(DIM, generator=generator, dtype=torch.float64)


@dataclass
class Garden:
    """A worker for these clients; `bad_loss` is what bad ones report, good ones report 1 to 1.5."""

    bad_loss: float
    round: int = field(default=0, init=False)

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for client in clients:
            yield self.train(task, client) if task.kind == "train" else self.evaluate(task, client)

    def train(self, task: Task, client: str) -> Update:
        self.round, seed = int(task.config["round"]), int(task.config["seed"])  # type: ignore[arg-type]
        noise = normal("update", seed, client)
        pull = 0.3 * (task.tensors["w"] - self.target()) + 0.1 * noise
        delta = 0.3 * noise.sign() * (1 + 1e-3 * normal("size", seed, client)) if client in BAD else pull
        loss = (self.bad_loss if client in BAD else 1.0) + 0.5 * float(
            normal("loss", seed, client)[0].sigmoid()
        )
        stats = {"loss": loss, "num_utterances": 1.0, "seconds": 1.0, **measure_delta([delta])}
        return Update({"w": delta}, reports=(Report(client, stats),))

    def evaluate(self, task: Task, client: str) -> Update:
        distance = (task.tensors["w"] - self.target()).norm()
        wrong = float((1e5 * (1 - torch.exp(-distance / 4))).round())
        stats = {"words": 1e5, "words_wrong": wrong, "characters": 1e5, "characters_wrong": wrong}
        return Update({}, reports=(Report(client, stats),))

    def target(self) -> torch.Tensor:
        return 2 * normal("target") + 0.03 * self.round * normal("drift")


def params() -> Tensors:
    return {"w": torch.zeros(DIM, dtype=torch.float64)}


def begin(algorithm: DgaRl = ALGORITHM, seed: int = 0) -> DgaRlState:
    return replace(algorithm.init(params()), seed=seed)


def watch(worker: Worker, cohort: list[str], round: int = 0) -> RecordingPool:
    return RecordingPool(LocalPool(worker), cohort, 1, lambda client: None, threading.Event(), round=round)
