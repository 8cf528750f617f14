"""Parts of another package, one file each, chosen by `package.module:Class`: as CONTRIBUTING.md promises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import Antiphon
from world import write_source

from antiphon.records.journal import read

SETTINGS = Path(__file__).parents[1] / "extension" / "every_part.yaml"


@pytest.fixture
def corpus(antiphon: Antiphon, tmp_path: Path) -> Path:
    """A corpus that the package's own importer has read."""
    source = write_source(tmp_path / "speech")
    rows = [json.loads(line) for line in (source / "manifest.jsonl").read_text().splitlines()]
    columns = ("id", "speaker", "split", "text")
    lines = ["\t".join(row[column] for column in columns) for row in rows]
    (source / "list.tsv").write_text("\n".join(lines))
    num_speakers = len({row["speaker"] for row in rows})
    imported = antiphon(
        "corpus", "import", source, tmp_path / "corpus", "--format", "extension.tab_separated:TabSeparated"
    )
    assert imported.code == 0, imported.output
    summary = " ".join(imported.output.split())
    assert f"{len(rows)} utterances, {num_speakers} speakers" in summary
    return tmp_path / "corpus"


def test_a_settings_file_chooses_a_part_of_every_kind(
    corpus: Path, antiphon: Antiphon, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = antiphon("run", SETTINGS, "--data", corpus, "--out", out)
    assert done.code == 0, done.output
    model = json.loads((out / "fedavg" / "model" / "model.json").read_text())
    assert "extension.two_layers:TwoLayersConfig" in json.dumps(model)
    for entry in read(out / "momentum" / "journal.jsonl")[1:]:
        assert all(stats["state_bytes"] > 0 for stats in entry["clients"].values())
    parts = read(out / "parts" / "journal.jsonl")[1:]
    assert [entry["metrics"]["server_lr"] for entry in parts] == [1.0, 0.5]
    assert all(client.startswith("length/") for entry in parts for client in entry["cohort"])
    timed = read(out / "timed" / "journal.jsonl")[1:]
    assert 0 < timed[0]["simulated_time"] < 3600 < timed[1]["simulated_time"]  # clients begin on the hour
    scored = antiphon("evaluate", out / "fedavg", "--data", corpus, "--split", "test")
    assert scored.code == 0, scored.output


def test_a_synthesiser_speaks_for_an_adaptation(corpus: Path, antiphon: Antiphon, tmp_path: Path) -> None:
    trained = antiphon("run", SETTINGS, "--data", corpus, "--out", tmp_path / "out", "--only", "seed")
    assert trained.code == 0, trained.output
    (tmp_path / "slides.txt").write_text("abc de\nbad cab\n")
    speaking = ["engines=extension.beeps:Beeps", "num_voices=2", "rehearse_hours=0.001", "valid_hours=0.001"]
    settings = [word for setting in speaking for word in ("--speak", setting)]
    adapted = antiphon(
        "adapt", tmp_path / "out" / "seed", "--text", tmp_path / "slides.txt", "--rehearse", corpus,
        "--out", tmp_path / "better", "--speech-only", *settings,
    )  # fmt: skip
    assert adapted.code == 0, adapted.output
    plan = json.loads((tmp_path / "better" / "corpus" / "plan.json").read_text())
    assert plan["engines"] == {"extension.beeps:Beeps": "1"}
