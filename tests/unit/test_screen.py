from __future__ import annotations

import pytest

from antiphon.screen import Terminal


def test_a_client_s_reason_may_hold_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    """Square brackets are markup to the terminal library: they must neither vanish nor end the run."""
    from antiphon.recipes.experiment import Run

    with Terminal() as terminal:
        bar = terminal.run("fedavg", Run(), num_clients=1)
        reason = "RuntimeError: expected [batch, time] in path [/data]"
        bar.finished({"round": 1, "loss": 1.0, "failures": {"speaker/a": reason}}, {})
    captured = capsys.readouterr()
    assert reason in " ".join((captured.out + captured.err).split())
