"""The small folders of other tools that bring-your-corpus.md imports, made for docs/check.py."""

from __future__ import annotations

import gzip
import json
import wave
from pathlib import Path
from typing import Any

import numpy as np

RATE = 16000
FIRST, SECOND = "open the garage window", "good night john"


def write_noise(path: Path, seconds: float) -> Path:
    """Write a file of faint noise: importers look at lengths, not at words."""
    samples = (300 * np.random.default_rng(0).standard_normal(round(seconds * RATE))).astype(np.int16)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".flac":
        import soundfile

        soundfile.write(path, samples, RATE)
        return path
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.tobytes())
    return path


def write_librispeech(folder: Path) -> None:
    """Three speakers of LibriSpeech, each with two utterances."""
    for part, speaker, chapter in (
        ("dev-clean", 84, 121123),
        ("dev-clean", 174, 50561),
        ("test-clean", 61, 70968),
    ):
        name = f"{speaker}-{chapter}"
        place = folder / "LibriSpeech" / part / str(speaker) / str(chapter)
        for number in range(2):
            write_noise(place / f"{name}-{number:04d}.flac", 1.2)
        lines = [f"{name}-0000 {FIRST.upper()}\n", f"{name}-0001 {SECOND.upper()}\n"]
        (place / f"{name}.trans.txt").write_text("".join(lines))


def write_kaldi(folder: Path) -> None:
    """A Kaldi data directory: two speakers in one recording, four segments."""
    place = folder / "kaldi" / "train"
    write_noise(place / "wav" / "meeting1.wav", 5.0)
    names = ("ann-1", "bob-1", "ann-2", "bob-2")
    files = {
        "wav.scp": ["meeting1 wav/meeting1.wav"],
        "segments": [f"{name} meeting1 {1.17 * n:.2f} {1.17 * n + 1.17:.2f}" for n, name in enumerate(names)],
        "text": [f"{name} {FIRST}" for name in names],
        "utt2spk": [f"{name} {name[:3]}" for name in names],
    }
    for name, lines in files.items():
        (place / name).write_text("".join(f"{line}\n" for line in lines))


def write_lhotse(folder: Path) -> None:
    """Lhotse's recordings and supervisions of two speakers."""
    samples, recordings, supervisions = 18765, [], []
    for number, name in enumerate(("ann", "bob"), 1):
        write_noise(folder / "manifests" / "wav" / f"{name}.wav", samples / RATE)
        source = {"type": "file", "channels": [0], "source": f"wav/{name}.wav"}
        recording = {"id": name, "sources": [source], "sampling_rate": RATE, "num_samples": samples}
        recordings.append({**recording, "duration": samples / RATE, "channel_ids": [0]})
        spoken = {"id": f"{name}-1", "recording_id": name, "start": 0, "duration": samples / RATE}
        said = {"channel": 0, "text": FIRST, "speaker": name, "custom": {"room": f"r{number}"}}
        supervisions.append({**spoken, **said})
    for kind, rows in (("recordings", recordings), ("supervisions", supervisions)):
        with gzip.open(folder / "manifests" / f"office_{kind}_train.jsonl.gz", "wt") as file:
            file.write(_lines(rows))


def write_nemo(folder: Path) -> None:
    """A NeMo manifest: two callers with two utterances each."""
    rows = []
    for number, (caller, day) in enumerate((("ann", "mon"), ("bob", "tue"))):
        write_noise(folder / "nemo" / "calls" / f"{number}.wav", 1.88)
        for offset, duration, text in ((0.0, 1.17, FIRST), (1.17, 0.71, SECOND)):
            row = {"audio_filepath": f"calls/{number}.wav", "offset": offset, "duration": duration}
            rows.append({**row, "text": text, "caller": caller, "day": day})
    (folder / "nemo" / "train.json").write_text(_lines(rows))


def _lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
