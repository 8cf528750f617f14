"""Runs of the engine on the tiny world, which can be killed at any point and resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from twins import side_by_side
from world import CONTEXT, SEED, VALID, Case, World, stacked

from antiphon.clients.faults import SimulatedFaults, Unreliability
from antiphon.clients.states import ClientStates
from antiphon.core import Pool, Task, Tensors, Worker
from antiphon.engine import Engine, Listener, Rounds
from antiphon.pools.process_group import ProcessGroup, SingleProcess
from antiphon.records.checkpoint import folder_of, pack, saved_rounds
from antiphon.tasks.evaluation import measure

ROUNDS = Rounds(total=3, cohort=4, valid_every=2)


def arrival(task: Task, client: str, sent: float) -> float:
    """Return when a client answers: some need three times as long as others."""
    return sent + 1.0 + int(client[-1]) % 3


FAULTS = SimulatedFaults(Unreliability(dropout=0.25), len, SEED)


class Killed(ValueError):
    """A run that ends here as if it had been killed: nothing more is written."""


class Kill(Listener):
    """Ends a run in a round: at a client's reply, before the round's checkpoint, or after it."""

    def __init__(self, round: int, where: str, reply: int = 2) -> None:
        self.round, self.where, self.replies_left = round, where, reply

    def arm(self, engine: Engine) -> None:
        add = engine.record.add

        def add_or_die(entry: Mapping[str, Any], *more: Any) -> None:
            self._strike("before the checkpoint", entry["round"])
            add(entry, *more)

        engine.record.add = add_or_die  # type: ignore[method-assign]

    def resumed(self, round: int) -> None:
        self.done = round

    def replied(self, client: str) -> None:
        if client.startswith("speaker/"):
            self._replied()

    def _replied(self) -> None:
        if self.done + 1 == self.round:
            self.replies_left -= 1
            if self.replies_left == 0:
                self._strike("at a reply", self.round)

    def finished(self, entry: Mapping[str, Any], clock: Mapping[str, Any]) -> None:
        self.done = entry["round"]
        self._strike("after the checkpoint", entry["round"])

    def _strike(self, where: str, round: int) -> None:
        if (where, round) == (self.where, self.round):
            raise Killed(f"{where} of round {round}")


@dataclass(frozen=True)
class SmallRun:
    """A run of three rounds in a folder; some clients drop out of some rounds."""

    world: World
    case: Case
    folder: Path
    pool: str = "local"  # or "stacked", "two processes"
    rounds: Rounds = ROUNDS
    ordered: bool = False  # two processes leave the bits of one

    def run(self, resume: bool = False, kill: Kill | None = None) -> str:
        """Return a digest of the last state."""
        if self.pool == "two processes":
            return side_by_side(lambda ranks: self._run(resume, kill, ranks), ordered=self.ordered)
        return self._run(resume, kill, SingleProcess())

    def run_killed(self, kill: Kill, resume: bool = True) -> None:
        try:
            self.run(resume, kill)
        except Killed:
            return
        raise AssertionError("the run was to be killed, and ended")

    def _run(self, resume: bool, kill: Kill | None, group: ProcessGroup) -> str:
        states = ClientStates(self.folder / "clients", self.rounds.renew_lost_states)
        worker: Worker = self.world.worker_for(self.case, states=states)
        engine = Engine(
            self.case.algorithm,
            group.pool(stacked(worker) if self.pool == "stacked" else worker, len),
            list(self.world.clients(self.case.clients)),
            self.rounds,
            self.folder,
            SEED,
            validate=_validate,
            listener=kill,
            group=group,
            context=CONTEXT,
            states=states,
            faults=FAULTS,
            arrival=arrival,
        )
        if kill is not None:
            kill.arm(engine)
        return digest(engine.run(self.world.params(), resume).state)

    def contents(self) -> dict[str, Any]:
        """Return all that must not depend on how often a run was stopped."""
        folder, rounds = self.folder, saved_rounds(self.folder / "checkpoints")
        last = folder_of(folder / "checkpoints", rounds[-1])
        body = json.loads((last / "state.json").read_text().split("\n")[1])
        files = [folder / "journal.jsonl", last / "state.safetensors", *(folder / "clients").rglob("*.*")]
        return {
            "checkpoints": rounds,
            "state": body["state"],
            "best": body["notes"]["best"],
            **{str(file.relative_to(folder)): file.read_bytes() for file in sorted(files)},
        }

    def in_folder(self, folder: Path) -> SmallRun:
        return replace(self, folder=folder)


def _validate(pool: Pool, params: Tensors) -> Mapping[str, float]:
    return measure(pool, params, VALID)


def digest(state: Any) -> str:
    """Return a checksum of every bit of a state."""
    tensors: Tensors = {}
    sha = hashlib.sha256(json.dumps(pack(state, "", tensors)).encode())
    for tensor in tensors.values():
        sha.update(tensor.numpy().tobytes())
    return sha.hexdigest()
