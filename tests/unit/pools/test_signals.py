"""Signals that ask a command to end, sent to this process or to a real one in a terminal."""

from __future__ import annotations

import importlib
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from antiphon.core import Stopped
from antiphon.pools.recording import stop_if
from antiphon.pools.signals import (
    REASONS,
    exit_code,
    interrupt,
    interruptible,
    interrupting,
    interruption_in,
    on_signals,
    reason_of,
)

ALL = pytest.mark.parametrize("number", list(REASONS))


@ALL
def test_a_signal_raises_its_reason_which_gives_the_exit_code(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt) as error, on_signals(interrupt):
        os.kill(os.getpid(), number)
    assert exit_code(reason_of(error.value)) == 128 + number
    assert exit_code("fewer clients answered than needed") is None
    assert exit_code(reason_of(KeyboardInterrupt())) == 130  # that of Python itself


@ALL
def test_in_a_run_the_first_signal_asks_and_the_second_stops_at_once(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {other: signal.getsignal(other) for other in REASONS}
    with interruptible() as asked:
        stop_if(asked)
        os.kill(os.getpid(), number)
        with pytest.raises(Stopped, match=REASONS[number]):
            stop_if(asked)
        with pytest.raises(KeyboardInterrupt, match="terminated"):
            os.kill(os.getpid(), signal.SIGTERM)
    assert capsys.readouterr().err.count("press again to stop at once") == 1
    assert {other: signal.getsignal(other) for other in REASONS} == before


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as with nohup
    try:
        with on_signals(interrupt):
            os.kill(os.getpid(), signal.SIGHUP)
        with interruptible() as asked:
            os.kill(os.getpid(), signal.SIGHUP)
        assert not asked.is_set()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


class Struck:
    """An attribute whose class is being made when a signal comes."""

    def __set_name__(self, owner: type, name: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_is_found_in_the_error_that_python_makes_from_it() -> None:
    """Python 3.11 raises a RuntimeError here, later versions the KeyboardInterrupt itself."""
    with pytest.raises(BaseException) as error, on_signals(interrupt):
        type("Owner", (), {"attribute": Struck()})
    found = interruption_in(error.value)
    assert found is not None
    assert reason_of(found) == "terminated"
    assert interruption_in(RuntimeError("of its own")) is None


SWALLOWING = """
import os, signal
try:
    os.kill(os.getpid(), signal.NAME)
    print("imported")
except:  # as libraries do for what need not be there
    print("lost")
"""


@ALL
def test_a_signal_in_an_import_is_raised_when_the_import_has_ended(
    number: signal.Signals,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = f"swallows_{number.name}"
    (tmp_path / f"{name}.py").write_text(SWALLOWING.replace("NAME", number.name))
    monkeypatch.syspath_prepend(tmp_path)

    def use() -> None:
        importlib.import_module(name)
        time.sleep(30)

    with pytest.raises(KeyboardInterrupt, match=REASONS[number]), interrupting():
        use()
    assert capsys.readouterr().out == "imported\n"


class Leaving:
    """An object that is being tidied up when a signal comes."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)  # here Python calls the handler


@pytest.mark.filterwarnings("error")  # pytest makes warnings of what Python would print
def test_a_signal_that_python_would_only_print_is_raised() -> None:
    def leave() -> None:
        Leaving()
        time.sleep(30)

    with pytest.raises(KeyboardInterrupt, match="terminated"), interrupting():
        leave()


IN_A_TERMINAL = """
import sys, time
from pathlib import Path
from antiphon.pools.signals import interrupt, on_signals, reason_of
try:
    with on_signals(interrupt):
        print("ready", flush=True)
        time.sleep(60)
except KeyboardInterrupt as error:
    print("an end", flush=True)
    print("one more line", file=sys.stderr, flush=True)
    Path(sys.argv[1]).write_text(reason_of(error))
"""


def test_a_closed_terminal_is_no_error(tmp_path: Path) -> None:
    """Writing to it would be one."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", IN_A_TERMINAL, str(tmp_path / "reason")]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        assert os.read(ours, 5) == b"ready"
        os.close(ours)
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 0
    assert (tmp_path / "reason").read_text() == "hung up"
