"""Features by a frozen encoder: antiphon against onnxruntime alone, with one process and with two.

The encoder is the one that pip installs (`[encoder]`). Speech is noise of 1 to 15 s: its content does not
change the work.

  bare      each process opens a session with one thread, and calls it on its share of the samples, which are
            in memory. Nothing is written. This is the limit.
  antiphon  `compute_features`: samples from the corpus, the store on disk, in the order of the corpus.
  batches   one process, the samples sorted by length, eight at a time, padded and masked. Does it pay?

Ways take turns. Seconds are those of the clock and of all processors. They include the start: sessions, and
with antiphon the processes, which import it. Linux only: it reads /proc.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
from common import make_store, parse_arguments, print_table, write_result
from processes import cpu_seconds

from antiphon.data.corpus import Corpus
from antiphon.data.encoders import MOONSHINE_TINY, find_installed
from antiphon.data.frontends import OnnxEncoder, load_encoder, open_session
from antiphon.data.store import compute_features

BATCH = 8


def bare_share(path: str, samples: Sequence[np.ndarray]) -> None:
    """In a process: open a session, and call it on a share."""
    extract = load_encoder(path)
    for one in samples:
        extract(one)


def run_bare(path: str, samples: Sequence[np.ndarray], num_processes: int) -> None:
    if num_processes == 1:
        return bare_share(path, samples)
    longest_first = sorted(samples, key=len, reverse=True)
    shares = [longest_first[rank::num_processes] for rank in range(num_processes)]
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=bare_share, args=(path, share)) for share in shares]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def run_antiphon(path: str, corpus: Path, num_processes: int) -> None:
    shutil.rmtree(corpus / "features", ignore_errors=True)
    compute_features(Corpus.open(corpus), OnnxEncoder(path), num_processes)


def run_batches(path: str, samples: Sequence[np.ndarray]) -> None:
    session = open_session(path)
    names = [node.name for node in session.get_inputs()]
    ordered = sorted(samples, key=len)
    for at in range(0, len(ordered), BATCH):
        part = ordered[at : at + BATCH]
        values = np.zeros((len(part), len(part[-1])), dtype=np.float32)
        mask = np.zeros(values.shape, dtype=np.int64)
        for row, one in enumerate(part):
            values[row, : len(one)], mask[row, : len(one)] = one, 1
        session.run(None, dict(zip(names, (values, mask), strict=True)))


def seconds_of(run: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds of the clock and of all processors."""
    began = time.perf_counter(), cpu_seconds(os.getpid())
    run()
    return time.perf_counter() - began[0], cpu_seconds(os.getpid()) - began[1]


def main() -> None:
    arguments = parse_arguments(__doc__, "extraction")
    found = find_installed(MOONSHINE_TINY)
    if found is None:
        raise SystemExit(f"this needs the encoder: {MOONSHINE_TINY.how_to_get}")
    path = str(found)
    clients, each, longest, repeats = (2, 4, 2.0, 1) if arguments.quick else (10, 12, 15.0, 5)
    OnnxEncoder(path).key()  # the encoder is measured once in a process
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus"
        make_store(corpus, clients, each, (1.0, longest), 8)
        opened = Corpus.open(corpus)
        samples = [opened.read_audio(utterance) for utterance in opened.utterances()]
        ways: dict[str, Callable[[], None]] = {
            "bare, 1 process": lambda: run_bare(path, samples, 1),
            "bare, 2 processes": lambda: run_bare(path, samples, 2),
            "antiphon, 1 process": lambda: run_antiphon(path, corpus, 1),
            "antiphon, 2 processes": lambda: run_antiphon(path, corpus, 2),
            "batches, 1 process": lambda: run_batches(path, samples),
        }
        times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(repeats):
            for way, run in ways.items():
                times[way].append(seconds_of(run))
    rows = []
    for way, all_times in times.items():
        bare = times["bare, 2 processes" if "2" in way else "bare, 1 process"]
        clock, processor = ([pair[at] for pair in all_times] for at in (0, 1))
        rows.append(
            {
                "way": way,
                "seconds": median(clock),
                "processor_seconds": median(processor),
                "utterances_per_second": len(samples) / median(clock),
                "over_bare": median(a / b[0] for a, b in zip(clock, bare, strict=True)),
                "processor_over_bare": median(a / b[1] for a, b in zip(processor, bare, strict=True)),
            }
        )
    names = list(rows[0])
    print_table(names, [[str(row["way"]), *(f"{row[name]:.3g}" for name in names[1:])] for row in rows])
    size = {"utterances": len(samples), "speech_seconds": sum(map(len, samples)) / 16000}
    write_result(arguments, {**size, "encoder": MOONSHINE_TINY.name, "rows": rows})


if __name__ == "__main__":
    main()
