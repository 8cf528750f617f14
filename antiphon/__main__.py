"""`python -m antiphon`, and the entry point of the command `antiphon`."""

from __future__ import annotations

import os
import signal
from types import FrameType


def main() -> None:
    """Import the command line and run it; Ctrl-C during the import prints one line."""
    usual = signal.getsignal(signal.SIGINT) == signal.default_int_handler  # else Ctrl-C is ignored
    if usual:
        signal.signal(signal.SIGINT, _exit_at_once)
    from antiphon.cli import main as run_command_line  # takes seconds: torch

    if usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run_command_line()


def _exit_at_once(number: int, frame: FrameType | None) -> None:
    """Exit without cleaning up: nothing has begun, and an exception inside an import can get lost."""
    os.write(2, b"\nInterrupted: nothing was done.\n")
    os._exit(130)


if __name__ == "__main__":
    main()
