from __future__ import annotations

import json

import pytest

from antiphon.records.journal import Journal, read


def test_entries_come_back_in_order_with_their_keys_in_order(tmp_path):
    journal = Journal(tmp_path / "run" / "journal.jsonl")
    entries = [{"round": 1, "b": 1, "a": "é"}, {"round": 2, "loss": None}]
    for entry in entries:
        journal.append(entry)
    assert read(journal.path) == entries
    assert journal.path.read_bytes() == '{"round":1,"b":1,"a":"é"}\n{"round":2,"loss":null}\n'.encode()


def test_truncating_to_a_recorded_size_brings_the_file_back_byte_for_byte(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append({"round": 1})
    size, before = journal.size, journal.path.read_bytes()
    journal.append({"round": 2})
    Journal(journal.path).truncate(size)
    assert journal.path.read_bytes() == before
    assert journal.size == size


def test_a_torn_last_line_is_left_out_with_a_note_and_cut_when_opened(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"round":1}\n{"round":2,"clie')
    notes: list[str] = []
    assert read(path, notes.append) == [{"round": 1}]
    assert "line 2" in notes[0]
    Journal(path).append({"round": 2})
    assert [entry["round"] for entry in read(path, pytest.fail)] == [1, 2]


def test_a_torn_line_longer_than_a_block_is_cut_whole(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"round":1}\n' + b"x" * 200_000)
    assert Journal(path).size == len(b'{"round":1}\n')
    path.write_bytes(b"x" * 200_000)
    assert Journal(path).size == 0


def test_damage_inside_is_an_error_that_names_file_and_line(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_text('{"round":1}\n{"rou\n{"round":3}\n')
    with pytest.raises(ValueError, match=r"journal\.jsonl: line 2 is not JSON"):
        read(path)
    path.write_text("[1]\n")
    with pytest.raises(ValueError, match="line 1 is not a JSON object"):
        read(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_refused_and_nothing_is_written(tmp_path, value):
    journal = Journal(tmp_path / "journal.jsonl")
    with pytest.raises(ValueError, match="entry 7 cannot be written"):
        journal.append({"round": 7, "loss": value})
    assert journal.size == 0


def test_a_journal_shorter_than_its_checkpoint_says_is_refused(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append({"round": 1})
    with pytest.raises(ValueError, match="cut short"):
        journal.truncate(journal.size + 1)
    with pytest.raises(ValueError, match="not the end of a line"):
        journal.truncate(journal.size - 1)
    assert json.loads(journal.path.read_text()) == {"round": 1}
