"""The simulated clock of a run: which runs have one, and settings that no client could keep."""

from __future__ import annotations

from collections.abc import Iterable

from antiphon.algorithms.fedavg import select
from antiphon.clients.simulated_clock import SimulatedClock
from antiphon.core import ServerState, Task, Tensors
from antiphon.experiment.settings import Run
from antiphon.server.run_context import parts_of
from antiphon.tasks.local_training import LocalTraining


def trains_on_server(run: Run) -> bool:
    return any(getattr(part, "trains_on_server", False) for part in parts_of(run.algorithm))


def check_clock(clock: SimulatedClock, name: str, run: Run, params: Tensors, clients: Iterable[str]) -> None:
    """Refuse clients without a device, and a deadline that no client can keep."""
    *_, last = (part for part in parts_of(run.algorithm))
    tensors = select(params, getattr(last, "trainable", ("*",)))
    local = getattr(last, "local", LocalTraining())
    task = Task("train", tensors, local.task_config(ServerState(0, tensors)))
    try:
        seconds, client = clock.fastest(task, sorted(clients))
    except ValueError as error:
        raise ValueError(f"run {name!r}: clock: {error}") from error
    if 0 < run.rounds.deadline < seconds:
        raise ValueError(
            f"run {name!r}: no client can answer before rounds.deadline ({run.rounds.deadline:g} s): the "
            f"fastest, {client!r}, needs {seconds:.1f} s for its {clock.audio(client):.1f} s of audio"
        )
