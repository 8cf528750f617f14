"""The secret of a private run: 32 random bytes in a file. Whoever has them can subtract the noise.

Noise and secret cohorts follow from the key, so that a resumed run repeats them. The key is never written to
a journal, a log, a checkpoint or a message.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from antiphon.records import key_file
from antiphon.records.key_file import NUM_BYTES, make_key
from antiphon.seeding import derive

__all__ = ["KEY_FILE", "derived_key", "make_key", "read_key", "simulated_key"]

KEY_FILE = "noise.key"


def read_key(path: Path) -> bytes:
    """Return the key in a file; refuse a file that others can read."""
    advice = "a private run needs the key that it began with, in every process"
    return key_file.read_key(path, "noise key", advice)


def simulated_key(seed: int) -> bytes:
    """Return the key of a simulation, which everyone who knows the seed can compute."""
    return hashlib.blake2b(str(derive(seed, "noise key")).encode(), digest_size=NUM_BYTES).digest()


def derived_key(key: bytes, purpose: str) -> bytes:
    """Return a key for one purpose; keys for different purposes are independent."""
    return hashlib.blake2b(purpose.encode(), key=key, digest_size=NUM_BYTES).digest()
