"""Common Voice, CSV and TSV tables, SpeechBrain and ESPnet, as their tools write them."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sources import imported, ramp, reasons, samples

from antiphon.clients.states import ClientStates
from antiphon.data.importing.candidates import Blob, ImportOptions
from antiphon.data.importing.formats import FORMATS, choose_format

soundfile = pytest.importorskip("soundfile")

Rows = list[dict[str, Any]]


def write_audio(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        soundfile.write(folder / name, ramp(0.5, 100 * number), 16000)


def write_table(path: Path, rows: Rows, delimiter: str = ",", **form: Any) -> Path:
    with open(path, "w", newline="", encoding=form.pop("encoding", "utf-8")) as file:
        writer = csv.DictWriter(file, rows[0].keys(), delimiter=delimiter, **form)
        writer.writeheader()
        writer.writerows(rows)
    return path


# --- Common Voice ---------------------------------------------------------------------------------

ANN, BOB = "a1" * 64, "b2" * 64  # client ids are 128 hexadecimal digits


def clip(client: str, number: int, sentence: str) -> dict[str, Any]:
    return {
        "client_id": client,
        "path": f"common_voice_en_{number}.flac",
        "sentence_id": f"{number:064x}",
        "sentence": sentence,
        "up_votes": 2,
        "age": "",
        "gender": "",
        "accents": "Scottish",
        "locale": "en",
    }


@pytest.fixture
def common_voice(tmp_path: Path) -> Path:
    folder = tmp_path / "en"
    write_audio(folder / "clips", *(f"common_voice_en_{number}.flac" for number in range(5)))
    rows = [clip(ANN, 0, 'He said: "Don’t go."'), clip(ANN, 1, '"A quote that is not closed')]
    raw = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None}
    write_table(folder / "train.tsv", rows, **raw)
    write_table(folder / "dev.tsv", [clip(BOB, 2, "Fine, thanks!")], **raw)
    write_table(folder / "test.tsv", [clip("c3" * 64, 3, "Who?")], **raw)
    write_table(folder / "validated.tsv", [*rows, clip(BOB, 4, "Only validated.")], **raw)
    (folder / "reported.tsv").write_text("sentence_id\tsentence\tlocale\treason\n")
    return folder


def test_common_voice_tables_are_the_splits_and_client_ids_the_speakers(common_voice: Path) -> None:
    summary, corpus, utterances = imported(common_voice)
    assert (summary.format, summary.skipped) == ("common_voice", ())
    assert {id: one.split for id, one in utterances.items()} == {
        "common_voice_en_0": "pool",
        "common_voice_en_1": "pool",
        "common_voice_en_2": "heldout",
        "common_voice_en_3": "test",
    }
    one = utterances["common_voice_en_0"]
    assert (one.speaker, one.session, one.text) == (ANN, ANN, "he said don't go")
    assert (one.extra["accents"], one.extra["up_votes"]) == ("Scottish", "2")
    assert utterances["common_voice_en_1"].text == "a quote that is not closed"
    np.testing.assert_array_equal(samples(corpus, utterances["common_voice_en_1"]), ramp(0.5, 100))


def test_common_voice_validated_alone_and_other_names_of_splits(common_voice: Path) -> None:
    _, _, utterances = imported(common_voice / "validated.tsv")
    assert {one.split for one in utterances.values()} == {"pool"}
    assert len(utterances) == 3
    _, _, utterances = imported(common_voice, splits={"dev": "mine"})
    assert utterances["common_voice_en_2"].split == "mine"
    for name in ("train", "dev", "test"):
        (common_voice / f"{name}.tsv").unlink()
    assert len(imported(common_voice)[2]) == 3


def test_common_voice_faults_are_skipped(common_voice: Path) -> None:
    with open(common_voice / "dev.tsv", "a") as file:
        file.write("too\tfew\n")
        for client, path in (("", "common_voice_en_4.flac"), (BOB, "gone.mp3"), (BOB, "../dev.tsv")):
            file.write("\t".join([client, path, "x", "words", "2", "", "", "", "en"]) + "\n")
        file.write("\t".join([BOB, "../../secret.flac", "x", "words", "2", "", "", "", "en"]) + "\n")
    summary, _, utterances = imported(common_voice)
    assert len(utterances) == 4
    assert reasons(summary) == {
        "": "malformed row",
        "common_voice_en_4": "bad name",
        "gone": "missing file",
        "dev": "unreadable audio",
        "secret": "path outside the source folder",
    }
    assert {one.where for one in summary.skipped} == {f"dev.tsv:{number}" for number in range(3, 8)}


def test_long_client_ids_make_file_names_that_fit(common_voice: Path, tmp_path: Path) -> None:
    _, _, utterances = imported(common_voice)
    states = ClientStates(tmp_path / "states")
    client = f"speaker/{utterances['common_voice_en_0'].speaker}"
    states.write(client, (0, 0), {"weight": torch.ones(2)})
    assert states.read(client, (1, 0))["weight"].tolist() == [1, 1]


# --- CSV and TSV ----------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> Path:
    folder = tmp_path / "calls"
    write_audio(folder / "wav", "a.wav", "b.wav", "c.wav")
    rows = [
        {
            "file": "wav/a.wav",
            "transcript": "Hello, there",
            "speaker_id": "ann",
            "split": "train",
            "day": "mon",
        },
        {"file": "wav/b.wav", "transcript": "two\nlines", "speaker_id": "ann", "split": "dev", "day": "tue"},
        {"file": "wav/c.wav", "transcript": 'a "word"', "speaker_id": 7, "split": "extra", "day": ""},
    ]
    return write_table(folder / "calls.csv", rows)


@pytest.mark.parametrize("delimiter", [",", ";", "|", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_usual_names_of_columns_are_recognised(table: Path, delimiter: str, encoding: str) -> None:
    with open(table, newline="") as file:
        rows: Rows = list(csv.DictReader(file))
    write_table(table, rows, delimiter, encoding=encoding)
    for source in (table, table.parent):
        summary, corpus, utterances = imported(source)
        assert (summary.format, summary.skipped) == ("csv", ())
        names = {id: (one.speaker, one.session, one.split, one.text) for id, one in utterances.items()}
        assert names == {
            "wav-a": ("ann", "ann", "pool", "hello there"),
            "wav-b": ("ann", "ann", "heldout", "two lines"),
            "wav-c": ("7", "7", "extra", "a word"),
        }
        assert utterances["wav-a"].extra == {"day": "mon"}
    np.testing.assert_array_equal(samples(corpus, utterances["wav-c"]), ramp(0.5, 200))


def test_columns_are_named_by_the_user(table: Path) -> None:
    _, _, utterances = imported(
        table, columns={"speaker": "day", "session": "speaker_id"}, where={"split": "pool"}
    )
    assert [(one.speaker, one.session) for one in utterances.values()] == [("mon", "ann")]
    _, _, utterances = imported(table, client_key="day", where={"split": "pool"})
    assert [one.speaker for one in utterances.values()] == ["mon"]


def test_a_column_that_is_not_there_is_an_error_that_lists_them(table: Path) -> None:
    listed = "the columns are file, transcript, speaker_id, split, day"
    with pytest.raises(ValueError, match=f"calls.csv has no column 'room'; {listed}"):
        imported(table, columns={"session": "room"})
    table.write_text(table.read_text().replace("speaker_id", "who"))
    with pytest.raises(
        ValueError, match=r"calls.csv: no column is known to hold the speaker.*speaker=NAME; the"
    ):
        imported(table)


def test_a_table_without_a_header_is_refused_and_no_transcript_is_printed(table: Path) -> None:
    for first in (
        "wav/a.wav,private words,ann\n",
        "LJ001|Private words of a long sentence that somebody said|x\n",
    ):
        table.write_text(first + first)
        with pytest.raises(ValueError, match=r"calls.csv has no header") as error:
            imported(table)
        assert "rivate" not in str(error.value)


def test_tables_named_after_splits_are_read_together_and_others_ask(table: Path) -> None:
    rows = [
        {"audio": "wav/a.wav", "text": "a", "speaker": "ann"},
        {"audio": "wav/b.wav", "text": "b", "speaker": "bob"},
    ]
    table.unlink()
    write_table(table.with_name("train.csv"), rows[:1])
    write_table(table.with_name("test.csv"), rows[1:])
    write_table(table.with_name("speakers.csv"), [{"name": "ann"}])
    _, _, utterances = imported(table.parent)
    assert {id: one.split for id, one in utterances.items()} == {"wav-a": "pool", "wav-b": "test"}
    table.with_name("train.csv").rename(table.with_name("first.csv"))
    table.with_name("test.csv").rename(table.with_name("second.csv"))
    with pytest.raises(ValueError, match=r"import one of first.csv, second.csv, speakers.csv"):
        imported(table.parent)


def test_faults_of_a_table_are_skipped(table: Path, tmp_path: Path) -> None:
    write_audio(tmp_path, "secret.wav")
    os.symlink(tmp_path / "secret.wav", table.parent / "link.wav")
    with open(table, "ab") as file:
        file.write(b"wav/a.wav,again,ann,dev,\nlink.wav,out,ann,dev,\n/etc/passwd,out,ann,dev,\nfew,fields\n")
        file.write(b"wav/x.wav,caf\xe9,ann,dev,\n,no audio,ann,dev,\n\n")
    summary, _, utterances = imported(table)
    assert len(utterances) == 3
    assert {(one.id, one.kind) for one in summary.skipped} == {
        ("wav-a", "duplicate id"),
        ("link", "path outside the source folder"),
        ("etc-passwd", "path outside the source folder"),
        ("", "malformed row"),
        ("wav-x", "missing file"),
        ("", "bad name"),
    }


def test_a_table_that_is_a_link_out_of_the_source_is_not_read(table: Path, tmp_path: Path) -> None:
    table.rename(tmp_path / "calls.csv")
    os.symlink(tmp_path / "calls.csv", table)
    with pytest.raises(ValueError, match=r"path outside the source folder: calls.csv"):
        imported(table.parent)


def test_other_formats_come_before_tables(table: Path, common_voice: Path) -> None:
    row = {"id": "a", "path": "wav/a.wav", "speaker": "ann", "text": "a"}
    (table.parent / "manifest.jsonl").write_text(json.dumps(row) + "\n")
    assert choose_format(table.parent, None) == "manifest"
    assert choose_format(table.parent, "csv") == "csv"
    assert choose_format(common_voice / "dev.tsv", None) == "common_voice"
    (common_voice / "clips").rename(common_voice / "audio")
    assert choose_format(common_voice / "dev.tsv", None) == "csv"


# --- SpeechBrain ----------------------------------------------------------------------------------


@pytest.fixture
def speechbrain(tmp_path: Path) -> Path:
    folder = tmp_path / "save"
    write_audio(folder / "LibriSpeech", "1-2-0000.flac", "1-2-0001.flac", "5-6-0000.flac")
    return folder


ROWS: Rows = [
    {
        "ID": "1-2-0000",
        "duration": 0.5,
        "wav": "{data_root}/LibriSpeech/1-2-0000.flac",
        "spk_id": "1-2",
        "wrd": "GO ON",
    },
    {"ID": "1-2-0001", "duration": 0.5, "wav": "LibriSpeech/1-2-0001.flac", "spk_id": "1-2", "wrd": "DON'T"},
    {
        "ID": "5-6-0000",
        "duration": 0.5,
        "wav": "$data_root/LibriSpeech/5-6-0000.flac",
        "spk_id": "5-6",
        "wrd": "STOP",
    },
]


def check_speechbrain(folder: Path) -> None:
    summary, corpus, utterances = imported(folder)
    assert (summary.format, summary.skipped) == ("speechbrain", ())
    names = {id: (one.speaker, one.split, one.text) for id, one in utterances.items()}
    assert names == {
        "1-2-0000": ("1-2", "pool", "go on"),
        "1-2-0001": ("1-2", "pool", "don't"),
        "5-6-0000": ("5-6", "heldout", "stop"),
    }
    np.testing.assert_array_equal(samples(corpus, utterances["1-2-0001"]), ramp(0.5, 100))


def test_speechbrain_csv(speechbrain: Path) -> None:
    write_table(speechbrain / "train.csv", ROWS[:2])
    write_table(speechbrain / "train-clean-100.csv", ROWS[:2])  # merged into train.csv by the recipe
    write_table(speechbrain / "dev-clean.csv", ROWS[2:])
    for name in ("train.csv", "dev-clean.csv"):
        assert choose_format(speechbrain / name, None) == "speechbrain"
    summary, _, utterances = imported(speechbrain, splits={"dev-clean": "heldout"})
    assert (len(utterances), summary.skipped) == (3, ())
    (speechbrain / "dev-clean.csv").rename(speechbrain / "valid.csv")
    check_speechbrain(speechbrain)


@pytest.mark.parametrize("indent", [None, 2])
def test_speechbrain_json(speechbrain: Path, indent: int | None) -> None:
    def fields(row: dict[str, Any]) -> dict[str, Any]:
        return {"wav": row["wav"], "length": row["duration"], "spk_id": row["spk_id"], "words": row["wrd"]}

    for name, rows in (("train", ROWS[:2]), ("valid", ROWS[2:])):
        content = {row["ID"]: fields(row) for row in rows}
        (speechbrain / f"{name}.json").write_text(json.dumps(content, indent=indent))
    check_speechbrain(speechbrain)


def test_speechbrain_faults_are_skipped(speechbrain: Path) -> None:
    good = {"wav": "LibriSpeech/1-2-0000.flac", "length": 0.5, "spk_id": "a", "words": "go"}
    content: dict[str, Any] = {
        "good": good,
        "part": good | {"wav": {"file": "x.wav", "start": 1, "stop": 2}},
        "long": good | {"length": 9},
        "odd": good | {"length": "nine"},
        "out": good | {"wav": "{data_root}/../../x.wav"},
        "mute": {key: value for key, value in good.items() if key != "words"},
        "list": [],
    }
    (speechbrain / "train.json").write_text(json.dumps(content))
    summary, _, utterances = imported(speechbrain)
    assert list(utterances) == ["good"]
    assert reasons(summary) == {
        "part": "part of a file",
        "long": "duration mismatch",
        "odd": "bad number",
        "out": "path outside the source folder",
        "mute": "no field 'words'",
        "list": "malformed JSON",
    }
    (speechbrain / "train.json").write_text(json.dumps(content)[:-9])
    with pytest.raises(ValueError, match=r"train.json is not JSON"):
        imported(speechbrain)


# --- ESPnet ---------------------------------------------------------------------------------------


def test_espnet_data_directories_are_kaldi_directories(tmp_path: Path) -> None:
    recipe = tmp_path / "asr1"
    write_audio(recipe / "dump" / "raw" / "org" / "format.1", "ann-1.flac", "bob-1.flac")
    data = recipe / "dump" / "raw" / "train"
    data.mkdir()
    audio = "dump/raw/org/format.1"
    (data / "wav.scp").write_text(
        f"ann-1 {audio}/ann-1.flac\nbob-1 {audio}/bob-1.flac\nbob-2 data_wav.ark:42\n"
    )
    (data / "text").write_text("ann-1 GO ON\nbob-1 STOP\nbob-2 WELL\n")
    (data / "utt2spk").write_text("ann-1 ann\nbob-1 bob\nbob-2 bob\n")
    (data / "spk2utt").write_text("ann ann-1\nbob bob-1 bob-2\n")
    (data / "utt2num_samples").write_text("ann-1 8000\nbob-1 8000\n")
    (data / "feats_type").write_text("raw\n")
    (data / "audio_format").write_text("flac\n")
    summary, _, utterances = imported(data, audio_root=recipe)
    assert summary.format == "kaldi"
    assert {id: (one.speaker, one.text) for id, one in utterances.items()} == {
        "ann-1": ("ann", "go on"),
        "bob-1": ("bob", "stop"),
    }
    assert reasons(summary) == {"bob-2": "archive in wav.scp"}


@pytest.mark.parametrize("name", ["common_voice", "csv"])
def test_importers_open_no_audio(name: str, common_voice: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Blob, "open", lambda blob: pytest.fail("audio was opened"))
    assert list(FORMATS[name]().read(common_voice / "dev.tsv", ImportOptions()))
