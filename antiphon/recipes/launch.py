"""Carries an experiment out: features, then run after run, each scored on the test speakers."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors.torch import load_file

from antiphon import config
from antiphon.algorithms.rehearsal import SERVER_CLIENT
from antiphon.clients.client import Bench
from antiphon.clients.worker import SpeechWorker, UnreliableWorker
from antiphon.core import Tensors, Worker
from antiphon.data.corpus import Corpus
from antiphon.data.store import FeatureStore, compute_features
from antiphon.data.tokens import Tokens
from antiphon.decoding.recognizer import Recognizer
from antiphon.engine import Engine, Listener, Silent
from antiphon.measure import measure
from antiphon.observed import Stopped
from antiphon.pools.local import LocalPool
from antiphon.recipes.experiment import Experiment, Run
from antiphon.recipes.provenance import commit, versions
from antiphon.recipes.scoring import score, write_json
from antiphon.report import write_report
from antiphon.seeding import derive

EXPERIMENT_FORMAT, RUN_FORMAT = "antiphon-experiment/1", "antiphon-run/1"
Scores = dict[str, Any]


class Screen(Protocol):
    """Shows what is going on."""

    def features(self, done: int, total: int) -> None: ...
    def run(self, name: str, run: Run, num_clients: int) -> Listener: ...


class Dark:
    """Shows nothing."""

    def features(self, done: int, total: int) -> None: ...
    def run(self, name: str, run: Run, num_clients: int) -> Listener:
        return Silent()


@dataclass(frozen=True)
class Prepared:
    """An experiment with its data opened and every run looked at."""

    experiment: Experiment
    store: FeatureStore
    groups: dict[str, np.ndarray]  # seed, federated, both, valid, test -> utterances
    clients: dict[str, dict[str, np.ndarray]]  # run -> client -> utterances
    tokens: Tokens
    fresh: Tensors  # parameters of a model that has learnt nothing
    device: torch.device

    def recognizer(self) -> Recognizer:
        blueprint = self.experiment.blueprint
        return Recognizer(blueprint, self.tokens, blueprint.build(self.tokens.size))

    def valid_clients(self) -> dict[str, np.ndarray]:
        """Validation speakers are clients that live with the server."""
        split = self.experiment.speakers.valid
        return {f"valid/{s}": self.store.where(split, [s]) for s in self.store.speakers(split)}

    def worker(self, name: str, bench: Bench) -> Worker:
        clients, faults = self.clients[name], self.experiment.unreliability
        everyone = {**clients, **self.valid_clients(), SERVER_CLIENT: self.groups["seed"]}
        worker = SpeechWorker(bench, everyone)
        if not faults.dropout and not faults.deadline:
            return worker
        seconds = {client: float(self.store.seconds[own].sum()) for client, own in clients.items()}
        return UnreliableWorker(worker, faults, seconds.__getitem__, self.experiment.seed)


def run_experiment(
    experiment: Experiment,
    data: str | Path,
    out: str | Path,
    resume: bool = False,
    skip_corrupt: bool = False,
    device: str = "auto",
    num_workers: int = 1,
    screen: Screen | None = None,
    only: Sequence[str] = (),
) -> dict[str, Scores]:
    """Runs all runs of an experiment and writes its report; returns each run's scores on the test split.

    More than one worker computes features in processes of their own, which a script must allow for
    with `if __name__ == "__main__":`. Raises `Stopped` when interrupted, or when too few clients answer:
    `resume` goes on from there. `only` some runs: others may be another process's, or done before.
    """
    data, out, screen = Path(data), Path(out), screen or Dark()
    _check_folder(out, experiment, resume)
    prepared = prepare(experiment, data, device, num_workers, screen.features)
    _claim_folder(out, experiment, data, prepared.store.fingerprint)
    scores = {}
    try:
        for name, run in experiment.chosen(only).items():
            listener = screen.run(name, run, len(prepared.clients[name]))
            scores[name] = _carry_out(prepared, name, out, resume, skip_corrupt, listener)
    except Stopped:
        _report(experiment, out)
        raise
    except KeyboardInterrupt:  # a second Ctrl-C, or one while scoring: the last checkpoint is whole
        raise Stopped("interrupted") from None
    _report(experiment, out)
    return scores


def _report(experiment: Experiment, out: Path) -> None:
    """A report on the runs that have begun."""
    begun = [out / name for name in experiment.runs if (out / name / "run.json").exists()]
    write_report(begun, out / "report.html")


def choose_device(name: str) -> torch.device:
    """The device, made to give the same bits every time: resuming is exact on a GPU too."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Filling fresh memory would cost a kernel an allocation, and nothing here reads what it did not write.
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010 (unknown to mypy)
    try:
        device = torch.device(name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
        torch.empty(0, device=device)
    except RuntimeError as error:
        raise ValueError(f"device {name!r} is not to be had here: {error}") from error
    return device


def prepare(
    experiment: Experiment,
    data: Path,
    device: str = "auto",
    num_workers: int = 1,
    progress: Callable[[int, int], None] = Dark().features,
) -> Prepared:
    """Opens the corpus, computes features where they are missing, and checks every run before any starts."""
    corpus = Corpus.open(data)
    chosen = choose_device(device)
    store = compute_features(corpus, experiment.frontend, num_workers, progress)
    groups = experiment.speakers.groups(store)
    tokens = experiment.tokens.fit([store.text(int(i)) for i in groups["seed"]], corpus.alphabet)
    torch.manual_seed(derive(experiment.seed, "init"))
    model = experiment.blueprint.build(tokens.size)
    fresh = {name: p.detach().to(chosen) for name, p in model.named_parameters()}
    clients = {}
    for name, run in experiment.runs.items():
        try:
            run.algorithm.init(fresh)
            clients[name] = run.clients(store, groups[run.data], experiment.seed)
            run.rounds.check(len(clients[name]))
        except ValueError as error:
            raise ValueError(f"run {name!r}: {error}") from error
    return Prepared(experiment, store, groups, clients, tokens, fresh, chosen)


def _carry_out(
    prepared: Prepared, name: str, out: Path, resume: bool, skip_corrupt: bool, listener: Listener
) -> Scores:
    run, folder, recognizer = prepared.experiment.runs[name], out / name, prepared.recognizer()
    start = prepared.fresh
    if run.start:
        model = out / run.start / "model" / "model.safetensors"
        if not model.exists():
            raise ValueError(f"run {name!r} starts from {run.start!r}, which has not finished in {out}")
        start = load_file(model, device=str(prepared.device))
    augment, device = prepared.experiment.augment, prepared.device
    bench = Bench(prepared.store, prepared.tokens, recognizer.model, start, augment, device)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "run.json", _about(prepared, name))
    _score_start(prepared, recognizer, run, out, folder)
    valid = sorted(prepared.valid_clients())
    engine = Engine(
        run.algorithm,
        LocalPool(prepared.worker(name, bench)),
        list(prepared.clients[name]),
        run.rounds,
        folder,
        prepared.experiment.seed,
        validate=lambda pool, params: measure(pool, params, valid),
        listener=listener,
    )
    outcome = engine.run(start, resume, skip_corrupt)
    bench.load(outcome.best)
    recognizer.save(folder / "model", {"run": name, "round": outcome.best_round})
    return _score(prepared, recognizer, folder, "best", outcome.best_round)


