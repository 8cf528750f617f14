"""A small source in every format that can be imported, as other tools write it, to be damaged."""

from __future__ import annotations

import csv
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sources import tone

from antiphon.data.audio import encode_flac

NUM = 5
TEXTS = ("go on", "don't stop", "a cab", "bed and dad", "so it is")


def _audio(folder: Path, ending: str = ".flac") -> list[str]:
    """Write recordings in several formats; return their names."""
    import soundfile

    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for number in range(NUM):
        names.append(f"u{number}{ending if ending else ('.flac', '.wav', '.ogg')[number % 3]}")
        sound = tone(0.3, (16000, 8000)[number == 4 and ending == ""], 200.0 + 50 * number)
        if names[-1].endswith(".flac"):
            (folder / names[-1]).write_bytes(encode_flac(sound))
        else:
            soundfile.write(folder / names[-1], sound, 16000)
    return names


def _rows(names: list[str], **fields: str) -> list[dict[str, Any]]:
    """Return a row for each recording, with the names of columns that a format has."""
    keys = {"id": "id", "path": "path", "speaker": "speaker", "text": "text", **fields}
    values = [(f"u{n}", name, f"s{n % 2}", TEXTS[n]) for n, name in enumerate(names)]
    return [
        dict(zip((keys[k] for k in ("id", "path", "speaker", "text")), row, strict=True)) for row in values
    ]


def _lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _table(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(rows)


def manifest(folder: Path) -> None:
    _lines(folder / "manifest.jsonl", [{**row, "duration": 0.3} for row in _rows(_audio(folder, ""))])


def manifest_with_tar(folder: Path) -> None:
    names = _audio(folder / "wav")
    with tarfile.open(folder / "audio.tar", "w") as tar:
        for name in names:
            tar.add(folder / "wav" / name, name)
    for name in names:
        (folder / "wav" / name).unlink()
    (folder / "wav").rmdir()
    _lines(folder / "manifest.jsonl", _rows(names))


def nemo(folder: Path) -> None:
    rows = _rows(_audio(folder), path="audio_filepath")
    _lines(folder / "train.json", [{**row, "duration": 0.2, "offset": 0.05} for row in rows])


def kaldi(folder: Path) -> None:
    rows = _rows(_audio(folder))
    columns = {"wav.scp": "path", "text": "text", "utt2spk": "speaker"}
    for name, key in columns.items():
        (folder / name).write_text("".join(f"{row['id']} {row[key]}\n" for row in rows))
    (folder / "segments").write_text("".join(f"{row['id']} {row['id']} 0.05 0.25\n" for row in rows))


def lhotse(folder: Path) -> None:
    import lhotse as library

    names = _audio(folder)
    recordings = library.RecordingSet.from_recordings(
        library.Recording.from_file(folder / name) for name in names
    )
    segment = library.SupervisionSegment
    supervisions = library.SupervisionSet.from_segments(
        segment(f"t{n}", f"u{n}", 0, 0.3, text=TEXTS[n], speaker=f"s{n % 2}") for n in range(NUM)
    )
    recordings.to_file(folder / "x_recordings_dev.jsonl")
    supervisions.to_file(folder / "x_supervisions_dev.jsonl.gz")


def lhotse_cuts(folder: Path) -> None:
    import lhotse as library

    lhotse(folder)
    recordings = library.RecordingSet.from_file(folder / "x_recordings_dev.jsonl")
    supervisions = library.SupervisionSet.from_file(folder / "x_supervisions_dev.jsonl.gz")
    cuts = library.CutSet.from_manifests(recordings=recordings, supervisions=supervisions)
    cuts.to_file(folder / "cuts.jsonl")
    for name in ("x_recordings_dev.jsonl", "x_supervisions_dev.jsonl.gz"):
        (folder / name).unlink()


def csv_table(folder: Path) -> None:
    _table(folder / "metadata.csv", [{**row, "duration": 0.3, "room": 1} for row in _rows(_audio(folder))])


def common_voice(folder: Path) -> None:
    rows = _rows(_audio(folder / "clips"), speaker="client_id", text="sentence")
    for name, part in (("train", rows[:3]), ("dev", rows[3:4]), ("test", rows[4:])):
        _table(folder / f"{name}.tsv", part)


def audiofolder(folder: Path) -> None:
    for split in ("train", "test"):
        rows = _rows(_audio(folder / split), path="file_name")
        _lines(folder / split / "metadata.jsonl", [{**row, "id": f"{split}-{row['id']}"} for row in rows])


def speechbrain_csv(folder: Path) -> None:
    rows = _rows(_audio(folder), id="ID", path="wav", speaker="spk_id", text="wrd")
    _table(folder / "train.csv", [{**row, "duration": 0.3} for row in rows])


def speechbrain_json(folder: Path) -> None:
    rows = _rows(_audio(folder), path="wav", speaker="spk_id", text="wrd")
    body = {row.pop("id"): {**row, "length": 0.3} for row in rows}
    (folder / "train.json").write_text(json.dumps(body))


def librispeech(folder: Path) -> None:
    for speaker in ("1", "2"):
        chapter = folder / "dev-clean" / speaker / "7"
        names = _audio(chapter)
        for name in names:
            (chapter / name).rename(chapter / f"{speaker}-7-{name}")
        lines = [f"{speaker}-7-u{number} {TEXTS[number].upper()}\n" for number in range(NUM)]
        (chapter / f"{speaker}-7.trans.txt").write_text("".join(lines))


def _arrow_table(folder: Path) -> Any:
    import pyarrow

    names = _audio(folder / "wav")
    sounds = [{"bytes": (folder / "wav" / name).read_bytes(), "path": name} for name in names]
    for name in names:
        (folder / "wav" / name).unlink()
    (folder / "wav").rmdir()
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    columns = {"sentence": list(TEXTS), "speaker_id": [4, 3, 4, 3, 4], "vector": [[0.5]] * NUM}
    return pyarrow.table({"audio": pyarrow.array(sounds, kind), **columns})


def parquet(folder: Path) -> None:
    from pyarrow import parquet as files

    files.write_table(_arrow_table(folder), folder / "train-00000-of-00001.parquet", row_group_size=2)


def arrow(folder: Path) -> None:
    import pyarrow

    table = _arrow_table(folder)
    (folder / "state.json").write_text("{}")
    with pyarrow.ipc.new_stream(str(folder / "data-00000-of-00001.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


SOURCES: dict[str, Callable[[Path], None]] = {
    "manifest": manifest,
    "manifest with tar": manifest_with_tar,
    "nemo": nemo,
    "kaldi": kaldi,
    "lhotse": lhotse,
    "lhotse cuts": lhotse_cuts,
    "csv": csv_table,
    "common voice": common_voice,
    "audiofolder": audiofolder,
    "speechbrain csv": speechbrain_csv,
    "speechbrain json": speechbrain_json,
    "librispeech": librispeech,
    "parquet": parquet,
    "arrow": arrow,
}
