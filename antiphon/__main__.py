"""`python -m antiphon`, and the entry point of the command `antiphon`."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType

REASONS = {signal.SIGINT: "Interrupted", signal.SIGTERM: "Terminated", signal.SIGHUP: "Hung up"}


def main() -> None:
    """Import the command line and run it; a signal before or after that prints no traceback."""
    heeded = [number for number in REASONS if signal.getsignal(number) != signal.SIG_IGN]
    for number in heeded:
        signal.signal(number, _exit_at_once)
    from antiphon.cli import main as run_command_line
    from antiphon.pools.signals import exit_code, reason_of

    try:
        run_command_line()
    except KeyboardInterrupt as error:  # a second signal, while it told of the first
        os._exit(exit_code(reason_of(error)) or 1)
    finally:
        with suppress(OSError):  # nobody reads it any more
            sys.stdout.flush()
        for number in heeded:
            signal.signal(number, lambda number, frame: os._exit(128 + number))  # all is done or told


def _exit_at_once(number: int, frame: FrameType | None) -> None:
    """Exit without cleaning up: nothing has begun, and an exception inside an import can get lost."""
    if os.environ.get("RANK", "0") == "0":  # of several processes, the first one tells
        os.write(2, f"\n{REASONS[signal.Signals(number)]}: nothing was done.\n".encode())
    os._exit(128 + number)


if __name__ == "__main__":
    main()
