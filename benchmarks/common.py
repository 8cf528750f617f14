"""What the benchmarks share: speech made of noise, in the real formats, and how results are kept."""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import time
import wave
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.data.audio import SAMPLE_RATE
from antiphon.data.corpus import FORMAT as CORPUS_FORMAT
from antiphon.data.corpus import INDEX, PACK, Corpus, Utterance
from antiphon.data.store import FeatureStore, compute_features
from antiphon.data.tokens import Characters
from antiphon.experiment.folder import commit, versions
from antiphon.records.files import write_json, write_sums

RESULTS = Path(__file__).parent / "results"
TOKENS = Characters(" abcdefghijklmnopqrstuvwxyz'")
CHARACTERS_PER_SECOND = 12  # of read English


@dataclass(frozen=True)
class Noise:
    """A front end that costs nothing: as many values as a frozen encoder gives, at its rate."""

    dim: int = 288
    hop: int = 384  # 41.7 frames a second

    @property
    def frames_per_second(self) -> float:
        return SAMPLE_RATE / self.hop

    def key(self) -> str:
        return f"noise{self.dim}-{self.hop}"

    def load(self) -> Callable[[np.ndarray], np.ndarray]:
        def extract(samples: np.ndarray) -> np.ndarray:
            seed = int.from_bytes(samples[:4].tobytes(), "little")
            shape = (max(1, len(samples) // self.hop), self.dim)
            return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)

        return extract


def make_store(
    folder: Path,
    num_clients: int,
    num_utterances: int,
    seconds: tuple[float, float],
    dim: int,
    hop: int = Noise.hop,
) -> FeatureStore:
    """A corpus of `num_clients` speakers with `num_utterances` each, and its features, opened."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True)
    total = offset = 0
    with (
        (folder / PACK).open("wb") as pack,
        (folder / INDEX).open("w", encoding="utf-8") as lines,
    ):
        for client in range(num_clients):
            for number in range(num_utterances):
                length, speaker = float(random.uniform(*seconds)), f"{client:06d}"
                audio, name = _wav(random, length), f"{speaker}-{number:04d}"
                text, total = _text(random, length), total + length
                utterance = Utterance(name, speaker, speaker, "pool", length, text, offset, len(audio))
                offset += pack.write(audio)
                lines.write(utterance.to_json() + "\n")
    (folder / "skipped.jsonl").write_text("")
    about = {"sample_rate": SAMPLE_RATE, "alphabet": TOKENS.characters, "source": "noise"}
    about |= {"format": CORPUS_FORMAT, "num_utterances": num_clients * num_utterances, "seconds": total}
    write_json(folder / "corpus.json", about, [INDEX, write_sums(folder / PACK)])
    return compute_features(Corpus.open(folder), Noise(dim, hop))


def _wav(random: np.random.Generator, seconds: float) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(SAMPLE_RATE)
        samples = random.integers(-(2**15), 2**15, int(seconds * SAMPLE_RATE), dtype=np.int16)
        sound.writeframes(samples.astype("<i2").tobytes())
    return file.getvalue()


def _text(random: np.random.Generator, seconds: float) -> str:
    letters = random.choice(list(TOKENS.characters[1:]), max(1, int(seconds * CHARACTERS_PER_SECOND)))
    return "".join(letters)


# --- Results --------------------------------------------------------------------------------------


def argument_parser(description: str | None, name: str) -> argparse.ArgumentParser:
    """`--quick`: a smaller run that shows the benchmark works; `--out`: where its JSON goes."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run, not how fast")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the result")
    parser.add_argument("--case", nargs="+", default=[], help=argparse.SUPPRESS)  # for `in_fresh_process`
    parser.set_defaults(name=name)
    return parser


def parse_arguments(description: str | None, name: str) -> argparse.Namespace:
    return argument_parser(description, name).parse_args()


def write_result(arguments: argparse.Namespace, result: Mapping[str, Any], *options: str) -> None:
    """Writes <out>/<name>.json: the result, and what made it, `options` of the benchmark's own included.

    A benchmark that used a GPU gives its own `device`, and one of trained models their `seeds`.
    """
    quick = ["--quick"] if arguments.quick else []
    command = ["python", f"benchmarks/{arguments.name}.py", *options, *quick]
    about = {
        "benchmark": arguments.name,
        "command": " ".join(command),
        "date": time.strftime("%Y-%m-%d"),
        "versions": versions(),
        "commit": commit(),
        "cores": os.cpu_count(),
        "device": "cpu",
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"{arguments.name}.json"
    path.write_text(json.dumps({**about, **result}, indent=2) + "\n")
    print(f"written: {path}")


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A Markdown table, its columns aligned."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, ["-" * width for width in widths], *rows):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")


# --- Memory, each case in a process of its own ----------------------------------------------------


def in_fresh_process(script: str, case: Sequence[str]) -> dict[str, Any]:
    """Runs `python script --case …`, one torch thread; its last line of output is its answer as JSON."""
    command = [sys.executable, script, "--case", *case]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def memory_mib() -> dict[str, float]:
    """This process's resident memory now: its own (`anonymous`), mapped files (`file`), and the `peak`."""
    names = {"RssAnon": "anonymous", "RssFile": "file", "VmHWM": "peak"}
    found = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key in names:
            found[names[key]] = int(value.split()[0]) / 1024
    return found
