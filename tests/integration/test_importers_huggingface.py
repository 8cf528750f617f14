"""Hugging Face datasets on disk: audio folders, Parquet files and folders of save_to_disk."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sources import imported, ramp, reasons, samples

from antiphon.data.audio import encode_flac
from antiphon.data.importing.arrow_trial import survives
from antiphon.data.importing.formats import choose_format

soundfile = pytest.importorskip("soundfile")


def flac(first: int = 0) -> bytes:
    return encode_flac(ramp(0.5, first).astype(np.float32) / 32768)


# --- audiofolder ----------------------------------------------------------------------------------


@pytest.fixture
def audiofolder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    for split, speaker in (("train", "ann"), ("validation", "bob")):
        (folder / "data" / split).mkdir(parents=True)
        (folder / "data" / split / "a.flac").write_bytes(flac(len(split)))
        row = {"file_name": "a.flac", "transcription": "Hello!", "speaker_id": speaker, "id": f"{split}-a"}
        (folder / "data" / split / "metadata.jsonl").write_text(json.dumps(row) + "\n")
    (folder / "README.md").write_text("---\n")
    return folder


def test_audio_folder_with_a_folder_for_each_split(audiofolder: Path) -> None:
    summary, corpus, utterances = imported(audiofolder)
    assert (summary.format, summary.skipped) == ("audiofolder", ())
    assert {id: (one.speaker, one.split, one.text) for id, one in utterances.items()} == {
        "train-a": ("ann", "pool", "hello"),
        "validation-a": ("bob", "heldout", "hello"),
    }
    np.testing.assert_array_equal(samples(corpus, utterances["train-a"]), ramp(0.5, 5))


def test_audio_folder_with_one_csv_and_its_faults(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    (folder / "wav").mkdir(parents=True)
    (folder / "wav" / "a.flac").write_bytes(flac())
    lines = [
        "file_name,text,speaker",
        "wav/a.flac,go,ann",
        "gone.wav,go,ann",
        "../x.wav,go,ann",
        "wav/a.flac,go",
    ]
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    for source in (folder, folder / "metadata.csv"):
        summary, _, utterances = imported(source)
        assert (summary.format, list(utterances)) == ("audiofolder", ["wav-a"])
        assert reasons(summary) == {
            "gone": "missing file",
            "x": "path outside the source folder",
            "": "malformed row",
        }
    (folder / "metadata.csv").write_text("file_name,text\nwav/a.flac,go\n")
    with pytest.raises(ValueError, match=r"one/metadata.csv: no column is known to hold the speaker"):
        imported(folder)


def test_a_link_to_metadata_elsewhere_is_not_read(audiofolder: Path, tmp_path: Path) -> None:
    metadata = audiofolder / "data" / "train" / "metadata.jsonl"
    metadata.rename(tmp_path / "metadata.jsonl")
    os.symlink(tmp_path / "metadata.jsonl", metadata)
    assert reasons(imported(audiofolder)[0]) == {"": "path outside the source folder"}


# --- Parquet and Arrow ----------------------------------------------------------------------------

Write = Callable[[Path, Any], None]


def table_of(pyarrow: Any, with_bytes: bool = True) -> Any:
    sound = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    rows = [
        {"bytes": flac(100 * number) if with_bytes else None, "path": f"{number}.flac"} for number in range(5)
    ]
    return pyarrow.table(
        {
            "audio": pyarrow.array(rows, sound),
            "sentence": pyarrow.array([f"Text {'abcde'[number]}!" for number in range(5)]),
            "speaker_id": pyarrow.array([4, 3, 4, 3, 4]),
            "vector": pyarrow.array([[0.5]] * 5),
        }
    )


def check(source: Path, num: int = 5) -> None:
    summary, corpus, utterances = imported(source)
    assert (summary.format, summary.skipped, len(utterances)) == ("hf_dataset", (), num)
    one = utterances["3"]
    assert (one.speaker, one.split, one.text, one.extra) == ("3", "pool", "text d", {})
    for number in range(5):
        np.testing.assert_array_equal(samples(corpus, utterances[str(number)]), ramp(0.5, 100 * number))


@pytest.mark.parametrize("row_group_size", [1, 2, 100])
def test_parquet_with_audio_inside(tmp_path: Path, row_group_size: int) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "hub" / "data").mkdir(parents=True)
    path = tmp_path / "hub" / "data" / "train-00000-of-00001.parquet"
    parquet.write_table(table_of(pyarrow), path, row_group_size=row_group_size)
    check(tmp_path / "hub")
    check(path)


def test_parquet_with_paths(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "hub" / "train"
    folder.mkdir(parents=True)
    for number in range(4):
        (folder / f"{number}.flac").write_bytes(flac(100 * number))
    table = table_of(pyarrow, with_bytes=False)
    plain = table.set_column(0, "audio", pyarrow.array([f"{number}.flac" for number in range(5)]))
    for one in (table, plain):
        parquet.write_table(one, folder / "0000.parquet")
        summary, corpus, utterances = imported(tmp_path / "hub")
        assert (len(utterances), reasons(summary)) == (4, {"4": "missing file"})
        np.testing.assert_array_equal(samples(corpus, utterances["3"]), ramp(0.5, 300))


def test_parquet_faults_are_skipped(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "hub"
    folder.mkdir()
    columns = {"text": ["a", "b", "c", "d"], "speaker": ["ann", None, "bob", "cem"]}
    columns["audio"] = [flac(), flac(), b"junk", None]  # type: ignore[list-item]
    parquet.write_table(pyarrow.table(columns), folder / "test.parquet")
    (folder / "train.parquet").write_bytes(b"PAR1 this is no table PAR1")
    summary, _, utterances = imported(folder)
    assert {id: one.split for id, one in utterances.items()} == {"test-0-0": "test"}
    assert sorted(one.kind for one in summary.skipped) == [
        "damaged file",
        "no audio",
        "no field 'speaker'",
        "unreadable audio",
    ]


def test_folders_of_save_to_disk(tmp_path: Path) -> None:
    """`datasets` writes Arrow streams of batches, beside state.json."""
    pyarrow = pytest.importorskip("pyarrow")
    saved = tmp_path / "saved"
    for split in ("train", "test"):
        (saved / split).mkdir(parents=True)
        (saved / split / "state.json").write_text(json.dumps({"_split": split}))
        (saved / split / "dataset_info.json").write_text("{}")
        table = table_of(pyarrow)
        if split == "test":
            ids = pyarrow.array([f"t{number}" for number in range(5)])
            table = table.append_column("id", ids)
        path = saved / split / "data-00000-of-00001.arrow"
        with open(path, "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
            for batch in table.to_batches(max_chunksize=2):
                writer.write_batch(batch)
    (saved / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    check(saved, num=10)
    check(saved / "train")
    _, _, utterances = imported(saved)
    assert {one.split for id, one in utterances.items() if id.startswith("t")} == {"test"}
    path = saved / "train" / "data-00000-of-00001.arrow"
    path.write_bytes(path.read_bytes()[:-600])
    summary, _, utterances = imported(saved)
    assert 5 < len(utterances) < 10
    assert {one.kind for one in summary.skipped} == {"damaged file"}


def test_a_shard_that_is_a_link_out_of_the_source_needs_audio_root(tmp_path: Path) -> None:
    """The cache of the hub: links into a folder of blobs."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    blobs, snapshot = tmp_path / "cache" / "blobs", tmp_path / "cache" / "snapshots" / "1"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    parquet.write_table(table_of(pyarrow), blobs / "3fa2")
    os.symlink(blobs / "3fa2", snapshot / "train.parquet")
    with pytest.raises(ValueError, match="path outside the source folder"):
        imported(snapshot)
    assert imported(snapshot, audio_root=blobs)[0].num_utterances == 5


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "train.parquet").write_bytes(b"PAR1")
    assert choose_format(tmp_path / "hub", None) == "hf_dataset"
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"pip install 'antiphon\[parquet\]'"):
        imported(tmp_path / "hub")


