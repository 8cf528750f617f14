"""The tables of pruning over seeds: figures by hand, and a small experiment from its recipe to its plots."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from world import FRONTEND, MASKS, MODELS, World

from antiphon import config
from antiphon.experiment import runner
from antiphon.recipes import recipe

ROOT = Path(__file__).parents[2]
CHOSEN = ["pretrained", "dense", "small-pretrained", "small", "weight-0.1", "weight-0.5", "adaptive-0.5"]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import pruning_tables as module  # type: ignore[import-not-found]

    return module


@pytest.fixture
def folders(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two seeds of some rows on a corpus of tones, a round or two each."""
    monkeypatch.setattr(runner, "write_report", lambda *arguments: None)
    whole = recipe("pruning-librispeech")
    runs = {name: whole.runs[name] for name in CHOSEN}
    small = {name: replace(run, model=MODELS["ctc"]) for name, run in runs.items() if run.model}
    tiny = replace(whole, frontend=FRONTEND, model=MODELS["ctc"], augment=MASKS, runs={**runs, **small})
    settings = ["runs.*.rounds.total=1", "runs.*.rounds.valid_every=1"]
    for name in CHOSEN:
        central = "pretrained" in name
        settings += [f"runs.{name}.algorithm.local.steps=1"] if central else [f"runs.{name}.rounds.cohort=2"]
        if name.startswith(("weight", "adaptive")):
            settings += [f"runs.{name}.algorithm.fine_tune_from=1", f"runs.{name}.algorithm.mask_every=1"]
    found = []
    for seed in (0, 1):
        experiment = config.override(tiny, [*settings, f"seed={seed}"])
        found.append(tmp_path / str(seed))
        runner.run_experiment(experiment, world.corpus, found[-1], False, device="cpu")
        for place, name in enumerate(CHOSEN):
            make_errors(found[-1] / name / "evaluation/test/best/scores.json", 1 + seed + place)
    torch.use_deterministic_algorithms(False)  # a run asks for them in the whole process
    return found


def make_errors(path: Path, number: int) -> None:
    """Models of one round get everything wrong: so many errors of each speaker instead."""
    scores = json.loads(path.read_text())
    for counts in [scores["words"], *(speaker["words"] for speaker in scores["speakers"].values())]:
        counts.update(substitutions=number, deletions=0, insertions=0)
    scores["words"]["substitutions"] *= len(scores["speakers"])
    del scores["sha256"]  # it is edited on purpose
    path.write_text(json.dumps(scores))


def wer_of(folder: Path, run: str) -> float:
    words = json.loads((folder / run / "evaluation/test/best/scores.json").read_text())["words"]
    wrong = sum(words[kind] for kind in ("substitutions", "deletions", "insertions"))
    return float(wrong / words["length"])


def test_rows_are_means_over_seeds_and_everything_is_drawn(
    tables: Any, folders: list[Path], world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out, plots = tmp_path / "out.json", tmp_path / "plots"
    options = ["--out", str(out), "--plots", str(plots), "--speed", str(world.corpus)]
    monkeypatch.setattr(sys, "argv", ["pruning_tables.py", *map(str, folders), *options])
    tables.main()
    found = json.loads(out.read_text())
    assert list(found["runs"]) == CHOSEN
    for run in CHOSEN:
        rates = [wer_of(folder, run) for folder in folders]
        assert found["runs"][run]["wer"]["by_seed"] == pytest.approx(rates), run
        assert found["runs"][run]["wer"]["mean"] == pytest.approx(sum(rates) / 2), run
    changes = [found["runs"][run]["relative_to_baseline"]["estimate"] for run in CHOSEN]
    assert changes == pytest.approx([(place - 1) / 2.5 for place in range(7)])  # of 2 and 3 errors a speaker
    assert [found["runs"][run]["sparsity"] for run in CHOSEN] == [None] * 4 + [0.1, 0.5, 0.5]
    beside = found["relative_to_weight"]  # 5.5 and 6.5 errors a speaker of `weight`, 7.5 of `adaptive`
    assert {s: change["estimate"] for s, change in beside["adaptive"].items()} == pytest.approx(
        {"0.5": 1 / 6.5, "all": 1 / 6.5}
    )
    assert beside["weight"]["all"]["estimate"] == 0.0
    sent = {
        run: [json.loads(line) for line in (folders[0] / run / "journal.jsonl").read_text().splitlines()]
        for run in ("dense", "weight-0.5")
    }
    share = sent["weight-0.5"][-1]["bytes_down"] / sent["dense"][-1]["bytes_down"]
    assert found["runs"]["weight-0.5"]["bytes_of_dense"] == pytest.approx(share)
    assert share < 0.7
    assert set(found["real_time_factors"]) == {"dense", "small", "weight-0.1", "weight-0.5", "adaptive-0.5"}
    assert sorted(path.name for path in plots.iterdir()) == ["pruning-sparsity.svg", "pruning-speed.svg"]
    printed = capsys.readouterr().out
    assert "| adaptive" in printed
    assert "| small" in printed
    (folders[1] / "dense/evaluation/test/best/scores.json").unlink()
    with pytest.raises(SystemExit):
        tables.main()
    assert "'dense' has not been scored" in capsys.readouterr().err
