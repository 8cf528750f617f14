"""Carries an experiment out: features, then run after run, each scored on the test speakers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from antiphon import config
from antiphon.clients.client import ClientRuntime
from antiphon.clients.states import ClientStates
from antiphon.core import Pool, Stopped, Tensors
from antiphon.engine import Engine, Listener, Silent
from antiphon.experiment.folder import check_folder, claim_folder
from antiphon.experiment.jobs import run_jobs
from antiphon.experiment.personal_scores import score_clients
from antiphon.experiment.preparation import Prepared, device_name, prepare, structure_in
from antiphon.experiment.provenance import commit, versions
from antiphon.experiment.score import score, write_json
from antiphon.experiment.settings import Experiment, Run
from antiphon.experiment.starting import load_start
from antiphon.experiment.teaching import ResolvedLabels
from antiphon.pools.process_group import ProcessGroup, SingleProcess
from antiphon.recognizer import Recognizer
from antiphon.report import write_report
from antiphon.report.run_folder import RunFolder
from antiphon.server.run_context import RunContext
from antiphon.tasks.evaluation import measure

RUN_FORMAT = "antiphon-run/1"
Scores = dict[str, Any]


@runtime_checkable
class Screen(Protocol):
    """Shows the progress of an experiment."""

    def features(self, done: int, total: int) -> None: ...
    def run(self, name: str, run: Run, num_clients: int) -> Listener: ...


class NullScreen:
    """Shows nothing."""

    def features(self, done: int, total: int) -> None: ...
    def run(self, name: str, run: Run, num_clients: int) -> Listener:
        return Silent()


def run_experiment(
    experiment: Experiment,
    data: str | Path,
    out: str | Path,
    resume: bool = False,
    skip_corrupt: bool = False,
    device: str = "auto",
    num_processes: int = 1,
    screen: Screen | None = None,
    only: Sequence[str] = (),
    group: ProcessGroup | None = None,
) -> dict[str, Scores]:
    """Runs all runs of an experiment and writes its report; returns each run's scores on the test split.

    More than one worker computes features in processes of their own, which a script must allow for
    with `if __name__ == "__main__":`. Raises `Stopped` when interrupted, or when too few clients answer:
    `resume` goes on from there. `only` some runs: others may be another process's, or done before.
    A `group` of processes calls this in each of them; only its first writes anything.
    """
    data, out, screen, group = Path(data), Path(out), screen or NullScreen(), group or SingleProcess()
    group.on_rank_zero(lambda: check_folder(out, experiment, resume))
    prepared = prepare(experiment, data, device, num_processes, screen.features, group)
    group.on_rank_zero(lambda: claim_folder(out, experiment, data, prepared.store.fingerprint))
    try:
        return run_all(prepared, out, resume, skip_corrupt, screen, experiment.chosen(only), group)
    except KeyboardInterrupt:  # a second Ctrl-C, or one while scoring: the last checkpoint is whole
        raise Stopped("interrupted") from None


def run_side_by_side(
    experiment: Experiment,
    data: str | Path,
    out: str | Path,
    num_jobs: int,
    resume: bool = False,
    device: str = "auto",
    num_processes: int = 1,
    screen: Screen | None = None,
    only: Sequence[str] = (),
) -> dict[str, Scores]:
    """As `run_experiment`, up to so many runs at once, each a process that was started as this one was.

    Runs that are finished already are not begun again. Raises `Stopped` when some have failed, or when
    interrupted: `resume` goes on from there.
    """
    data, out, screen = Path(data), Path(out), screen or NullScreen()
    check_folder(out, experiment, resume)
    prepared = prepare(experiment, data, device, num_processes, screen.features)
    claim_folder(out, experiment, data, prepared.store.fingerprint)
    runs, split = experiment.chosen(only), experiment.speakers.test
    needs = {
        name: [need for need in (run.start_run, run.teacher_run) if need in runs]
        for name, run in runs.items()
        if not is_finished(out / name, run, split)
    }

    def listen(name: str) -> Listener:
        return screen.run(name, runs[name], len(prepared.clients[name]))

    try:
        failed = run_jobs(needs, num_jobs, out, listen)
    finally:
        _report(experiment, out)
    if failed:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
        raise Stopped(f"{len(failed)} of {len(runs)} runs failed ({reasons})")
    return {
        name: json.loads((out / name / "evaluation" / split / "best" / "scores.json").read_text())
        for name in runs
    }


def run_job(
    experiment: Experiment, data: Path, out: Path, name: str, skip_corrupt: bool, device: str
) -> None:
    """One run, in a folder that is another process's: no report."""
    check_folder(out, experiment, resume=True)
    prepared = prepare(experiment, data, device)
    try:
        run_one(prepared, name, out, True, skip_corrupt, Silent(), SingleProcess())
    except KeyboardInterrupt:
        raise Stopped("interrupted") from None


