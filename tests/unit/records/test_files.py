from __future__ import annotations

import errno
import gzip
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TextIO

import numpy as np
import pytest
from safetensors.numpy import save_file

from antiphon.records.files import (
    NotWritten,
    private,
    replace_file,
    replace_text,
    saving,
    with_usual_mode,
    write_text,
)

SmallFiles = Callable[[int], AbstractContextManager[None]]


def test_a_file_is_replaced_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def write(unfinished: Path) -> None:
        unfinished.write_text("new")
        assert path.read_text() == "old"

    replace_file(path, write)
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["lists.jsonl", "lists.jsonl.gz"])
def test_the_same_text_gives_the_same_bytes_at_another_time_and_place(name: str, tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        replace_text(tmp_path / place / name, lambda file: file.write("zwölf\n"))
        time.sleep(1.1 if place == "a" and name.endswith(".gz") else 0)  # gzip has seconds
    first, second = (tmp_path / place / name for place in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    opened = gzip.open if name.endswith(".gz") else open
    with opened(first, "rt", encoding="utf-8") as file:
        assert file.read() == "zwölf\n"


def test_half_a_text_is_never_seen(tmp_path: Path) -> None:
    path = tmp_path / "lists.jsonl"
    path.write_text("old")

    def write(file: TextIO) -> None:
        file.write("new" * 100_000)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace_text(path, write)
    assert [one.name for one in tmp_path.iterdir()] == ["lists.jsonl"]
    assert path.read_text() == "old"


def test_a_text_can_be_written_to_a_link_and_to_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    replace_text(tmp_path / "link", lambda file: file.write("new"))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"
    replace_text(Path("/dev/null"), lambda file: file.write("new"))
    assert Path("/dev/null").is_char_device()


def test_a_file_is_synced_before_its_name_and_its_folder_after_it(tmp_path: Path, steps: list[str]) -> None:
    write_text(tmp_path / "file", "text")
    assert steps == ["sync .file.part", "rename .file.part file", f"sync {tmp_path.name}"]


def test_a_file_that_the_disk_does_not_take_is_named_and_the_old_one_stays(
    tmp_path: Path, small_files: SmallFiles
) -> None:
    write_text(tmp_path / "file", "old")
    with (
        small_files(4096),
        pytest.raises(NotWritten, match=r"could not write .*/file: File too large\. Choose"),
    ):
        write_text(tmp_path / "file", "x" * 10_000)
    assert (tmp_path / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_tensors_that_the_disk_does_not_take_are_named(tmp_path: Path, small_files: SmallFiles) -> None:
    """safetensors raises an error of its own."""
    with (
        small_files(4096),
        pytest.raises(NotWritten, match=r"could not write .*/model: File too large"),
        saving(tmp_path / "model"),
    ):
        save_file({"w": np.zeros(10_000)}, tmp_path / "model")


def test_errors_that_are_not_of_the_disk_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), saving(tmp_path / "file"):
        (tmp_path / "missing").read_text()
    elsewhere = PermissionError(errno.EACCES, "Permission denied", "/another/disk/file")
    with pytest.raises(PermissionError, match="another"), saving(tmp_path / "file"):
        raise elsewhere
    here = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / ".file.part"))
    message = r"could not write .*/file: Permission denied\. Choose another"
    with pytest.raises(NotWritten, match=message), saving(tmp_path / "file"):
        raise here


@pytest.fixture(params=[0o022, 0o077, 0o000])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_private_files_are_their_owner_s_alone_and_others_follow_the_umask(
    tmp_path: Path, umask: int
) -> None:
    write_text(tmp_path / "plain", "text")
    write_text(tmp_path / "secret", "text", is_private=True)
    replace_text(tmp_path / "secret.gz", lambda file: file.write("text"), is_private=True)
    with open(tmp_path / "part", "w", opener=private) as file:
        file.write("text")
    assert mode(tmp_path / "plain") == 0o666 & ~umask
    for name in ("secret", "secret.gz", "part"):
        assert mode(tmp_path / name) == 0o600


def test_tensors_follow_the_umask(tmp_path: Path, umask: int) -> None:
    with with_usual_mode(tmp_path / "model"):
        save_file({"w": np.zeros(1)}, tmp_path / "model")
    assert mode(tmp_path / "model") == 0o666 & ~umask
