"""The lifeline of a started process: a pipe from the process that started it, which closes when that ends."""

from __future__ import annotations

import os
import signal
import threading
from functools import cache

LIFELINE = "ANTIPHON_LIFELINE"  # standard input is a pipe from the parent, which closes when the parent ends


@cache
def end_with_starter() -> None:
    """In a started process: stop cleanly, as on SIGTERM, when the process that started it has ended."""
    if LIFELINE not in os.environ:
        return

    def watch() -> None:
        os.read(0, 1)  # returns when the pipe closes: nothing is ever written to it
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