def is_finished(folder: Path, run: Run, split: str) -> bool:
    """Whether all rounds of a run are done, and its best model is scored."""
    if not (folder / "run.json").exists():
        return False
    found = RunFolder.load(folder)
    return found.num_finished >= run.rounds.total and "best" in found.evaluations.get(split, {})


def run_all(
    prepared: Prepared,
    out: Path,
    resume: bool,
    skip_corrupt: bool,
    screen: Screen,
    runs: Mapping[str, Run],
    group: ProcessGroup,
) -> dict[str, Scores]:
    """One run after another, then the report: also when they were stopped."""
    scores = {}
    try:
        for name, run in runs.items():
            listener = screen.run(name, run, len(prepared.clients[name]))
            scores[name] = run_one(prepared, name, out, resume, skip_corrupt, listener, group)
    except Stopped:
        group.on_rank_zero(lambda: _report(prepared.experiment, out))
        raise
    group.on_rank_zero(lambda: _report(prepared.experiment, out))
    return scores


def _report(experiment: Experiment, out: Path) -> None:
    """A report on the runs that have begun, if any has."""
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
    run, folder = prepared.experiment.runs[name], out / name
    begin = group.on_rank_zero(lambda: load_start(run, out, prepared.fresh[name]))
    start, recognizer = begin["params"], prepared.recognizer(name, begin["submodel"])
    augment, device = prepared.experiment.augment, prepared.device
    bfloat16 = prepared.experiment.bfloat16
    store = prepared.store_of(name)
    runtime = ClientRuntime(store, prepared.tokens, recognizer.model, start, augment, device, bfloat16)

    def open_folder() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "run.json", {**_about(prepared, name, start), "num_processes": group.size})
        _score_start(prepared, recognizer, run, out, folder)

    group.on_rank_zero(open_folder)
    valid = sorted(prepared.valid_clients())
    states = ClientStates(folder / "clients", run.rounds.renew_lost_states)
    clients = sorted(prepared.clients[name])

    def validate(pool: Pool, params: Tensors) -> dict[str, float]:
        """On the validation speakers; on what clients held out where they have models of their own."""
        return measure(pool, params, clients if run.held_out else valid, bool(run.held_out))

    engine = Engine(
        run.algorithm,
        prepared.pool(name, runtime, group, states),
        list(prepared.clients[name]),
        run.rounds,
        folder,
        prepared.experiment.seed,
        validate=validate,
        listener=listener,
        group=group,
        expect=lambda cohort: prepared.expect(name, cohort),
        context=RunContext(
            valid=tuple(valid),
            structure=structure_in(recognizer),
            resolve_labels=ResolvedLabels(out, folder, group, prepared.server_texts),
        ),
        states=states,
        faults=prepared.faults(name),
    )
    outcome = engine.run(start, resume, skip_corrupt)

    def finish() -> Scores:
        last = runtime.with_submodel(outcome.submodel)
        last.load(outcome.best)
        blueprint = recognizer.blueprint.with_submodel(outcome.submodel)
        result = Recognizer(blueprint, recognizer.tokens, last.model)
        result.save(folder / "model", {"run": name, "round": outcome.best_round})
        if run.held_out:
            score_clients(prepared, name, engine.algorithm, runtime, outcome, states, folder)
        return _score(prepared, result, folder, "best", outcome.best_round)

    return group.on_rank_zero(finish)


def _score_start(prepared: Prepared, recognizer: Recognizer, run: Run, out: Path, folder: Path) -> None:
    """Scores the model a run starts from; what it starts from has been scored already if it is a run."""
    split = prepared.experiment.speakers.test
    if (folder / "evaluation" / split / "start" / "scores.json").exists():
        return
    if run.start_run:
        source, target = (f / "evaluation" / split for f in (out / run.start_run, folder))
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


def _about(prepared: Prepared, name: str, start: Tensors) -> dict[str, Any]:
    experiment, run = prepared.experiment, prepared.experiment.runs[name]
    settings = config.to_dict(experiment)
    others = {key: value for key, value in settings.items() if key not in ("runs", "recipe", "seed")}
    own = {key: value for key, value in settings["runs"][name].items() if value is not None}
    return {
        "format": RUN_FORMAT,
        "name": name,
        "recipe": experiment.recipe,
        "seed": experiment.seed,
        "config": {**own, **{key: value for key, value in others.items() if key not in own}},
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
