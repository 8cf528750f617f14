"""`--workers N`: starts this same command N times on this machine, and stands by."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import IO

import torch.distributed as dist

from antiphon.pools.joining import LOOPBACK
from antiphon.pools.ranks import Lost

LIFELINE = "ANTIPHON_LIFELINE"  # standard input is a pipe from the starter: when it ends, so has the starter
GRACE = 20.0  # seconds for the others to end as well when one has failed: they leave together if they can


def run_workers(num_workers: int) -> int:
    """Runs the command this process was started with in so many others; the exit code is the first one's.

    Signals are passed on once to each. Raises `Lost` if the first process was killed.
    """
    store = dist.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False, timeout=timedelta(minutes=1))
    workers = [_start(rank, num_workers, store.port) for rank in range(num_workers)]
    with passing_signals_on(workers):
        codes = _wait(workers)
    if codes[0] < 0:
        raise Lost("the first process of this run is gone: killed, or out of memory?")
    return codes[0]


def _start(rank: int, size: int, port: int) -> subprocess.Popen[bytes]:
    place = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": size,
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": port,
    }
    own = {name: str(value) for name, value in place.items()}
    # The store is ours, not the first process's.
    return started_again({**own, "TORCHELASTIC_USE_AGENT_STORE": "True"})


def started_again(own: Mapping[str, str], output: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    """This same command in another process, with some variables of its own; it prints here, or to a file."""
    environment = {
        "OMP_NUM_THREADS": "1",  # two processes of one thread beat one of two, and two of two fight
        **os.environ,
        **own,
        LIFELINE: "1",
    }
    # A session of its own: Ctrl-C in the terminal comes to us alone, and from us to each of them once.
    return subprocess.Popen(
        [sys.executable, *sys.orig_argv[1:]],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def _wait(workers: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Exit codes of all; when one has failed, the others are ended after some grace."""
    deadline = float("inf")
    while any(worker.poll() is None for worker in workers):
        if any(worker.poll() for worker in workers):
            deadline = min(deadline, time.monotonic() + GRACE)
        if time.monotonic() > deadline:
            for worker in workers:
                worker.kill()
        time.sleep(0.1)  # seldom: every look takes a core from a worker
    return [worker.wait() for worker in workers]


@contextmanager
def passing_signals_on(workers: Sequence[subprocess.Popen[bytes]]) -> Iterator[list[int]]:
    """Within: Ctrl-C is for them, also for those that are added later. Yields the signals that came."""
    received: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for worker in workers:
            worker.send_signal(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, pass_on) for number in numbers]
    try:
        yield received
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def end_with_starter() -> None:
    """In a worker: stops cleanly, as by SIGTERM, when the process that started it is gone."""
    if LIFELINE not in os.environ:
        return

    def watch() -> None:
        os.read(0, 1)  # ends only with the pipe: nothing is ever written to it
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
