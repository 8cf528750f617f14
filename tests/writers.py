"""Every command that writes, made so small that it takes seconds: for tests with kills, signals and locks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from command import Done, run_arguments
from world import write_source

TEXT = "abba cad\ndad fed a bee\na bad cab\nbead by bead\nace of ada\nabba had a cab\n"
SPEAK = ["engines=espeak", "num_voices=2", "takes=1", "rehearse_hours=0.002", "valid_hours=0.001"]
ADAPT = ["runs.*.rounds.valid_every=1", "runs.adapted.algorithm.inner.local.batch_seconds=4"]
FEW = ["runs.seed.rounds.total=2", "runs.seed.algorithm.local.steps=10", "runs.fedavg.rounds.total=3"]

LOCAL = {"local": {"batch_seconds": 1.0}, "weighting": "uniform"}
PRIVATE = {
    "inner": {"fed_avg": LOCAL},
    "cohorts": {"round_robin": {"separation": 2}},
    "key_file": "PLACE/noise.key",
    "shared_budget": {"file": "PLACE/budget.json", "epsilon": 20.0},
    "delta": 1e-3,
    "canaries": 8,
}
COMPRESSED = {"inner": {"scaffold": LOCAL}, "up": {"top_k": {"share": 0.2}}, "down": "stochastic_rounding"}
RELEASED = ["runs.fedavg.rounds.min_clients=0", "runs.fedavg.rounds.save_every=1"]
SLOW = ["clock={devices: {pareto: {}}}"]  # clients in simulated time


@dataclass(frozen=True)
class Ground:
    """What the commands read. Nothing in this folder is written by them."""

    folder: Path

    @property
    def source(self) -> Path:
        return self.folder / "source"

    @property
    def corpus(self) -> Path:
        """A corpus with features."""
        return self.folder / "corpus"

    @property
    def run(self) -> Path:
        return self.folder / "out" / "fedavg"

    @property
    def text(self) -> Path:
        return self.folder / "text.txt"

    @property
    def lm(self) -> Path:
        return self.folder / "text.arpa"

    @property
    def lists(self) -> Path:
        return self.folder / "lists.jsonl"


def make_ground(folder: Path, antiphon: Callable[[list[str]], Done]) -> Ground:
    """Import a corpus, train on it, make a language model and N-best lists, by the commands themselves."""
    ground = Ground(folder)
    folder.mkdir(parents=True)
    write_source(ground.source)
    ground.text.write_text(TEXT)
    for arguments in (
        ["corpus", "import", ground.source, ground.corpus],
        run_arguments(ground.corpus, ground.folder / "out", settings=FEW),
        ["lm", "ngram", ground.text, "--out", ground.lm, "--order", "2"],
        ["nbest", ground.run, "--out", ground.lists, "--beam", "3", "--lm", ground.lm],
    ):
        done = antiphon(list(map(str, arguments)))
        assert done.code == 0, done.output
    return ground


@dataclass(frozen=True)
class Writer:
    """A command that writes into an empty folder.

    arguments: returns the arguments for a folder.
    prepare: puts into the folder what the command changes.
    resumes: whether it takes `--resume`, and continues; others begin again.
    makes: the folder that appears when all is done, and is then not made again.
    needs: packages.
    """

    arguments: Callable[[Ground, Path], list[str | Path]]
    prepare: Callable[[Ground, Path], object] = lambda ground, folder: None
    resumes: bool = False
    makes: str = ""
    needs: tuple[str, ...] = ()

    def is_done(self, folder: Path) -> bool:
        """Return whether the command need not be repeated, which would be refused."""
        return bool(self.makes) and (folder / self.makes).exists()

    @property
    def is_here(self) -> bool:
        return all(find_spec(package) for package in self.needs)


def copy_corpus(ground: Ground, folder: Path) -> None:
    """The corpus without its features."""
    shutil.copytree(ground.corpus, folder / "corpus", ignore=shutil.ignore_patterns("features"))


def run(*more: str) -> Writer:
    def arguments(ground: Ground, folder: Path) -> list[str | Path]:
        return [*run_arguments(ground.corpus, folder / "out", *more, settings=FEW)]

    return Writer(arguments, resumes=True)


def run_of(algorithm: dict[str, Any], *more: str) -> Callable[[Ground, Path], list[str | Path]]:
    """Return the arguments of a run with an algorithm; PLACE in its settings is the folder."""

    def arguments(ground: Ground, folder: Path) -> list[str | Path]:
        chosen = json.dumps(algorithm).replace("PLACE", str(folder))
        settings = [*FEW, f"runs.fedavg.algorithm={chosen}", *more]
        return [*run_arguments(ground.corpus, folder / "out", settings=settings)]

    return arguments


def write_noise_key(ground: Ground, folder: Path) -> None:
    """A key of noise that is the same in all runs."""
    path = folder / "noise.key"
    path.write_bytes(bytes(range(32)))
    path.chmod(0o600)


def each(option: str, values: list[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


WRITERS: dict[str, Writer] = {
    "import": Writer(
        lambda ground, folder: ["corpus", "import", ground.source, folder / "corpus"], makes="corpus"
    ),
    "import again": Writer(
        lambda ground, folder: ["corpus", "import", ground.source, folder / "corpus", "--overwrite"],
        prepare=copy_corpus,
    ),
    "features": Writer(
        lambda ground, folder: [
            *("nbest", ground.run, "--data", folder / "corpus", "--out", folder / "lists.jsonl"),
            *("--beam", "2"),
        ],
        prepare=copy_corpus,
    ),
    "run": run(),
    "run with workers": run("--workers", "2", "--ordered"),
    "run with jobs": run("--jobs", "2"),
    "run private": Writer(run_of({"private": PRIVATE}, *RELEASED), write_noise_key, resumes=True),
    "run compressed": Writer(run_of({"compressed": COMPRESSED}, *SLOW), resumes=True),
    "run fed_buff": Writer(run_of({"fed_buff": {"inner": LOCAL, "buffer": 2}}, *SLOW), resumes=True),
    "run secure": Writer(
        run_of({"fed_avg": LOCAL}, "runs.fedavg.secure_aggregation={}", "runs.fedavg.rounds.cohort=5"),
        resumes=True,
        needs=("cryptography",),
    ),
    "nbest": Writer(
        lambda ground, folder: [
            *("nbest", ground.run, "--out", folder / "lists.jsonl", "--beam", "3", "--lm", ground.lm),
            *("--tune", "heldout"),
        ]
    ),
    "nbest with workers": Writer(
        lambda ground, folder: [
            *("nbest", ground.run, "--out", folder / "lists.jsonl.gz", "--beam", "3", "--workers", "2"),
        ]
    ),
    "lm ngram": Writer(
        lambda ground, folder: ["lm", "ngram", ground.text, "--out", folder / "lm", "--order", "3"]
    ),
    "lm ngram arpa": Writer(
        lambda ground, folder: ["lm", "ngram", ground.text, "--out", folder / "lm.arpa", "--order", "3"]
    ),
    "lm train": Writer(
        lambda ground, folder: [
            *("lm", "train", ground.text, "--out", folder / "lm", "--steps", "4"),
            *("--subwords", "0", "--words", "20", "--batch-tokens", "64"),
        ]
    ),
    "adapt": Writer(
        lambda ground, folder: [
            *("adapt", ground.run, "--text", ground.text, "--rehearse", ground.corpus),
            *("--out", folder / "adapted", "--rounds", "2", "--device", "cpu"),
            *each("--speak", SPEAK),
            *each("--set", ADAPT),
        ],
        resumes=True,
        needs=("espeakng_loader", "soxr"),
    ),
    "personalize": Writer(
        lambda ground, folder: [
            *("personalize", ground.lists, "--background", ground.text, "--lm", ground.lm),
            *("--client", "speaker", "--rounds", "1,2", "--out", folder / "personal"),
            *("--private", "gaussian=2", "--cap", "2", "--noise-seeds", "2"),
        ],
        resumes=True,
    ),
    "prune": Writer(
        lambda ground, folder: [
            *("prune", ground.run, "--out", folder / "small", "--rounds", "2", "--set", "mask_every=1"),
        ],
        resumes=True,
    ),
    "export": Writer(
        lambda ground, folder: ["export", ground.run, folder / "exported", "--int8"],
        makes="exported",
        needs=("onnx", "onnxscript", "onnxruntime"),
    ),
    "report": Writer(lambda ground, folder: ["report", ground.run, "--out", folder / "report.html"]),
}
