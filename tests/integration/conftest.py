"""What tests of the whole program share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from command import Antiphon, Done

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
