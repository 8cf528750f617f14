"""Damaged files and hostile settings at the command line: one line that names the culprit, no traceback."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from command import Antiphon, run_arguments
from world import World

LAUGHS = "a0: &a0 [lol]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
SETTINGS = {
    "not UTF-8": (b"recipe: dga\nruns: {dga: caf\xe9}\n", "is not UTF-8 text (byte 28)"),
    "laughs": (b"recipe: dga\n" + LAUGHS.encode(), "more than 100,000 values"),
    "loop": (b"recipe: dga\nruns: &r {a: *r}\n", "nested too deeply"),
    "deep": (b"recipe: dga\nruns: " + b"[" * 50_000, "nested too deeply"),
    "no YAML": (b"recipe: dga\nruns: {dga\n", "line 3: expected ',' or '}'"),
    "infinity": (b"recipe: dga\nspeakers: {seed_fraction: 1e999}\n", "'1e999' is not a finite number"),
    "nan": (b"recipe: dga\nspeakers: {seed_fraction: .nan}\n", "nan is not a finite number"),
    "400 digits": (b"recipe: dga\nseed: " + b"1" * 400, "seed: a number of many digits is too large"),
    "5000 digits": (b"recipe: dga\nseed: " + b"1" * 5000, "limit (4300 digits)"),
    "400 digits for a float": (
        b"recipe: dga\nspeakers: {seed_fraction: " + b"1" * 400 + b"}",
        "speakers.seed_fraction: a number of many digits is not a finite number",
    ),
    "itself": (b"recipe: settings.yaml\n", "settings.yaml begins from itself"),
    "a list": (b"recipe: [dga]\n", "must name the recipe"),
    "empty": (b"", "must name the recipe"),
}


@pytest.mark.parametrize(("content", "message"), SETTINGS.values(), ids=SETTINGS)
def test_settings_that_cannot_be_read_are_named_with_their_file(
    antiphon: Antiphon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    world: World,
    content: bytes,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("settings.yaml").write_bytes(content)
    done = antiphon("run", "settings.yaml", "--data", world.corpus, "--out", "out")
    assert done.code == 2
    assert "settings.yaml" in done.output
    assert message in done.output
    assert done.output.count("\n") == 1
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("speakers.seed_fraction=1e999", "speakers.seed_fraction: '1e999' is not a finite number"),
        ("seed=" + "1" * 400, "seed: a number of many digits is too large"),
        ("seed=" + "[" * 50_000, "seed: expected int, not '[[["),
        ("speakers.seed_fraction=.inf", "speakers.seed_fraction: inf is not a finite number"),
    ],
    ids=["1e999", "400 digits", "deep", "inf"],
)
def test_a_setting_that_is_no_number_is_named(
    antiphon: Antiphon, world: World, tmp_path: Path, setting: str, message: str
) -> None:
    done = antiphon("run", "dga", "--data", world.corpus, "--out", tmp_path / "out", "--set", setting)
    assert done.code == 2
    assert message in done.output
    assert len(done.output) < 300


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "out")
    return tmp_path / "out"


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"format": "antiphon-experiment/1"}', "[" * 50_000],
    ids=["empty", "cut off", "list", "no keys", "deep"],
)
def test_a_damaged_experiment_json_is_named_by_every_command_that_reads_it(
    antiphon: Antiphon, copy: Path, world: World, content: str
) -> None:
    (copy / "experiment.json").write_text(content)
    run = copy / "fedavg"
    for command in (
        ("report", copy),
        ("evaluate", run),
        ("nbest", run, "--out", copy / "lists.jsonl"),
        ("prune", run, "--out", copy.parent / "pruned"),
        ("run", "fedavg", "--data", world.corpus, "--out", copy, "--resume"),
    ):
        done = antiphon(*command)
        assert done.code == 2, command
        assert "experiment.json" in done.output, command
        assert done.output.count("\n") == 1, command


@pytest.mark.parametrize("key", ["words", "characters", "num_utterances", "speakers", "split", "which"])
def test_scores_without_a_key_are_named_by_report(antiphon: Antiphon, copy: Path, key: str) -> None:
    """As older versions wrote them, without a checksum."""
    path = copy / "fedavg" / "evaluation" / "test" / "best" / "scores.json"
    scores = json.loads(path.read_text())
    del scores[key], scores["sha256"], scores["files"]
    path.write_text(json.dumps(scores))
    done = antiphon("report", copy)
    assert done.code == 2
    assert f"{path} is damaged ({key}: it is missing). Score the model again" in done.output


@pytest.mark.parametrize("content", ["", "{", '{"normalisation": 3}', '{"normalisation": {"nfc": "x"}}'])
def test_damaged_scores_are_named_by_compare(antiphon: Antiphon, copy: Path, content: str) -> None:
    path = copy / "fedavg" / "evaluation" / "test" / "best" / "scores.json"
    path.write_text(content)
    done = antiphon("compare", copy / "seed", copy / "fedavg")
    assert done.code == 2
    assert str(path) in done.output


def test_a_model_that_is_cut_off_is_named(antiphon: Antiphon, copy: Path, world: World) -> None:
    path = copy / "seed" / "model" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    recording = next(world.corpus.parent.glob("source/*.wav"))
    again = run_arguments(world.corpus, copy, "--resume", "--only", "fedavg")
    shutil.rmtree(copy / "fedavg")
    for command in (["transcribe", copy / "seed", recording], ["evaluate", copy / "seed"], again):
        done = antiphon(*command)
        assert done.code == 2, command
        assert f"{path} is damaged" in done.output


TABLES = ("manifest.jsonl", "metadata.csv", "metadata.jsonl", "train.tsv", "train.parquet")
PIPES = (*TABLES, "cuts.jsonl", "cuts.jsonl.gz", "data.json", "wav.scp")


@pytest.mark.parametrize("name", PIPES)
def test_an_import_never_waits_for_a_pipe(antiphon: Antiphon, tmp_path: Path, name: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    os.mkfifo(source / name)
    for path in (source, source / name):
        done = antiphon("corpus", "import", path, tmp_path / "corpus")
        assert done.code == 2
        assert name in done.output
    assert not (tmp_path / "corpus").exists()


def test_a_pipe_in_place_of_a_recording_is_named_and_does_not_stop_the_others(
    antiphon: Antiphon, copy: Path, world: World
) -> None:
    os.mkfifo(copy / "pipe.wav")
    recording = next(world.corpus.parent.glob("source/*.wav"))
    done = antiphon("transcribe", copy / "seed", copy / "pipe.wav", recording)
    assert done.code == 1
    assert "pipe.wav: it is a pipe or a device, not a regular file" in " ".join(done.output.split())
    assert f"{recording}\t" in done.output


PARTS = ("journal.jsonl", "clock.jsonl", "checkpoints/round-000001/state.json")


@pytest.mark.parametrize("name", PARTS)
def test_a_resumed_run_never_waits_for_a_pipe(
    antiphon: Antiphon, copy: Path, world: World, name: str
) -> None:
    path = copy / "fedavg" / name
    assert path.is_file()
    path.unlink()
    os.mkfifo(path)
    done = antiphon(*run_arguments(world.corpus, copy, "--resume", "--only", "fedavg"))
    assert done.code == 2
    assert (path.parent.name if "state" in name else path.name) in done.output


@pytest.mark.parametrize("name", ["model.json", "tokens.json", "model.safetensors"])
def test_a_pipe_in_place_of_a_file_of_a_model_is_named(antiphon: Antiphon, copy: Path, name: str) -> None:
    path = copy / "seed" / "model" / name
    path.unlink()
    os.mkfifo(path)
    done = antiphon("evaluate", copy / "seed")
    assert done.code == 2
    assert name in done.output
