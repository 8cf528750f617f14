"""A run of the engine on clients made of nothing, which can be begun, broken and resumed in a moment."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from antiphon.algorithms.fedavg import hierarchical
from antiphon.core import Report, Task, Update
from antiphon.engine import Engine, Listener, Outcome, Rounds
from antiphon.pools.local import LocalPool
from antiphon.records.checkpoint import saved_rounds
from antiphon.records.journal import read
from antiphon.seeding import derive
from antiphon.server.optimizers import Adam

CLIENTS = [f"speaker/{name}" for name in "abcdefgh"]
WERS = [0.9, 0.5, 0.4, 0.6, 0.3, 0.7, 0.8, 0.35]  # by round: the best is round 4


class Toy:
    """Answers with a delta that client, round and seed decide; `fault` may do anything before that."""

    def __init__(self, fault: Callable[[int, str], Update | None] = lambda round, client: None) -> None:
        self.fault = fault

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for client in clients:
            yield self.fault(int(task.config["round"]), client) or self.answer(task, client)

    def answer(self, task: Task, client: str) -> Update:
        generator = torch.Generator().manual_seed(derive(int(task.config["seed"]), client))
        noise = {name: torch.randn(p.shape, generator=generator) for name, p in task.tensors.items()}
        delta = {name: p + 0.1 * noise[name] for name, p in task.tensors.items()}
        stats = {"loss": 1.0 + float(noise["w"][0]) ** 2, "num_utterances": 3.0, "norm": 1.0, "seconds": 9.0}
        return Update(delta, reports=(Report(client, stats),))


class Trial:
    """A run in a folder that can be begun, broken and resumed."""

    def __init__(self, folder: Path, wers: Sequence[float] = WERS, **rounds: int) -> None:
        self.folder, self.wers = folder, wers
        self.rounds = Rounds(**{"total": 6, "cohort": 3, **rounds})

    def run(self, worker: Toy | None = None, resume: bool = False, **options: Any) -> Outcome:
        params = {"w": torch.ones(4), "b": torch.zeros(2)}
        listener = options.pop("listener", None)
        return self.engine(worker or Toy(), listener).run(params, resume, **options)

    def engine(self, worker: Toy, listener: Listener | None = None) -> Engine:
        def validate(pool: object, params: Mapping[str, torch.Tensor]) -> dict[str, float]:
            return {"wer": self.wers[engine.rounds_done], "cer": float(params["w"].sum())}

        engine = Counting(
            hierarchical(server=Adam()),
            LocalPool(worker),
            CLIENTS,
            self.rounds,
            self.folder,
            11,
            validate,
            listener,
        )
        return engine

    @property
    def saved(self) -> list[int]:
        return saved_rounds(self.folder / "checkpoints")

    @property
    def entries(self) -> list[dict[str, Any]]:
        return read(self.folder / "journal.jsonl")

    def files(self, round: int) -> dict[str, bytes]:
        """What must not depend on how often a run was stopped."""
        state = self.folder / "checkpoints" / f"round-{round:06d}" / "state.safetensors"
        return {"journal": (self.folder / "journal.jsonl").read_bytes(), "state": state.read_bytes()}


class Counting(Engine):
    """An engine that knows which round it validates."""

    rounds_done = 0

    def _record(self, entry, state, *more):  # type: ignore[no-untyped-def]
        self.rounds_done = state.round
        super()._record(entry, state, *more)


class Interrupt(Listener):
    """Ctrl-C after a number of replies."""

    def __init__(self, after: int) -> None:
        self.left = after

    def replied(self, client: str) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)