def _score_start(prepared: Prepared, recognizer: Recognizer, run: Run, out: Path, folder: Path) -> None:
    """Scores the model a run starts from; what it starts from has been scored already if it is a run."""
    split = prepared.experiment.speakers.test
    if (folder / "evaluation" / split / "start" / "scores.json").exists():
        return
    if run.start:
        source, target = (f / "evaluation" / split for f in (out / run.start, folder))
        shutil.copytree(
            source / "best",
            target / "start",
            ignore=shutil.ignore_patterns("scores.json"),
            dirs_exist_ok=True,
        )
        scores = json.loads((source / "best" / "scores.json").read_text())
        write_json(target / "start" / "scores.json", {**scores, "which": "start", "round": 0})
    else:
        _score(prepared, recognizer, folder, "start", 0)


def _score(prepared: Prepared, recognizer: Recognizer, folder: Path, which: str, round: int) -> Scores:
    split = prepared.experiment.speakers.test
    notes = {"split": split, "which": which, "round": round}
    target = folder / "evaluation" / split / which
    return score(recognizer, prepared.store, prepared.groups["test"], target, notes)


def _about(prepared: Prepared, name: str) -> dict[str, Any]:
    experiment, run = prepared.experiment, prepared.experiment.runs[name]
    settings = config.to_dict(experiment)
    others = {key: value for key, value in settings.items() if key not in ("runs", "recipe", "seed")}
    return {
        "format": RUN_FORMAT,
        "name": name,
        "recipe": experiment.recipe,
        "seed": experiment.seed,
        "config": {**settings["runs"][name], **others},
        "num_parameters": sum(p.numel() for p in prepared.fresh.values()),
        "num_clients": len(prepared.clients[name]),
        "cohort_size": run.rounds.cohort,
        "rounds": run.rounds.total,
        "versions": versions(),
        "commit": commit(),
        "device": str(prepared.device),
        "started_from": run.start or None,
    }


