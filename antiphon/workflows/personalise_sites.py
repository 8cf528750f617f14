"""Federated Marginal Personalization with clients at the sites of a federation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from antiphon.algorithms.fmp import Fmp
from antiphon.algorithms.fmp_errors import CHOICES, RESCORE, ErrorCounts
from antiphon.core import Pool, Stopped, Task
from antiphon.federation.remote_clients import NOTES
from antiphon.federation.remote_lists import ListAnnouncement, RemoteLists, write_lists
from antiphon.federation.site_lists import pack_list_setup
from antiphon.personalisation.count_noise import CountNoise
from antiphon.personalisation.list_clients import ListSettings, shared_tensors
from antiphon.personalisation.marginal_adaptation import Unigram
from antiphon.personalisation.marginal_rounds import MarginalRounds, run_name, schedule_notes
from antiphon.personalisation.trial import (
    BASELINE,
    FIRST_PASS,
    ORACLE,
    ClientChange,
    Row,
    result_notes,
    row_of,
    write_results,
)
from antiphon.personalisation.word_cache import Cache, MarginalWorker
from antiphon.pools.remote_messages import head_of
from antiphon.privacy.release import PrivateRelease
from antiphon.records.files import write_json
from antiphon.records.listener import Listen, RunInfo
from antiphon.records.writer import Listener
from antiphon.workflows.arguments import Names, Notify, Progress
from antiphon.workflows.personalisation_plan import Plan, RoundsPlace, find_settings
from antiphon.workflows.personalisation_results import NoiseSettings, Personalisation


def check_for_sites(
    nbest: str | Path | None,
    rounds: Sequence[int],
    noise: NoiseSettings | None,
    splits: Names,
    tune_splits: Names,
    earlier_splits: Names,
) -> None:
    """Refuse what only a simulation can do."""
    if len(rounds) != 1:
        raise ValueError(
            "with --federation, give one number of rounds (--rounds 10): only a simulation can go through "
            "the same lists several times"
        )
    if splits:
        raise ValueError("the lists at the sites are scored, all of them: leave out --split")
    if nbest is None and (tune_splits or earlier_splits):
        raise ValueError("--tune and --earlier name lists of the server: give it a file of N-best lists")
    if noise is None:
        return
    if len(noise.noise) != 1 or len(noise.protections()[0][2]) != 1:
        raise ValueError(
            "with --federation, give one kind of noise with one ε (--private gaussian=2): each further one "
            "would publish the same counts again, and only a simulation can do that without a loss of privacy"
        )
    if noise.populations != (1,):
        raise ValueError("--population counts clients that do not exist: only a simulation can do that")


def personalise_at_sites(
    plan: Plan,
    clients: RemoteLists,
    place: RoundsPlace,
    noise: NoiseSettings | None,
    out: Path | None,
    progress: Progress,
    notify: Notify,
) -> Personalisation:
    """Find settings on the server's own lists, and run the rounds with the clients of the sites."""
    clients.check(plan.client)
    weights, mixture = find_settings(plan, place, progress, notify)
    first = 0 if plan.earlier else 1
    settings = ListSettings(
        mixture, plan.schedule, first, weights, plan.adapted, tuple(plan.models), plan.agreement, plan.depth
    )
    if noise is not None:
        kind, _, (epsilon,) = noise.protections()[0]
        announced = CountNoise(kind, epsilon, settings.num_releases, noise.cap)
        settings = replace(settings, noise=announced)
    earlier: dict[str, Cache] = {}
    if plan.own is not None:
        own = plan.federation(plan.own, "earlier", place)
        earlier = own.earlier_words(mixture.sigma)
    models = list(plan.models.values())
    rounds = SiteRounds(
        clients, settings, plan.background, models, earlier, notify, progress, place.listeners
    )
    return rounds.run(place.folder, out)


