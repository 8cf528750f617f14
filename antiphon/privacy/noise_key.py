"""The secret of a private run: 32 random bytes in a file. Who has them can subtract the noise.

Noise and secret cohorts follow from the key, so that a resumed run repeats them. The key is never written to
a journal, a log, a checkpoint or a message.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path

from antiphon.records.files import saving, sync
from antiphon.seeding import derive

KEY_FILE = "noise.key"
NUM_BYTES = 32


def make_key(path: Path) -> None:
    """Write a new key that only its owner can read; keep the one that is there."""
    if path.exists():
        return
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    part = Path(name)
    try:
        with saving(path), os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(NUM_BYTES))
        sync(part)
        with suppress(FileExistsError):  # another process of the run was first: all use its key
            os.link(part, path)
        sync(path.parent)
    finally:
        part.unlink()


def read_key(path: Path) -> bytes:
    """Return the key in a file; refuse a file that others can read."""
    try:
        key = path.read_bytes()
        mode = path.stat().st_mode
    except OSError as error:
        raise ValueError(
            f"the noise key {path} cannot be read ({error.strerror}): a private run needs the key that it "
            "began with, in every process"
        ) from error
    if len(key) != NUM_BYTES:
        raise ValueError(f"the noise key {path} has {len(key)} bytes, not {NUM_BYTES}: it is damaged")
    if mode & 0o077:
        raise ValueError(f"the noise key {path} can be read by others: run chmod 600 on it")
    return key


def simulated_key(seed: int) -> bytes:
    """Return the key of a simulation, which everyone who knows the seed can compute."""
    return hashlib.blake2b(str(derive(seed, "noise key")).encode(), digest_size=NUM_BYTES).digest()


def derived_key(key: bytes, purpose: str) -> bytes:
    """Return a key for one purpose; keys for different purposes are independent."""
    return hashlib.blake2b(purpose.encode(), key=key, digest_size=NUM_BYTES).digest()
