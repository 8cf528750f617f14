"""Work shared out to processes: in order, in bounded memory, ended with their caller."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of so many items, the last of what is left.

    >>> list(chunks("abc", 2))
    [['a', 'b'], ['c']]
    """
    source = iter(items)
    while chunk := list(islice(source, size)):
        yield chunk


def in_processes(
    items: Iterator[Item],
    work: Callable[[Item], Result],
    num_workers: int,
    doing: str,
    start: Callable[..., None],
    *given: Any,
) -> Generator[tuple[Item, Result], None, None]:
    """Every item with what `work` makes of it, in order; each process begins with `start(*given)`."""
    # Not forked from here: a forked child of a process that has used torch's threads can hang. The fork
    # server imports torch once for all workers.
    context = get_context("forkserver")
    context.set_forkserver_preload([work.__module__])
    executor = ProcessPoolExecutor(num_workers, context, initializer=_begin, initargs=(start, *given))
    # Items ahead of the one being taken: keeps workers busy, bounds what is held in memory.
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    try:
        for item in islice(items, 3 * num_workers):
            waiting.append((item, executor.submit(work, item)))
        while waiting:
            item, future = waiting.popleft()
            yield item, future.result()
            for following in islice(items, 1):
                waiting.append((following, executor.submit(work, following)))
    except BrokenProcessPool as error:
        raise ValueError(
            f"a worker process died while {doing} (out of memory? or a script without "
            "`if __name__ == '__main__':`?); try num_workers=1"
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


def _begin(start: Callable[..., None], *given: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then stops us
    start(*given)
