from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.records.files import check_new_file, check_new_folder, new_folder, replace_file


def test_a_file_is_replaced_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def write(unfinished: Path) -> None:
        unfinished.write_text("new")
        assert path.read_text() == "old"

    replace_file(path, write)
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


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