def test_parquet_metadata_that_ends_pyarrow_is_a_damaged_file(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(table_of(pyarrow), tmp_path / "train.parquet")
    whole = (tmp_path / "train.parquet").read_bytes()
    fatal = tmp_path / "hub" / "test.parquet"
    fatal.parent.mkdir()
    (tmp_path / "train.parquet").rename(fatal.parent / "train.parquet")
    chance = random.Random(0)
    start = len(whole) - int.from_bytes(whole[-8:-4], "little") - 8
    while True:  # about one flip in ten at the beginning of the metadata
        damaged = bytearray(whole)
        damaged[start + chance.randrange(80)] ^= 1 << chance.choice((0, 3, 6))
        fatal.write_bytes(damaged)
        if not survives(fatal):
            break
    summary, _, utterances = imported(fatal.parent)
    assert len(utterances) == 5
    (skipped,) = summary.skipped
    assert (skipped.where, skipped.kind) == ("test.parquet", "damaged file")


def test_arrow_offsets_that_lead_out_of_the_file_are_a_damaged_file(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "state.json").write_text("{}")
    table = table_of(pyarrow)
    with pyarrow.ipc.new_stream(str(folder / "data.arrow"), table.schema) as writer:
        writer.write_table(table)
    whole = (folder / "data.arrow").read_bytes()
    ends = np.cumsum([0] + [len(flac(100 * number)) for number in range(5)], dtype=np.int32)
    assert whole.count(ends.tobytes()) == 1
    for wrong in (-5, 2**30, 3):  # the third: offsets that go backwards
        damaged = ends.copy()
        damaged[2] = wrong
        (folder / "data.arrow").write_bytes(whole.replace(ends.tobytes(), damaged.tobytes()))
        with pytest.raises(ValueError, match=r"damaged file: the rest of it cannot be read .*data\.arrow"):
            imported(folder)


@pytest.mark.parametrize("name", [b"audio", b"bytes", b"path"])
def test_names_in_arrow_that_are_not_utf8_are_a_damaged_file(name: bytes, tmp_path: Path) -> None:
    """Names of columns, and of the parts of a column with audio."""
    pyarrow = pytest.importorskip("pyarrow")
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "state.json").write_text("{}")
    table = table_of(pyarrow)
    with pyarrow.ipc.new_stream(str(folder / "data.arrow"), table.schema) as writer:
        writer.write_table(table)
    whole = (folder / "data.arrow").read_bytes()
    assert name in whole
    (folder / "data.arrow").write_bytes(whole.replace(name, name[:1] + b"\xe1" + name[2:]))
    with pytest.raises(ValueError, match=r"damaged file: it cannot be read .*data\.arrow"):
        imported(folder)


def test_text_in_arrow_that_is_not_utf8_is_a_damaged_file(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "train.parquet"
    parquet.write_table(table_of(pyarrow), path, compression="none", use_dictionary=False)
    path.write_bytes(path.read_bytes().replace(b"Text c!", b"Text \xff!"))
    with pytest.raises(ValueError, match=r"row group 0 cannot be read .*train\.parquet:0"):
        imported(path)
