from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from antiphon.records.files import (
    Damaged,
    NotWritten,
    check_files,
    make_folder,
    sha256_of,
    without_checksum,
    write_json,
    write_text,
)
from antiphon.records.folders import check_new_file, check_new_folder, files_in, filled_folder, new_folder

SmallFiles = Callable[[int], AbstractContextManager[None]]


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


def test_a_folder_is_synced_with_all_that_it_holds_before_its_name(tmp_path: Path, steps: list[str]) -> None:
    with new_folder(tmp_path / "made") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "data").write_text("x")
    assert steps == [
        *("sync inner", "sync data", "sync .made.making"),
        *("rename .made.making made", f"sync {tmp_path.name}"),
    ]


def test_the_main_file_of_a_folder_is_the_last_to_get_its_name(tmp_path: Path, steps: list[str]) -> None:
    fill(tmp_path / "folder", "old")
    steps.clear()
    fill(tmp_path / "folder", "new")
    assert steps[-5:] == [
        "sync .main.json.making",
        "rename data data",
        "sync inner",
        "rename main.json main.json",
        "sync folder",
    ]


def test_new_folders_are_synced_from_above(tmp_path: Path, steps: list[str]) -> None:
    make_folder(tmp_path / "a" / "b" / "c")
    assert steps == [f"sync {tmp_path.name}", "sync a", "sync b"]
    make_folder(tmp_path / "a" / "b" / "c")
    assert len(steps) == 3


def test_a_folder_that_the_disk_does_not_take_is_named_and_nothing_is_left(
    tmp_path: Path, small_files: SmallFiles
) -> None:
    with (
        small_files(4096),
        pytest.raises(NotWritten, match=r"could not write .*/folder: File too large\. "),
        filled_folder(tmp_path / "folder", "main.json") as made,
    ):
        write_text(made / "data", "x" * 10_000)
    assert os.listdir(tmp_path) == []
