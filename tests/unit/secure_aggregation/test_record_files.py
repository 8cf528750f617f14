from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from antiphon.core import Task, Update
from antiphon.secure_aggregation.member import Member, Revealed
from antiphon.secure_aggregation.record_files import RecordFiles

REVEALED = Revealed(
    "run/3/0",
    ("a" * 64, "b" * 64, "c" * 64, "d" * 64),
    (
        ({"stats": {"loss": 1.5}}, {}),
        ({"commitment": "00"}, {"parcels": torch.arange(6, dtype=torch.uint8).view(2, 3)}),
        ({}, {"masked": torch.tensor([1, -2, 3], dtype=torch.int32)}),
        ({"seeds": {"c0": "ff"}, "keys": {}}, {}),
    ),
)


def test_a_new_process_knows_what_an_earlier_one_revealed(tmp_path: Path) -> None:
    RecordFiles(tmp_path / "c0").add(REVEALED, ("task", "update"))
    record = RecordFiles(tmp_path / "c0")
    assert record.has("task")
    assert record.has("update")
    assert not record.has("other")
    last = record.last
    assert last is not None
    assert (last.session, last.digests) == (REVEALED.session, REVEALED.digests)
    for (head, tensors), (wanted, expected) in zip(last.answers, REVEALED.answers, strict=True):
        assert head == wanted
        assert tensors.keys() == expected.keys()
        assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def test_a_member_that_revealed_nothing_has_no_folder(tmp_path: Path) -> None:
    record = RecordFiles(tmp_path / "c0")
    assert record.last is None
    assert not record.has("task")
    assert not (tmp_path / "c0").exists()


def test_digests_of_all_sums_are_kept_and_the_answers_of_the_last(tmp_path: Path) -> None:
    record = RecordFiles(tmp_path)
    record.add(REVEALED, ("first",))
    later = Revealed("run/4/0", REVEALED.digests, REVEALED.answers)
    record.add(later, ("second",))
    assert record.has("first")
    again = RecordFiles(tmp_path)
    assert again.has("first")
    assert again.has("second")
    assert again.last is not None
    assert again.last.session == "run/4/0"


def test_a_kill_before_the_answers_are_stored_leaves_the_update_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("antiphon.secure_aggregation.record_files.replace_file", killed)
    with pytest.raises(KeyboardInterrupt):
        RecordFiles(tmp_path).add(REVEALED, ("task",))
    record = RecordFiles(tmp_path)
    assert record.has("task")
    assert record.last is None


def test_only_the_owner_can_read_the_folder_and_its_files(tmp_path: Path) -> None:
    RecordFiles(tmp_path / "c0").add(REVEALED, ("task",))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "c0").iterdir()}
    assert modes == {"last.message": 0o600, "used.json": 0o600}
    assert stat.S_IMODE((tmp_path / "c0").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["last.message", "used.json"])
@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data[:-9] + b"x" + data[-8:]])
def test_damage_is_named_and_nothing_is_forgotten(
    damage: Callable[[bytes], bytes], name: str, tmp_path: Path
) -> None:
    """A digest that is forgotten is an update that can be revealed twice."""
    RecordFiles(tmp_path).add(REVEALED, ("task", "update"))
    path = tmp_path / name
    path.write_bytes(damage(path.read_bytes()))
    record = RecordFiles(tmp_path)
    with pytest.raises(ValueError, match=rf"{path}.*Restore it from a copy"):
        _ = record.last if name == "last.message" else record.has("other")


def test_a_list_that_is_gone_is_missed(tmp_path: Path) -> None:
    RecordFiles(tmp_path).add(REVEALED, ("task",))
    (tmp_path / "used.json").unlink()
    with pytest.raises(ValueError, match=r"used.json is missing. Restore it"):
        RecordFiles(tmp_path).has("task")


def test_a_member_whose_record_is_damaged_does_no_work(tmp_path: Path) -> None:
    RecordFiles(tmp_path).add(REVEALED, ("task",))
    (tmp_path / "used.json").write_text("{}")
    asked: list[Task] = []
    member = Member("c0", lambda task: asked.append(task) or Update({}), RecordFiles(tmp_path))  # type: ignore[func-returns-value]
    answer, _ = member.answer({"step": "work", "session": "s", "kind": "train", "config": {}}, {})
    assert "used.json" in answer["error"]
    assert asked == []
