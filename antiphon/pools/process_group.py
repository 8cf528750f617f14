"""Process groups: the processes of one run, each with the same program and the same state.

All processes must know the same. So what one of them learns (a file, a signal, an error) is sent through the
group before anything depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from antiphon.core import Pool, Worker
from antiphon.pools.local import LocalPool

T = TypeVar("T")
Seconds = Callable[[str], float]  # client -> seconds of audio it has


class ProcessGroup(Protocol):
    """One process, or several that take the same steps."""

    @property
    def is_rank_zero(self) -> bool: ...
    @property
    def size(self) -> int: ...
    def on_rank_zero(self, action: Callable[[], T], like: T | None = None) -> T:
        """Run an action on the first process only; all get its result, or raise its error.

        For reading and writing files. The result is anything that a checkpoint can hold; its dataclasses are
        built like those of `like`.
        """

    def on_rank_zero_async(self, action: Callable[[], None]) -> None:
        """Run an action on the first process; the others go on, and get its error with the next message."""

    def all_gather(self, action: Callable[[], Any]) -> list[Any]:
        """Run an action on every process; all get all results (as JSON), or all raise if one did."""

    def pool(self, worker: Worker, seconds: Seconds) -> Pool:
        """Return a pool that divides clients among the workers of all processes."""


class SingleProcess:
    """A group of one process."""

    is_rank_zero = True
    size = 1

    def on_rank_zero(self, action: Callable[[], T], like: T | None = None) -> T:
        return action()

    def on_rank_zero_async(self, action: Callable[[], None]) -> None:
        action()

    def all_gather(self, action: Callable[[], Any]) -> list[Any]:
        return [action()]

    def pool(self, worker: Worker, seconds: Seconds) -> Pool:
        return LocalPool(worker)
