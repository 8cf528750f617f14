"""A team: the processes that carry out one run together, each with the same program and the same state.

What all of them know must be the same, so whatever one of them finds out (a file, a signal, an error)
comes back through the team before anything depends on it.
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
        """Done by the first process alone; all get what it returned, or what it raised.

        Files are read and written in this way. What is returned can be put into a checkpoint; its
        dataclasses are built like those of `like`.
        """

    def on_rank_zero_async(self, action: Callable[[], None]) -> None:
        """Done by the first process while the others go on; its error is everyone's when they next agree."""

    def all_gather(self, action: Callable[[], Any]) -> list[Any]:
        """Done by every process; all get what each returned (as JSON), or all raise if one did."""

    def pool(self, worker: Worker, seconds: Seconds) -> Pool:
        """Shares clients out to the processes' workers."""


class SingleProcess:
    """A team of one process."""

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
