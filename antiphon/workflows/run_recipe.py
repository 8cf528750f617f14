"""Run a recipe on a corpus, in one process or in several; run the demo; list the recipes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from antiphon import config
from antiphon.experiment.jobs import own_job
from antiphon.experiment.preparation import choose_device
from antiphon.experiment.runner import Scores, run_experiment, run_job, run_side_by_side
from antiphon.experiment.settings import Experiment
from antiphon.pools.lifeline import end_with_starter
from antiphon.pools.process_group import ProcessGroup, SingleProcess
from antiphon.pools.rendezvous import Rank, choose_gpu, find_rank, join
from antiphon.pools.spawning import run_processes
from antiphon.recipes import RECIPES
from antiphon.recipes import recipe as load_recipe
from antiphon.records.folders import check_new_folder
from antiphon.records.listener import Listen
from antiphon.records.lock import locked
from antiphon.workflows.arguments import Names, Notify, Progress, no_messages, no_progress, screen_for


def run(
    recipe: str | Path | Experiment,
    data: str | Path,
    out: str | Path,
    *,
    settings: Names = (),
    only: Names = (),
    resume: bool = False,
    skip_corrupt: bool = False,
    device: str = "auto",
    num_processes: int = 1,
    ordered: bool = False,
    dispatch: bool = False,
    jobs: int = 1,
    federation: str | Path | None = None,
    site_timeout: float = 600.0,
    min_sites: int = 0,
    as_they_arrive: bool = False,
    feature_processes: int = 1,
    progress: Progress = no_progress,
    notify: Notify = no_messages,
    listeners: Sequence[Listen] = (),
) -> dict[str, Scores]:
    """Run a recipe on a corpus: train, validate, score on the test speakers, write a report.

    A program that was started by torchrun, srun or mpiexec shares the clients of each round with the
    other processes; only the first process writes files. If `num_processes` or `jobs` is more than one, this
    program is started again: once for each process, or for each run. With `num_processes`, the first process
    waits for the others and then exits.

    Args:
        recipe: The name of a recipe, a YAML file that starts from one, or an `Experiment`.
        data: A corpus folder, made by antiphon corpus import.
        out: The folder for the runs and the report.
        settings: Changes to settings, each written as path=value, such as seed=1.
        only: The names of the runs to carry out; all runs by default.
        resume: Continue the experiment that is in `out`.
        skip_corrupt: Skip a damaged checkpoint when resuming and take the one before it.
        device: cpu, cuda, cuda:1, or auto (the GPU if there is one).
        num_processes: The number of processes that share the clients of a round.
        ordered: Make several processes give the same bits as one process; this costs traffic and memory.
        dispatch: Let each process take the next clients when it is free, for processes of unequal speed.
        jobs: The number of runs to carry out at the same time, each in its own process.
        federation: The server's kit of a federation: the clients are at its sites, and `data` is the server's
            own corpus.
        site_timeout: The seconds that a site may take for one client before it counts as lost.
        min_sites: The number of sites that must join before a run begins; 0: all of them.
        as_they_arrive: Add the updates of sites as they arrive: this needs less memory, and results differ
            in their last bits.
        feature_processes: The number of processes that compute features.
        progress: A function that is called with (stage, steps done, number of steps).
        notify: A function that is called with each line for the user.
        listeners: Functions that are called with a `RunInfo` as each run begins, and return its `Listener`.

    Returns:
        The scores of each run on the test speakers, by the name of the run.

    Raises:
        ValueError: A setting is wrong, or the recipe does not fit the corpus or the folder.
        Stopped: The run was interrupted, or too few clients answered. `resume` continues it.

    Example:
        scores = antiphon.run("dga", data="speech", out="out", settings=["seed=1"])
        print(scores["dga"]["words"])
    """
    data, out = Path(data), Path(out)
    experiment = _experiment(recipe, settings)
    process = find_rank(os.environ)
    is_first = process is None or process.rank == 0
    screen = screen_for(progress, listeners if is_first else (), experiment, out)
    _check_processes(process, num_processes, jobs)
    if federation is not None:
        if process is not None or max(num_processes, jobs) > 1:
            raise ValueError("a federation has one server process: leave out --workers and --jobs")
        from antiphon.workflows.run_federation import SiteOptions, run_in_federation

        sites = SiteOptions(federation, site_timeout, min_sites, as_they_arrive, notify)
        options = (resume, skip_corrupt, device, feature_processes, screen, only)
        return run_in_federation(experiment, data, out, *options, sites)
    if jobs > 1:
        if name := own_job():
            end_with_starter()
            run_job(experiment, data, out, name, skip_corrupt, device)
            sys.exit(0)  # this process was started for one run: it must not run the rest of the program
        return run_side_by_side(experiment, data, out, jobs, resume, device, feature_processes, screen, only)
    if process is None and num_processes > 1:
        sys.exit(run_processes(num_processes))
    with joined_group(process, device, ordered, dispatch) as (group, chosen):
        return run_experiment(
            experiment, data, out, resume, skip_corrupt, chosen, feature_processes, screen, only, group
        )


def demo(
    out: str | Path = "demo",
    *,
    settings: Names = (),
    resume: bool = False,
    device: str = "auto",
    feature_processes: int = 1,
    progress: Progress = no_progress,
    listeners: Sequence[Listen] = (),
) -> dict[str, Scores]:
    """Make a small corpus, train a seed model, and train it further by three federated algorithms.

    Args:
        out: The folder for the corpus and the runs.
        settings: Changes to settings, each written as path=value, such as seed=1.
        resume: Continue the demo that is in `out`.
        device: cpu, cuda, cuda:1, or auto (the GPU if there is one).
        feature_processes: The number of processes that compute features.
        progress: A function that is called with (stage, steps done, number of steps).
        listeners: Functions that are called with a `RunInfo` as each run begins, and return its `Listener`.

    Returns:
        The scores of each run on the test speakers, by the name of the run.

    Example:
        scores = antiphon.demo("demo", settings=["runs.dga.rounds.total=4"])
    """
    from antiphon.data.tts.demo_corpus import SpeakerGroup, synthesise_corpus

    experiment = _experiment("demo", settings)
    check_new_folder(Path(out))
    corpus, runs = Path(out) / "corpus", Path(out) / "runs"
    with locked(Path(out)):
        if not (corpus / "corpus.json").exists():
            report = partial(progress, "synthesis")
            sizes = {"pool": 48, "heldout": 6, "test": 12}
            splits = {split: SpeakerGroup(number, noisy_fraction=0.25) for split, number in sizes.items()}
            synthesise_corpus(corpus, splits, 20, experiment.seed, report)
        screen = screen_for(progress, listeners, experiment, runs)
        return run_experiment(experiment, corpus, runs, resume, False, device, feature_processes, screen)


def list_recipes() -> dict[str, str]:
    """Return the name of each recipe with a line that describes it.

    >>> list_recipes()["dga"].split()[0]
    'Dynamic'
    """
    return {name: (make.__doc__ or "").splitlines()[0] for name, make in RECIPES.items()}


def _experiment(recipe: str | Path | Experiment, settings: Names) -> Experiment:
    experiment = recipe if isinstance(recipe, Experiment) else load_recipe(str(recipe))
    return config.override(experiment, settings) if settings else experiment


def _check_processes(process: Rank | None, num_processes: int, jobs: int) -> None:
    """Refuse numbers below 1, and two ways of using several processes at once."""
    if num_processes < 1 or jobs < 1:
        numbers = f"not {num_processes} and {jobs} (--workers, --jobs; in Python: num_processes, jobs)"
        raise ValueError(f"there must be at least 1 process and 1 job, {numbers}")
    if jobs > 1 and (process is not None or num_processes > 1):
        raise ValueError("--jobs is for runs of one process each: leave out --jobs or the other processes")
    if jobs == 1 and process is not None and num_processes not in (1, process.size):
        raise ValueError(
            f"{process.size} processes are started already: leave out --workers {num_processes} "
            f"(in Python: num_processes={num_processes})"
        )


@contextmanager
def joined_group(
    process: Rank | None, device: str, ordered: bool, dispatch: bool = False
) -> Iterator[tuple[ProcessGroup, str]]:
    """Join the processes that were started with this one; yield them, and the device of this process."""
    if process is None:
        yield SingleProcess(), device
        return
    end_with_starter()
    # Refuse a wrong device before the other processes wait for this one.
    chosen = str(choose_device(choose_gpu(process, device)))
    with join(process, chosen, ordered, dispatch) as group:
        yield group, chosen
