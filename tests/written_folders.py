"""Folders of every kind that antiphon writes, and all that it reads of them: for tests with damaged files."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from world import FRONTEND, MODELS, write_source

from antiphon import config
from antiphon.algorithms.compressed import Compressed
from antiphon.algorithms.private import Private
from antiphon.clients.states import ClientStates
from antiphon.data.corpus import Corpus
from antiphon.data.importing.conversion import import_corpus
from antiphon.data.store import FeatureStore, compute_features
from antiphon.data.tokens import WordsConfig
from antiphon.experiment.folder import check_folder, corpus_of
from antiphon.experiment.runner import run_experiment
from antiphon.experiment.settings import Experiment
from antiphon.experiment.starting import SeedModel
from antiphon.exporting.transcribe import Transcriber
from antiphon.federation.federation_site import SETUPS
from antiphon.federation.run_setup import SetupSettings, pack_setup, read_settings
from antiphon.federation.sent_folders import keep_files
from antiphon.federation.site_policy import Ledger
from antiphon.lm.arpa import load_ngram, save_ngram
from antiphon.lm.kneser_ney import estimate
from antiphon.lm.neural_lm import LmTraining, NeuralLm, TransformerLmConfig, train_lm
from antiphon.pools.remote_messages import unpack
from antiphon.privacy.announced_noise import AnnouncedNoise
from antiphon.privacy.canary_scores import CanaryRound, read_rounds, write_round
from antiphon.privacy.participation import RoundRobin
from antiphon.privacy.update_accounting import GaussianCost
from antiphon.privacy.update_ledger import RELEASES_FILE, ReleasesFile, SharedBudget, check_release
from antiphon.recipes import RECIPES
from antiphon.recognizer import Recognizer
from antiphon.records import checkpoint
from antiphon.records.reading import read_as
from antiphon.records.writer import Record
from antiphon.report.attention_summary import load_attention
from antiphon.report.run_folder import RunFolder, runs_of
from antiphon.secure_aggregation.member import Revealed
from antiphon.secure_aggregation.record_files import RecordFiles
from antiphon.tasks.codecs.stochastic_rounding import StochasticRounding
from antiphon.tasks.codecs.top_k import TopK
from antiphon.workflows.compare_runs import read_transcripts

FOR_PEOPLE = {"README.md", "report.html", "RESULTS.md"}  # antiphon reads none of these again
TEXTS = ["ab ace", "bad cab", "bed dab ace", "ab bed"]
BUDGET, RELEASED = "budget.json", {"w": np.arange(3.0)}
SETTINGS = [
    "runs.seed.rounds.total=1",
    "runs.seed.algorithm.central.local.steps=2",
    "runs.scaffold.rounds.total=2",
    "runs.scaffold.rounds.cohort=2",
]


@dataclass(frozen=True)
class Folder:
    """A folder of one kind, and all that antiphon reads of it."""

    path: Path
    read: Callable[[Path], Iterator[Any]]

    def digest(self) -> str:
        digest = hashlib.sha256()
        for part in self.read(self.path):
            for piece in _bytes(part):
                digest.update(piece)
        return digest.hexdigest()


def _bytes(value: Any) -> Iterator[bytes]:
    """All of a value. The text of a tensor would have four digits of some numbers."""
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape}".encode()
        yield value.tobytes()
    elif is_dataclass(value):
        yield type(value).__name__.encode()
        for field in fields(value):
            yield from _bytes(getattr(value, field.name))
    elif isinstance(value, Mapping | tuple | list):
        yield f"{type(value).__name__} {len(value)}".encode()
        for part in value.items() if isinstance(value, Mapping) else value:
            yield from _bytes(part)
    else:
        yield repr(value).encode()


# --- What antiphon reads --------------------------------------------------------------------------


def read_corpus(folder: Path) -> Iterator[Any]:
    corpus = Corpus.open(folder)
    yield from (corpus.alphabet, corpus.source, len(corpus), corpus.seconds, corpus.fingerprint)
    for utterance in corpus.utterances():
        yield utterance
        yield corpus.read_audio(utterance)


def read_store(folder: Path) -> Iterator[Any]:
    store = FeatureStore.open(folder)
    yield from (store.fingerprint, store.dim, store.frames_per_second, store.seconds)
    for index in range(len(store)):
        yield from (store.id(index), store.text(index), store.features(index))
        yield from (store.speaker(index), store.session(index), store.split(index))


def read_model(folder: Path) -> Iterator[Any]:
    recognizer = Recognizer.load(folder)
    yield from (recognizer.blueprint, recognizer.tokens, SeedModel.open(folder))
    yield from (parameter.detach() for _, parameter in recognizer.model.named_parameters())


def read_ngram(folder: Path) -> Iterator[Any]:
    model = load_ngram(folder)
    yield model.words
    for level in model.levels:
        yield from (level.keys, level.log_probs, level.backoffs)


def read_lm(folder: Path) -> Iterator[Any]:
    model = NeuralLm.load(folder)
    yield from (model.config, model.tokens)
    yield model.score_sentences(TEXTS)


def read_export(folder: Path) -> Iterator[Any]:
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, 8000).astype(np.float32)
    for int8 in (False, True):
        transcriber = Transcriber(folder, int8)
        yield from (transcriber.settings, transcriber.symbols, transcriber.transcribe(samples))


def read_experiment(out: Path, settings: Experiment) -> Iterator[Any]:
    """All that reports, comparisons, evaluations, audits and a resume read."""
    check_folder(out, settings, resume=True)
    yield from (runs_of(out), corpus_of(out / "seed"))
    for name, run in settings.runs.items():
        yield from read_run(out / name, run.algorithm)


def read_run(folder: Path, algorithm: Any) -> Iterator[Any]:
    run = RunFolder.load(folder)
    if run.notes:  # an incomplete last line, by the name of its file
        raise ValueError("; ".join(run.notes))
    yield run
    for scores in sorted((folder / "evaluation").rglob("scores.json")):
        split, which = scores.parent.parts[-2:]
        yield from (read_transcripts(folder, split, which), load_attention(run, split, which))
    yield from read_model(folder / "model")
    start = algorithm.init({"w": torch.zeros(1)})
    for path in sorted((folder / "checkpoints").iterdir()):
        state, notes = checkpoint.load(path, start)
        yield from (state.round, getattr(state, "opt", None), notes, *state.params.values())
    states = ClientStates(folder / "clients")
    for client in sorted(path.name for path in states.folder.glob("*/")):
        for round in (1, 2):  # a resumed run may read any version
            yield from states.read(client.replace("%2F", "/"), (round, 0)).values()
    if (folder / RELEASES_FILE).exists():  # a private run
        yield from (read_as(ReleasesFile, folder / RELEASES_FILE), read_rounds(folder))
    copy = folder.with_name("copy")
    try:
        shutil.copytree(folder, copy)
        record = Record(copy, keep_last=2)
        yield record.restore(start, skip_corrupt=False).round
    except ValueError as error:
        raise ValueError(str(error).replace(str(copy), str(folder))) from error
    finally:
        shutil.rmtree(copy)


def read_site(folder: Path) -> Iterator[Any]:
    """What a site of a federation was sent, and what its clients revealed."""
    (setup,) = sorted((folder / SETUPS).iterdir())
    yield from (read_settings(setup), Ledger.open(folder / "ledger.json"))
    yield from read_model(setup)
    record = RecordFiles(folder / "secure" / "ada")
    yield from (record.last, record.has("task"), record.has("update"))


def read_ledgers(folder: Path) -> Iterator[Any]:
    """What private runs and sites have spent and released, and what was seen of canaries."""
    yield from (read_rounds(folder), vars(Ledger.open(folder / "ledger.json")).items())
    spend(folder / BUDGET, "a")
    check_release(folder, bytes(32), 0, RELEASED)
    yield from ((folder / name).read_bytes() for name in (BUDGET, RELEASES_FILE))


def spend(budget: Path, *runs: str) -> None:
    for run in runs:
        SharedBudget(str(budget), 8.0).spend(run, 1, GaussianCost(0.5), 1e-6)


# --- Folders --------------------------------------------------------------------------------------


def experiment() -> Experiment:
    las = replace(RECIPES["scaffold"](), frontend=FRONTEND, model=MODELS["las"])
    return config.override(las, SETTINGS)


def newer() -> Experiment:
    """Runs with other files: releases, canaries, memories of codecs, simulated time."""
    ctc = replace(RECIPES["scaffold"](), frontend=FRONTEND, model=MODELS["ctc"])
    chosen = config.override(ctc, [*SETTINGS, "clock={devices: {pareto: {}}}"])
    scaffold = chosen.runs["scaffold"]
    codecs = {"up": TopK(share=0.2), "down": StochasticRounding()}
    private = Private(cohorts=RoundRobin(2), delta=1e-3, canaries=8, simulated=True)
    runs = {
        "seed": chosen.runs["seed"],
        "compressed": replace(scaffold, algorithm=Compressed(scaffold.algorithm, **codecs)),
        "private": replace(
            scaffold, algorithm=private, rounds=replace(scaffold.rounds, min_clients=0, save_every=1)
        ),
    }
    return replace(chosen, runs=runs)


def make_site(folder: Path, run: Path) -> Path:
    """The folder of a site after one run, without its states, which are those of a run."""
    recognizer = Recognizer.load(run)
    names = tuple(name for name, _ in recognizer.model.named_parameters())
    noise = AnnouncedNoise(RoundRobin(3), rounds=9, deviation=1.0)
    sent = pack_setup(recognizer, SetupSettings(names, seed=7, noise=noise))
    head, files = unpack(sent)
    keep_files(files, folder / SETUPS / head["body"]["sha256"], 4)
    Ledger(folder / "ledger.json").add(datetime(2026, 1, 2), 300, "run", "ada")
    answers = (({"commitment": "00"}, {"parcels": torch.arange(6, dtype=torch.uint8)}),) * 4
    RecordFiles(folder / "secure" / "ada").add(Revealed("run/3/0", ("a", "b", "c", "d"), answers), ("task",))
    return folder


def make_ledgers(folder: Path) -> Path:
    folder.mkdir()
    spend(folder / BUDGET, "a", "b")
    check_release(folder, bytes(32), 0, RELEASED)
    rates = {"epsilon": 1.5, "delta": 1e-6, "rate": 0.0, "deviation": 0.5, "coefficients": (1.0, -0.5)}
    for round in (1, 2):
        write_round(folder, CanaryRound(round, **rates, included=(True,), turns=(True,), seen=(0.75,)))
    Ledger(folder / "ledger.json").add(datetime(2026, 1, 2), 300, "run", "ada")
    return folder


def make_folders(base: Path) -> dict[str, Folder]:
    """One folder of each kind that antiphon writes."""
    from antiphon.exporting.export_folder import export

    import_corpus(write_source(base / "source"), base / "corpus")
    store = compute_features(Corpus.open(base / "corpus"), FRONTEND)
    run_experiment(experiment(), base / "corpus", base / "out")
    run_experiment(newer(), base / "corpus", base / "ctc")
    export(base / "ctc" / "seed", base / "export", int8=True, split="")
    save_ngram(estimate(TEXTS, 3), base / "ngram")
    sizes = TransformerLmConfig(dim=8, num_layers=1, num_heads=2, feed_forward_dim=8)
    train_lm(TEXTS, WordsConfig().fit(TEXTS, None), sizes, LmTraining(steps=2)).save(base / "lm")
    torch.use_deterministic_algorithms(False)
    return {
        "corpus": Folder(base / "corpus", read_corpus),
        "features": Folder(store.folder, read_store),
        "experiment": Folder(base / "out", partial(read_experiment, settings=experiment())),
        "newer runs": Folder(base / "ctc", partial(read_experiment, settings=newer())),
        "site": Folder(make_site(base / "site", base / "ctc" / "seed"), read_site),
        "n-gram": Folder(base / "ngram", read_ngram),
        "language model": Folder(base / "lm", read_lm),
        "export": Folder(base / "export", read_export),
        "ledgers": Folder(make_ledgers(base / "ledgers"), read_ledgers),
    }


def files_of(folder: Folder) -> list[Path]:
    """All files but those that people alone read, and the features of a corpus, which have their own test."""
    others = {"tensorboard", "features"}
    return [
        path
        for path in sorted(folder.path.rglob("*"))
        if path.is_file() and path.name not in FOR_PEOPLE
        if not others & set(path.relative_to(folder.path).parts)
    ]


def is_named(path: Path, message: str) -> bool:
    """A checkpoint is named by its folder, which is what a user skips."""
    return (path.parent if path.parent.parent.name == "checkpoints" else path).name in message
