"""Run folders of an older version (commit 821f128) can still be reported, evaluated and resumed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

FIXTURE = Path(__file__).parents[1] / "fixtures" / "run-821f128"
EXPECTED: dict[str, Any] = json.loads((FIXTURE / "expected.json").read_text())
FINISHED = ("fedavg", "seed")
INTERRUPTED = sorted(EXPECTED)
CLOSE = 1e-5  # the largest difference on a processor that rounds differently


def antiphon(*arguments: str | Path) -> str:
    """`python -m antiphon <arguments>` in a new process: what it prints."""
    command = [sys.executable, "-m", "antiphon", *map(str, arguments)]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=one_thread)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copy_fixture(folder: Path) -> Path:
    for name in ("corpus", "out"):
        shutil.copytree(FIXTURE / name, folder / name)
    return folder / "out"


def read_journal(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]


def assert_close(actual: Any, expected: Any, path: str) -> None:
    """Equal, but numbers may differ by rounding. A dict may have new keys."""
    if isinstance(expected, dict):
        assert expected.keys() <= actual.keys(), path
        for key, value in expected.items():
            assert_close(actual[key], value, f"{path}/{key}")
    elif isinstance(expected, list):
        assert len(actual) == len(expected), path
        for place, (one, other) in enumerate(zip(actual, expected, strict=True)):
            assert_close(one, other, f"{path}[{place}]")
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, rel=1e-4, abs=CLOSE), path
    elif path.endswith("/bytes_down"):
        assert expected <= actual <= expected + 2000, path  # a task's configuration is counted too since then
    else:
        assert actual == expected, path


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the experiment in which the interrupted runs went on to their end."""
    folder = tmp_path_factory.mktemp("resumed")
    out = copy_fixture(folder)
    where = ["--data", folder / "corpus", "--out", out, "--device", "cpu"]
    antiphon("run", FIXTURE / "settings.yaml", *where, "--resume")
    return out


def test_an_old_folder_is_reported(tmp_path: Path) -> None:
    out = copy_fixture(tmp_path)
    antiphon("report", out)
    results = (out / "RESULTS.md").read_text()
    assert all(name in results for name in (*FINISHED, *INTERRUPTED))
    assert (out / "report.html").exists()


@pytest.mark.parametrize("name", FINISHED)
def test_an_old_model_is_evaluated(name: str, tmp_path: Path) -> None:
    out = copy_fixture(tmp_path)
    antiphon("evaluate", out / name, "--data", tmp_path / "corpus", "--device", "cpu")
    before = out / name / "evaluation" / "test" / "best"
    after = out / name / "evaluation" / "corpus-test" / "best"  # not in the place it was made in
    assert (after / "hyp.trn").read_text() == (before / "hyp.trn").read_text()
    old, new = (json.loads((folder / "scores.json").read_text()) for folder in (before, after))
    for scores in (old, new):
        del scores["real_time_factor"], scores["split"]
    assert_close(new, old, name)


def ends_in_a_tie(name: str) -> bool:
    """Whether both candidates of DGA-RL were as good in the last round, and the noisy one went on."""
    last = EXPECTED[name]["journal"][-1]["metrics"]
    return "policy_cer" in last and last["policy_cer"] == last["rival_cer"]


@pytest.mark.parametrize("name", [name for name in INTERRUPTED if ends_in_a_tie(name)])
def test_an_old_run_of_dga_rl_keeps_the_rival_on_a_tie(name: str, resumed: Path) -> None:
    """This was wrong in 821f128. What was measured before the choice is the same."""
    before, after = (run[-1]["metrics"] for run in (EXPECTED[name]["journal"], read_journal(resumed / name)))
    assert (before["policy_won"], after["policy_won"]) == (1.0, 0.0)
    for key in ("policy_cer", "rival_cer", "reward", "exploration"):
        assert_close(after[key], before[key], f"{name}/{key}")


@pytest.mark.parametrize("name", [name for name in INTERRUPTED if not ends_in_a_tie(name)])
def test_an_old_run_is_resumed_to_the_same_end(name: str, resumed: Path) -> None:
    assert not (FIXTURE / "out" / name / "model").exists()
    parameters = load_file(resumed / name / "model" / "model.safetensors")
    digests = {key: hashlib.sha256(tensor.tobytes()).hexdigest() for key, tensor in parameters.items()}
    assert digests.keys() == EXPECTED[name]["parameters"].keys()
    if digests != EXPECTED[name]["parameters"]:
        stored = load_file(FIXTURE / "expected.safetensors")
        for key, tensor in parameters.items():
            np.testing.assert_allclose(tensor, stored[f"{name}/{key}"], rtol=0, atol=CLOSE, err_msg=key)
    assert_close(read_journal(resumed / name), EXPECTED[name]["journal"], name)


@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_old_run_stays_as_it_is(name: str, resumed: Path) -> None:
    for file in ("journal.jsonl", "model/model.safetensors"):
        assert (resumed / name / file).read_bytes() == (FIXTURE / "out" / name / file).read_bytes()
