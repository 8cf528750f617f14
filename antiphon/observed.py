"""A pool that watches another: what the journal knows of a round, algorithms need not say."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from antiphon.core import (
    Collected,
    Failure,
    Pool,
    Report,
    Stopped,
    Task,
    Tensors,
    Update,
    Weigh,
    size_in_bytes,
)
from antiphon.team import Alone, Team

KEPT_STATS = ("loss", "norm", "num_utterances", "seconds", "num_labelled", "num_filtered", "confidence")


class Observed:
    """Counts bytes, remembers reports, weights and failures, and stops between two clients if asked.

    Weights are worked out again from the reports that came back, so that every process of a
    distributed pool notes the same.
    """

    def __init__(
        self,
        pool: Pool,
        cohort: Sequence[str],
        min_clients: int,
        replied: Callable[[str], None],
        interrupted: threading.Event,
        team: Team | None = None,
    ) -> None:
        self.pool, self.cohort, self.min_clients = pool, list(cohort), min_clients
        self.replied, self.interrupted, self.team = replied, interrupted, team or Alone()
        self.clients: dict[str, dict[str, float]] = {}
        self.failures: dict[str, str] = {}
        self.bytes_down = self.bytes_up = 0
        self.seconds: dict[str, float] = {}  # kind of task -> time clients took for it

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        def watched(report: Report) -> float:
            self.replied(report.client)
            self._stop_if_asked()
            return weigh(report)

        with self._timed(task):
            update = self.pool.reduce(task, cohort, watched)
        self._note(task, cohort, update.reports, update.failures, update.mean)
        self._note_weights(update.reports, [weigh(report) for report in update.reports])
        return update

    def collect(self, task: Task, cohort: Sequence[str]) -> Collected:
        with self._timed(task):
            held = self.pool.collect(task, cohort)
        self.team.everyone(self._stop_if_asked)
        # What the clients answer is not seen before it is combined.
        self._note(task, cohort, held.reports, held.failures, {})
        return ObservedCollected(held, self, list(cohort) == self.cohort)

    def entry(self) -> dict[str, Any]:
        """What is known of the round so far, for the journal."""
        trained = [stats for stats in self.clients.values() if {"weight", "loss"} <= stats.keys()]
        return {
            "clients": self.clients,
            "failures": self.failures,
            "loss": sum(stats["weight"] * stats["loss"] for stats in trained),
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
        }

    @contextmanager
    def _timed(self, task: Task) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[task.kind] = self.seconds.get(task.kind, 0.0) + time.perf_counter() - began

    def _stop_if_asked(self) -> None:
        if self.interrupted.is_set():
            raise Stopped("interrupted")

    def _note(
        self,
        task: Task,
        cohort: Sequence[str],
        reports: Sequence[Report],
        failures: Sequence[Failure],
        answer: Tensors,
    ) -> None:
        self.failures.update({failure.client: failure.reason for failure in failures})
        if labelling := sum(report.stats.get("label_seconds", 0.0) for report in reports):
            self.seconds["label"] = self.seconds.get("label", 0.0) + labelling  # part of the time for "train"
        ours = list(cohort) == self.cohort
        needed = self.min_clients if ours else 1
        if len(reports) < needed:
            why = "; ".join(f"{failure.client}: {failure.reason}" for failure in failures[:5])
            hint = "; rounds.min_clients sets how many are needed" if needed > 1 else ""
            raise Stopped(f"{len(reports)} of {len(cohort)} clients answered, {needed} needed ({why}){hint}")
        if ours:
            self.bytes_down += size_in_bytes(task.tensors) * len(cohort)
            self.bytes_up += size_in_bytes(answer) * len(reports)
            for report in reports:
                self.clients[report.client] = {k: report.stats[k] for k in KEPT_STATS if k in report.stats}

    def _note_weights(self, reports: Sequence[Report], log_weights: Sequence[float]) -> None:
        if not reports or reports[0].client not in self.clients:
            return
        top = max(log_weights)
        total = sum(math.exp(w - top) for w in log_weights)
        for report, log_weight in zip(reports, log_weights, strict=True):
            self.clients[report.client]["weight"] = math.exp(log_weight - top) / total


class ObservedCollected:
    """Collected updates whose last used weights are noted, and their bytes once where they are to count."""

    def __init__(self, held: Collected, observed: Observed, is_counted: bool) -> None:
        self.held, self.observed, self.is_counted = held, observed, is_counted

    @property
    def reports(self) -> Sequence[Report]:
        return self.held.reports

    @property
    def failures(self) -> Sequence[Failure]:
        return self.held.failures

    def combine(self, log_weights: Sequence[float]) -> Update:
        self.observed._note_weights(self.reports, log_weights)
        update = self.held.combine(log_weights)
        if self.is_counted:
            self.observed.bytes_up += size_in_bytes(update.mean) * len(self.reports)
            self.is_counted = False
        return update

    def distances(self, point: Tensors) -> Sequence[float]:
        return self.held.distances(point)
