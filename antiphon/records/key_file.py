"""A secret key: 32 random bytes in a file that only its owner can read."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from antiphon.records.files import make_folder, private, read_whole, saving, sync
from antiphon.records.maker import beside

NUM_BYTES = 32


def make_key(path: Path) -> None:
    """Write a new key; keep the one that is there. Of several processes, the first makes it for all."""
    if path.exists():
        return
    make_folder(path.absolute().parent)
    part = beside(path.absolute(), "part")
    try:
        with saving(path):
            with open(part, "xb", opener=private) as file:
                file.write(secrets.token_bytes(NUM_BYTES))
            sync(part)
            with suppress(FileExistsError):
                os.link(part, path)
            sync(path.absolute().parent)
    finally:
        part.unlink(missing_ok=True)


def read_key(path: Path, what: str, advice: str) -> bytes:
    """Return the key in a file; refuse one that others can read.

    what: what the key is, in errors. advice: what to do if it cannot be read.
    """
    try:
        key = read_whole(path)
        mode = path.stat().st_mode
    except OSError as error:
        raise ValueError(f"the {what} {path} cannot be read ({error.strerror}): {advice}") from error
    if len(key) != NUM_BYTES:
        raise ValueError(f"the {what} {path} has {len(key)} bytes, not {NUM_BYTES}: it is damaged")
    if mode & 0o077:
        raise ValueError(f"the {what} {path} can be read by others: run chmod 600 on it")
    return key
