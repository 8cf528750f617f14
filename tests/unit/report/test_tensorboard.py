from __future__ import annotations

import pytest

from antiphon.report.tensorboard import EventWriter, write_scalars


def read_back(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(event.step, event.value, event.wall_time) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_itself_reads_what_was_written(tmp_path):
    with EventWriter(tmp_path, wall_time=1000.0) as writer:
        writer.add(0, {"valid/wer": 0.5}, wall_time=1001.0)
        writer.add(300, {"valid/wer": 0.25, "train/é": -1.5}, wall_time=1002.5)
    found = read_back(tmp_path)
    assert found["valid/wer"] == [(0, 0.5, 1001.0), (300, 0.25, 1002.5)]
    assert found["train/é"] == [(300, -1.5, 1002.5)]


def test_writers_of_a_resumed_run_add_up(tmp_path):
    for step in (1, 2):
        with EventWriter(tmp_path, wall_time=5.0) as writer:
            writer.add(step, {"loss": float(step)}, wall_time=5.0 + step)
    assert len(list(tmp_path.iterdir())) == 2
    assert [event[:2] for event in read_back(tmp_path)["loss"]] == [(1, 1.0), (2, 2.0)]


def test_a_run_is_written_afresh_with_times_from_its_clock(tmp_path):
    journal = [
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
    clock = [{"round": 1, "seconds": 4.0}, {"round": 2, "seconds": 2.0}]
    for _ in range(2):
        write_scalars(tmp_path, journal, clock, started=100.0)
    assert len(list(tmp_path.iterdir())) == 1
    found = read_back(tmp_path)
    assert found["train/loss"] == [(2, 2.0, 106.0)]
    assert found["train/lr"] == [(2, 0.5, 106.0)]
    assert found["cohort/failed"] == [(1, 1.0, 104.0), (2, 0.0, 106.0)]
    assert found["valid/wer"] == [(0, 0.5, 100.0)]
