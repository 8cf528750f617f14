"""What tests of the whole program share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from command import Antiphon, Done, run_arguments
from world import World

from antiphon import cli


@pytest.fixture
def antiphon(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Antiphon]:
    """`antiphon <arguments>` in this process: exit code and everything printed, lines joined."""

    def call(*arguments: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["antiphon", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return Done(code, captured.out + captured.err)

    yield call
    torch.use_deterministic_algorithms(False)  # a run asks for them in the whole process


@pytest.fixture(scope="session")
def finished(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment that a real process ran from end to end."""
    out = tmp_path_factory.mktemp("finished") / "out"
    command = [sys.executable, "-m", "antiphon", *run_arguments(world.corpus, out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert "WER %" in done.stdout
    assert "report.html" in done.stdout
    return out
