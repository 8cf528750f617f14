"""Clients at work: a simulation of events for algorithms whose clients begin and end in different rounds.

A client gets the model of one server step and answers after later ones. It trains when its answer arrives,
from the version of the parameters that it was sent. So a state holds these versions, and no updates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from antiphon.core import Pool, ServerState, Task, Tensors, Update, Weigh
from antiphon.tasks.pool_wrapper import arrival

Job = tuple[str, int, float, float]  # client, version, simulated times: sent, answer arrives


@dataclass(frozen=True)
class AsynchronousState(ServerState):
    """A server's state, the clients at work, and the parameters that they began from."""

    now: float = 0.0  # simulated seconds since the run began
    version: int = 0  # server steps
    at_work: tuple[Job, ...] = ()  # in the order in which they began
    versions: dict[str, Tensors] = field(default_factory=dict)  # those that clients at work began from


@dataclass(frozen=True)
class Arrived:
    """Answers that arrived since the last server step: updates by version, the oldest first."""

    updates: Sequence[tuple[int, Update]]
    now: float
    left: tuple[Job, ...]  # the clients that are still at work

    def staleness(self, version: int) -> list[int]:
        """Return the number of server steps since each client began, for those that answered."""
        return [version - began for began, update in self.updates for _ in update.reports]


def begin(
    state: AsynchronousState,
    cohort: Sequence[str],
    pool: Pool,
    task_of: Callable[[Tensors, int], Task],
) -> AsynchronousState:
    """Send the present model to clients of the cohort, so that as many are at work as the cohort has.

    `task_of` returns the task of a version, from its parameters and its number.
    """
    busy = {client for client, *_ in state.at_work}
    new = [client for client in cohort if client not in busy][: max(0, len(cohort) - len(busy))]
    task = task_of(state.params, state.version)
    jobs = tuple((client, state.version, state.now, arrival(pool, task, client, state.now)) for client in new)
    versions = {**state.versions, str(state.version): state.params} if new else state.versions
    return replace(state, at_work=state.at_work + jobs, versions=versions)


def wait_for(
    state: AsynchronousState,
    number: int,
    pool: Pool,
    task_of: Callable[[Tensors, int], Task],
    weigh: Callable[[int], Weigh],
) -> Arrived:
    """Wait until a number of clients have answered; those that fail are not counted.

    Answers are added in the order in which the clients began, so that the bits do not depend on ties.
    `weigh` returns the weighting of a version.
    """
    waiting = sorted(
        state.at_work, key=lambda job: job[3]
    )  # stable: of equally fast ones, the first to begin
    updates: list[tuple[int, Update]] = []
    now, missing = state.now, min(number, len(waiting))
    while missing and waiting:
        due, waiting = waiting[:missing], waiting[missing:]
        now = max(now, due[-1][3])
        jobs = [job for job in state.at_work if job in due]
        for version in sorted({job[1] for job in jobs}):
            times = {client: (sent, arrives) for client, began, sent, arrives in jobs if began == version}
            task = replace(task_of(state.versions[str(version)], version), times=times)
            updates.append((version, pool.reduce(task, list(times), weigh(version))))
        missing = min(number, len(state.at_work)) - sum(len(update.reports) for _, update in updates)
    left = tuple(job for job in state.at_work if job in waiting)
    return Arrived(sorted(updates, key=lambda pair: pair[0]), now, left)


def after_step(state: AsynchronousState, arrived: Arrived) -> AsynchronousState:
    """Return the state of a new version, without clients that answered and versions that nobody needs."""
    needed = {str(version) for _, version, *_ in arrived.left}
    versions = {version: params for version, params in state.versions.items() if version in needed}
    return replace(state, now=arrived.now, version=state.version + 1, at_work=arrived.left, versions=versions)
