"""The engine: draw a cohort, run a round, journal it, save it; go on exactly where it stopped."""

from __future__ import annotations

import random
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch

from antiphon import checkpoint
from antiphon.core import Algorithm, Pool, ServerState, Tensors
from antiphon.observed import Observed, Stopped
from antiphon.report.journal import Journal, read
from antiphon.report.tensorboard import EventWriter, scalars_of, write_scalars
from antiphon.seeding import derive

Validate = Callable[[Pool, Tensors], Mapping[str, float]]


@dataclass(frozen=True)
class Rounds:
    """How long a run is, and what is kept of it."""

    total: int = 20
    cohort: int = 10  # clients drawn in a round
    min_clients: int = 1  # fewer answers than this in a round, and the run stops
    valid_every: int = 1  # rounds between validations; 0: never
    save_every: int = 1
    keep_last: int = 2

    def __post_init__(self) -> None:
        if self.total < 1 or self.cohort < 1 or self.min_clients < 1:
            raise ValueError("rounds: total, cohort and min_clients must be at least 1")
        if self.min_clients > self.cohort:
            raise ValueError(f"rounds: min_clients {self.min_clients} is above cohort {self.cohort}")
        if self.save_every < 1 or self.keep_last < 1 or self.valid_every < 0:
            raise ValueError("rounds: save_every and keep_last must be at least 1, valid_every at least 0")

    def check(self, num_clients: int) -> None:
        """Refuses a run that could never finish a round with this many clients."""
        if num_clients == 0:
            raise ValueError("there is no client to train on")
        if self.min_clients > num_clients:
            raise ValueError(f"rounds.min_clients is {self.min_clients} but there are {num_clients} clients")


class Listener(Protocol):
    """Told what happens while it happens: a progress bar, a log."""

    def resumed(self, round: int) -> None: ...
    def replied(self, client: str) -> None: ...
    def finished(self, entry: Mapping[str, Any], clock: Mapping[str, Any]) -> None: ...


