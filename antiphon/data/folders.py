"""Folders that appear complete or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def check_destination(source: Path, destination: Path, overwrite: bool) -> None:
    """Refuse, before any work, a destination that must not be written or replaced."""
    if not destination.exists() and not destination.is_symlink():
        return
    if not overwrite:
        raise ValueError(f"{destination} exists already: choose another name, or overwrite it (--overwrite)")
    if source.resolve().is_relative_to(destination.resolve()):
        raise ValueError(f"{destination} holds the source {source}: it cannot be replaced by the corpus")
    is_corpus = (destination / "corpus.json").is_file()
    if (
        destination.is_symlink()
        or not destination.is_dir()
        or not (is_corpus or not any(destination.iterdir()))
    ):
        raise ValueError(f"{destination} is not a corpus: only a corpus is ever overwritten")


@contextmanager
def new_folder(destination: Path) -> Iterator[Path]:
    """A folder to fill, beside its destination; it takes the destination's name (and place) at the end.

    On any error, Ctrl-C included, it is removed and what was at the destination is as before.
    """
    destination = destination.absolute()
    destination.parent.mkdir(parents=True, exist_ok=True)
    token = secrets.token_hex(4)
    folder = destination.with_name(f".{destination.name}.making-{token}")
    folder.mkdir()
    try:
        yield folder
        _put_in_place(folder, destination, destination.with_name(f".{destination.name}.old-{token}"))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _put_in_place(folder: Path, destination: Path, old: Path) -> None:
    if not destination.exists():
        os.rename(folder, destination)
        return
    os.rename(destination, old)
    try:
        os.rename(folder, destination)
    except BaseException:
        os.rename(old, destination)
        raise
    shutil.rmtree(old, ignore_errors=True)
