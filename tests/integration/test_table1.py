"""The recipe table1, its conditions and trials; and its table, made of journals written by hand."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from world import FRONTEND, MASKS, MODELS, World

from antiphon import config
from antiphon.algorithms.central import Central
from antiphon.experiment import runner
from antiphon.recipes import recipe
from antiphon.recipes.table1 import TRIALS
from antiphon.records.journal import read

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
CLEAN = {"fraction": 0.0, "names": [], "audio": {"noise": None}, "transcripts": None}
BABBLE = {**CLEAN, "fraction": 0.3, "audio": {"noise": {"babble": {"snr": 5.0, "num_voices": 6}}}}
WRONG = {**CLEAN, "fraction": 0.3, "transcripts": {"of_others": {"nearest": 20}}}


# --- The recipe -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["babble", "wrong-texts"])
def test_a_condition_changes_the_corruption_and_nothing_else(name: str) -> None:
    clean = config.to_dict(recipe("table1"))
    bad = config.to_dict(recipe(str(EXAMPLES / f"table1-{name}.yaml")))
    assert {key for key in clean if clean[key] != bad[key]} == {"corruption"}
    assert bad["corruption"]["fraction"] == 0.3


def test_every_row_has_as_many_trials_as_any_other_and_is_the_chosen_one() -> None:
    rows, trials = recipe("table1").runs, recipe("table1-trials").runs
    assert {len(of_row.runs) for of_row in TRIALS.values()} == {3}
    assert len(trials) == 1 + 3 * len(TRIALS)
    for name, tried in TRIALS.items():
        of_row, values = tried.runs, sorted(tried.runs)
        assert len({str(config.to_dict(run)) for run in of_row.values()}) == 3
        for value in values:
            assert trials[f"{name}-{value:g}"] == of_row[value]
        if name in rows:
            assert rows[name] == of_row[tried.chosen]
        else:
            assert all(rows[f"{name}-{value:g}"] == of_row[value] for value in values)


def test_rates_are_constant_after_the_warm_up() -> None:
    """Else rounds to reach would measure the schedule."""
    for name, run in recipe("table1").runs.items():
        if isinstance(run.algorithm, Central):
            continue
        algorithm = getattr(run.algorithm, "inner", run.algorithm)
        for number in range(5, run.rounds.total):
            assert algorithm.server_schedule(number) == algorithm.client_schedule(number) == 1.0, name


def test_central_training_on_the_clients_speech_takes_as_many_steps_as_the_federated_rows() -> None:
    """It had one pass over the speech of the clients before, a twentieth of these steps."""
    table = recipe("table1").runs
    online, federated = table["central-online"], table["hierarchical"]
    assert isinstance(online.algorithm, Central)
    assert (online.data, online.start_run) == ("federated", "seed")
    local = federated.algorithm.local  # type: ignore[union-attr]
    steps = federated.rounds.total * federated.rounds.cohort * local.steps
    assert online.algorithm.local.batch_seconds == local.batch_seconds
    assert 0.75 * steps <= online.rounds.total * online.algorithm.local.steps <= steps
    assert online == replace(recipe("librispeech").runs["central-clients"], rounds=online.rounds)


def test_every_row_runs_and_goes_on(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a corpus of tones, a round, and of some another; that going on is exact, conformance tests show."""
    monkeypatch.setattr(runner, "write_report", lambda *arguments: None)
    wrong = recipe(str(EXAMPLES / "table1-wrong-texts.yaml"))
    tiny = replace(wrong, frontend=FRONTEND, model=MODELS["ctc"], augment=MASKS)
    settings = ["runs.*.rounds.cohort=3", "runs.*.rounds.valid_every=1", "runs.seed.rounds.total=1"]
    settings += [f"runs.{run}.clients.parts=3" for run in ("hierarchical-iid", "bmuf")]
    central = ("seed", "central-offline", "central-online")
    settings += [f"runs.{run}.algorithm.local.steps=2" for run in central]
    further = ["central-online", "rl", "median"]
    for total, only in ((1, []), (2, further)):
        experiment = config.override(tiny, [f"runs.*.rounds.total={total}", *settings])
        out = tmp_path / "out"
        scores = runner.run_experiment(experiment, world.corpus, out, total > 1, device="cpu", only=only)
        assert list(scores) == [run for run in wrong.runs if run in (only or wrong.runs)]
    torch.use_deterministic_algorithms(False)  # a run asks for them in the whole process
    for run in wrong.runs:
        rounds = [entry["round"] for entry in read(tmp_path / "out" / run / "journal.jsonl")]
        assert rounds == ([0, 1, 2] if run in further else [0, 1]), run


