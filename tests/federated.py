"""A federation of real processes on this machine: corpora, kits with real certificates, and three sites."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from world import write_source

import antiphon
from antiphon.data.importing.conversion import import_corpus
from antiphon.federation.kits import create_kits

SITES = ("berlin", "oslo", "quito")
# Small, and without noise: dropout and masks depend on the place of an utterance in its corpus.
SETTINGS = [
    "frontend.dim=8",
    "model.encoder.dim=16",
    "model.encoder.num_layers=1",
    "model.encoder.num_heads=2",
    "model.encoder.kernel_size=3",
    "model.encoder.stack=2",
    "model.encoder.dropout=0",
    "augment.num_time_masks=0",
    "augment.num_frequency_masks=0",
    "speakers.server=server",
    "runs.seed.rounds.total=2",
    "runs.seed.algorithm.local.steps=10",
]


def settings_for(run: str, rounds: int = 4) -> list[str]:
    own = {"rounds.total": rounds, "rounds.cohort": 5, "algorithm.local.batch_seconds": 1.0}
    return [*SETTINGS, *(f"runs.{run}.{key}={value}" for key, value in own.items())]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def write_corpora(folder: Path) -> None:
    """`all` is a corpus with everything; `server` and each site have their own part of it."""
    source = write_source(folder / "source")
    rows = [json.loads(line) for line in (source / "manifest.jsonl").read_text().splitlines()]
    for row in rows:
        if row["speaker"] in ("s06", "s07"):
            row["split"] = "server"
    parts = {"all": rows, "server": [row for row in rows if row["split"] != "pool"]}
    for number, site in enumerate(SITES):
        own = [row for row in rows if row["split"] == "pool" and int(row["speaker"][1:]) % 3 == number]
        parts[site] = own
    for name, part in parts.items():
        shutil.copytree(source, folder / f"source-{name}")
        text = "".join(json.dumps(row) + "\n" for row in part)
        (folder / f"source-{name}" / "manifest.jsonl").write_text(text)
        import_corpus(folder / f"source-{name}", folder / name)


@dataclass
class Federation:
    """Kits in a folder, and the processes of sites that were started."""

    folder: Path
    port: int
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def kit(self, name: str) -> Path:
        return self.folder / "kits" / name

    def start(self, site: str, *options: str) -> None:
        """Start a site: with its speech, or with N-best lists if the options name them."""
        own = [] if "--lists" in options else ["--data", str(self.folder / site)]
        words = ["federation", "join", str(self.kit(site)), *own, *options]
        self.running[site] = self.command(words, self.folder / f"{site}.log")

    def kill(self, site: str) -> None:
        """Kill a site without a word; NVFLARE's processes of the site end with it."""
        process = self.running.pop(site)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def command(self, words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        with open(log, "ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "antiphon", *words],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def run_words(self, recipe: str, out: Path, *options: str, rounds: int = 4) -> list[str]:
        changes = [word for change in settings_for(recipe, rounds) for word in ("--set", change)]
        own = ["--data", str(self.folder / "server"), "--out", str(out), "--device", "cpu"]
        return ["run", recipe, "--federation", str(self.kit("server")), *own, *changes, *options]


@contextmanager
def federation(folder: Path, carrier: str = "nvflare") -> Iterator[Federation]:
    """A federation whose three sites are waiting for their server."""
    write_corpora(folder)
    made = Federation(folder, free_port())
    create_kits(f"localhost:{made.port}", SITES, folder / "kits", carrier=carrier)
    try:
        for site in SITES:
            made.start(site)
        yield made
    finally:
        for site in list(made.running):
            made.kill(site)


def wait_until(what: str, test: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := test():
            return found
        time.sleep(0.1)
    raise TimeoutError(f"{what}: not within {seconds:g} s")


def journal_of(out: Path, run: str) -> list[dict[str, Any]]:
    path = out / run / "journal.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def simulated(sites: Federation, recipe: str, out: Path, *settings: str) -> Path:
    """The same recipe in this process, on a corpus with all speakers."""
    changes = [*settings_for(recipe), *settings]
    antiphon.run(recipe, data=sites.folder / "all", out=out, settings=changes, device="cpu")
    return out


def assert_same_run(left: Path, right: Path, run: str, but: Sequence[str] = ()) -> None:
    ours, theirs = (load_file(out / run / "model" / "model.safetensors") for out in (left, right))
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
    ours_rounds, theirs_rounds = (journal_of(out, run) for out in (left, right))
    for one, other in zip(ours_rounds, theirs_rounds, strict=True):
        for entry in (one, other):  # seconds of speech are the same; those of labels and clocks are not
            for stats in entry.get("clients", {}).values():
                stats.pop("seconds")
            for key in but:
                entry.pop(key, None)
        assert one == other
