from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from marked import marked, needs_proc, new_mark, wait_for_none

from antiphon.data.processes import map_ahead


def test_results_come_in_the_order_of_the_items() -> None:
    pairs = map_ahead(ThreadPoolExecutor(2), lambda number: 2 * number, range(100), 3)
    assert list(pairs) == [(number, 2 * number) for number in range(100)]
    assert list(map_ahead(ThreadPoolExecutor(1), str, [], 3)) == []


def test_the_next_item_is_worked_on_while_this_one_is_used() -> None:
    second = threading.Event()

    def work(number: int) -> int:
        if number == 1:
            second.set()
        return number

    results = map_ahead(ThreadPoolExecutor(1), work, range(3), 2)
    assert next(results) == (0, 0)
    assert second.wait(timeout=10)
    assert list(results) == [(1, 1), (2, 2)]


def test_an_error_is_raised_where_the_result_would_have_come() -> None:
    def work(number: int) -> int:
        if number == 2:
            raise OSError("frames.f16 is gone")
        return number

    results = map_ahead(ThreadPoolExecutor(1), work, [1, 2], 3)
    assert next(results) == (1, 1)
    with pytest.raises(OSError, match=r"frames\.f16 is gone"):
        next(results)


def test_few_items_are_taken_and_no_thread_is_left_when_nobody_wants_more() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    before = threading.active_count()
    results = map_ahead(ThreadPoolExecutor(1), str, items(), 2)
    assert next(results) == (0, "0")
    results.close()
    assert threading.active_count() == before
    assert taken == [0, 1]


# --- The end of the parent ------------------------------------------------------------------------

SLOW = """
import time
from antiphon.data.processes import map_in_processes

def work(number):
    time.sleep(0.05)
    return number

def make_work():
    return work

if __name__ == "__main__":
    for _ in map_in_processes(range(100_000), 2, 1, "sleeping", make_work):
        print("working", flush=True)
"""


@needs_proc
@pytest.mark.parametrize("is_early", [False, True], ids=["at work", "while the processes start"])
def test_processes_end_when_their_parent_is_killed(is_early: bool, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    mark = new_mark()
    command = [sys.executable, str(tmp_path / "slow.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **mark}) as process:
        assert process.stdout is not None
        while is_early and len(marked(mark)) < 3:  # this one, the resource tracker, the fork server
            time.sleep(0.001)
        if not is_early:
            assert process.stdout.readline() == b"working\n"
            assert len(marked(mark)) >= 4  # and at least one at work
        process.kill()
    assert wait_for_none(mark, 20) == {}


STARTING = """
import os, signal, sys, time
from concurrent.futures import ProcessPoolExecutor
from antiphon.data.processes import map_in_processes

original = ProcessPoolExecutor._start_executor_manager_thread

def faulty(executor):
    if not getattr(executor, "is_struck", False):
        executor.is_struck = True
        os.kill(os.getpid(), signal.SIGINT)
    original(executor)

def make_work():
    return str

if __name__ == "__main__":
    ProcessPoolExecutor._start_executor_manager_thread = faulty
    try:
        list(map_in_processes(range(10), 2, 1, "counting", make_work))
    except KeyboardInterrupt:
        print("interrupted")
"""


@needs_proc
def test_a_signal_while_a_process_starts_prints_no_traceback_of_that_process(tmp_path: Path) -> None:
    (tmp_path / "starting.py").write_text(STARTING)
    mark = new_mark()
    command = [sys.executable, str(tmp_path / "starting.py")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **mark}, check=False)
    assert wait_for_none(mark, 20) == {}
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
