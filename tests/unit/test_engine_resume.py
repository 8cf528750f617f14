"""The engine stopped, killed and damaged: it goes on exactly, or says clearly why it cannot."""

from __future__ import annotations

import errno
import os
import pkgutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_runs import Interrupt, Trial

from antiphon.core import Stopped
from antiphon.engine import Listener
from antiphon.records import checkpoint
from antiphon.records.checkpoint import CorruptCheckpoint
from antiphon.records.writer import Record

# --- Stopping and going on ------------------------------------------------------------------------


@pytest.mark.parametrize("replies", range(1, 18, 2))
def test_ctrl_c_after_any_reply_and_resume_give_the_undisturbed_run(
    trial: Trial, undisturbed: Trial, replies: int
) -> None:
    with pytest.raises(Stopped, match="interrupted"):
        trial.run(listener=Interrupt(after=replies))
    assert trial.saved[-1] == (replies - 1) // 3
    trial.run(resume=True)
    assert trial.files(6) == undisturbed.files(6)


def test_ctrl_c_saves_even_between_two_due_checkpoints(tmp_path: Path, undisturbed: Trial) -> None:
    trial = Trial(tmp_path, save_every=100, wers=[0.1] + [0.9] * 6)
    with pytest.raises(Stopped):
        trial.run(listener=Interrupt(after=11))
    assert trial.saved == [0, 3]
    trial.run(resume=True)
    straight = Trial(tmp_path / "straight", save_every=100, wers=[0.1] + [0.9] * 6)
    straight.run()
    assert trial.files(6) == straight.files(6)


def test_ctrl_c_while_the_last_round_is_saved_is_not_lost(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Record.save

    def interrupted(self: Record, state: Any) -> None:
        save(self, state)
        if state.round == 6:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Record, "save", interrupted)
    with pytest.raises(Stopped, match="interrupted"):
        trial.run()
    monkeypatch.undo()
    assert trial.run(resume=True).state.round == 6


def test_ctrl_c_twice_stops_at_once_and_the_signal_handlers_come_back(trial: Trial) -> None:
    class Twice(Listener):
        def replied(self, client: str) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        trial.run(listener=Twice())
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


class Killed(BaseException):
    """As sudden as a kill: nothing catches it."""


@pytest.mark.parametrize("target", ["Journal.append", "save_file", "replace", "rmtree", "fsync"])
@pytest.mark.parametrize("number", [1, 4, 7])
def test_a_kill_at_any_write_and_resume_give_the_undisturbed_run(
    trial: Trial, undisturbed: Trial, monkeypatch: pytest.MonkeyPatch, target: str, number: int
) -> None:
    """A few kills in one run, before and after the write; subprocesses do it for real in integration/."""
    places = {
        "Journal.append": "antiphon.records.journal.Journal.append",
        "save_file": "antiphon.records.checkpoint.save_file",
        "replace": "antiphon.records.checkpoint.os.replace",
        "rmtree": "antiphon.records.checkpoint.shutil.rmtree",
        "fsync": "antiphon.records.checkpoint.os.fsync",
    }
    for attempt in range(100):
        with monkeypatch.context() as patch:
            die_at_call(patch, places[target], number, before=attempt % 2 == 0)
            try:
                trial.run(resume=True)
            except Killed:
                number += 2  # further each time, or a run would die at the same place for ever
                continue
        break
    assert attempt > 0
    assert trial.files(6) == undisturbed.files(6)
    assert not list((trial.folder / "checkpoints").glob(".*"))


def die_at_call(patch: pytest.MonkeyPatch, place: str, number: int, before: bool) -> None:
    original = pkgutil.resolve_name(place)
    calls = 0

    def dying(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and before:
            raise Killed
        result = original(*args, **kwargs)
        if calls == number:
            raise Killed
        return result

    patch.setattr(place, dying)


def test_resuming_a_finished_run_changes_nothing(trial: Trial, undisturbed: Trial) -> None:
    trial.run()
    trial.run(resume=True)
    assert trial.files(6) == undisturbed.files(6)


def test_resume_of_a_folder_without_checkpoints_begins_at_the_beginning(
    trial: Trial, undisturbed: Trial
) -> None:
    trial.run(resume=True)
    assert trial.files(6) == undisturbed.files(6)


# --- Damage ---------------------------------------------------------------------------------------


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize("name", ["state.safetensors", "state.json"])
@pytest.mark.parametrize("damage", [flip_a_byte, cut_short, Path.unlink])
def test_a_damaged_checkpoint_is_refused_by_name_and_passed_over_only_when_asked(
    trial: Trial,
    undisturbed: Trial,
    damage: Callable[[Path], None],
    name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(Stopped):
        trial.run(listener=Interrupt(after=16))
    assert trial.saved == [4, 5]
    damage(trial.folder / "checkpoints" / "round-000005" / name)
    with pytest.raises(CorruptCheckpoint, match=r"round-000005.*--skip-corrupt"):
        trial.run(resume=True)
    trial.run(resume=True, skip_corrupt=True)
    assert "round-000005" in capsys.readouterr().err
    assert trial.files(6) == undisturbed.files(6)


def test_when_no_checkpoint_is_whole_that_is_said(trial: Trial) -> None:
    trial.run()
    for round in trial.saved:
        flip_a_byte(trial.folder / "checkpoints" / f"round-{round:06d}" / "state.json")
    with pytest.raises(CorruptCheckpoint, match=r"no checkpoint in .* is intact"):
        trial.run(resume=True, skip_corrupt=True)


def test_a_journal_that_was_cut_short_is_refused(trial: Trial) -> None:
    with pytest.raises(Stopped):
        trial.run(listener=Interrupt(after=16))
    cut_short(trial.folder / "journal.jsonl")
    with pytest.raises(ValueError, match=r"journal\.jsonl .*it was cut short"):
        trial.run(resume=True)


@pytest.mark.parametrize("name", ["journal.jsonl", "clock.jsonl"])
def test_a_journal_that_was_edited_is_refused_and_cut_back_only_when_asked(
    name: str, trial: Trial, undisturbed: Trial
) -> None:
    """The edit is in round 5: the checkpoint of round 4, the best one, does not rely on it."""
    trial.run()
    path = trial.folder / name
    lines = path.read_text().splitlines(keepends=True)
    lines[5] = lines[5].replace('"round":5', '"round":7')
    path.write_text("".join(lines))
    with pytest.raises(ValueError, match=rf"{name}: line 6 .*does not match\. .*--skip-corrupt"):
        trial.run(resume=True)
    trial.run(resume=True, skip_corrupt=True)
    assert trial.entries == undisturbed.entries


def test_a_full_disk_is_said_clearly_and_costs_one_round_at_most(
    trial: Trial, undisturbed: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_file, calls = checkpoint.save_file, 0

    def full(tensors: dict[str, torch.Tensor], path: Path) -> None:
        nonlocal calls
        calls += 1
        save_file(tensors, path)
        if calls == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match=r"round-000003: No space left.*checkpoints are intact.*--resume"):
        trial.run()
    monkeypatch.undo()
    assert sorted(path.name for path in (trial.folder / "checkpoints").iterdir()) == [
        "round-000001",
        "round-000002",
    ]
    trial.run(resume=True)
    assert trial.files(6) == undisturbed.files(6)
