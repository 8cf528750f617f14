"""Processes that a test has started, and those that they have started: found by a mark they inherit."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from pathlib import Path

import pytest

VARIABLE = "ANTIPHON_TEST_MARK"
needs_proc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc")


def new_mark() -> dict[str, str]:
    """An environment variable for a process; those that it starts inherit it."""
    return {VARIABLE: secrets.token_hex(8)}


def marked(mark: dict[str, str]) -> dict[int, str]:
    """The processes with this mark that run, by number, with their command."""
    wanted = f"{VARIABLE}={mark[VARIABLE]}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            has_mark = wanted in (folder / "environ").read_bytes().split(b"\0")
            if has_mark and (folder / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found[int(folder.name)] = command
        except (OSError, ProcessLookupError):  # it has ended, or belongs to somebody else
            continue
    return found


def wait_for_none(mark: dict[str, str], seconds: float) -> dict[int, str]:
    """Wait until no such process runs; return those that are left after some seconds, and kill them."""
    deadline = time.monotonic() + seconds
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for number in left:
        os.kill(number, signal.SIGKILL)
    return left
