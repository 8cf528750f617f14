from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from antiphon.records.files import (
    BLOCK,
    CheckedBlocks,
    Damaged,
    check_files,
    with_checksum,
    without_checksum,
    write_json,
    write_sums,
)
from antiphon.records.reading import read_object

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


def test_a_list_of_files_that_may_have_been_edited_is_named_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"abc")
    for files, problem in (({"data": "0" * 64}, "data is damaged"), ({" ": "0" * 64}, "  is missing")):
        (tmp_path / "about.json").write_text(json.dumps({**BODY, "files": files}))
        with pytest.raises(Damaged, match=rf"{problem}, or about\.json was edited"):
            read_object(tmp_path / "about.json", "test/1", "test")


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
