"""Files that appear complete or not at all, and checksums that show later damage.

A process can be killed at any time, and a machine can lose power. Until a file is complete and on the disk it
has another name, and the old one stays unchanged (`antiphon.records.folders` for folders).

Every folder that antiphon writes has a JSON file that describes it. Its key "sha256" is the checksum of the
rest of the object, and "files" has the checksums of other files in the folder. A large file NAME is read in
parts, so NAME.sums has a checksum for each of its blocks. Folders of older versions have no checksums and are
not checked.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote

from safetensors import SafetensorError

from antiphon.records.maker import beside, short_name, tidy, uninterrupted

MAKING, PART = "making", "part"  # purposes of folders and files that are not complete
CHECKSUM = "sha256"  # key of a JSON object: the checksum of the rest of it
FILES = "files"  # key of a JSON object: name -> checksum of files in its folder
SUMS = ".sums"  # end of the name of a file with checksums of blocks
BLOCK = 1 << 16  # bytes of a block
SUM_BYTES = 16  # of the SHA-256 checksum of a block
ADVICE = "Restore it, or make it again"
SPACE = "Free some space, then give the command again (a run goes on with --resume)"
DISK_ERRORS = {
    errno.ENOSPC: SPACE,
    errno.EDQUOT: SPACE,
    errno.EFBIG: "Choose a disk that takes larger files",
    errno.EIO: "Check the disk",
    errno.EROFS: "Choose another folder",
    errno.EACCES: "Choose another folder, or change its permissions",
}


class Damaged(ValueError):
    """A file is not as it was written: its checksum does not match, or it is missing."""


class NotWritten(OSError):
    """The disk did not take a file or folder: it is full, fails, or must not be written to."""

    def __init__(self, path: Path, number: int, note: str = "") -> None:
        super().__init__(f"could not write {path}: {os.strerror(number)}. {note}{DISK_ERRORS[number]}")
        self.number = number


@contextmanager
def saving(path: Path, note: str = "") -> Iterator[None]:
    """Turn errors of the disk into `NotWritten`, which says what to do. `note`: what else to say."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if (number := _number_of(error, path.absolute().parent)) is None:
            raise
        raise NotWritten(path, number, note) from error


def _number_of(error: Exception, folder: Path) -> int | None:
    """Return the number of an error of the disk that a folder is on; None for another error."""
    if isinstance(error, NotWritten):
        return error.number
    if isinstance(error, OSError):
        number, name = error.errno, error.filename
        is_elsewhere = isinstance(name, str | Path) and not Path(name).absolute().is_relative_to(folder)
        return number if number in DISK_ERRORS and not is_elsewhere else None
    found = re.search(r"os error (\d+)", str(error))  # as safetensors writes it
    return int(found[1]) if found and int(found[1]) in DISK_ERRORS else None


@contextmanager
def with_usual_mode(path: Path) -> Iterator[None]:
    """Give a file the permissions of any other: safetensors makes files that only their owner can read."""
    path.touch()
    mode = path.stat().st_mode
    yield
    path.chmod(mode)


def private(path: str, flags: int) -> int:
    """Open a file that only its owner can read, as the `opener` of `open`."""
    return os.open(path, flags, 0o600)


def regular(path: str, flags: int) -> int:
    """Open a regular file, as the `opener` of `open`: a pipe in its place would have us wait for ever."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "it is a pipe or a device, not a regular file", path)


def read_whole(path: Path) -> bytes:
    """Return the bytes of a regular file."""
    with open(path, "rb", opener=regular) as file:
        return file.read()


def replace_file(path: Path, write: Callable[[Path], object], is_private: bool = False) -> None:
    """Write a file, which gets its name when it is complete and on the disk.

    `write` is called with the path to write to. A private file can be read by its owner only.
    """
    tidy(path)
    part = beside(path, PART)
    try:
        with saving(path):
            open(part, "xb", opener=private if is_private else None).close()
            write(part)
            sync(part)
            os.replace(part, path)
            sync(path.parent)
    finally:
        with uninterrupted():
            part.unlink(missing_ok=True)


def replace_text(
    path: Path, write: Callable[[TextIO], object], level: int = 9, is_private: bool = False
) -> None:
    """Write a text file as `replace_file` does, compressed if its name ends in .gz.

    The same text gives the same bytes. `write` is called with the open file; `level` is that of gzip.
    """

    def write_to(part: Path) -> None:
        with part.open("wb") as raw, ExitStack() as stack:
            file: Any = raw
            if path.suffix == ".gz":  # without name and time
                file = stack.enter_context(gzip.GzipFile("", "wb", level, raw, mtime=0))
            write(stack.enter_context(io.TextIOWrapper(file, encoding="utf-8", newline="\n")))

    if path.exists() and not path.is_file():  # such as /dev/stdout
        write_to(path)
    else:
        replace_file(path.resolve(), write_to, is_private)  # of a link, the file that it leads to


def write_text(path: Path, text: str, is_private: bool = False) -> None:
    """Write a text file as `replace_file` does; lone surrogates are escaped."""
    data = text.encode(errors="backslashreplace")
    replace_file(path, lambda part: part.write_bytes(data), is_private)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 checksum of a file, in hexadecimal digits."""
    with open(path, "rb", opener=regular) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- Checksums ------------------------------------------------------------------------------------


