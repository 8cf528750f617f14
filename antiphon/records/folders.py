"""Folders that appear complete or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from antiphon.records.files import MAKING, make_folder, saving, sync
from antiphon.records.maker import OLD, beside, tidy, unfinished, uninterrupted


def check_new_folder(folder: Path) -> None:
    """Refuse, before any work, a folder that cannot be made because there is a file."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise ValueError(f"{nearest} is a file, not a folder: choose another folder")


def check_new_file(path: Path) -> None:
    """Refuse, before any work, a file that cannot be written: it is a folder, or its folder is missing."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file, such as one in it")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{path} cannot be written: there is no folder {path.parent}")


def files_in(folder: Path) -> list[str]:
    """Return the names of all files in a folder and its folders."""
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]


@contextmanager
def new_folder(destination: Path, several: bool = False) -> Iterator[Path]:
    """Yield an empty folder beside the destination; at the end it replaces the destination.

    On any error, including Ctrl-C, it is removed and the destination stays as it was. What killed processes
    left beside the destination is removed first. Two processes cannot make the same folder at once, unless
    `several` may make the same contents: then the first one to finish makes it.
    """
    shown, destination = destination, destination.absolute()
    make_folder(destination.parent)
    tidy(destination)
    before = _identity(destination)
    folder = beside(destination, MAKING)
    try:
        with saving(shown):
            folder.mkdir()
            if not several:
                _refuse_other_makers(destination, folder)
            yield folder
            _sync_all(folder)
            with uninterrupted():
                is_published = _publish(folder, destination, before)
            sync(destination.parent)
        if not is_published and not several:
            raise ValueError(f"{destination} was made by another process meanwhile: choose another folder")
    finally:
        with uninterrupted():
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def filled_folder(folder: Path, main: str) -> Iterator[Path]:
    """Yield an empty folder; at the end its files go to `folder`, the file `main` last.

    Other files that are there already stay. On an error before the end, nothing is changed.
    """
    if not folder.exists():
        with new_folder(folder) as made:
            yield made
        return
    tidy(folder / main)
    made = beside(folder / main, MAKING)
    try:
        with saving(folder):
            made.mkdir()
            yield made
            _sync_all(made)
            for name in sorted(files_in(made), key=lambda name: (name == main, name)):
                make_folder((folder / name).parent)
                os.replace(made / name, folder / name)
                sync((folder / name).parent)
    finally:
        with uninterrupted():
            shutil.rmtree(made, ignore_errors=True)


def _sync_all(folder: Path) -> None:
    """Wait until all files in a folder, and in its folders, are on disk."""
    for path in sorted(folder.rglob("*")):
        sync(path)
    sync(folder)


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return what tells a folder from a later one of the same name; None if it is missing or empty."""
    try:
        if not any(folder.iterdir()):
            return None
        status = folder.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _refuse_other_makers(destination: Path, own: Path) -> None:
    for path, purpose, maker in unfinished(destination):
        if purpose == MAKING and path != own:
            raise ValueError(
                f"{destination} is being made by {maker}: wait until it has ended, or stop it. If it has "
                f"ended, remove {path}"
            )


def _publish(folder: Path, destination: Path, before: tuple[int, int] | None) -> bool:
    """Give a folder its name, in place of what was there before; False if there is another one by now."""
    old = beside(destination, OLD)
    try:
        if before is not None and _identity(destination) == before:
            os.rename(destination, old)
        os.rename(folder, destination)  # replaces an empty folder only
    except BaseException as error:
        with suppress(OSError):
            os.rename(old, destination)
        if not (isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST)):
            raise
        return False
    finally:
        if destination.exists():
            shutil.rmtree(old, ignore_errors=True)
    return True
