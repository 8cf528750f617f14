"""The simulated clock: when the answer of a client arrives, decided by its device, its task and the seed.

A client waits until it is available, receives the task, trains and sends its answer. The size of an answer
is the one that its work declares: the time is known before a client trains, and a late client does not train.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from antiphon.clients.availability import HOUR, Always, Availability
from antiphon.clients.simulated_devices import Device, Devices, LogNormal, check_positive
from antiphon.core import Scalar, Task, lives_with_server, size_in_bytes
from antiphon.pools.local import expected_tensors
from antiphon.tasks.local_training import parameters_in
from antiphon.tasks.views import VIEWS, views_of


@dataclass(frozen=True)
class Power:
    """What a device draws, in watts. Waiting costs nothing."""

    computing: float = 3.0  # while it trains
    network: float = 1.0  # while it receives or sends

    def __post_init__(self) -> None:
        check_positive(self, "computing", "network")


@dataclass(frozen=True)
class Clock:
    """A simulated clock for the clients of all runs."""

    devices: Devices = LogNormal()  # how fast clients compute, send and receive
    power: Power = Power()  # of all devices alike
    availability: Availability = Always()  # when clients may begin
    starts: float = 0.0  # hour of the day at which a run begins

    def __post_init__(self) -> None:
        if not 0 <= self.starts < 24:
            raise ValueError(f"clock: starts is an hour of at least 0 and below 24, not {self.starts:g}")


@dataclass(frozen=True)
class SimulatedClock:
    """The clock of a run. It is called with a task, a client and the time at which the task is sent to it."""

    clock: Clock
    audio: Callable[[str], float]  # client -> seconds of its audio
    seed: int

    def __call__(self, task: Task, client: str, sent: float) -> float:
        """Return when the answer arrives, in simulated seconds since the run began."""
        if lives_with_server(client):
            return sent
        device = self.device(client)
        time = self.clock.starts * HOUR + sent
        available = (device.availability or self.clock.availability)(client, self.seed, time)
        return sent + (available - time) + self.seconds(task, client)

    def device(self, client: str) -> Device:
        return self.clock.devices(client, self.seed)

    def seconds(self, task: Task, client: str) -> float:
        """Return the seconds of a task, without waiting for the client to be available."""
        audio = audio_trained(task.config, self.audio(client))
        return self.device(client).seconds(task.num_bytes, audio, size_of_answer(task))

    def joules(self, task: Task, client: str, is_late: bool) -> float:
        """Return the energy of a task; a client that is too late for it has received it, and nothing else."""
        if lives_with_server(client):
            return 0.0
        device, power = self.device(client), self.clock.power
        if is_late:
            return power.network * device.seconds_of_network(task.num_bytes, 0)
        network = device.seconds_of_network(task.num_bytes, size_of_answer(task))
        computing = device.slowness * audio_trained(task.config, self.audio(client))
        return power.network * network + power.computing * computing

    def fastest(self, task: Task, clients: Iterable[str]) -> tuple[float, str]:
        """Return the least seconds that a client needs for a task, and its name."""
        return min((self.seconds(task, client), client) for client in clients)


def audio_trained(config: Mapping[str, Scalar], seconds: float) -> float:
    """Return the seconds of audio that a client with `seconds` of audio works through in a task.

    >>> audio_trained({"steps": 0, "epochs": 2}, 30.0), audio_trained({}, 30.0)
    (60.0, 30.0)
    >>> audio_trained({"steps": 5, "batch_seconds": 10.0}, 30.0)
    50.0
    """
    steps = int(config.get("steps") or 0)
    if steps > 0:
        batch = float(config.get("batch_seconds") or 0.0)
        return steps * min(batch or seconds, seconds)
    return seconds * max(1, int(config.get("epochs") or 1))


def size_of_answer(task: Task) -> int:
    """Return the bytes of an answer as declared; those of the parameters in the task if nothing is."""
    views = views_of(task) if VIEWS in task.config else []
    expected = expected_tensors(task, views)
    return size_in_bytes(parameters_in(task.tensors) if expected is None else expected)
