"""Personalise language models on N-best lists: Federated Marginal Personalization, with or without noise."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from antiphon.personalisation.marginal_adaptation import Mixture
from antiphon.personalisation.schedule import Schedule
from antiphon.personalisation.trial import BASELINE, Grid, SecondPass, Trial, write_results
from antiphon.pools.rendezvous import find_rank
from antiphon.pools.spawning import run_processes
from antiphon.records.folders import check_new_folder
from antiphon.records.listener import Listen
from antiphon.records.lock import locked
from antiphon.workflows.arguments import Names, Notify, Progress, no_messages, no_progress
from antiphon.workflows.personalisation_plan import RoundsPlace, find_settings, make_plan
from antiphon.workflows.personalisation_results import NoiseSettings, Personalisation, noise_results
from antiphon.workflows.personalise_sites import check_for_sites, personalise_at_sites
from antiphon.workflows.rescore_lists import lists_of_splits
from antiphon.workflows.run_federation import SiteOptions, joined_lists
from antiphon.workflows.run_recipe import joined_group

ROUNDS = "rounds"  # in the folder of results: a folder for each run of rounds, with journal and checkpoints


def personalize(
    nbest: str | Path | None,
    background: Sequence[str | Path],
    *,
    dictionary: Sequence[str | Path] = (),
    lm: Mapping[str, str | Path] = {},
    adapt: str = "",
    client: str = "meeting",
    rounds: Sequence[int] = (1, 2, 5, 10),
    tune_splits: Names = (),
    splits: Names = (),
    earlier_splits: Names = (),
    weights: Mapping[str, float] = {},
    search: Mapping[str, float] = {},
    grid: Grid = Grid(),
    smoothing: float = 0.1,
    agreement: float = 0.0,
    depth: int = 20,
    every_utterance: bool = False,
    cohort: int = 0,
    share: float = 0.0,
    noise: NoiseSettings | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    num_processes: int = 1,
    federation: str | Path | None = None,
    site_timeout: float = 600.0,
    min_sites: int = 0,
    progress: Progress = no_progress,
    notify: Notify = no_messages,
    listeners: Sequence[Listen] = (),
) -> Personalisation:
    """Personalise a language model on N-best lists: word error rates round by round, client by client.

    Args:
        nbest: A file of N-best lists with references, in time order (JSON lines, plain or .gz). With
            `federation`, the server's own lists, on which settings are found; None if it has none.
        background: Text files that the background model was trained on.
        dictionary: Text files with the words that the recogniser knows. They and those of `background` are
            the vocabulary; by default the words of all hypotheses are used in their place.
        lm: The background model, and other language models, by name: ARPA files or folders.
        adapt: The model that is adapted, or a part of the lists such as "lm"; by default the first of `lm`.
        client: What a client is: meeting, session or speaker.
        rounds: Numbers of rounds to score; the largest decides the settings.
        tune_splits: Splits on which settings are found; all lists by default.
        splits: Splits that are scored; all lists by default.
        earlier_splits: Splits of clients that took part before and go on reporting.
        weights: Fixed weights of models and parts, as in `rescore`.
        search: Weights to search for, as in `rescore`.
        grid: The settings of the adaptation to try.
        smoothing: The share of the background in everyone's words and in a client's own.
        agreement: Words count by the share of hypotheses that have them, to this power.
        depth: The number of hypotheses of a list that are used.
        every_utterance: Use a client's own words at once, not only after the round.
        cohort: The number of clients that report in a round; 0 for all. Not with noise.
        share: The probability that a client reports in a round, drawn for each client; 0: all report.
        noise: Score again with noise on what the server publishes.
        out: A folder for results.json, clients.svg, (with noise) private.json, and the journals and
            checkpoints of all rounds (rounds/).
        resume: Continue the rounds that are in `out`.
        num_processes: The number of processes that share the clients of a round. More than one starts
            this program again, that many times; the first process waits for them and then exits.
        federation: The server's kit of a federation: the clients are those with lists at its sites. Takes one
            number of `rounds`, and with noise one kind with one ε.
        site_timeout: The seconds that a site may take for one client before it counts as lost.
        min_sites: The number of sites that must join before the rounds begin; 0: all of them.
        progress: A function that is called with (stage, steps done, number of steps).
        notify: A function that is called with a line of text: settings that were found, and warnings.
        listeners: Functions that are called with a `RunInfo` as each run of rounds begins, and return its
            `Listener`.

    Example:
        result = antiphon.personalize("lists.jsonl", ["books.txt"], lm={"books": "books.arpa"}, rounds=[10])
        print([(row.name, row.rate) for row in result.rows])
    """
    process, folder = find_rank(os.environ), Path(out) if out is not None else None
    if process is None:
        _check_folder(folder, resume)
    _check_noise(noise, cohort, is_alone=process is None and num_processes == 1)
    if federation is not None:
        check_for_sites(nbest, rounds, noise, splits, tune_splits, earlier_splits)
        if process is not None or num_processes > 1:
            raise ValueError("a federation has one server process: leave out --workers")
    elif nbest is None:
        raise ValueError("there are no N-best lists: name a file of them")
    if process is None and num_processes > 1:
        sys.exit(run_processes(num_processes))
    numbers = sorted(rounds)
    schedule = Schedule(numbers[-1], every_utterance, cohort, share=share)
    settings = (client, schedule, depth, grid, smoothing, agreement, tune_splits, earlier_splits)
    plan = make_plan(nbest, background, dictionary, lm, adapt, weights, search, *settings)
    with ExitStack() as stack:
        group, _ = stack.enter_context(joined_group(process, "cpu", ordered=True))
        group.on_rank_zero(lambda: _claim_folder(stack, folder, resume))
        rounds_folder = (folder or Path(stack.enter_context(TemporaryDirectory()))) / ROUNDS
        place = RoundsPlace(rounds_folder, group, tuple(listeners) if group.is_rank_zero else ())
        if federation is not None:
            sites = SiteOptions(federation, site_timeout, min_sites, notify=notify)
            away = stack.enter_context(joined_lists(sites, folder, resume))
            return personalise_at_sites(plan, away, place, noise, folder, progress, notify)
        scored = lists_of_splits(plan.lists, splits)
        weights, mixture = find_settings(plan, place, progress, notify, scored)
        second_pass = SecondPass(scored, weights, plan.adapted)
        trial = Trial(plan.federation(scored, "scored", place), second_pass, schedule)
        return _results(trial, mixture, numbers, noise, folder if group.is_rank_zero else None)


def _check_noise(noise: NoiseSettings | None, cohort: int, is_alone: bool) -> None:
    """Refuse noise that several processes would draw, and noise that does not hide who was drawn."""
    if noise is not None and noise.secure and not is_alone:
        raise ValueError("secure noise is drawn by one process: several would each draw their own")
    if noise is not None and cohort:
        raise ValueError(
            "a cohort of a fixed size changes with the number of clients, and noise does not hide that: with "
            "noise, set share instead of cohort"
        )


def _check_folder(out: Path | None, resume: bool) -> None:
    """Refuse to continue nothing, and to write over the rounds of an earlier call."""
    if out is not None:
        check_new_folder(out)
    if resume and out is None:
        raise ValueError("there is no folder to resume from: name it with --out (in Python: out=)")
    if not resume and out is not None and (out / ROUNDS).exists():
        raise ValueError(f"{out / ROUNDS} exists: continue its rounds (--resume), or choose another folder")


def _claim_folder(stack: ExitStack, out: Path | None, resume: bool) -> None:
    """Check and lock the folder of the results and rounds, if there is one, until the stack is closed.

    One process of several does this: the others may be slower, and see rounds that it has begun.
    """
    _check_folder(out, resume)
    if out is not None:
        stack.enter_context(locked(out))


def _results(
    trial: Trial, mixture: Mixture, rounds: Sequence[int], noise: NoiseSettings | None, out: Path | None
) -> Personalisation:
    """Score all rounds, other settings and every client; write the files that are asked for."""
    choices = trial.choices(mixture, rounds)
    baseline, last = choices[BASELINE], choices[f"T = {rounds[-1]}"]
    rows, variations = trial.rows(choices, baseline), trial.rows(trial.variations(mixture), baseline)
    changes = trial.changes(baseline, last)
    if out is not None:
        write_results(out, trial.notes(mixture), [*rows, *variations], changes)
    return Personalisation(
        weights=trial.second_pass.weights,
        mixture=mixture,
        rounds=rounds[-1],
        num_lists=len(trial.federation.entries),
        rows=tuple(rows),
        variations=tuple(variations),
        clients=tuple(changes),
        private=noise_results(trial, mixture, noise, out) if noise is not None else None,
    )
