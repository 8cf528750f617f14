"""The heap of a process that trains on a CPU: free memory goes back to the system now and then.

New batches have new sizes, so freed tensors leave holes that the next ones do not fit in, and the heap grows
to several times what is in use. glibc gives such holes back only if it is told to.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import cache

SECONDS = 10.0  # between two calls; each takes some ten milliseconds, with the pages that are needed again
_last = 0.0


def give_back_holes() -> None:
    """Give free memory back to the system, if the last time was long ago."""
    global _last
    now = time.monotonic()
    if now - _last >= SECONDS:
        _last = now
        _trim()(0)


@cache
def _trim() -> Callable[[int], object]:
    """Return glibc's function; one that does nothing on other systems."""
    try:
        trim: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return lambda room: None
    return trim
