"""`--workers N`: start this same command N times on this machine, and wait for all of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import IO

from antiphon.pools.lifeline import LIFELINE
from antiphon.pools.links import VARIABLE as LINKS
from antiphon.pools.links import ends_of, make_pairs
from antiphon.pools.rendezvous import LOOPBACK, loopback_store
from antiphon.pools.signals import interrupt, on_signals
from antiphon.pools.torch_group import PeerLost
from antiphon.records.lock import lock_descriptors

GRACE = 20.0  # seconds for the others to end after one has failed


def run_processes(num_processes: int) -> int:
    """Run this process's command in `num_processes` others; return the exit code of the first.

    Each gets a signal once. Raises `PeerLost` if the first process was killed.
    """
    store = loopback_store()
    shared = {
        "WORLD_SIZE": str(num_processes),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # this process has the store, not the first one
        # The processes send tensors to each other over the loopback interface only.
        **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}),
    }
    pairs = make_pairs(num_processes)
    processes = []
    for rank in range(num_processes):
        links = [end.fileno() for end in ends_of(rank, pairs)]
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), LINKS: ",".join(map(str, links))}
        processes.append(started_again({**shared, **own}, descriptors=links))
    for end in chain(*pairs):  # only who owns an end has it open: it closes when that process ends
        end.close()
    with passing_signals_on(processes) as received:
        codes = _wait(processes)
    if codes[0] < 0:
        if received:  # it had no time to answer
            interrupt(received[0])
        raise PeerLost("the first process of this run is gone: killed, or out of memory?")
    return codes[0]


def started_again(
    variables: Mapping[str, str], output: IO[bytes] | None = None, descriptors: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start this same command in another process with more variables; it prints here, or to a file.

    It inherits the descriptors.
    """
    environment = {
        "OMP_NUM_THREADS": "1",  # two processes with one thread each are faster than one with two
        **os.environ,
        **variables,
        LIFELINE: "1",
    }
    # In its own session: Ctrl-C in the terminal reaches only this process, which passes it on once.
    return subprocess.Popen(
        [sys.executable, *sys.orig_argv[1:]],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        start_new_session=True,
        # The folder stays locked as long as one of them writes to it.
        pass_fds=(*lock_descriptors(), *descriptors),
    )


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Wait for all exit codes; when one has failed, kill the others after some time."""
    deadline = float("inf")
    while any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes):
            deadline = min(deadline, time.monotonic() + GRACE)
        if time.monotonic() > deadline:
            for process in processes:
                process.kill()
        time.sleep(0.1)  # not more often: polling takes time from the processes
    return [process.wait() for process in processes]


@contextmanager
def passing_signals_on(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[list[signal.Signals]]:
    """Pass signals on to these processes, also to those added later. Yields the signals received."""
    received: list[signal.Signals] = []

    def pass_on(number: int) -> None:
        received.append(signal.Signals(number))
        for process in processes:
            process.send_signal(number)

    with on_signals(pass_on):
        yield received
