"""Signals that ask a command to end: Ctrl-C (SIGINT), SIGTERM, and SIGHUP of a terminal that is closed.

Outside of rounds they raise KeyboardInterrupt with a reason; in rounds they stop the run with that reason.
Where Python would lose or change the exception, it is raised a little later. A signal that is ignored when
the command starts, as with nohup, stays ignored.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

REASONS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
FINISHING = "\nfinishing the current client, then saving; press again to stop at once"
IMPORTING = "<frozen importlib._bootstrap>"  # the file of the frames of Python's import system
PAUSE = 0.02  # seconds until a signal that came in an import comes again
Handle = Callable[[int], None]


def exit_code(reason: str) -> int | None:
    """Return the exit code of a command that a signal has ended; None for another reason.

    >>> exit_code("interrupted"), exit_code("terminated"), exit_code("too few clients")
    (130, 143, None)
    """
    return next((128 + number for number, text in REASONS.items() if text == reason), None)


@contextmanager
def on_signals(handle: Handle) -> Iterator[None]:
    """Call `handle` with the number of each signal. Does nothing in a thread, which gets no signals."""

    def call(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _silence(terminals)
        handle(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]
    heeded = [number for number in REASONS if signal.getsignal(number) != signal.SIG_IGN]
    before = [signal.signal(number, call) for number in heeded]
    try:
        yield
    finally:
        for number, handler in zip(heeded, before, strict=True):
            signal.signal(number, handler)


def exit_at_once(number: int) -> None:
    """Exit without cleaning up: nothing has begun, and an exception inside an import can get lost."""
    if os.environ.get("RANK", "0") == "0":  # of several processes, the first one tells
        reason = REASONS[signal.Signals(number)].capitalize()
        os.write(2, f"\n{reason}: nothing was done.\n".encode())
    os._exit(128 + number)


def interrupt(number: int) -> None:
    """Raise KeyboardInterrupt with the reason."""
    raise KeyboardInterrupt(REASONS[signal.Signals(number)])


def interrupt_safely(number: int) -> None:
    """Raise KeyboardInterrupt with the reason; in an import, let the signal come again until it has ended.

    Libraries catch all that their own imports raise. Python makes another error from it, or leaves modules
    behind that are half made. The command would go on, or end with a traceback.
    """
    if _is_importing(sys._getframe(1)):
        _send_again(number)
    else:
        interrupt(number)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != IMPORTING:
        frame = frame.f_back
    return frame is not None


def _send_again(number: int) -> None:
    def send() -> None:
        time.sleep(PAUSE)
        signal.pthread_kill(main, number)

    main = threading.get_ident()  # only the main thread gets signals
    _thread.start_new_thread(send, ())  # threading's own would wait for locks that this thread may hold


@contextmanager
def interrupting() -> Iterator[None]:
    """Let signals raise KeyboardInterrupt, also one that comes while Python tidies up an object (`__del__`).

    Python prints what is raised there, and goes on: such a signal comes again.
    """
    before = sys.unraisablehook

    def hear(unraisable: sys.UnraisableHookArgs) -> None:
        error = unraisable.exc_value
        number = exit_code(reason_of(error)) if isinstance(error, KeyboardInterrupt) else None
        if number is None:
            before(unraisable)
        else:
            _send_again(number - 128)

    sys.unraisablehook = hear
    try:
        with on_signals(interrupt_safely):
            yield
    finally:
        sys.unraisablehook = before


def reason_of(error: KeyboardInterrupt) -> str:
    """Return why a KeyboardInterrupt was raised."""
    return str(error) or REASONS[signal.SIGINT]


def interruption_in(error: BaseException | None) -> KeyboardInterrupt | None:
    """Return the KeyboardInterrupt that an error is, or was made from.

    Python itself makes other errors from one: a RuntimeError, if the signal comes while a class is being made
    whose attributes want to know their names (`__set_name__`), as in an import of matplotlib.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__
    return error


class Interrupt(threading.Event):
    """Set when a signal has come; `reason` says which one came first."""

    reason = ""


@contextmanager
def interruptible(loud: bool = True) -> Iterator[Interrupt]:
    """Turn a signal into an event, so that the run stops cleanly; the second one stops at once."""
    asked = Interrupt()

    def ask(number: int) -> None:
        if asked.is_set():
            interrupt_safely(number)
            return
        asked.reason = REASONS[signal.Signals(number)]
        asked.set()
        if loud:
            with suppress(RuntimeError):  # the signal came while something else was being printed
                print(FINISHING, file=sys.stderr)

    with on_signals(ask):
        yield asked


def _silence(terminals: list[int]) -> None:
    """Print nowhere from now on: writing to a closed terminal is an error."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in terminals:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
