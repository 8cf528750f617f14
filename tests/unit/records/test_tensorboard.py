from __future__ import annotations

import subprocess
import sys

import pytest

from antiphon.records.writer import EventWriter

JOURNAL = [
    {"round": 0, "valid": {"wer": 0.5}},
    {"round": 1, "cohort": ["a", "b"], "clients": {"a": {}}, "failures": {"b": "NaN"}, "loss": None},
    {
        "round": 2,
        "cohort": ["a"],
        "clients": {"a": {}},
        "failures": {},
        "loss": 2.0,
        "metrics": {"lr": 0.5},
    },
]
CLOCK = [{"round": 1, "seconds": 4.0}, {"round": 2, "seconds": 2.0}]


def read_back(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(event.step, event.value, event.wall_time) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_itself_reads_what_was_written(tmp_path):
    writer = EventWriter(tmp_path)
    writer.add(0, {"valid/wer": 0.5}, wall_time=1001.0)
    writer.add(300, {"valid/wer": 0.25, "train/é": -1.5}, wall_time=1002.5)
    found = read_back(tmp_path)  # before it is closed: a killed process leaves as much
    assert found["valid/wer"] == [(0, 0.5, 1001.0), (300, 0.25, 1002.5)]
    assert found["train/é"] == [(300, -1.5, 1002.5)]
    assert read_back(tmp_path) == found


def test_a_resumed_run_writes_what_the_journal_holds_and_goes_on_in_the_same_file(tmp_path):
    old = "events.out.tfevents.0000000005.antiphon.0001"  # as earlier versions named them
    (tmp_path / old).touch()
    (tmp_path / "events.out.tfevents.5.somebody").touch()
    for step in (1, 2):
        writer = EventWriter(tmp_path)
        writer.add_rounds([{"round": before, "loss": float(before)} for before in range(1, step)], [], 5.0)
        writer.add(step, {"train/loss": float(step)}, wall_time=5.0 + step)
        assert len(list(tmp_path.iterdir())) == 2
    (tmp_path / "events.out.tfevents.5.somebody").unlink()
    assert [event[:2] for event in read_back(tmp_path)["train/loss"]] == [(1, 1.0), (2, 2.0)]


def test_a_run_is_written_afresh_with_times_from_its_clock(tmp_path):
    for _ in range(2):
        writer = EventWriter(tmp_path)
        writer.add_rounds(JOURNAL, CLOCK, started=100.0)
        assert len(list(tmp_path.iterdir())) == 1
    found = read_back(tmp_path)
    assert found["train/loss"] == [(2, 2.0, 106.0)]
    assert found["train/lr"] == [(2, 0.5, 106.0)]
    assert found["cohort/failed"] == [(1, 1.0, 104.0), (2, 0.0, 106.0)]
    assert found["valid/wer"] == [(0, 0.5, 100.0)]


def test_without_tensorboard_nothing_is_written(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("tensorboard")] + ["tensorboard"]:
        monkeypatch.setitem(sys.modules, name, None)
    writer = EventWriter(tmp_path)
    writer.add_rounds(JOURNAL, CLOCK, started=100.0)
    assert not list(tmp_path.iterdir())


def test_tensorboard_is_imported_by_the_first_writer_without_a_word(tmp_path):
    code = """
import sys
from pathlib import Path
from antiphon.records.writer import EventWriter
assert "tensorboard" not in sys.modules
EventWriter(Path(sys.argv[1]))
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
