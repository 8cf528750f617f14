from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("soundfile")
pytest.importorskip("pyarrow")
pytest.importorskip("lhotse")
pytest.importorskip("onnxruntime")


def test_damaged_and_hostile_inputs_are_refused_by_name_or_change_nothing_that_is_checked() -> None:
    """By hand: thousands of cases, see run.py."""
    command = [sys.executable, str(Path(__file__).with_name("run.py")), "--cases", "150", "--seed", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, last = done.stdout.splitlines()
    assert last.split()[:2] == ["all", "150"]
