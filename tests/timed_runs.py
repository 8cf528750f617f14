"""Runs of the engine with a simulated clock, on clients made of nothing whose speeds a test chooses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from antiphon.core import Algorithm, Report, Task, Update
from antiphon.engine import Engine, Rounds
from antiphon.pools.local import LocalPool
from antiphon.records.checkpoint import folder_of
from antiphon.records.journal import read

SPEEDS = {"a": 1.0, "b": 2.0, "c": 5.0}  # client -> seconds of its task
STEPS = {"a": 1.0, "b": 10.0, "c": 100.0}  # client -> its update, whatever it starts from


@dataclass
class Constant:
    """Answers with an update that the client alone decides; notes who was asked."""

    asked: list[str] = field(default_factory=list)
    losses: Mapping[str, float] = field(default_factory=dict)

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for client in clients:
            self.asked.append(client)
            delta = {name: torch.full_like(p, STEPS.get(client, 1.0)) for name, p in task.tensors.items()}
            stats = {"loss": self.losses.get(client, 1.0), "num_utterances": 1.0, "norm": 1.0, "seconds": 9.0}
            yield Update(delta, reports=(Report(client, stats),))


def by_speed(speeds: Mapping[str, float]) -> Callable[[Task, str, float], float]:
    return lambda task, client, sent: sent + speeds[client]


@dataclass(frozen=True)
class TimedRun:
    """A run in a folder that can be stopped after any round and resumed."""

    algorithm: Algorithm[Any]
    folder: Path
    rounds: Rounds
    speeds: Mapping[str, float] = field(default_factory=lambda: SPEEDS)
    worker: Any = field(default_factory=Constant)
    options: Mapping[str, Any] = field(default_factory=dict)

    def run(self, total: int = 0, resume: bool = False) -> Any:
        """Return the last state, after `total` rounds or all."""
        engine = Engine(
            self.algorithm,
            LocalPool(self.worker),
            list(self.speeds),
            replace(self.rounds, total=total or self.rounds.total, valid_every=0),
            self.folder,
            seed=5,
            arrival=by_speed(self.speeds),
            **self.options,
        )
        return engine.run({"w": torch.zeros(2)}, resume).state

    @property
    def entries(self) -> list[dict[str, Any]]:
        return read(self.folder / "journal.jsonl")

    def files(self, round: int) -> dict[str, Any]:
        """Return what must not depend on how often a run was stopped."""
        last = folder_of(self.folder / "checkpoints", round)
        return {
            "journal": (self.folder / "journal.jsonl").read_bytes(),
            "tensors": (last / "state.safetensors").read_bytes(),
            "state": json.loads((last / "state.json").read_text().split("\n")[1])["state"],
        }
