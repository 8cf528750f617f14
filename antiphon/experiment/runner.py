"""Runs an experiment: computes features, then trains run after run and scores each on the test speakers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from antiphon import config
from antiphon.clients.client import ClientRuntime
from antiphon.clients.states import ClientStates
from antiphon.core import Pool, Stopped, Tensors
from antiphon.engine import Engine
from antiphon.experiment.elsewhere import Elsewhere
from antiphon.experiment.folder import check_folder, claim_folder, commit, lock_folder, versions
from antiphon.experiment.jobs import run_jobs
from antiphon.experiment.preparation import Prepared, device_name, prepare, structure_in
from antiphon.experiment.score import score, score_clients
from antiphon.experiment.settings import Experiment, Run
from antiphon.experiment.starting import load_start
from antiphon.experiment.teaching import resolve_labels
from antiphon.pools.process_group import ProcessGroup, SingleProcess
from antiphon.pools.signals import reason_of
from antiphon.recognizer import Recognizer
from antiphon.records.files import make_folder, write_json
from antiphon.records.folders import filled_folder
from antiphon.records.reading import read_object
from antiphon.records.run_files import RunFile
from antiphon.records.writer import ClientStateFiles, Listener, reporting_a_stop
from antiphon.report import write_report
from antiphon.report.model_card import write_card
from antiphon.report.run_folder import RunFolder
from antiphon.server.run_context import RunContext
from antiphon.tasks.evaluation import measure

Scores = dict[str, Any]
# Called with the name of a stage, the number of steps done, and the number of all steps (None: unknown).
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Screen:
    """Shows the progress of an experiment; by default nothing.

    features: called with (utterances done, number of utterances).
    run: called with the name of a run that begins, its settings and its number of clients.
    """

    features: Callable[[int, int], None] = lambda done, total: None
    run: Callable[[str, Run, int], Listener] = lambda name, run, num_clients: Listener()


def run_experiment(
    experiment: Experiment,
    data: str | Path,
    out: str | Path,
    resume: bool = False,
    skip_corrupt: bool = False,
    device: str = "auto",
    num_processes: int = 1,
    screen: Screen | None = None,
    only: str | Sequence[str] = (),
    group: ProcessGroup | None = None,
    elsewhere: Elsewhere | None = None,
) -> dict[str, Scores]:
    """Run an experiment and write its report; return the scores of each run on the test split.

    More than one process computes features, which needs `if __name__ == "__main__":` in a script. Raises
    `Stopped` when interrupted, or when too few clients answer; `resume` continues from there. `only` names
    the runs; others may be done already, or by another process. Each process of a `group` calls this
    function; only the first one writes files. `elsewhere` are clients on other machines.
    """
    data, out, screen, group = Path(data), Path(out), screen or Screen(), group or SingleProcess()
    with ExitStack() as stack:
        group.on_rank_zero(lambda: lock_folder(stack, out, experiment, resume, only))
        prepared = prepare(experiment, data, device, num_processes, screen.features, group, elsewhere)
        group.on_rank_zero(lambda: claim_folder(out, experiment, data, prepared.store.fingerprint))
        scores = {}
        stack.enter_context(_interruptible())
        try:
            for name, run in experiment.chosen(only).items():
                listener = screen.run(name, run, len(prepared.clients[name]))
                with reporting_a_stop(listener):
                    scores[name] = run_one(prepared, name, out, resume, skip_corrupt, listener, group)
                listener.ended(scores[name])
        except Stopped:
            group.on_rank_zero(lambda: _report(experiment, out))
            raise
        group.on_rank_zero(lambda: _report(experiment, out))
    return scores


def run_side_by_side(
    experiment: Experiment,
    data: str | Path,
    out: str | Path,
    num_jobs: int,
    resume: bool = False,
    device: str = "auto",
    num_processes: int = 1,
    screen: Screen | None = None,
    only: str | Sequence[str] = (),
) -> dict[str, Scores]:
    """Run an experiment as `run_experiment` does, up to `num_jobs` runs at once, each in its own process.

    Finished runs are skipped. Raises `Stopped` when interrupted, or when runs have failed; `resume` continues
    from there.
    """
    data, out, screen = Path(data), Path(out), screen or Screen()
    with ExitStack() as stack:
        lock_folder(stack, out, experiment, resume, only)
        prepared = prepare(experiment, data, device, num_processes, screen.features)
        claim_folder(out, experiment, data, prepared.store.fingerprint)
        runs, split = experiment.chosen(only), experiment.speakers.test
        needs = {
            name: [need for need in (run.start_run, run.teacher_run) if need in runs]
            for name, run in runs.items()
            if not is_finished(out / name, run, split)
        }

        files = {name: out / name / "evaluation" / split / "best" / "scores.json" for name in runs}

        def listen(name: str) -> Listener:
            return screen.run(name, runs[name], len(prepared.clients[name]))

        try:
            failed = run_jobs(needs, num_jobs, out, listen, lambda name: read_object(files[name]))
        finally:
            _report(experiment, out)
        if failed:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
            raise Stopped(f"{len(failed)} of {len(runs)} runs failed ({reasons})")
        return {name: read_object(file) for name, file in files.items()}


def run_job(
    experiment: Experiment, data: Path, out: Path, name: str, skip_corrupt: bool, device: str
) -> None:
    """Run one run of an experiment whose folder belongs to another process; write no report."""
    check_folder(out, experiment, resume=True)
    prepared = prepare(experiment, data, device)
    with _interruptible():
        run_one(prepared, name, out, True, skip_corrupt, Listener(), SingleProcess())


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turn a second signal, or one while scoring, into `Stopped`: the last checkpoint is intact."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Stopped(reason_of(error)) from None


def is_finished(folder: Path, run: Run, split: str) -> bool:
    """Return whether all rounds of a run are done and its best model has scores."""
    if not (folder / "run.json").exists():
        return False
    done = RunFolder.load(folder)
    return done.num_finished >= run.rounds.total and "best" in done.evaluations.get(split, {})


def _report(experiment: Experiment, out: Path) -> None:
    """Write a report on the runs that have begun, if there are any."""
    begun = [out / name for name in experiment.runs if (out / name / "run.json").exists()]
    if begun:
        write_report(begun, out / "report.html")


def run_one(
    prepared: Prepared,
    name: str,
    out: Path,
    resume: bool,
    skip_corrupt: bool,
    listener: Listener,
    group: ProcessGroup,
) -> Scores:
    """Train and score one run."""
    experiment, folder = prepared.experiment, out / name
    run, clients = experiment.runs[name], sorted(prepared.clients[name])
    valid = sorted(prepared.valid_clients)
    begin = group.on_rank_zero(lambda: load_start(run, out, prepared.fresh[name]))
    start, recognizer = begin["params"], prepared.recognizer(name, begin["submodel"])
    store, tokens, device = prepared.store_of(name), prepared.tokens, prepared.device
    options = (experiment.augment, device, experiment.precision)
    runtime = ClientRuntime(store, tokens, recognizer.model, start, *options)

    def open_folder() -> None:
        make_folder(folder)
        write_json(folder / "run.json", {**_about(prepared, name, start), "num_processes": group.size})
        _score_start(prepared, recognizer, run, out, folder)

    group.on_rank_zero(open_folder)
    states = ClientStates(folder / "clients", run.rounds.renew_lost_states)

    def validate(pool: Pool, params: Tensors) -> dict[str, float]:
        """Measure the model on validation speakers, or clients' own models on what they held out."""
        return measure(pool, params, clients if run.held_out else valid, bool(run.held_out))

    context = RunContext(
        valid=tuple(valid),
        largest_client=max(map(len, prepared.clients[name].values())),
        structure=partial(structure_in, recognizer),
        resolve_labels=partial(resolve_labels, out, folder, group, prepared.server_texts),
    )
    worker = prepared.worker(name, runtime, states)
    pool: Pool = prepared.pool(name, worker, group)
    kept: ClientStateFiles = states
    if prepared.elsewhere is not None and prepared.is_away(name):
        pool, kept = prepared.elsewhere.pool(experiment, name, folder, recognizer, worker, listener)
    engine = Engine(
        run.algorithm,
        pool,
        clients,
        run.rounds,
        folder,
        experiment.seed,
        validate=validate,
        listener=listener,
        group=group,
        expect=lambda cohort: prepared.expect(name, cohort),
        context=context,
        states=kept,
        faults=prepared.faults(name),
        arrival=prepared.clock(name),
    )
    outcome = engine.run(start, resume, skip_corrupt)

    def finish() -> Scores:
        result = runtime.with_submodel(outcome.submodel)
        result.load(outcome.best)
        blueprint = recognizer.blueprint.with_submodel(outcome.submodel)
        best = Recognizer(blueprint, recognizer.tokens, result.model)
        notes = {"run": name, "round": outcome.best_round, **_sizes(prepared, name, best)}
        best.save(folder / "model", notes)
        if run.held_out:
            score_clients(prepared, name, engine.algorithm, runtime, outcome, states, folder)
        scores = _score(prepared, best, folder, "best", outcome.best_round)
        write_card(folder, folder / "model")
        return scores

    return group.on_rank_zero(finish)


