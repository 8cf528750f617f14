"""Personalise language models on N-best lists: Federated Marginal Personalization, with or without noise."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from antiphon.decoding.nbest import read_nbest
from antiphon.decoding.rescoring import Lists, tabulate, tune
from antiphon.lm.neural_lm import load_sentence_model
from antiphon.personalisation.federation import Federation, Schedule, background_of
from antiphon.personalisation.marginal_adaptation import Mixture
from antiphon.personalisation.private_trial import PrivateRow, PrivateTrial, Protection, read_protection
from antiphon.personalisation.trial import (
    BASELINE,
    Grid,
    Row,
    SecondPass,
    Trial,
    described,
    search_grid,
    write_results,
)
from antiphon.pools.rendezvous import find_rank
from antiphon.pools.spawning import run_processes
from antiphon.privacy.samplers import Secure, Seeded
from antiphon.records.files import write_json
from antiphon.records.folders import check_new_folder
from antiphon.records.listener import Listen
from antiphon.records.lock import locked
from antiphon.workflows.arguments import Names, Notify, Progress, no_messages, no_progress
from antiphon.workflows.rescore_lists import describe_weights, lists_of_splits, make_columns
from antiphon.workflows.run_recipe import joined_group
from antiphon.workflows.train_lm import sentences_of

ROUNDS = "rounds"  # in the folder of results: a folder for each run of rounds, with journal and checkpoints


@dataclass(frozen=True)
class NoiseSettings:
    """Noise on what the server publishes.

    noise: kinds (paper, laplace or gaussian) with their values of ε, such as "gaussian=2,1".
    cap: the norm of the counts that a client may send: l1 for laplace (100), l2 for gaussian (20).
    populations: for each number, counts as if every client were that many clients with the same words.
    num_seeds: draws of noise to average over.
    secure: noise from the operating system, not from seeds.
    """

    noise: tuple[str, ...]
    cap: float | None = None
    populations: tuple[int, ...] = (1,)
    num_seeds: int = 3
    secure: bool = False

    def __post_init__(self) -> None:
        self.protections()  # refuses unknown noise
        for population in self.populations:
            if population < 1:
                raise ValueError(f"a population must be at least 1, got {population}")

    def protections(self) -> list[tuple[str, Protection, list[float]]]:
        return [read_protection(text, self.cap) for text in self.noise]


@dataclass(frozen=True)
class ClientChange:
    """One client: its words, and its word errors with the background model and after all rounds."""

    name: str
    words: int
    before: int
    after: int


@dataclass(frozen=True)
class NoiseResults:
    """Word error rates with noise, without noise, with only own words, and of the background model.

    num_clients: the number of clients that report.
    """

    background: float
    no_noise: float
    own_words: float
    rows: tuple[PrivateRow, ...]
    num_clients: int


@dataclass(frozen=True)
class Personalisation:
    """The settings that were found, and word error rates by number of rounds, by setting and by client."""

    weights: Mapping[str, float]
    mixture: Mixture
    rounds: int
    num_lists: int
    rows: tuple[Row, ...]
    variations: tuple[Row, ...]
    clients: tuple[ClientChange, ...]
    private: NoiseResults | None


def personalize(
    nbest: str | Path,
    background: Sequence[str | Path],
    *,
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
    progress: Progress = no_progress,
    notify: Notify = no_messages,
    listeners: Sequence[Listen] = (),
) -> Personalisation:
    """Personalise a language model on N-best lists: word error rates round by round, client by client.

    Args:
        nbest: A file of N-best lists with references, in time order (JSON lines, plain or .gz).
        background: Text files that the background model was trained on.
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
        share: The probability that a client reports in a round, each drawn by itself; 0 for all.
        noise: Score again with noise on what the server publishes.
        out: A folder for results.json, clients.svg, (with noise) private.json, and the journals and
            checkpoints of all rounds (rounds/).
        resume: Continue the rounds that are in `out`.
        num_processes: The number of processes that share the clients of a round. More than one starts
            this program again, that many times; the first process waits for them and then exits.
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
    if noise is not None and noise.secure and (process is not None or num_processes > 1):
        raise ValueError("secure noise is drawn by one process: several would each draw their own")
    if process is None and num_processes > 1:
        sys.exit(run_processes(num_processes))
    if depth < 1:
        raise ValueError(f"--depth (in Python: depth) must be at least 1, not {depth}")
    numbers = sorted(rounds)
    schedule = Schedule(numbers[-1], every_utterance, cohort, share=share)
    if noise is not None and cohort:
        raise ValueError(
            "a cohort of a fixed size changes with the number of clients, and noise does not hide that: with "
            "noise, set share instead of cohort"
        )
    models = {name: load_sentence_model(path) for name, path in lm.items()}
    adapt = adapt or next(iter(models), "")
    if not adapt:
        raise ValueError("there is nothing to adapt: name a model (--lm) or a part of the lists (--adapt lm)")
    entries = list(read_nbest(Path(nbest), depth))
    unigram = background_of(sentences_of(background), entries)
    lists = tabulate(entries, models)
    heldout, scored = lists_of_splits(lists, tune_splits), lists_of_splits(lists, splits)
    earlier = lists_of_splits(lists, earlier_splits).entries if earlier_splits else ()
    second_pass = SecondPass(heldout, tune(heldout, make_columns(list(models), weights, search)), adapt)
    _warn(heldout, scored, second_pass, notify)
    with ExitStack() as stack:
        group, _ = stack.enter_context(joined_group(process, "cpu", ordered=True))
        group.on_rank_zero(lambda: _claim_folder(stack, folder, resume))
        rounds_folder = (folder or Path(stack.enter_context(TemporaryDirectory()))) / ROUNDS
        first_listeners = tuple(listeners) if group.is_rank_zero else ()

        def federate(lists: Lists, name: str) -> Federation:
            federation = Federation.of(lists.entries, unigram, client, earlier)
            federation = replace(federation, agreement=agreement, listeners=first_listeners)
            return replace(federation, folder=rounds_folder, name=name, group=group)

        report = partial(progress, "settings")
        tuning = federate(heldout, "tuning")
        mixture = search_grid(tuning, second_pass, schedule, grid, smoothing, report)
        notify(f"settings: {described(mixture)}")
        trial = Trial(federate(scored, "scored"), replace(second_pass, lists=scored), schedule)
        return _results(trial, mixture, numbers, noise, folder if group.is_rank_zero else None)


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


