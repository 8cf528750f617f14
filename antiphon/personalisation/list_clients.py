"""Clients with N-best lists at a site: they report counts in every round, and rank their lists at the end.

Z. Liu and F. Peng, "Federated Marginal Personalization for ASR Rescoring", 2020, algorithm 1, as far as it
runs on a device. The lists are recorded, so all of them are ranked after the last round, each with what was
known before its group. References are for counting errors alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from antiphon.algorithms.fmp import MARGINAL
from antiphon.algorithms.fmp_errors import BASELINE, NUM_LISTS, RESCORE, ErrorCounts
from antiphon.core import Failure, Report, Task, Tensors, Unusable, Update
from antiphon.decoding.nbest import NBest
from antiphon.decoding.rescoring import tabulate
from antiphon.lm.ngram import SentenceModel
from antiphon.personalisation.count_noise import CountNoise
from antiphon.personalisation.marginal_adaptation import Mixture, Unigram, WordsOfTexts, log_ratio_sums
from antiphon.personalisation.schedule import HeardLists, Schedule
from antiphon.personalisation.trial import SecondPass, compared
from antiphon.personalisation.word_cache import MarginalWorker
from antiphon.tasks.client_work import work_for

MAX_ROUNDS = 10_000
Keep = Callable[[str, Sequence[NBest]], None]  # client, its lists in their new order


@dataclass(frozen=True)
class ListSettings:
    """What the clients of a run do with their lists.

    first: the group before which the first round takes place (`HeardLists`).
    weights, adapted: of the second pass. models: the names of the language models that are sent along.
    """

    mixture: Mixture
    schedule: Schedule
    first: int
    weights: dict[str, float]
    adapted: str
    models: tuple[str, ...] = ()
    agreement: float = 0.0
    depth: int = 20
    noise: CountNoise | None = None

    def __post_init__(self) -> None:
        if self.first not in (0, 1) or self.depth < 1 or self.schedule.rounds > MAX_ROUNDS:
            raise ValueError(f"first is 0 or 1, depth at least 1, and rounds at most {MAX_ROUNDS}: {self}")

    @property
    def num_releases(self) -> int:
        return self.schedule.rounds + 1 - self.first


@dataclass(frozen=True)
class ListWorker:
    """The clients of a site.

    keep: called with the lists of a client as they were ranked. They stay here.
    """

    lists: Mapping[str, Sequence[NBest]]
    background: Unigram
    models: Mapping[str, SentenceModel]
    settings: ListSettings
    keep: Keep = lambda client, lists: None
    states: None = field(default=None, init=False)  # counts are made again from the lists

    @cached_property
    def heard(self) -> HeardLists:
        settings = self.settings
        options = (settings.mixture.sigma, settings.agreement, settings.schedule, settings.first)
        return HeardLists.of(self.lists, self.background, *options)

    @cached_property
    def _reporting(self) -> MarginalWorker:
        noise = self.settings.noise
        cap = noise.protection()[0] if noise is not None else None
        return MarginalWorker(self._known_in, self.background.size, cap)

    def _known_in(self, round: int) -> Mapping[str, Any]:
        if not 0 <= round < self.settings.num_releases:
            raise ValueError(f"the run has {self.settings.num_releases} rounds, and this is {round + 1}")
        return self.heard.known_in(round)

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        if task.kind == MARGINAL:
            yield from self._reporting.run(task, clients)
            return
        if task.kind != RESCORE:
            raise ValueError(f"no work of kind {task.kind!r} for lists; there are {MARGINAL} and {RESCORE}")
        for name in clients:
            try:
                yield work_for(task.kind)(task, ListClient(name, self))
            except Unusable as error:
                yield Update.nothing(Failure(name, str(error)))


@dataclass(frozen=True)
class ListClient:
    """One client of a worker."""

    id: str
    worker: ListWorker

    def rescore(self, task: Task) -> Update:
        """Rank the lists with q̄ of every round; report counts of errors if there are references."""
        worker, settings = self.worker, self.worker.settings
        entries = worker.lists[self.id]
        # Without references, errors are counted against nothing, and not reported.
        lists = tabulate([replace(e, reference=e.reference or "") for e in entries], worker.models)
        if missing := [n for n in (*settings.weights, settings.adapted) if n not in lists.columns]:
            raise Unusable(f"its lists have no {missing[0]!r}, which the second pass needs")
        second_pass = SecondPass(lists, settings.weights, settings.adapted)
        known = worker.heard.marginals(self.id, shared_words(task.tensors, settings.num_releases))
        words = [WordsOfTexts.of([h.text for h in e.hypotheses], worker.background) for e in entries]
        ratios = log_ratio_sums(known, words, settings.mixture)
        worker.keep(self.id, ranked(second_pass, ratios, settings.mixture.lam, entries))
        stats = {NUM_LISTS: float(len(entries))}
        if has_references(entries):
            stats |= count_errors(second_pass, second_pass.best(ratios, settings.mixture.lam)).to_stats()
        return Update({}, reports=(Report(self.id, stats),))


def has_references(entries: Sequence[NBest]) -> bool:
    """Whether errors can be counted: every list has a reference."""
    return all(entry.reference is not None for entry in entries)


def count_errors(second_pass: SecondPass, adapted: np.ndarray) -> ErrorCounts:
    """Return the errors of the four choices (`fmp_errors.CHOICES`)."""
    lists = second_pass.lists
    choices = [lists.first(), second_pass.unadapted(), adapted, lists.oracle()]
    errors = np.array([lists.errors[rows].sum(axis=0) for rows in choices])
    segments = [compared(lists, choices[BASELINE], rows) for rows in choices]
    return ErrorCounts(errors, np.array(segments))


def ranked(second_pass: SecondPass, ratios: np.ndarray, lam: float, entries: Sequence[NBest]) -> list[NBest]:
    """Return lists in the order of the adapted model, with its total as the score."""
    totals, lists, found = second_pass.totals(ratios, lam), second_pass.lists, []
    for entry, start in zip(entries, lists.starts, strict=False):
        scores = totals[start : start + len(entry.hypotheses)]
        order = np.argsort(-scores, kind="stable")
        hypotheses = tuple(replace(entry.hypotheses[i], score=float(scores[i])) for i in order)
        found.append(replace(entry, hypotheses=hypotheses))
    return found


def shared_tensors(shared: Sequence[np.ndarray | None]) -> Tensors:
    """Return q̄ of every round as the tensors of a task; a round before anybody had reported has none."""
    return {f"round/{n}": torch.from_numpy(q) for n, q in enumerate(shared, 1) if q is not None}


def shared_words(tensors: Tensors, num_rounds: int) -> list[np.ndarray | None]:
    """Return q̄ of every round from the tensors of a task."""
    found = [tensors.get(f"round/{number}") for number in range(1, num_rounds + 1)]
    return [q.double().numpy() if q is not None else None for q in found]
