"""The simulated time of one round: when clients answer, and who is too late for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from antiphon.core import Task

# Task, client, the simulated time at which it is sent -> the time at which the answer arrives.
# It may also have a method `joules(task, client, is_late)`: the energy that the client needs.
Arrival = Callable[[Task, str, float], float]
Joules = Callable[[Task, str, bool], float]


@dataclass
class RoundClock:
    """The clock of one round. Times are simulated seconds since the run began.

    Tasks of different clients run side by side, those of one client one after the other. The round takes the
    clients that are the first to answer its first task, and waits for nobody else.
    """

    arrival: Arrival
    began: float
    needed: int  # answers that the round takes
    deadline: float = 0.0  # seconds; 0: the round waits for all of them
    seconds: dict[str, float] = field(default_factory=dict, init=False)  # client -> from its first task on
    late: dict[str, str] = field(default_factory=dict, init=False)  # client -> why it is too late
    joules: float = field(default=0.0, init=False)  # of all clients
    _is_chosen: bool = field(default=False, init=False)
    _last: float = field(default=0.0, init=False)  # when the last answer of an earlier round's task arrived

    def ask(self, task: Task, clients: Sequence[str], cohort: Sequence[str]) -> dict[str, str]:
        """Note when clients answer; return why some are too late. `cohort`: all that are there."""
        if task.times is not None:
            for client in clients:
                sent, arrives = task.times[client]
                self.seconds[client] = arrives - sent
                self._last = max(self._last, arrives)
            self._spend(task, clients)
            return {}
        if not self._is_chosen:
            self._is_chosen = True
            self._leave_out(task, cohort)
        for client in clients:
            if client not in self.late:
                self._add(client, self._needs(task, client))
        self._spend(task, clients)
        return {client: self.late[client] for client in clients if client in self.late}

    @property
    def _joules_of(self) -> Joules | None:
        return getattr(self.arrival, "joules", None)

    def _spend(self, task: Task, clients: Sequence[str]) -> None:
        """Add up the energy of a task."""
        if joules_of := self._joules_of:
            self.joules += math.fsum(joules_of(task, client, client in self.late) for client in clients)

    def _needs(self, task: Task, client: str) -> float:
        """Return the seconds from the beginning of the round until a client has answered one more task."""
        return self.arrival(task, client, self.began + self.seconds.get(client, 0.0)) - self.began

    def _add(self, client: str, seconds: float) -> None:
        if self.deadline and seconds > self.deadline:
            self.late[client] = f"late: {seconds:.1f} s, deadline {self.deadline:g} s"
        else:
            self.seconds[client] = seconds

    def _leave_out(self, task: Task, cohort: Sequence[str]) -> None:
        """Leave out all clients but the first to answer; of equally fast ones, those drawn first."""
        if len(cohort) <= self.needed:
            return
        needs = {client: self._needs(task, client) for client in cohort}
        order = sorted(cohort, key=lambda client: needs[client])
        last = needs[order[self.needed - 1]]
        for client in order[self.needed :]:
            reason = f"{self.needed} others had answered after {last:.1f} s"
            self.late[client] = f"late: {needs[client]:.1f} s, {reason}"

    @property
    def total(self) -> float:
        """The seconds of the round: until its last answer, or its deadline if answers are missing."""
        answers = [seconds for client, seconds in self.seconds.items() if client not in self.late]
        if self._last:
            return max(0.0, self._last - self.began)
        return self.deadline if self.deadline and len(answers) < self.needed else max(answers, default=0.0)

    @property
    def ended(self) -> float:
        return max(self._last, self.began) if self._last else self.began + self.total

    def entry(self) -> dict[str, float]:
        """Return the journal's entry: the seconds of the round and those since the run began, its energy."""
        energy = {"simulated_joules": self.joules} if self._joules_of else {}
        return {"simulated_seconds": self.total, "simulated_time": self.ended, **energy}


def time_in(entries: Sequence[Mapping[str, Any]]) -> float:
    """Return the simulated time at the end of a journal; 0 before the first round."""
    return float(entries[-1].get("simulated_time", 0.0)) if entries else 0.0
