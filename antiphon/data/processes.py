"""Work on many items in threads or processes: results in order, in bounded memory."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from itertools import islice
from multiprocessing import forkserver, get_context, parent_process, resource_tracker
from typing import Any, TypeVar

from antiphon.records.maker import uninterrupted

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_ahead(
    executor: Executor, work: Callable[[Item], Result], items: Iterable[Item], num_ahead: int
) -> Generator[tuple[Item, Result], None, None]:
    """Yield each item with its result, in order; at most `num_ahead` items are in memory at once.

    The executor is shut down at the end.
    """
    source = iter(items)
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    try:
        waiting.extend((item, executor.submit(work, item)) for item in islice(source, num_ahead))
        while waiting:
            item, future = waiting.popleft()
            yield item, future.result()
            waiting.extend((item, executor.submit(work, item)) for item in islice(source, 1))
    finally:
        executor.shutdown(cancel_futures=True)


def map_in_processes(
    items: Iterable[Item],
    num_processes: int,
    chunk: int,
    doing: str,
    make_work: Callable[..., Callable[[Item], Result]],
    *arguments: Any,
) -> Generator[tuple[Item, Result], None, None]:
    """Yield each item with its result, in order. With one process, this process does the work.

    Every process calls `make_work(*arguments)` once, and the function that it returns for each item. `chunk`
    is the number of items in a message. `doing` describes the work in errors.
    """
    if num_processes < 1:
        raise ValueError(f"num_processes must be at least 1, not {num_processes}")
    if num_processes == 1:
        work = make_work(*arguments)
        yield from ((item, work(item)) for item in items)
        return
    executor = process_pool(num_processes, make_work.__module__, _start, make_work, *arguments)
    source = iter(items)
    chunks = iter(lambda: list(islice(source, chunk)), [])
    try:
        with closing(map_ahead(executor, _work_on, chunks, 3 * num_processes)) as done:
            for ordered, results in done:
                yield from zip(ordered, results, strict=True)
    except BrokenProcessPool as error:
        raise ValueError(
            f"a process died while {doing}: out of memory, or a script without "
            "`if __name__ == '__main__':` (one process needs none: feature_processes=1)"
        ) from error


class _Processes(ProcessPoolExecutor):
    """Processes that start without a signal in between: the executor would forget such a process.

    The process would then not find what it needs to start, and print a traceback.
    """

    def submit(self, *arguments: Any, **options: Any) -> Future[Any]:
        with uninterrupted():
            return super().submit(*arguments, **options)


def process_pool(
    num_processes: int, module: str, start: Callable[..., None], *arguments: Any
) -> ProcessPoolExecutor:
    """Return processes that import a module, then call `start`. They end when this process ends."""
    # Do not fork from here: a forked child of a process that has used torch's threads can hang. The fork
    # server imports torch once for all processes.
    context = get_context("forkserver")
    context.set_forkserver_preload([module])
    _start_fork_server()
    return _Processes(num_processes, context, _end_with_parent, (start, *arguments))


def _start_fork_server() -> None:
    """Start the process that forks others, such that Ctrl-C does not reach it.

    It would print a traceback if the signal came while it imports torch. It ends with the last process that
    it has forked.
    """
    resource_tracker.ensure_running()  # unblocks signals: must come first
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _end_with_parent(start: Callable[..., None], *arguments: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then stops this process
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()  # waits for the end of a pipe, which the system closes if the parent is killed
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    start(*arguments)


_work: Callable[[Any], Any] | None = None  # one in each process of the executor


def _start(make_work: Callable[..., Callable[[Any], Any]], *arguments: Any) -> None:
    global _work
    _work = make_work(*arguments)


def _work_on(items: list[Any]) -> list[Any]:
    assert _work is not None
    return [_work(item) for item in items]