def _score_start(prepared: Prepared, recognizer: Recognizer, run: Run, out: Path, folder: Path) -> None:
    """Score the model that a run starts from; the scores of an earlier run are copied."""
    split = prepared.experiment.speakers.test
    if (folder / "evaluation" / split / "start" / "scores.json").exists():
        return
    if run.start_run:
        source, target = (f / "evaluation" / split for f in (out / run.start_run, folder))
        scores = read_object(source / "best" / "scores.json")
        with filled_folder(target / "start", "scores.json") as made:
            shutil.copytree(source / "best", made, dirs_exist_ok=True)
            write_json(made / "scores.json", {**scores, "which": "start", "round": 0})
    else:
        _score(prepared, recognizer, folder, "start", 0)


def _score(prepared: Prepared, recognizer: Recognizer, folder: Path, which: str, round: int) -> Scores:
    split = prepared.experiment.speakers.test
    notes = {"split": split, "which": which, "round": round}
    target = folder / "evaluation" / split / which
    return score(recognizer, prepared.store, prepared.groups["test"], target, notes)


def _sizes(prepared: Prepared, name: str, recognizer: Recognizer) -> dict[str, Any]:
    """Return the sizes of the model and of its training data, for the model card."""
    store, clients = prepared.store, prepared.clients[name]
    indices = np.unique(np.concatenate([*clients.values(), np.empty(0, dtype=np.int64)]))
    training: Mapping[str, Any] = {
        "clients": len(clients),
        "speakers": len(np.unique(store.speaker_codes[indices])),
        "utterances": len(indices),
        "hours": float(store.seconds[indices].sum(dtype=np.float64)) / 3600,
    }
    if prepared.elsewhere is not None and prepared.is_away(name):
        training = prepared.elsewhere.sizes
    num_parameters = sum(parameter.numel() for parameter in recognizer.model.parameters())
    return {"num_parameters": num_parameters, "training": training}


def _about(prepared: Prepared, name: str, start: Tensors) -> dict[str, Any]:
    """Return the contents of run.json."""
    experiment, run = prepared.experiment, prepared.experiment.runs[name]
    settings = config.to_dict(experiment)
    of_run = {key: value for key, value in settings["runs"][name].items() if value is not None}
    shared = {key: value for key, value in settings.items() if key not in ("runs", "recipe", "seed", *of_run)}
    return {
        "format": RunFile.format,
        "name": name,
        "recipe": experiment.recipe,
        "seed": experiment.seed,
        "config": {**of_run, **shared},
        "num_parameters": sum(p.numel() for p in start.values()),
        "num_clients": len(prepared.clients[name]),
        "corrupted": prepared.corrupted.shares(prepared.clients[name]),
        "cohort_size": run.rounds.cohort,
        "rounds": run.rounds.total,
        "versions": versions(),
        "commit": commit(),
        "device": device_name(prepared.device),
        "started_from": run.start_folder or run.start_run or None,
    }
