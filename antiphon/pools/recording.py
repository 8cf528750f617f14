"""A pool that records every task of every client, for the journal.

It has one row for each client and task, whether an algorithm sends one task to the whole cohort, one to each
client, several kinds of tasks, or several passes. Weights are computed again from the reports, so every
process of a distributed pool records the same.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from antiphon.core import Collected, Failure, Pool, Report, Stopped, Task, Update, Weigh, lives_with_server
from antiphon.pools.local import departing
from antiphon.pools.process_group import ProcessGroup, SingleProcess
from antiphon.pools.round_clock import RoundClock
from antiphon.pools.signals import Interrupt
from antiphon.tasks.pool_wrapper import WatchedUpdates

KEPT_STATS = (
    *("loss", "norm", "num_utterances", "seconds", "num_labelled", "num_filtered", "confidence"),
    "parameter_bytes",
)
Faults = Callable[[Task, str], str]  # task, client -> why the client does not answer; "": it answers
Reply = TypeVar("Reply", Update, Collected)


class TooFewAnswers(Stopped):
    """Fewer clients than needed answered in a round."""


def no_faults(task: Task, client: str) -> str:
    return ""


def stop_if(interrupted: threading.Event) -> None:
    if interrupted.is_set():
        raise Stopped(interrupted.reason if isinstance(interrupted, Interrupt) else "interrupted")


@dataclass
class Row:
    """One task of one client. `number` counts its tasks of this kind in the round, from 0."""

    client: str
    kind: str
    number: int
    bytes_down: int
    call: int = 0
    log_weight: float = -math.inf
    report: Report | None = None  # None: it did not answer
    failure: str = ""

    @property
    def bytes_up(self) -> int:
        return 0 if self.report is None or lives_with_server(self.client) else self.report.bytes_up


@dataclass
class RecordingPool:
    """The pool of one round: numbers tasks, leaves out clients with simulated faults, records the others.

    Clients that live with the server get tasks too, but nothing travels to them and they have no faults.
    """

    pool: Pool
    cohort: Sequence[str]
    min_clients: int
    replied: Callable[[str], None]
    interrupted: threading.Event
    group: ProcessGroup = SingleProcess()
    round: int = 0
    faults: Faults = no_faults
    clock: RoundClock | None = None  # simulated time; None: nobody is late
    rows: list[Row] = field(default_factory=list, init=False)
    seconds: dict[str, float] = field(default_factory=dict, init=False)  # kind of task -> time of clients
    began_before: list[str] = field(default_factory=list, init=False)  # clients of tasks from earlier rounds
    _num_calls: int = field(default=0, init=False)
    _asked: Counter[tuple[str, str]] = field(default_factory=Counter, init=False)
    _seen: set[str] = field(default_factory=set, init=False)  # clients whose reply was announced

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        def announced(report: Report) -> float:
            self._announce(report.client)
            stop_if(self.interrupted)
            return weigh(report)

        def send(task: Task, clients: Sequence[str]) -> Update:
            return self.pool.reduce(task, clients, announced)

        rows, update = self._ask(task, cohort, send)
        for report in update.reports:
            rows[report.client].log_weight = weigh(report)
        return replace(update, failures=_failures(rows))

    def collect(self, task: Task, cohort: Sequence[str]) -> Collected:
        def send(task: Task, clients: Sequence[str]) -> Collected:
            collected = self.pool.collect(task, clients)
            self.group.all_gather(lambda: stop_if(self.interrupted))
            for report in collected.reports:
                self._announce(report.client)
            return collected

        def record(log_weights: Sequence[float], update: Update) -> None:
            for report, log_weight in zip(collected.reports, log_weights, strict=True):
                rows[report.client].log_weight = log_weight

        rows, collected = self._ask(task, cohort, send)
        return WatchedUpdates(collected, _failures(rows), record)

    def _ask(
        self, task: Task, cohort: Sequence[str], send: Callable[[Task, Sequence[str]], Reply]
    ) -> tuple[dict[str, Row], Reply]:
        """Send a task to the clients without simulated faults; record who answered what."""
        task = departing(replace(task, config={**task.config, "round": self.round, "call": self._num_calls}))
        self._num_calls += 1
        rows = {client: self._row(task, client) for client in cohort}
        if len(rows) < len(cohort):
            twice = next(client for client in rows if list(cohort).count(client) > 1)
            raise ValueError(f"{twice!r} was asked twice with one task: send it one task after the other")
        self.rows += rows.values()
        self.began_before += [client for client in rows if task.times is not None]
        self._ask_clock(task, rows)
        began = time.perf_counter()
        reply = send(task, [client for client in cohort if not rows[client].failure])
        self._time(task.kind, time.perf_counter() - began)
        for failure in reply.failures:
            rows[failure.client].failure = failure.reason
        for report in reply.reports:
            rows[report.client].report = report
        for row in rows.values():
            row.failure = row.failure or ("no answer" if row.report is None else "")
        self._time("label", sum(r.stats.get("label_seconds", 0.0) for r in reply.reports))
        self._stop_if_too_few(cohort)
        return rows, reply

    def _ask_clock(self, task: Task, rows: Mapping[str, Row]) -> None:
        """Make clients fail that are too late for the round."""
        if self.clock is None:
            return
        asked = [client for client, row in rows.items() if not (row.failure or lives_with_server(client))]
        if asked:
            cohort = [client for client in self.cohort if not self.faults(task, client)]
            for client, reason in self.clock.ask(task, asked, cohort).items():
                rows[client].failure = reason

    def arrival(self, task: Task, client: str, sent: float) -> float:
        """Return the simulated time at which a client answers a task that is sent at `sent`."""
        return sent if self.clock is None else self.clock.arrival(task, client, sent)

    def _row(self, task: Task, client: str) -> Row:
        number = self._asked[client, task.kind]
        self._asked[client, task.kind] += 1
        if lives_with_server(client):
            return Row(client, task.kind, number, 0)
        failure = self.faults(task, client)
        return Row(client, task.kind, number, task.num_bytes, task.moment[1], failure=failure)

    def _time(self, kind: str, seconds: float) -> None:
        if seconds:  # the time for training includes that for labels
            self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds

    def _announce(self, client: str) -> None:
        """Report a client's first answer in this round to the progress bar."""
        if client not in self._seen:
            self._seen.add(client)
            self.replied(client)

    def _stop_if_too_few(self, asked: Sequence[str]) -> None:
        """Stop if the whole cohort was asked and too few answered, or if no client of the server answered."""
        if asked and all(map(lives_with_server, asked)):
            rows = [row for row in self.rows[-len(asked) :] if row.failure]
            if len(rows) == len(asked):
                raise TooFewAnswers(_too_few(0, len(asked), 1, rows))
        elif {row.client for row in self.rows} >= set(self.cohort):
            self.check_enough()

    def check_enough(self, least: int = 0) -> None:
        """Stop the run if too few of the round's clients answered, each counted once.

        least: so many must have answered, even if the run has a smaller `min_clients`.
        """
        needed = max(least, self.min_clients)
        rows = [row for row in self.rows if not lives_with_server(row.client)]
        if any(row.report is None and not row.failure for row in rows):
            return  # a task was interrupted by an error, which must be seen
        asked = {row.client for row in rows}
        answered = {row.client for row in rows if row.report is not None}
        if asked and len(answered) < needed:
            failed = [row for row in rows if row.client not in answered]
            raise TooFewAnswers(_too_few(len(answered), len(asked), needed, failed))

    def weights(self) -> dict[str, float]:
        """Return each client's share in its last sum, among tasks of one kind and number."""
        groups: dict[tuple[str, int], list[Row]] = {}
        for row in self.rows:
            if row.log_weight > -math.inf and not lives_with_server(row.client):
                groups.setdefault((row.kind, row.number), []).append(row)
        weights: dict[str, float] = {}
        for group in groups.values():
            top = max(row.log_weight for row in group)
            total = sum(math.exp(row.log_weight - top) for row in group)
            weights |= {row.client: math.exp(row.log_weight - top) / total for row in group}
        return weights

    @property
    def clients(self) -> dict[str, dict[str, float]]:
        """Statistics of each client that answered: the last value of each, weight, number of tasks."""
        place = {client: number for number, client in enumerate(self.cohort)}
        clients: dict[str, dict[str, float]] = {}
        tasks: Counter[str] = Counter()
        # In cohort order, also if an algorithm asked some clients before others.
        for row in sorted(self.rows, key=lambda row: place.get(row.client, len(place))):
            if row.report is not None and not lives_with_server(row.client):
                tasks[row.client] += 1
                stats = {key: row.report.stats[key] for key in KEPT_STATS if key in row.report.stats}
                if row.report.state_bytes:
                    stats["state_bytes"] = row.report.state_bytes
                clients.setdefault(row.client, {}).update(stats)
        for client, weight in self.weights().items():
            clients[client]["weight"] = weight
        for client, count in tasks.items():
            if count > 1:
                clients[client]["tasks"] = count
        for client, seconds in self.clock.seconds.items() if self.clock else ():
            if client in clients:
                clients[client]["simulated_seconds"] = seconds
        return clients

    @property
    def failures(self) -> dict[str, str]:
        return {row.client: row.failure for row in self.rows if row.failure}

    @property
    def bytes_down(self) -> int:
        return sum(row.bytes_down for row in self.rows)

    @property
    def bytes_up(self) -> int:
        return sum(row.bytes_up for row in self.rows)

    def entry(self) -> dict[str, Any]:
        """Return the journal's entry about clients, failures, loss and bytes."""
        clients = self.clients
        trained = [stats for stats in clients.values() if {"weight", "loss"} <= stats.keys()]
        loss = sum(stats["weight"] * stats["loss"] for stats in trained)
        total = sum(stats["weight"] for stats in trained)  # above 1 after tasks of several kinds
        return {
            "clients": clients,
            "failures": self.failures,
            "loss": loss / total if total > 1.001 else loss,
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            **(self.clock.entry() if self.clock else {}),
        }


def _failures(rows: Mapping[str, Row]) -> tuple[Failure, ...]:
    """Return the failures of a task, also of clients with simulated faults, which the pool never asked."""
    return tuple(Failure(row.client, row.failure) for row in rows.values() if row.failure)


def _too_few(answered: int, asked: int, needed: int, failed: Sequence[Row]) -> str:
    why = "; ".join(f"{row.client}: {row.failure}" for row in failed[:5])
    hint = "; rounds.min_clients sets how many are needed" if needed > 1 else ""
    return f"{answered} of {asked} clients answered, {needed} needed ({why}){hint}"
