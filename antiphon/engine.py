"""The engine: draw a cohort, run a round, write the journal and a checkpoint; resume exactly."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from antiphon.core import Algorithm, Diverged, Pool, ServerState, Stopped, Tensors, WrapperState
from antiphon.pools.process_group import ProcessGroup, SingleProcess
from antiphon.pools.recording import Faults, RecordingPool, TooFewAnswers, no_faults, stop_if
from antiphon.pools.round_clock import Arrival, RoundClock, time_in
from antiphon.pools.signals import interruptible
from antiphon.records.checkpoint import pack
from antiphon.records.files import Damaged, NotWritten
from antiphon.records.writer import ClientStateFiles, Listener, Record, expected_states, peak_memory_mib
from antiphon.seeding import derive
from antiphon.server.run_context import RunContext, parts_of, personal_pool, prepare
from antiphon.tasks.local_training import find_nonfinite, global_norm
from antiphon.tasks.submodel import SubmodelPool

Validate = Callable[[Pool, Tensors], Mapping[str, float]]
Draw = Callable[[Sequence[str], int, int, int], list[str]]  # clients, size, seed, round -> cohort
Expect = Callable[[Sequence[str]], None]  # called as a round begins, with the cohort of the next one
DIVERGED = 100.0  # parameters are so many times as large as at the start of a run that goes wrong


@dataclass(frozen=True)
class Rounds:
    """The length of a run, and how often it is validated and saved."""

    total: int = 20  # rounds of the run
    cohort: int = 10  # clients drawn in a round
    min_clients: int = 1  # the run stops when fewer clients answer in a round
    valid_every: int = 1  # rounds between validations; 0: never
    save_every: int = 1  # rounds between checkpoints
    keep_last: int = 2  # checkpoints that are kept
    renew_lost_states: bool = False  # a client whose state is lost starts anew; False: its tasks fail
    deadline: float = 0.0  # simulated seconds after which a round takes no more answers; 0: none
    over_selection: float = 1.0  # as many times `cohort` are drawn, and the first `cohort` to answer count

    def __post_init__(self) -> None:
        if self.total < 1 or self.cohort < 1 or self.min_clients < 0:
            raise ValueError("rounds: total and cohort must be at least 1, min_clients at least 0")
        if self.min_clients > self.cohort:
            raise ValueError(f"rounds: min_clients {self.min_clients} is above cohort {self.cohort}")
        if self.save_every < 1 or self.keep_last < 1 or self.valid_every < 0:
            raise ValueError("rounds: save_every and keep_last must be at least 1, valid_every at least 0")
        if not 0 <= self.deadline < math.inf or not 1 <= self.over_selection < math.inf:
            raise ValueError("rounds: deadline must be at least 0, and over_selection at least 1")

    @property
    def num_drawn(self) -> int:
        return math.ceil(round(self.over_selection * self.cohort, 6))

    @property
    def needs_clock(self) -> bool:
        return bool(self.deadline) or self.over_selection > 1

    def check(self, num_clients: int) -> None:
        """Refuse a run that could never finish a round with this many clients."""
        if num_clients == 0:
            raise ValueError("there is no client to train on")
        if self.min_clients > num_clients:
            raise ValueError(f"rounds.min_clients is {self.min_clients} but there are {num_clients} clients")
        if self.over_selection > 1 and self.cohort >= num_clients:
            raise ValueError(
                f"rounds.over_selection has no effect: cohort {self.cohort} takes all {num_clients} clients, "
                "and nobody is left to draw besides; lower rounds.cohort or set over_selection=1"
            )


@dataclass(frozen=True)
class Outcome:
    """A finished run: the last state, the best model by validation WER, its round and its submodel.

    `ServerState.submodel` explains the last one.
    """

    state: Any
    best: Tensors
    best_round: int
    submodel: str = ""


def sample_cohort(clients: Sequence[str], size: int, seed: int, round: int) -> list[str]:
    """Draw the clients of a round: distinct, decided by seed and round alone. `clients` must be sorted.

    >>> sample_cohort(["a", "b", "c", "d"], 2, seed=0, round=7) == sample_cohort("abcd", 2, seed=0, round=7)
    True
    """
    return random.Random(derive(seed, "cohort", round)).sample(clients, min(size, len(clients)))


def initial_state(algorithm: Algorithm, params: Tensors) -> Any:
    """Return the state before the first round; ValueError if it is not one that can be saved."""
    state: Any = algorithm.init(params)
    name = type(algorithm).__name__
    if not isinstance(state, ServerState | WrapperState):
        kind = type(state).__name__
        raise ValueError(f"{name}.init must return a ServerState or a WrapperState, not a {kind}")
    try:
        pack(state, "state", {})
    except TypeError as error:
        raise ValueError(f"{name}.init: {error}") from error
    return state


class Engine:
    """One run in one folder. Only the first process of a group reads and writes the folder."""

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
        group: ProcessGroup | None = None,
        expect: Expect = lambda cohort: None,
        context: RunContext | None = None,
        states: ClientStateFiles | None = None,
        faults: Faults = no_faults,
        draw: Draw | None = None,
        arrival: Arrival | None = None,
    ) -> None:
        rounds.check(len(clients))
        self.pool, self.rounds, self.seed = pool, rounds, seed
        self.clients = sorted(clients)
        self.group: ProcessGroup = group or SingleProcess()
        known = replace(
            context or RunContext(),
            clients=tuple(self.clients),
            seed=seed,
            num_rounds=rounds.total,
            cohort=rounds.cohort,
            save_every=rounds.save_every,
            num_processes=self.group.size,
            folder=folder,
            on_first_process=self.group.on_rank_zero,
        )
        self.algorithm = prepare(algorithm, known)
        self.states, self.faults = states, faults
        self.arrival, self.now = arrival, 0.0  # simulated seconds since the run began
        self.validate = validate if rounds.valid_every else None
        self.listener: Listener = listener or Listener()
        self.expect = expect
        own: Draw = getattr(self.algorithm, "draw", sample_cohort)
        self.draw = draw or own
        self.record = Record(folder, rounds.keep_last, states)

    def run(self, params: Tensors, resume: bool = False, skip_corrupt: bool = False) -> Outcome:
        """Train from `params`, or continue from the newest checkpoint.

        Raises `Stopped` when interrupted, when too few clients answer, or when a step of the server diverges;
        finished rounds are saved.
        """
        group, record = self.group, self.record
        fresh = initial_state(self.algorithm, params).with_seed(self.seed)
        self.start_norm = _norm_of(fresh.params)
        with interruptible(group.is_rank_zero) as interrupted:
            state, resumed = self._begin(fresh, resume, skip_corrupt)
            try:
                if not resumed:
                    self._start(state, interrupted)
                while state.round < self.rounds.total:
                    state = self._round(state, interrupted)
                group.all_gather(lambda: stop_if(interrupted))  # a signal may have come during the last save
            except Stopped:
                group.on_rank_zero(lambda: record.catch_up(state))
                raise
            best = group.on_rank_zero(lambda: record.best_model(state))
        return Outcome(state, best["params"], best["round"], best["submodel"])

    def _begin(self, fresh: Any, resume: bool, skip_corrupt: bool) -> tuple[Any, bool]:
        record = self.record
        if self.group.on_rank_zero(lambda: resume and record.has_checkpoint):
            state = self.group.on_rank_zero(lambda: record.restore(fresh, skip_corrupt), like=fresh)
            self._find_states()
            self.now = self.group.on_rank_zero(lambda: time_in(self.record.entries()))
            self.listener.resumed(state.round)
            return state, True
        return self.group.on_rank_zero(lambda: record.begin(fresh), like=fresh), False

    def _find_states(self) -> None:
        """Tell every process which clients have stored a state, as the journal says."""
        if self.states is not None:
            expected = self.group.on_rank_zero(lambda: expected_states(self.record.entries()))
            self.states.expected = {client: (round, call) for client, (round, call) in expected.items()}

    def _start(self, state: Any, interrupted: threading.Event) -> None:
        """Validate and save the starting model like that of a round."""
        if self.validate:
            self._record({"round": 0}, state, time.perf_counter(), interrupted)
        else:
            self.group.on_rank_zero(lambda: self.record.save(state))

    def _round(self, state: Any, interrupted: threading.Event) -> Any:
        began, rounds = time.perf_counter(), self.rounds
        cohort = self._cohort(state.round)
        if state.round + 1 < rounds.total:
            self.expect(self._cohort(state.round + 1))
        pool = self._recording(cohort, rounds.min_clients, interrupted, state.round, self.faults)
        if self.arrival is not None:
            needed = min(rounds.cohort, len(cohort)) if rounds.over_selection > 1 else len(cohort)
            pool.clock = RoundClock(self.arrival, self.now, needed, rounds.deadline)
        try:
            after, metrics = self.algorithm.round(state, cohort, pool)
        except Diverged as error:
            raise Stopped(f"round {state.round + 1}: {error}") from error
        except TooFewAnswers as error:
            raise Stopped(f"{error}{self._growth(state)}") from error
        except (Stopped, Damaged, NotWritten):
            raise
        except Exception:
            pool.check_enough(1)  # no answer may be the cause, also with min_clients=0: that error is clearer
            raise
        pool.check_enough()
        self._check(state, after, metrics)
        self._sync_states(pool)
        asked = list(dict.fromkeys(pool.began_before)) or cohort
        entry = {"round": after.round, "cohort": asked, **pool.entry(), "metrics": dict(metrics)}
        self.now = entry.get("simulated_time", 0.0)
        self._record(entry, after, began, interrupted, pool.seconds)
        return after

    def _check(self, before: Any, after: Any, metrics: Any) -> None:
        """Refuse what an algorithm must not return: the run could not be resumed, or would never end."""
        name = type(self.algorithm).__name__
        if after.round != before.round + 1:
            raise ValueError(f"{name}: the state after round {before.round} is of round {after.round}")
        if after.seed != before.seed:
            raise ValueError(f"{name}: the state lost its seed; make it with dataclasses.replace")
        for key, value in metrics.items():
            if not isinstance(value, int | float):
                raise ValueError(f"{name}: metric {key!r} is a {type(value).__name__}, not a number")
        if parameter := find_nonfinite(after.params):
            raise Stopped(
                f"round {after.round}: the server's step ({name}) made NaN or infinity in {parameter!r}, "
                f"from updates that are finite{self._server_settings()}"
            )

    def _growth(self, state: Any) -> str:
        """Return a hint if clients fail because earlier steps of the server made the parameters huge."""
        growth = _norm_of(state.params) / (self.start_norm or 1.0)
        if growth < DIVERGED:
            return ""
        return (
            f"; after {state.round} rounds the parameters are {growth:.0e} times as large as at the start: "
            f"the steps of earlier rounds diverged, not these clients{self._server_settings()}"
        )

    def _server_settings(self) -> str:
        servers = [part.server for part in parts_of(self.algorithm) if hasattr(part, "server")]
        return f" (server: {servers[0]})" if servers else ""

    def _cohort(self, round: int) -> list[str]:
        return self.draw(self.clients, self.rounds.num_drawn, self.seed, round)

    def _recording(
        self,
        cohort: Sequence[str],
        min_clients: int,
        interrupted: threading.Event,
        round: int,
        faults: Faults,
    ) -> RecordingPool:
        replied = self.listener.replied
        return RecordingPool(self.pool, cohort, min_clients, replied, interrupted, self.group, round, faults)

    def _sync_states(self, pool: RecordingPool) -> None:
        """Write the client states of this round to disk, before the checkpoint that relies on them."""
        rows = [row for row in pool.rows if row.report is not None and row.report.state_bytes]
        if self.states is None or not rows:
            return
        self.group.all_gather(self.states.sync)
        for row in rows:
            self.states.wrote(row.client, (pool.round, row.call))

    def _record(
        self,
        entry: dict[str, Any],
        state: Any,
        began: float,
        interrupted: threading.Event,
        task_seconds: Mapping[str, float] = {},
    ) -> None:
        """Validate if it is due, then write journal, clock and checkpoint."""
        trained = time.perf_counter()
        last = state.round == self.rounds.total
        if self.validate and (state.round % self.rounds.valid_every == 0 or last):
            pool = self._recording((), 1, interrupted, state.round, no_faults)
            smaller = SubmodelPool(pool, state.submodel) if state.submodel else pool
            entry["valid"] = dict(self.validate(personal_pool(self.algorithm, smaller), state.model))
            if pool.failures:
                entry["failures"] = {**entry.get("failures", {}), **pool.failures}
        done = time.perf_counter()
        clock = {
            "round": state.round,
            "seconds": done - began,
            "train_seconds": trained - began,
            "valid_seconds": done - trained,
            **{f"task_{kind}_seconds": seconds for kind, seconds in task_seconds.items()},
            "rss_mib": peak_memory_mib(),
            "gpu_mib": torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else 0.0,
        }
        # The record also saves every new best model.
        is_due = last or state.round % self.rounds.save_every == 0
        self.group.on_rank_zero_async(lambda: self.record.add(entry, clock, state, is_due))
        self.listener.finished(entry, clock)


def _norm_of(params: Tensors) -> float:
    real = [parameter for parameter in params.values() if parameter.is_floating_point()]
    return float(global_norm(real)) if real else 0.0