@dataclass(frozen=True)
class SiteRounds:
    """One run of rounds with the clients of sites, and with earlier clients of the server.

    earlier: what those report in every round. models: folders or files, in the order of `settings.models`.
    """

    clients: RemoteLists
    settings: ListSettings
    background: Unigram
    models: Sequence[Path]
    earlier: Mapping[str, Cache]
    notify: Notify
    progress: Progress
    listeners: tuple[Listen, ...] = ()

    def run(self, folder: Path, out: Path | None) -> Personalisation:
        """Run the rounds, let clients rank their lists, and write the results.

        folder: for the rounds. out: for the results; None: they are not written.
        """
        settings, noise = self.settings, self.settings.noise
        if out is not None:
            write_lists(out / NOTES, self.clients.announced)
        setup = pack_list_setup(settings, self.background, self.models)
        name = run_name("scored", settings.schedule, settings.mixture.sigma)
        here = MarginalWorker(self.earlier, self.background.size, noise.protection()[0] if noise else None)
        pool = self.clients.pool(folder / name, setup, here)
        num_lists = {client: about.num_lists for client, about in self.clients.clients.items()}
        rounds = MarginalRounds(
            name,
            settings.num_releases,
            {**num_lists, **dict.fromkeys(self.earlier, 1)},
            self.background,
            settings.schedule,
            {"sigma": settings.mixture.sigma, "agreement": settings.agreement},
            Fmp(release=self._release()),
            folder,
            listeners=(*self.listeners, self._listen),
        )
        shared = rounds.run(pool, self._identity(num_lists, str(head_of(setup)["body"]["sha256"])))
        if not any(words is not None for words in shared):
            self.notify(
                "warning: no client has reported a word: only its own words adapt the model of a client"
            )
        counts = self._errors(pool, shared)
        return self._results(counts, out)

    def _release(self) -> PrivateRelease | None:
        if (noise := self.settings.noise) is None:
            return None
        _, mechanism, ledger = noise.protection()
        return PrivateRelease(mechanism, ledger, torch.from_numpy(self.background.probabilities))

    def _listen(self, info: RunInfo) -> Listener:
        return _Rounds(self.notify, self.progress, info.num_rounds)

    def _identity(self, num_lists: Mapping[str, int], setup: str) -> dict[str, Any]:
        notes = schedule_notes(self.settings.schedule)
        return {**notes, "lists": dict(num_lists), "setup_sha256": setup}

    def _errors(self, pool: Pool, shared: Sequence[np.ndarray | None]) -> dict[str, ErrorCounts]:
        """Let all clients rank their lists, and return the error counts of those with references."""
        names = list(self.clients.clients)
        task = Task(RESCORE, shared_tensors(shared), {"round": self.settings.num_releases, "call": 0})
        answers = pool.collect(task, names)
        reasons = {failure.client: failure.reason for failure in answers.failures}
        counts: dict[str, ErrorCounts] = {}
        for report in answers.reports:
            try:
                found = ErrorCounts.of_stats(report.stats)
            except ValueError as error:
                reasons[report.client] = str(error)
            else:
                if found is not None:
                    counts[report.client] = found
        for client, reason in reasons.items():
            self.notify(f"no error counts of {client}: {reason}")
        if len(reasons) == len(names):
            raise Stopped("no client has ranked its lists: the reasons are above")
        if silent := [c for c in names if c not in counts and c not in reasons]:
            self.notify(
                f"{len(silent)} of {len(names)} clients have no references: they have ranked their lists, "
                "and the server gets no error counts of them"
            )
        return {client: counts[client] for client in names if client in counts}

    def _results(self, counts: Mapping[str, ErrorCounts], out: Path | None) -> Personalisation:
        settings = self.settings
        notes = result_notes(
            settings.weights, settings.adapted, settings.mixture, settings.agreement, settings.schedule
        )
        rows, changes = _rows(counts, settings.schedule.rounds), _changes(counts)
        if out is not None and counts:
            write_results(out, notes, rows, changes)
        if settings.noise is not None:
            self._report_noise(settings.noise, out)
        about: Sequence[ListAnnouncement] = [self.clients.clients[client] for client in counts]
        return Personalisation(
            weights=settings.weights,
            mixture=settings.mixture,
            rounds=settings.schedule.rounds,
            num_lists=sum(client.num_lists for client in about),
            rows=tuple(rows),
            variations=(),
            clients=tuple(changes),
            private=None,
        )

    def _report_noise(self, noise: CountNoise, out: Path | None) -> None:
        claims = noise.claims()
        for claim in claims:
            rounds = f"{claim.rounds} rounds ({claim.composition})"
            self.notify(f"epsilon (delta) of {claim.unit}, {rounds}: {claim.short()}")
        if out is not None:
            listed = [{**vars(c), "epsilon": c.epsilon if np.isfinite(c.epsilon) else None} for c in claims]
            write_json(out / "private.json", {**vars(noise), "claims": listed})


@dataclass
class _Rounds(Listener):
    """Reports finished rounds, and clients that were left out."""

    notify: Notify
    progress: Progress
    total: int

    def resumed(self, round: int) -> None:
        self.progress("rounds", round, self.total)

    def finished(self, entry: Mapping[str, Any], clock: Mapping[str, Any]) -> None:
        for client, reason in entry.get("failures", {}).items():
            self.notify(f"round {entry['round']}: left out {client}: {reason}")
        self.progress("rounds", entry["round"], self.total)


def _rows(counts: Mapping[str, ErrorCounts], rounds: int) -> list[Row]:
    """Return the rows of the four choices; none without counts."""
    if not counts:
        return []
    errors = np.array([client.errors for client in counts.values()])  # [clients, choices, 4]
    segments = np.array([client.segments for client in counts.values()]).sum(axis=0)
    totals, words = errors[:, :, :3].sum(axis=2), errors[:, 0, 3]
    names = (FIRST_PASS, BASELINE, f"T = {rounds}", ORACLE)
    before = totals[:, CHOICES.index("background")]
    return [row_of(name, totals[:, n], before, words, segments[n]) for n, name in enumerate(names)]


def _changes(counts: Mapping[str, ErrorCounts]) -> list[ClientChange]:
    before, after = CHOICES.index("background"), CHOICES.index("adapted")
    return [
        ClientChange(name, int(e[0, 3]), int(e[before, :3].sum()), int(e[after, :3].sum()))
        for name, e in ((name, client.errors) for name, client in counts.items())
    ]
