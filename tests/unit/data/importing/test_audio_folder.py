"""A manifest for a folder of audio: what is found out, and what is said about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.data.importing.audio_folder import list_audio


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def test_texts_beside_recordings_and_folders_of_speakers(tmp_path: Path) -> None:
    files = {
        f"{who}/{n}.{end}": f"hello {n}\n" for who in ("ann", "bob") for n in "12" for end in ("wav", "txt")
    }
    listing = list_audio(write(tmp_path, {**files, "bob/3.wav": ""}))
    assert listing.rows[0] == {"id": "ann-1", "path": "ann/1.wav", "speaker": "ann", "text": "hello 1"}
    assert [row["speaker"] for row in listing.rows] == ["ann", "ann", "bob", "bob"]
    assert listing.assumptions == (
        "the transcript of a recording is the .txt file beside it",
        "recordings left out, because there is no .txt file: 1",
        "the speaker is the name of the first folder",
        "the source has no splits: the import divides the speakers (--split-speakers)",
    )
    assert not listing.has_splits
    assert listing.num_speakers == 2


def test_speakers_at_the_beginning_of_file_names(tmp_path: Path) -> None:
    files = {f"{who}_{n}.{end}": "hi" for who in ("ann", "bob") for n in "12" for end in ("flac", "txt")}
    listing = list_audio(write(tmp_path, files))
    assert [row["speaker"] for row in listing.rows] == ["ann", "ann", "bob", "bob"]
    assert "the speaker is the beginning of the file name, up to - or _" in listing.assumptions


def test_without_speakers_this_is_said(tmp_path: Path) -> None:
    listing = list_audio(write(tmp_path, {"a.wav": "", "a.txt": "hi", "b.wav": "", "b.txt": "ho"}))
    assert listing.num_speakers == 1
    assert any(text.startswith("no speakers were found") for text in listing.assumptions)


def test_folders_of_splits_and_speakers(tmp_path: Path) -> None:
    files = {f"{split}/{split}{who}/1.{end}": "hi" for split in ("train", "dev", "test") for who in "ab"
             for end in ("wav", "txt")}  # fmt: skip
    listing = list_audio(write(tmp_path, files))
    assert listing.has_splits
    assert {(row["speaker"], row["split"]) for row in listing.rows} == {
        ("traina", "pool"), ("trainb", "pool"), ("deva", "heldout"), ("devb", "heldout"),
        ("testa", "test"), ("testb", "test"),
    }  # fmt: skip


def test_a_metadata_table(tmp_path: Path) -> None:
    table = 'file_name,transcription,speaker_id\na.wav,"hello, you",ann\nb.wav,hi,bob\nc.wav,lost,bob\n'
    listing = list_audio(write(tmp_path, {"wav/a.wav": "", "wav/b.wav": "", "metadata.csv": table}))
    assert listing.rows[0] == {"id": "wav-a", "path": "wav/a.wav", "speaker": "ann", "text": "hello, you"}
    assert listing.num_speakers == 2
    assert listing.assumptions[:2] == (
        "transcripts are in metadata.csv: file_name is the audio, transcription is the text, "
        "speaker_id is the speaker",
        "lines left out, because there is no such file or no text: 1",
    )


def test_common_voice(tmp_path: Path) -> None:
    line = '{}\t{}.mp3\tSay "hi"\n'
    tables = {f"{name}.tsv": "client_id\tpath\tsentence\n" + line.format(f"c{name}", name)
              for name in ("train", "dev", "test", "other")}  # fmt: skip
    clips = {f"clips/{name}.mp3": "" for name in ("train", "dev", "test", "other")}
    listing = list_audio(write(tmp_path, {**tables, **clips}))
    assert {(row["speaker"], row["split"]) for row in listing.rows} == {
        ("ctrain", "pool"), ("cdev", "heldout"), ("ctest", "test"),
    }  # fmt: skip
    assert listing.rows[0]["text"] == 'Say "hi"'
    assert listing.has_splits


def test_librispeech(tmp_path: Path) -> None:
    chapter = "dev-clean/84/121/"
    files = {chapter + "84-121.trans.txt": "84-121-0000 GO ON\n", chapter + "84-121-0000.flac": ""}
    listing = list_audio(write(tmp_path, files))
    (row,) = listing.rows
    assert row == {
        "id": "84-121-0000", "path": chapter + "84-121-0000.flac", "speaker": "84", "split": "dev-clean",
        "session": "84-121", "text": "GO ON",
    }  # fmt: skip
    assert listing.assumptions == ("the folder is in the format librispeech",)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.doc": ""}, "holds no audio: looked for .flac"),
        ({"a.wav": ""}, r"recordings \(1\) but no transcripts"),
    ],
)
def test_a_folder_without_audio_or_transcripts_is_refused(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        list_audio(write(tmp_path, files))
    with pytest.raises(ValueError, match="is not a folder of audio"):
        list_audio(tmp_path / "gone")


def test_a_table_without_speakers_gets_them_from_folders(tmp_path: Path) -> None:
    table = "file_name,text\nann/1.wav,hello\nbob/1.wav,hi\n"
    listing = list_audio(write(tmp_path, {"ann/1.wav": "", "bob/1.wav": "", "metadata.csv": table}))
    assert [row["speaker"] for row in listing.rows] == ["ann", "bob"]
    assert "the speaker is the name of the first folder" in listing.assumptions
