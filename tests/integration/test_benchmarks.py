"""The benchmarks run and both their sides do the same work; how fast they are is not a test's business."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PROVENANCE = {"benchmark", "command", "date", "versions", "commit", "cores"}


def run_quickly(name: str, out: Path) -> dict[str, Any]:
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--quick", "--out", str(out)]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((out / f"{name}.json").read_text())
    assert found.keys() >= PROVENANCE
    assert found["command"] == f"python benchmarks/{name}.py --quick"
    return found


def test_engine_and_bare_loop_end_at_the_same_parameters(tmp_path: Path) -> None:
    found = run_quickly("overhead", tmp_path)
    (case,) = found["cases"]
    assert case["difference"] < 1e-3
    for clock in ("wall", "cpu"):
        assert case[clock].keys() == {"ratio", "quartiles", "engine_seconds", "bare_seconds"}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc/self/status")
def test_memory_of_runs_and_of_a_store_is_measured(tmp_path: Path) -> None:
    found = run_quickly("memory", tmp_path)
    assert found.keys() >= {"peak_ratio", "anonymous_ratio", "cohorts", "store"}
    assert set(found["cohorts"]) == {"10", "20"}
    assert found["store"]["num_clients"] == 100


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc/self/status")
def test_all_ways_of_folding_give_the_same_mean(tmp_path: Path) -> None:
    ways = run_quickly("fold", tmp_path)["ways"]
    assert set(ways) == {"in_place", "rebuilt", "stacked"}
    for found in ways.values():
        assert found["checksum"] == pytest.approx(ways["in_place"]["checksum"], rel=1e-4)
