"""Runs of the engine on clients made of nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_runs import Trial


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path / "run")


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    trial = Trial(tmp_path_factory.mktemp("undisturbed"))
    trial.run()
    return trial
