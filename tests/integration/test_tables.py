"""benchmarks/tables.py: experiments side by side, stopped and resumed, and what they are measured by."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import script_in_fork
from world import World

from antiphon import config
from antiphon.recipes import recipe

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
SETTINGS = """
recipe: fedavg
frontend: {filterbank: {dim: 8}}
model: {ctc: {encoder: {conformer: {dim: 16, num_layers: 1, num_heads: 2, kernel_size: 3, stack: 4}}}}
runs:
  seed: {algorithm: {central: {local: {steps: 1}}}, rounds: {total: 1, valid_every: 1}}
  fedavg: {rounds: {total: 2, cohort: 2, valid_every: 1}}
"""


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.chdir(ROOT)
    import tables as module  # type: ignore[import-not-found]

    return module


def test_every_table_names_settings_runs_scripts_and_pages_that_there_are(tables: Any) -> None:
    for table in tables.load(BENCHMARKS / "tables.yaml").values():
        assert (ROOT / table.page).is_file()
        for arguments in table.experiments(Path("out")).values():
            changes = [b for a, b in pairwise(arguments) if a == "--set"]
            experiment = config.override(recipe(arguments[0]), changes)
            chosen = {b for a, b in pairwise(arguments) if a == "--only"}
            assert chosen <= experiment.runs.keys()
        _, script, *options = table.measuring(Path("out"), Path("corpus"))
        assert Path(script).is_file()
        named = [Path(one).name for one in options if one.endswith(".json")]
        assert named in ([], [table.result])


class Experiments:
    """Stands for `antiphon run`: each takes some seconds, or fails."""

    def __init__(self, seconds: float, fails: str = "") -> None:
        self.seconds, self.fails = seconds, fails
        self.begun: list[str] = []
        self.running: list[subprocess.Popen[bytes]] = []
        self.most = 0

    def __call__(self, folder: Path, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        code = f"import time; time.sleep({self.seconds}); raise SystemExit({int(folder.name == self.fails)})"
        self.begun.append(folder.name)
        self.running.append(subprocess.Popen([sys.executable, "-S", "-c", code], stderr=subprocess.DEVNULL))
        self.most = max(self.most, sum(one.poll() is None for one in self.running))
        return self.running[-1]

    def all_have_ended(self) -> bool:
        return all(one.poll() is not None for one in self.running)


def wanted(*names: str) -> dict[Path, list[str]]:
    return {Path(name): [] for name in names}


def test_so_many_experiments_run_side_by_side_and_all_are_run(
    tables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiments = Experiments(0.3)
    monkeypatch.setattr(tables, "started", experiments)
    assert tables.train(wanted("a", "b", "c"), 2, until=time.monotonic() + 60) == []
    assert experiments.begun == ["a", "b", "c"]
    assert experiments.most == 2


def test_when_time_is_up_experiments_are_stopped_and_named(
    tables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiments = Experiments(60.0)
    monkeypatch.setattr(tables, "started", experiments)
    left = tables.train(wanted("a", "b", "c"), 2, until=time.monotonic() + 0.5)
    assert left == [Path("a"), Path("b"), Path("c")]
    assert experiments.begun == ["a", "b"]
    assert experiments.all_have_ended()


def test_an_experiment_that_fails_stops_the_others_and_names_its_log(
    tables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiments = Experiments(0.0, fails="b")
    monkeypatch.setattr(tables, "started", experiments)
    with pytest.raises(SystemExit, match=r"b: antiphon run failed, see b\.log"):
        tables.train(wanted("b"), 1, until=time.monotonic() + 60)
    assert experiments.all_have_ended()


def test_a_table_is_trained_measured_and_listed_with_one_command(world: World, tmp_path: Path) -> None:
    """The second call resumes what the first one finished, and measures again."""
    settings, out, results = tmp_path / "settings.yaml", tmp_path / "out", tmp_path / "results"
    settings.write_text(SETTINGS)
    entry = {
        "page": "docs/results.md",
        "conditions": {"all": str(settings)},
        "own_runs": True,
        "measure": f"rows.py {{folders}} --baseline seed --out {results}/small.json",
        "result": "small.json",
        "seeds": [3],
    }
    tables = tmp_path / "tables.yaml"
    tables.write_text(yaml.safe_dump({"small": entry}))
    options = ["small", "--data", world.corpus, "--out", out, "--tables", tables, "--results", results]
    script = BENCHMARKS / "tables.py"
    (results).mkdir()
    for _ in range(2):
        done = script_in_fork(script, [*map(str, options), "--device", "cpu"], tmp_path / "log")
        assert done.code == 0, done.output
    measured = json.loads((results / "small.json").read_text())
    assert measured["runs"].keys() == {"seed", "fedavg"}
    (row,) = json.loads((results / "tables.json").read_text())["tables"].values()
    assert (row["runs"], row["seeds"], row["device"]) == (2, [3], "cpu")
    assert row["training_minutes"] > 0
    listed = script_in_fork(
        script, ["--list", "--tables", str(tables), "--results", str(results)], tmp_path / "log"
    )
    assert "small.json" in listed.output
    unknown = script_in_fork(script, ["smal", "--tables", str(tables)], tmp_path / "log")
    assert unknown.code == 2
    assert "unknown: smal; known: small" in unknown.output
