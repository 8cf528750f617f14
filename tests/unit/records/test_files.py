from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path
from typing import Any, TextIO

import pytest

from antiphon.records.files import (
    BLOCK,
    CheckedBlocks,
    Damaged,
    check_files,
    replace_file,
    replace_text,
    sha256_of,
    with_checksum,
    without_checksum,
    write_json,
    write_sums,
)
from antiphon.records.folders import check_new_file, check_new_folder, files_in, filled_folder, new_folder
from antiphon.records.reading import read_object


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


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    with new_folder(tmp_path / "deep" / "made") as folder:
        (folder / "file").write_text("new")
        assert not (tmp_path / "deep" / "made").exists()
    assert (tmp_path / "deep" / "made" / "file").read_text() == "new"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["made"]


def test_what_was_there_is_replaced_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "old").write_text("old")
    with new_folder(tmp_path / "made") as folder:
        (folder / "file").write_text("new")
        assert (tmp_path / "made" / "old").exists()
    assert [path.name for path in tmp_path.rglob("*")] == ["made", "file"]


def test_an_interruption_leaves_everything_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "old").write_text("old")

    def interrupted() -> None:
        with new_folder(tmp_path / "made") as folder:
            (folder / "file").write_text("new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [path.name for path in tmp_path.rglob("*")] == ["made", "old"]


def test_a_folder_where_a_file_is_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    for folder in (tmp_path / "thesis.tex", tmp_path / "thesis.tex" / "deep" / "er"):
        with pytest.raises(ValueError, match=r"thesis\.tex is a file, not a folder: choose another folder"):
            check_new_folder(folder)
    for folder in (tmp_path, tmp_path / "new" / "er", Path("relative")):
        check_new_folder(folder)


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a folder: name a file"):
        check_new_file(tmp_path)
    with pytest.raises(ValueError, match=r"cannot be written: there is no folder .*missing"):
        check_new_file(tmp_path / "missing" / "lists.jsonl")
    check_new_file(tmp_path / "lists.jsonl")
    check_new_file(Path("lists.jsonl"))


# --- Checksums ------------------------------------------------------------------------------------

BODY = {"format": "test/1", "größe": 0.1, "names": ["a", None], "deep": {"x": 1e-300}}


def test_an_object_with_its_checksum_comes_back_and_any_changed_value_is_found() -> None:
    whole = json.loads(json.dumps(with_checksum(BODY)))
    assert without_checksum(whole, "file") == BODY
    for key in BODY:
        with pytest.raises(Damaged, match=r"about\.json is damaged, or was edited.*\. make it anew"):
            without_checksum({**whole, key: 7}, "about.json", "make it anew")


def test_an_object_whose_checksum_has_a_damaged_key_is_refused() -> None:
    whole = with_checksum(BODY)
    with pytest.raises(Damaged):
        without_checksum({**BODY, "sha25v": whole["sha256"]}, "file")


def test_an_object_of_an_older_version_has_no_checksum_and_is_not_checked() -> None:
    for body in (BODY, {}, {"data_sha256": "0" * 64}):
        assert without_checksum(body, "file") == body


def test_a_json_file_lists_the_checksums_of_other_files_which_sha256sum_confirms(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "data").write_bytes(b"abc")
    write_json(tmp_path / "about.json", BODY, ["inner/data"])
    body = read_object(tmp_path / "about.json", "test/1", "test")
    # SHA-256 of "abc": FIPS 180-2, appendix B.1.
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert body == {**BODY, "files": {"inner/data": digest}}
    check_files(tmp_path, body)
    (tmp_path / "inner" / "data").write_bytes(b"abd")
    with pytest.raises(Damaged, match=r"inner/data is damaged: its checksum does not match\. Restore"):
        check_files(tmp_path, body)
    check_files(tmp_path, body, names=["other"])
    (tmp_path / "inner" / "data").unlink()
    with pytest.raises(Damaged, match=r"inner/data is missing"):
        check_files(tmp_path, body)


def blocks_of(path: Path, reads: list[tuple[int, int]]) -> CheckedBlocks:
    def read(start: int, stop: int) -> bytes:
        reads.append((start, stop))
        return path.read_bytes()[start:stop]

    return CheckedBlocks(path, read, has_sums=True, advice="make it again")


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_every_block_of_a_file_is_checked_once_when_it_is_first_read(tmp_path: Path, size: int) -> None:
    path, reads = tmp_path / "data", list[tuple[int, int]]()
    path.write_bytes(os.urandom(size))
    assert write_sums(path) == "data.sums"
    assert (tmp_path / "data.sums").stat().st_size == 16 * -(-size // BLOCK)
    blocks = blocks_of(path, reads)
    blocks.check(0, 0)
    assert reads == []
    for _ in range(2):
        blocks.check(size - 1, size)
        blocks.check(0, size)
    assert sorted(start for start, _ in reads) == list(range(0, size, BLOCK))


def test_a_damaged_block_is_found_when_it_is_read_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "data"
    data = bytearray(os.urandom(3 * BLOCK))
    path.write_bytes(data)
    write_sums(path)
    data[BLOCK + 5] ^= 1
    path.write_bytes(data)
    blocks = blocks_of(path, [])
    blocks.check(0, BLOCK)
    blocks.check(2 * BLOCK, 3 * BLOCK)
    for _ in range(2):
        with pytest.raises(Damaged, match=r"data is damaged: .*bytes 65,536 to 131,072 .*make it again"):
            blocks.check(0, BLOCK + 1)


# --- Folders that may have other files ------------------------------------------------------------


def fill(folder: Path, text: str) -> None:
    with filled_folder(folder, "main.json") as made:
        assert list(made.iterdir()) == []
        (made / "inner").mkdir()
        (made / "inner" / "data").write_text(text)
        write_json(made / "main.json", {"text": text}, files_in(made))


def test_files_are_added_to_a_folder_and_others_stay(tmp_path: Path) -> None:
    for text in ("old", "new"):
        fill(tmp_path / "deep" / "folder", text)
        (tmp_path / "deep" / "folder" / "mine").write_text("mine")
    folder = tmp_path / "deep" / "folder"
    assert files_in(folder) == ["inner/data", "main.json", "mine"]
    assert (folder / "inner" / "data").read_text() == "new"
    assert json.loads((folder / "main.json").read_text())["files"] == {
        "inner/data": sha256_of(folder / "inner" / "data")
    }
    assert os.listdir(tmp_path / "deep") == ["folder"]


def test_files_of_two_versions_are_told_apart_by_their_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill while files are moved: the file that lists the checksums comes last."""
    fill(tmp_path / "folder", "old")
    replace, moved = os.replace, []

    def killed(source: Any, target: Any) -> None:
        if Path(target).name == "main.json" and Path(target).parent.name == "folder":
            raise KeyboardInterrupt
        moved.append(Path(target).name)
        replace(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path / "folder", "new")
    assert moved[-1] == "data"
    body = without_checksum(json.loads((tmp_path / "folder" / "main.json").read_text()), "main.json")
    with pytest.raises(Damaged, match=r"inner/data"):
        check_files(tmp_path / "folder", body)
