"""Files and folders that appear complete or not at all.

A process can be killed at any time. Until a file or folder is complete it has another name, and the old one
stays unchanged.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from antiphon.records.maker import OLD, beside, tidy, unfinished

MAKING, PART = "making", "part"  # purposes of folders and files that are not complete


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file, which gets its name when it is complete. `write` is called with the path to write to."""
    tidy(path)
    part = beside(path, PART)
    try:
        write(part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 checksum of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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


def check_name(name: str, what: str, advice: str) -> None:
    """Refuse a name that cannot be the name of one file or folder, or could lead out of its folder.

    >>> check_name("dga-1", "run", "rename it")
    """
    is_plain = name.isprintable() and not any(mark in name for mark in "/\\")
    if not name or name.startswith(".") or name != name.strip() or not is_plain or len(name.encode()) > 200:
        raise ValueError(
            f"{what} {name!r} cannot be the name of a folder: {advice}. Names have no /, \\ or control "
            "characters, begin with no point, neither begin nor end with a space, and have at most 200 bytes"
        )


def read_format(path: Path, format: str, what: str) -> dict[str, Any]:
    """Read a JSON object that must name its format; an error says that the folder holds no `what`."""
    try:
        body: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path.parent} holds no {what} (cannot read {path.name}: {error})") from error
    actual = body.get("format") if isinstance(body, dict) else None
    if actual != format:
        raise ValueError(f"{path} has format {actual!r}, this antiphon reads {format!r}: make it again")
    return dict(body)


@contextmanager
def new_folder(destination: Path, several: bool = False) -> Iterator[Path]:
    """Yield an empty folder beside the destination; at the end it replaces the destination.

    On any error, including Ctrl-C, it is removed and the destination stays as it was. What killed processes
    left beside the destination is removed first. Two processes cannot make the same folder at once, unless
    `several` may make the same contents: then the first one to finish makes it.
    """
    destination = destination.absolute()
    destination.parent.mkdir(parents=True, exist_ok=True)
    tidy(destination)
    before = _identity(destination)
    folder = beside(destination, MAKING)
    folder.mkdir()
    try:
        if not several:
            _refuse_other_makers(destination, folder)
        yield folder
        if not _publish(folder, destination, before) and not several:
            raise ValueError(f"{destination} was made by another process meanwhile: choose another folder")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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


def sync(path: Path) -> None:
    """Wait until a file or folder is on disk, so that it survives a crash of the machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
