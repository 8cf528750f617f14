from __future__ import annotations

import pytest

from antiphon.cli.terminal import Terminal


def test_a_client_s_reason_may_hold_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    """Square brackets are markup to the terminal library: they must neither vanish nor end the run."""
    from antiphon.experiment.settings import Run

    with Terminal() as terminal:
        bar = terminal.run("fedavg", Run(), num_clients=1)
        reason = "RuntimeError: expected [batch, time] in path [/data]"
        bar.finished({"round": 1, "loss": 1.0, "failures": {"speaker/a": reason}}, {})
    captured = capsys.readouterr()
    assert reason in " ".join((captured.out + captured.err).split())


def test_finished_bars_make_room_for_those_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    from antiphon.cli import terminal as module
    from antiphon.experiment.settings import Run

    monkeypatch.setattr(module.console, "height", 6)  # three bars
    with Terminal() as terminal:
        for number in range(5):
            bar = terminal.run(f"run{number}", Run(), num_clients=1)
            if number != 1:  # this one is still at work
                bar.finished({"round": Run().rounds.total}, {})
        shown = [task.description for task in terminal.progress.tasks if task.visible]
    assert shown == ["run1", "run3", "run4"]