def _warn(heldout: Lists, scored: Lists, second_pass: SecondPass, notify: Notify) -> None:
    """Report the weights of the second pass, and what is doubtful about them."""
    if {entry.id for entry in heldout.entries} & {entry.id for entry in scored.entries}:
        notify("warning: settings are found on lists that are scored: error rates are optimistic")
    notify(describe_weights("weights of the second pass", second_pass.weights))
    if not second_pass.weights.get(second_pass.adapted):
        notify(f"warning: {second_pass.adapted} has no weight: adapting it changes nothing")


def _results(
    trial: Trial, mixture: Mixture, rounds: Sequence[int], noise: NoiseSettings | None, out: Path | None
) -> Personalisation:
    """Score all rounds, other settings and every client; write the files that are asked for."""
    choices = trial.choices(mixture, rounds)
    baseline, last = choices[BASELINE], choices[f"T = {rounds[-1]}"]
    rows, variations = trial.rows(choices, baseline), trial.rows(trial.variations(mixture), baseline)
    if out is not None:
        write_results(out, trial, [*rows, *variations], mixture, baseline, last)
    before, words = trial.by_client(baseline)
    after, _ = trial.by_client(last)
    counts = zip(trial.federation.clients, words.tolist(), before.tolist(), after.tolist(), strict=True)
    return Personalisation(
        weights=trial.second_pass.weights,
        mixture=mixture,
        rounds=rounds[-1],
        num_lists=len(trial.federation.entries),
        rows=tuple(rows),
        variations=tuple(variations),
        clients=tuple(ClientChange(*count) for count in counts),
        private=_noise_results(trial, mixture, noise, out) if noise is not None else None,
    )


def _noise_results(trial: Trial, mixture: Mixture, settings: NoiseSettings, out: Path | None) -> NoiseResults:
    """Score the trial again under every noise; write private.json where files are asked for."""
    sources = [Secure() if settings.secure else Seeded(seed) for seed in range(settings.num_seeds)]
    private = PrivateTrial(trial, mixture, sources)
    rows = [
        replace(private, population=population).row(name, protection, epsilon)
        for population in settings.populations
        for name, protection, epsilons in settings.protections()
        for epsilon in epsilons
    ]
    rates = private.error_rate(trial.second_pass.unadapted()), private.error_rate(trial.adapted(mixture))
    own_words = private.own_words()
    if out is not None:
        body = {"background": rates[0], "no_noise": rates[1], "own_words": own_words}
        write_json(out / "private.json", {**body, "rows": [row.to_dict() for row in rows]})
    num_clients = len(trial.federation.clients) + len(trial.federation.earlier)
    return NoiseResults(*rates, own_words, tuple(rows), num_clients)