class Silent:
    def resumed(self, round: int) -> None: ...
    def replied(self, client: str) -> None: ...
    def finished(self, entry: Mapping[str, Any], clock: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """A run that ended: the last state, the best model by validation WER, and the round it is from."""

    state: ServerState
    best: Tensors
    best_round: int


def sample_cohort(clients: Sequence[str], size: int, seed: int, round: int) -> list[str]:
    """The clients of a round: distinct, decided by seed and round alone. `clients` in sorted order.

    >>> sample_cohort(["a", "b", "c", "d"], 2, seed=0, round=7) == sample_cohort("abcd", 2, seed=0, round=7)
    True
    """
    return random.Random(derive(seed, "cohort", round)).sample(list(clients), min(size, len(clients)))


class Engine:
    """One run in one folder."""

    def __init__(
        self,
        algorithm: Algorithm,
        pool: Pool,
        clients: Sequence[str],
        rounds: Rounds,
        folder: Path,
        seed: int,
        validate: Validate | None = None,
        listener: Listener | None = None,
    ) -> None:
        rounds.check(len(clients))
        self.algorithm, self.pool, self.rounds, self.folder, self.seed = algorithm, pool, rounds, folder, seed
        self.clients = sorted(clients)
        self.validate = validate if rounds.valid_every else None
        self.listener: Listener = listener or Silent()
        self.checkpoints = folder / "checkpoints"
        self.journal, self.clock = Journal(folder / "journal.jsonl"), Journal(folder / "clock.jsonl")
        self.best: dict[str, float] | None = None

    def run(self, params: Tensors, resume: bool = False, skip_corrupt: bool = False) -> Outcome:
        """Trains from `params`, or goes on from the newest checkpoint.

        Raises `Stopped` when interrupted or when too few clients answer; what was done is saved.
        """
        state = replace(self.algorithm.init(params), seed=self.seed)
        if resume and checkpoint.saved_rounds(self.checkpoints):
            state = self._restore(state, skip_corrupt)
            self.listener.resumed(state.round)
        else:
            shutil.rmtree(self.checkpoints, ignore_errors=True)
            self.journal.truncate(0)
            self.clock.truncate(0)
        with interruptible() as interrupted, self._tensorboard() as self.events:
            try:
                if not checkpoint.saved_rounds(self.checkpoints):
                    if self.validate:
                        self._record({"round": 0}, state, time.perf_counter(), interrupted)
                    self._save(state)
                while state.round < self.rounds.total:
                    state = self._round(state, interrupted)
                    if self._is_due(state):
                        self._save(state)
                if interrupted.is_set():  # while the last round was being saved
                    raise Stopped("interrupted")
            except Stopped:
                if checkpoint.saved_rounds(self.checkpoints)[-1:] not in ([], [state.round]):
                    self._save(state)
                raise
        return self._outcome(state)

    def _is_due(self, state: ServerState) -> bool:
        """The best so far is always saved, and so is the end."""
        best = self.best is not None and self.best["round"] == state.round
        return best or state.round % self.rounds.save_every == 0 or state.round == self.rounds.total

    def _round(self, state: ServerState, interrupted: threading.Event) -> ServerState:
        began = time.perf_counter()
        cohort = sample_cohort(self.clients, self.rounds.cohort, self.seed, state.round)
        pool = Observed(self.pool, cohort, self.rounds.min_clients, self.listener.replied, interrupted)
        after, metrics = self.algorithm.round(state, cohort, pool)
        entry = {"round": after.round, "cohort": cohort, **pool.entry(), "metrics": dict(metrics)}
        self._record(entry, after, began, interrupted)
        return after

    def _record(
        self, entry: dict[str, Any], state: ServerState, began: float, interrupted: threading.Event
    ) -> None:
        """Validates if it is time, then writes journal and clock."""
        trained = time.perf_counter()
        last = state.round == self.rounds.total
        if self.validate and (state.round % self.rounds.valid_every == 0 or last):
            pool = Observed(self.pool, (), 1, self.listener.replied, interrupted)
            entry["valid"] = dict(self.validate(pool, state.params))
            if pool.failures:
                entry["failures"] = {**entry.get("failures", {}), **pool.failures}
            if self.best is None or entry["valid"]["wer"] < self.best["wer"]:
                self.best = {"round": state.round, "wer": entry["valid"]["wer"]}
        done = time.perf_counter()
        clock = {
            "round": state.round,
            "seconds": done - began,
            "train_seconds": trained - began,
            "valid_seconds": done - trained,
            "rss_mib": peak_memory_mib(),
            "gpu_mib": torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else 0.0,
        }
        self.journal.append(entry)
        self.clock.append(clock)
        self.events.add(state.round, scalars_of(entry, clock), time.time())
        self.listener.finished(entry, clock)

    def _tensorboard(self) -> EventWriter:
        """An event file of what the journal holds already, and a new one for what is to come."""
        folder, now = self.folder / "tensorboard", time.time()
        clock = read(self.clock.path)
        started = now - sum(entry["seconds"] for entry in clock)
        write_scalars(folder, read(self.journal.path), clock, started)
        return EventWriter(folder, now)

    def _save(self, state: ServerState) -> None:
        notes = {"best": self.best, "journal_bytes": self.journal.size, "clock_bytes": self.clock.size}
        checkpoint.save(checkpoint.folder_of(self.checkpoints, state.round), state, notes)
        keep = {int(self.best["round"])} if self.best else set()
        checkpoint.prune(self.checkpoints, self.rounds.keep_last, keep)

    def _restore(self, like: ServerState, skip_corrupt: bool) -> ServerState:
        """The newest checkpoint; the journal is cut back to what it knew."""
        device = str(next(iter(like.params.values())).device)
        for round in reversed(checkpoint.saved_rounds(self.checkpoints)):
            folder = checkpoint.folder_of(self.checkpoints, round)
            try:
                state, notes = checkpoint.load(folder, like, device)
            except checkpoint.CorruptCheckpoint as error:
                if not skip_corrupt:
                    raise checkpoint.CorruptCheckpoint(
                        f"{error}. To go on from the one before it, add --skip-corrupt"
                    ) from error
                print(f"skipping: {error}", file=sys.stderr)
                continue
            self.best = notes["best"]
            self.journal.truncate(notes["journal_bytes"])
            self.clock.truncate(notes["clock_bytes"])
            return state
        raise checkpoint.CorruptCheckpoint(f"no checkpoint in {self.checkpoints} is whole")

    def _outcome(self, state: ServerState) -> Outcome:
        if self.best is None or self.best["round"] == state.round:
            return Outcome(state, state.params, state.round)
        device = str(next(iter(state.params.values())).device)
        folder = checkpoint.folder_of(self.checkpoints, int(self.best["round"]))
        best, _ = checkpoint.load(folder, state, device)
        return Outcome(state, best.params, best.round)


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Ctrl-C (or SIGTERM) asks for a stop after the client in hand; a second one stops at once."""
    asked = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        print("\nfinishing the client in hand, then saving; press again to stop at once", file=sys.stderr)

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, handle) for number in numbers]
    try:
        yield asked
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def peak_memory_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
