"""`python -m antiphon`, and the entry point of the command `antiphon`."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

from antiphon.pools.signals import REASONS, exit_at_once, exit_code, reason_of


def main() -> None:
    """Import the command line and run it; a signal before or after that prints no traceback."""
    heeded = [number for number in REASONS if signal.getsignal(number) != signal.SIG_IGN]
    for number in heeded:
        signal.signal(number, lambda number, frame: exit_at_once(number))
    from antiphon.cli import main as run_command_line

    try:
        run_command_line()
    except KeyboardInterrupt as error:  # a second signal, while it told of the first
        os._exit(exit_code(reason_of(error)) or 1)
    finally:
        with suppress(OSError):  # nobody reads it any more
            sys.stdout.flush()
        for number in heeded:
            signal.signal(number, lambda number, frame: os._exit(128 + number))  # all is done or told


if __name__ == "__main__":
    main()