def with_checksum(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with its checksum.

    >>> without_checksum(with_checksum({"round": 1}), "clock.jsonl")
    {'round': 1}
    """
    return {**body, CHECKSUM: _checksum(body)}


def without_checksum(body: Mapping[str, Any], where: object, advice: str = ADVICE) -> dict[str, Any]:
    """Compare a JSON object with its checksum, if it has one; return the rest of it."""
    rest = {key: value for key, value in body.items() if key != CHECKSUM}
    key, value = list(body.items())[-1] if body else ("", "")
    is_lost = not key.endswith(CHECKSUM) and re.fullmatch("[0-9a-f]{64}", str(value))  # its key is damaged
    if is_lost or (CHECKSUM in body and body[CHECKSUM] != _checksum(rest)):
        raise Damaged(f"{where} is damaged, or was edited: its checksum does not match. {advice}")
    return rest


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, separators=(",", ":")).encode()).hexdigest()


def write_json(
    path: Path,
    body: Mapping[str, Any],
    files: Iterable[str] = (),
    indent: int | None = 1,
    is_private: bool = False,
) -> None:
    """Write a JSON object with its checksum, and with those of finished files in its folder."""
    sums = {name: sha256_of(path.parent / name) for name in files}
    whole = with_checksum({**body, FILES: sums} if sums else body)
    write_text(path, json.dumps(whole, indent=indent, ensure_ascii=False) + "\n", is_private)


def check_files(
    folder: Path,
    body: Mapping[str, Any],
    names: Iterable[str] | None = None,
    advice: str = ADVICE,
    doubtful: str = "",
) -> None:
    """Compare files of a folder, or those of `names`, with the checksums in the JSON object about it.

    `doubtful` is the name of its file if that may have been edited: it has no checksum of its own.
    """
    doubt = f", or {doubtful} was edited" if doubtful else ""
    sums: Mapping[str, str] = body.get(FILES) or {}
    for name in sums if names is None else names:
        if name not in sums:
            continue
        if not (folder / name).is_file():
            raise Damaged(f"{folder / name} is missing{doubt}. {advice}")
        if sha256_of(folder / name) != sums[name]:
            raise Damaged(f"{folder / name} is damaged{doubt}: its checksum does not match. {advice}")


def write_sums(path: Path) -> str:
    """Write the checksums of a file's blocks beside it; return the name of the new file."""
    with path.open("rb") as file:
        blocks = iter(lambda: file.read(BLOCK), b"")
        sums = b"".join(hashlib.sha256(block).digest()[:SUM_BYTES] for block in blocks)
    target = path.with_name(path.name + SUMS)
    target.write_bytes(sums)
    return target.name


class CheckedBlocks:
    """Compares blocks of a file with their checksums, each before its first use in this process.

    `read` returns the bytes of the file from one place to another. Without the file `sums`, nothing is
    checked.
    """

    def __init__(self, path: Path, read: Callable[[int, int], Any], has_sums: bool, advice: str) -> None:
        self.path, self.read, self.advice = path, read, advice
        self._sums = read_whole(path.with_name(path.name + SUMS)) if has_sums else b""
        self._unchecked = bytearray(b"\1") * (len(self._sums) // SUM_BYTES)

    def check(self, start: int, stop: int) -> None:
        """Check the blocks that hold the bytes from `start` to `stop`; `Damaged` names the file."""
        if not self._sums:
            return
        first, last = start // BLOCK, -(-stop // BLOCK)
        while (block := self._unchecked.find(1, first, last)) >= 0:
            digest = hashlib.sha256(self.read(block * BLOCK, (block + 1) * BLOCK)).digest()
            if digest[:SUM_BYTES] != self._sums[block * SUM_BYTES : (block + 1) * SUM_BYTES]:
                raise Damaged(
                    f"{self.path} is damaged: the checksum of bytes {block * BLOCK:,} to "
                    f"{(block + 1) * BLOCK:,} does not match. {self.advice}"
                )
            self._unchecked[block] = 0


# --- Names and formats ----------------------------------------------------------------------------


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


def file_name(text: str) -> str:
    """Return the name of a file or folder for any text, such as the name of a client.

    It leads nowhere else, differs for different texts, and has at most 255 bytes: a longer one is cut, and
    ends with a digest of the whole.

    >>> file_name("speaker/ada"), file_name("../名")
    ('speaker%2Fada', '%2E%2E%2F%E5%90%8D')
    """
    return short_name(quote(text, safe="", errors="surrogatepass").replace(".", "%2E"), 255)


def make_folder(folder: Path) -> None:
    """Make a folder, and the folders above it that are missing; they survive a crash of the machine."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    with saving(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path in reversed(missing):
            sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file or folder is on disk, so that it survives a crash of the machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