# --- The table ------------------------------------------------------------------------------------


@pytest.fixture
def table1(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import table1 as module  # type: ignore[import-not-found]

    return module


def write_lines(path: Path, entries: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def write_run(folder: Path, cers: dict[int, float], wrong: Sequence[int], weight: float = 1.0) -> None:
    """A run of two speakers with 100 words each; `cers` by round, `weight` of its one bad client of four."""
    folder.mkdir(parents=True)
    central = {"central": {}} if folder.name == "seed" else {"fed_avg": {}}
    corrupted = {"speaker/3": 1.0} if weight != 1.0 else {}
    about = {"format": "antiphon-run/1", "name": folder.name, "recipe": "table1", "seed": 0,
             "config": {"algorithm": central}, "rounds": max(cers), "corrupted": corrupted}  # fmt: skip
    (folder / "run.json").write_text(json.dumps(about))
    shares = [(4 - weight) / 12] * 3 + [weight / 4]
    clients = {f"speaker/{number}": {"weight": share} for number, share in enumerate(shares)}
    entries: list[dict[str, Any]] = [{"round": 0, "valid": {"cer": cers[0], "wer": 2 * cers[0]}}]
    for number in range(1, max(cers) + 1):
        entries.append({"round": number, "cohort": list(clients), "clients": clients})
        if number in cers:
            entries[-1]["valid"] = {"cer": cers[number], "wer": 2 * cers[number]}
    write_lines(folder / "journal.jsonl", entries)
    write_lines(folder / "clock.jsonl",
                [{"round": e["round"], "seconds": 0.75, "train_seconds": 0.5} for e in entries])  # fmt: skip
    people = {}
    for name, errors in zip("ab", wrong, strict=True):
        words = {"substitutions": errors, "deletions": 0, "insertions": 0, "length": 100}
        people[name] = {"words": words, "characters": {**words, "length": 500}, "num_utterances": 9}
    total = {"substitutions": sum(wrong), "deletions": 0, "insertions": 0, "length": 200}
    scores = {"split": "test", "which": "best", "round": 2, "speakers": people, "words": total,
              "characters": {**total, "length": 1000}, "num_utterances": 18}  # fmt: skip
    (folder / "evaluation" / "test" / "best").mkdir(parents=True)
    (folder / "evaluation" / "test" / "best" / "scores.json").write_text(json.dumps(scores))


def write_experiment(
    folder: Path, seed: int, curves: dict[str, dict[int, float]], corruption: dict[str, Any] = CLEAN
) -> Path:
    weights = {"softmax-1": 0.1, "hierarchical": 0.9} if corruption["fraction"] else {}
    for name, cers in curves.items():
        write_run(folder / name, cers, [20 - seed, 30 - seed], weights.get(name, 1.0))
    settings = {"seed": seed, "corruption": corruption, "speakers": {"test": "test"},
                "runs": {name: {} for name in curves}}  # fmt: skip
    body = {"format": "antiphon-experiment/1", "runs": list(curves), "config": settings}
    (folder / "experiment.json").write_text(json.dumps(body))
    return folder


SEED = {0: 0.5, 5: 0.2}
PLAIN = {0: 0.2, 2: 0.19, 4: 0.17, 6: 0.16, 8: 0.165}  # best: 0.16 in round 6
QUICK = {0: 0.2, 2: 0.16, 4: 0.15, 6: 0.14, 8: 0.15}
SLOW = {0: 0.2, 2: 0.199, 4: 0.198, 6: 0.197, 8: 0.196}


def run_of(module: Any, tmp_path: Path, cers: dict[int, float]) -> Any:
    write_run(tmp_path / "run", cers, [1, 1])
    return module.RunFolder.load(tmp_path / "run")


@pytest.mark.parametrize(
    ("target", "expected"), [(0.16, "6"), (0.1651, "6"), (0.17, "4"), (0.3, "2"), (0.159, "> 8")]
)
def test_rounds_to_reach_are_the_first_at_or_below_the_target(
    table1: Any, tmp_path: Path, target: float, expected: str
) -> None:
    assert str(table1.rounds_to(run_of(table1, tmp_path, PLAIN), target)) == expected


def test_the_target_is_the_lowest_cer_or_a_share_of_the_way_there(table1: Any, tmp_path: Path) -> None:
    run = run_of(table1, tmp_path, PLAIN)
    assert table1.target_of(run) == pytest.approx(0.16)
    assert table1.target_of(run, gain=0.75) == pytest.approx(0.17)


def test_the_start_is_nothing_that_a_row_reached(table1: Any, tmp_path: Path) -> None:
    """A row that only ever got worse has its best after the start, and reaches no lower one."""
    run = run_of(table1, tmp_path, {0: 0.1, 2: 0.13, 4: 0.12})
    assert table1.target_of(run) == pytest.approx(0.12)
    assert str(table1.rounds_to_best(run)) == "4"
    assert str(table1.rounds_to(run, 0.11)) == "> 4"


def test_the_median_counts_what_was_not_reached_as_the_slowest(table1: Any) -> None:
    def reached(*rounds: int | None) -> list[Any]:
        return [table1.Reached(number, 60) for number in rounds]

    assert str(table1.typical(reached(None, 4, 10))) == "10"
    assert str(table1.typical(reached(None, 4, None))) == "> 60"
    assert str(table1.typical(reached(4, None))) == "> 60"
    base = reached(30, 24, 40)
    assert table1.speed_up(base, reached(10, 12, 10)) == (3.0, False)
    assert table1.speed_up(base, reached(10, 12, None)) == (2.0, False)
    assert table1.speed_up(base, reached(None, 12, None)) == (40 / 60, True)  # at most that: not reached


def test_intervals_over_seeds_are_student_s(table1: Any) -> None:
    found = table1.over_seeds([0.40, 0.42, 0.44])
    half = 4.303 * 0.02 / 3**0.5  # two degrees of freedom, a deviation of 0.02
    assert found["interval"] == pytest.approx([0.42 - half, 0.42 + half])
    assert table1.over_seeds([0.4])["interval"] is None


def test_the_table_has_each_condition_with_its_medians_and_its_plots(
    table1: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {"seed": SEED, "fedavg": SLOW, "hierarchical": PLAIN, "softmax-1": QUICK}
    folders = [write_experiment(tmp_path / f"clean{seed}", seed, rows) for seed in range(3)]
    folders += [write_experiment(tmp_path / f"wrong{seed}", seed, rows, WRONG) for seed in range(2)]
    options = ["--out", str(tmp_path / "out.json"), "--plots", str(tmp_path / "plots")]
    monkeypatch.setattr(sys, "argv", ["table1.py", *map(str, folders), *options])
    table1.main()
    printed = capsys.readouterr().out
    assert "clean; 3 seeds" in printed
    assert "30% of clients: transcripts of others; 2 seeds" in printed
    found = json.loads((tmp_path / "out.json").read_text())["conditions"]["clean"]
    assert "reached" not in found["seed"]
    assert found["fedavg"]["reached"] == [{"round": None, "limit": 8}] * 3
    assert (found["fedavg"]["speed_up"], found["fedavg"]["speed_up_is_upper_bound"]) == (0.75, True)
    assert (found["softmax-1"]["speed_up"], found["softmax-1"]["best"][0]["round"]) == (3.0, 6)
    assert found["softmax-1"]["seconds_to_reach"] == [1.0] * 3  # two rounds of half a second of training
    assert found["softmax-1"]["wer"]["by_seed"] == pytest.approx([0.25, 0.24, 0.23])
    assert found["softmax-1"]["wer_less_baseline"] == {"estimate": 0.0, "low": 0.0, "high": 0.0}
    assert "> 8 (> 8, > 8, > 8)" in printed
    stem = "table1-30-of-clients-transcripts-of-others"
    names = ["table1-clean-wer.svg", f"{stem}-weights.svg", f"{stem}-wer.svg"]
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == sorted(names)


def test_a_baseline_that_never_beat_its_start_is_named(
    table1: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worse = {0: 0.1, 2: 0.13, 4: 0.12}
    folder = write_experiment(tmp_path / "bad", 0, {"hierarchical": worse})
    monkeypatch.setattr(sys, "argv", ["table1.py", str(folder), "--out", str(tmp_path / "out.json")])
    table1.main()
    assert "never got below the CER it started from (10.00 %)" in capsys.readouterr().out


def test_seeds_that_are_the_same_and_settings_that_differ_are_refused(table1: Any, tmp_path: Path) -> None:
    one = write_experiment(tmp_path / "one", 0, {"hierarchical": PLAIN})
    twin = write_experiment(tmp_path / "twin", 0, {"hierarchical": PLAIN})
    other = write_experiment(tmp_path / "other", 1, {"hierarchical": PLAIN, "fedavg": SLOW})
    lone = write_experiment(tmp_path / "lone", 2, {"fedavg": SLOW})

    def group(*folders: Path) -> Any:
        return table1.by_condition([table1.Trained.load(folder) for folder in folders], "hierarchical")

    with pytest.raises(ValueError, match="have the same seed"):
        group(one, twin)
    with pytest.raises(ValueError, match="differ in runs, not in seed"):
        group(one, other)
    with pytest.raises(ValueError, match="'hierarchical' has not been scored"):
        group(lone)
    with pytest.raises(ValueError, match="is no experiment"):
        table1.Trained.load(tmp_path)


def test_conditions_are_named_by_what_was_done(table1: Any) -> None:
    assert table1.condition_of(CLEAN) == "clean"
    assert table1.condition_of(BABBLE) == "30% of clients: babble at 5 dB"
    both = {**BABBLE, "transcripts": {"shuffled": {}}}
    assert table1.condition_of(both) == "30% of clients: babble at 5 dB and shuffled transcripts"


# --- Rows of any experiment -----------------------------------------------------------------------


def test_rows_of_any_experiment_are_compared_over_seeds(
    table1: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import rows as module  # type: ignore[import-not-found]

    folders = [write_experiment(tmp_path / str(seed), seed, {"seed": SEED, "soft": QUICK}) for seed in (0, 1)]
    for folder in folders:  # the seed model has twice as many errors, of either speaker
        path = folder / "seed/evaluation/test/best/scores.json"
        scores = json.loads(path.read_text())
        for counts in (scores["words"], *(speaker["words"] for speaker in scores["speakers"].values())):
            counts["substitutions"] *= 2
        path.write_text(json.dumps(scores))
    out = tmp_path / "out.json"
    options = ["--out", str(out), "--plot", str(tmp_path / "rows.svg")]
    monkeypatch.setattr(sys, "argv", ["rows.py", *map(str, folders), *options])
    module.main()
    assert ">soft<" in (tmp_path / "rows.svg").read_text()
    found = json.loads(out.read_text())["runs"]
    assert found["seed"]["wer"]["by_seed"] == pytest.approx([0.5, 0.48])
    assert found["soft"]["wer"]["mean"] == pytest.approx(0.245)
    assert found["soft"]["relative_to_baseline"] == pytest.approx(
        {"estimate": -0.5, "low": -0.5, "high": -0.5}
    )
    assert "−50.0 [−50.0, −50.0]" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["rows.py", *map(str, folders), "--baseline", "hard"])
    with pytest.raises(SystemExit):
        module.main()
    assert "'hard' has not been scored" in capsys.readouterr().err


def test_trials_are_chosen_for_each_condition(
    table1: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The best block momentum of clean clients is not that of mislabelled ones."""
    for name, corruption, best in (("clean", CLEAN, 0.8), ("wrong", WRONG, 0.2)):
        curves = {f"bmuf-{value:g}": QUICK if value == best else SLOW for value in TRIALS["bmuf"].values}
        write_experiment(tmp_path / name, 0, {"hierarchical": PLAIN, **curves}, corruption)
    folders = [str(tmp_path / name) for name in ("clean", "wrong")]
    monkeypatch.setattr(sys, "argv", ["table1.py", *folders, "--choose"])
    table1.main()
    assert capsys.readouterr().out.splitlines() == [
        "# clean",
        "runs.bmuf.algorithm.server.momentum=0.8",
        "# 30% of clients: transcripts of others",
        "runs.bmuf.algorithm.server.momentum=0.2",
    ]


def test_the_settings_of_every_choice_are_taken_by_the_recipe(table1: Any) -> None:
    choice = table1.choice
    assert choice("fedavg", 0.2) == ["runs.fedavg.algorithm.local.lr=0.2"]
    assert len(choice("hierarchical", 5e-3)) == 12
    table = recipe("table1")
    for row, tried in TRIALS.items():
        for value, run in tried.runs.items():
            chosen = config.override(table, choice(row, value))
            if row != "softmax":
                assert chosen.runs[row] == run
    chosen = config.override(table, choice("rl", 1.0))
    cohort = config.override(chosen, ["runs.rl.algorithm.policy=per_cohort"]).runs["rl"]
    assert chosen.runs["rl-cohort"] == cohort
    faster = config.override(table, choice("hierarchical", 5e-3))
    assert {name for name in table.runs if faster.runs[name] == table.runs[name]} == {
        *("seed", "central-offline", "central-online", "fedavg", "bmuf")
    }
