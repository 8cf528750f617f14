from __future__ import annotations

import hashlib
import json

import pytest

from antiphon.records.files import Damaged, NotWritten
from antiphon.records.journal import Journal, check_journal, clock_entry, read


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


def test_the_digest_of_a_journal_is_that_of_its_bytes_whatever_was_done_to_it(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")

    def expected():
        return hashlib.sha256(journal.path.read_bytes()).hexdigest()

    assert journal.digest == expected()
    for number in range(3):
        journal.append({"round": number})
        assert journal.digest == expected()
    journal.truncate(len(b'{"round":0}\n'))
    assert journal.digest == expected()
    journal.append({"round": 1})
    assert journal.digest == Journal(journal.path).digest == expected()


def journals(folder, num_rounds=5, num_old=0):
    """A journal and a clock; lines of an older version have no checksums."""
    journal, clock = Journal(folder / "journal.jsonl"), Journal(folder / "clock.jsonl")
    for round in range(num_rounds):
        journal.append({"round": round, "loss": 1.5, "cohort": ["a", "b"]})
        tick = {"round": round, "seconds": 0.1}
        clock.append(tick if round < num_old else clock_entry(tick, journal))
    return journal.path, clock.path


@pytest.mark.parametrize("number", [1, 3, 5])
@pytest.mark.parametrize("edit", ["a number", "a name", "line removed", "lines exchanged"])
def test_an_edited_journal_is_found_by_its_line(tmp_path, number, edit):
    journal, clock = journals(tmp_path)
    check_journal(journal, read(clock))
    lines = journal.read_text().splitlines(keepends=True)
    edits = {"a number": ("1.5", "1.4"), "a name": ('"a"', '"c"')}
    if edit in edits:
        lines[number - 1] = lines[number - 1].replace(*edits[edit])
    elif edit == "line removed":
        del lines[number - 1]
    else:
        number = min(number, 4)
        lines[number - 1 : number + 1] = lines[number - 1 : number + 1][::-1]
    journal.write_text("".join(lines))
    with pytest.raises(
        Damaged, match=rf"journal\.jsonl: line {number} is damaged, .* checksum in clock\.jsonl"
    ):
        check_journal(journal, read(clock))


def test_an_edited_clock_is_found_by_its_line(tmp_path):
    _, clock = journals(tmp_path)
    clock.write_text(clock.read_text().replace('"round":3,"seconds":0.1', '"round":3,"seconds":0.2'))
    with pytest.raises(Damaged, match=r"clock\.jsonl: line 4 is damaged, or was edited"):
        read(clock)


def test_a_journal_may_be_a_line_ahead_of_its_clock(tmp_path):
    journal, clock = journals(tmp_path)
    Journal(journal).append({"round": 5})
    check_journal(journal, read(clock))


def test_lines_of_an_older_version_are_covered_by_the_first_line_after_them(tmp_path):
    journal, clock = journals(tmp_path, num_old=5)
    journal.write_text(journal.read_text().replace("1.5", "1.4"))
    check_journal(journal, read(clock))
    journal, clock = journals(tmp_path / "resumed", num_old=3)
    check_journal(journal, read(clock))
    journal.write_text(journal.read_text().replace("1.5", "1.4", 1))
    with pytest.raises(Damaged, match="line 4"):
        check_journal(journal, read(clock))


def test_a_line_that_the_disk_does_not_take_leaves_no_part_of_it(tmp_path, small_files):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append({"round": 1})
    before = journal.path.read_bytes(), journal.digest
    with small_files(4096), pytest.raises(NotWritten, match=r"journal\.jsonl: .* Finished rounds are saved"):
        journal.append({"round": 2, "cohort": ["client"] * 1000})
    assert (journal.path.read_bytes(), journal.digest) == before
    journal.append({"round": 2})
    assert [entry["round"] for entry in read(journal.path)] == [1, 2]
