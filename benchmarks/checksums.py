"""What checksums cost: folders are opened and read with them, and without them as older versions wrote them.

All files are in the memory of the system, and times are those of the processor: with a disk, which both wait
for, the ratios are smaller. A first read checks every block, a second one in the same process none.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from common import TOKENS, make_store, parse_arguments, print_table, write_result

from antiphon.data.batches import collate, plan_batches
from antiphon.data.corpus import Corpus
from antiphon.data.frontends import Filterbank
from antiphon.data.store import FeatureStore, compute_features
from antiphon.data.tts.demo_corpus import SpeakerGroup, synthesise_corpus
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.recognizer import Blueprint, Recognizer
from antiphon.records.files import CHECKSUM, FILES

MAIN = ("corpus.json", "store.json", "model.json")
Read = Callable[[Path], list[float]]  # a folder -> seconds: to open it, to read it, to read it again


def seconds_of(action: Callable[[], object]) -> float:
    """Processor time, which others on the machine disturb less."""
    began = time.process_time()
    action()
    return time.process_time() - began


def read_features(folder: Path) -> list[float]:
    opened: list[FeatureStore] = []
    times = [seconds_of(lambda: opened.append(FeatureStore.open(folder)))]
    (store,) = opened

    def read() -> None:
        for index in range(len(store)):
            store.features(index).copy()

    return [*times, seconds_of(read), seconds_of(read)]


def read_batches(folder: Path) -> list[float]:
    """What training reads: frames as padded float32 batches, and tokens of the texts."""
    opened: list[FeatureStore] = []
    times = [seconds_of(lambda: opened.append(FeatureStore.open(folder)))]
    (store,) = opened
    max_frames = int(60 * store.frames_per_second)

    def read() -> None:
        for indices in plan_batches(store.num_frames, np.arange(len(store)), max_frames, None):
            collate(store, indices, TOKENS.encode)

    return [*times, seconds_of(read), seconds_of(read)]


def read_audio(folder: Path) -> list[float]:
    """The encoded audio of all utterances, without decoding it, which takes longer."""
    opened: list[Corpus] = []
    times = [seconds_of(lambda: opened.append(Corpus.open(folder)))]
    (corpus,) = opened
    utterances: list[Any] = []
    times[0] += seconds_of(lambda: utterances.extend(corpus.utterances()))

    def read() -> None:
        for utterance in utterances:
            corpus.read_bytes(utterance)

    return [*times, seconds_of(read), seconds_of(read)]


def read_model(folder: Path) -> list[float]:
    return [seconds_of(lambda: Recognizer.load(folder)), 0.0, 0.0]


def unchecked(folder: Path) -> Path:
    """A folder with the same files, without their checksums."""
    twin = folder.with_name(f"{folder.name}-unchecked")
    shutil.copytree(folder, twin, copy_function=os.link, ignore=shutil.ignore_patterns("features", *MAIN))
    for name in MAIN:
        if (folder / name).exists():
            body = json.loads((folder / name).read_text(encoding="utf-8"))
            rest = {key: value for key, value in body.items() if key not in (CHECKSUM, FILES)}
            (twin / name).write_text(json.dumps(rest), encoding="utf-8")
    return twin


def compare(name: str, folder: Path, read: Read, repeats: int) -> dict[str, Any]:
    """Medians of the seconds with and without checksums, which take turns."""
    twins = {"checked": folder, "unchecked": unchecked(folder)}
    for twin in twins.values():
        read(twin)
    times: dict[str, list[list[float]]] = {kind: [] for kind in twins}
    for _ in range(repeats):
        for kind, twin in twins.items():
            times[kind].append(read(twin))
    shutil.rmtree(twins["unchecked"])
    found = {kind: [median(column) for column in zip(*rows, strict=True)] for kind, rows in times.items()}
    size = sum(path.stat().st_size for path in folder.glob("*") if path.is_file())
    steps = {}
    for number, step in enumerate(("open", "first read", "second read")):
        ours, theirs = found["checked"][number], found["unchecked"][number]
        steps[step] = {"checked": ours, "unchecked": theirs, "ratio": ours / theirs if theirs else None}
    return {"name": name, "mib": size / 2**20, "steps": steps}


def hash_speeds(num_bytes: int) -> dict[str, float]:
    """MB a second of the hashes that Python always has, in blocks of 64 KiB."""
    data = memoryview(os.urandom(num_bytes))
    blocks = [data[start : start + (1 << 16)] for start in range(0, num_bytes, 1 << 16)]
    hashes = {"sha256": hashlib.sha256, "blake2b": hashlib.blake2b}
    speeds = {}
    for name, make in hashes.items():
        seconds = median(seconds_of(lambda make=make: [make(block) for block in blocks]) for _ in range(3))
        speeds[name] = num_bytes / 1e6 / seconds
    return speeds


def main() -> None:
    arguments = parse_arguments(__doc__, "checksums")
    torch.set_num_threads(1)
    repeats, hours, num_speakers = (1, 0.01, 3) if arguments.quick else (7, 12.0, 60)
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch)
        groups = {"pool": SpeakerGroup(num_speakers)}
        demo = synthesise_corpus(base / "demo", groups, 2 if arguments.quick else 20, seed=0)
        store = compute_features(demo, Filterbank())
        # 24 kB of features a second: 12 hours are 1 GB.
        large = make_store(base / "large", max(2, int(hours * 60)), 6, (8.0, 12.0), 288)
        layers = 1 if arguments.quick else 16
        blueprint = Blueprint(Filterbank(), CtcConfig(ConformerConfig(dim=256, num_layers=layers)))
        Recognizer(blueprint, TOKENS, blueprint.build(TOKENS.size)).save(base / "model")
        rows = [
            compare("features of the demo", store.folder, read_features, repeats),
            compare("batches of the demo", store.folder, read_batches, repeats),
            compare("audio of the demo", demo.path, read_audio, repeats),
            compare("features of noise", large.folder, read_features, repeats),
            compare("batches of noise", large.folder, read_batches, repeats),
            compare("audio of noise", base / "large", read_audio, repeats),
            compare("model", base / "model", read_model, repeats),
        ]
    speeds = hash_speeds(1 << (22 if arguments.quick else 28))
    header = ("folder", "MiB", "open", "first read", "second read")
    cells = [[row["name"], f"{row['mib']:.1f}", *map(show, row["steps"].values())] for row in rows]
    print_table(header, cells)
    print(", ".join(f"{name} {speed:,.0f} MB/s" for name, speed in speeds.items()))
    write_result(arguments, {"hashes_mb_per_second": speeds, "rows": rows})


def show(step: dict[str, Any]) -> str:
    """Seconds without and with checksums, and their ratio."""
    if step["ratio"] is None:
        return ""
    return f"{step['unchecked']:.4f} → {step['checked']:.4f} s ({step['ratio']:.2f})"


if __name__ == "__main__":
    main()