def _check_folder(out: Path, experiment: Experiment, resume: bool) -> None:
    """A folder with an experiment in it is only touched to resume, and only the same experiment."""
    path = out / "experiment.json"
    if not path.exists():
        if out.exists() and any(out.glob("[!.]*")):
            raise ValueError(f"{out} is not empty and holds no experiment: choose another --out")
        return
    if not resume:
        raise ValueError(f"{out} holds an experiment already: add --resume to go on, or choose another --out")
    before, now = json.loads(path.read_text())["config"], config.to_dict(experiment)
    # A longer run begins like a shorter one, but others may have begun from its end.
    longer = {f"runs.{n}.rounds.total" for n in experiment.runs} - {
        f"runs.{run.start}.rounds.total" for run in experiment.runs.values()
    }
    changed = [
        (key, old, new)
        for key, old, new in _differences(before, now)
        # How few answers are enough changes no round that had them.
        if not (key in longer and new > old) and not key.endswith(".rounds.min_clients")
    ]
    if changed:
        lines = "".join(f"\n  {key}: was {old!r}, now {new!r}" for key, old, new in changed[:10])
        raise ValueError(f"{out} cannot be resumed with another configuration:{lines}")


def _differences(before: Any, now: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(now, dict):
        keys: Sequence[str] = [*before, *(key for key in now if key not in before)]
        return [
            difference
            for key in keys
            for difference in _differences(before.get(key), now.get(key), f"{path}.{key}".lstrip("."))
        ]
    return [] if before == now else [(path, before, now)]


def _claim_folder(out: Path, experiment: Experiment, data: Path, fingerprint: str) -> None:
    """Writes down what the folder is for; refuses to go on with other speech than it began with."""
    path = out / "experiment.json"
    if path.exists() and json.loads(path.read_text())["fingerprint"] != fingerprint:
        raise ValueError(f"{out} cannot be resumed: {data} is not the corpus it began with, or was changed")
    out.mkdir(parents=True, exist_ok=True)
    body = {
        "format": EXPERIMENT_FORMAT,
        "recipe": experiment.recipe,
        "data": str(data.resolve()),
        "fingerprint": fingerprint,
        "runs": list(experiment.runs),
        "config": config.to_dict(experiment),
    }
    write_json(path, body)
