"""The clients of a federation, for an experiment: who they are, and the pool that reaches them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from antiphon.clients.faults import Unreliability
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Pool
from antiphon.data.corruption.corrupted_clients import Corruption
from antiphon.data.partition import BySession, BySpeaker
from antiphon.experiment.settings import Experiment, Run
from antiphon.experiment.teaching import unlabelled_clients
from antiphon.federation.federation_server import Announcement
from antiphon.federation.run_setup import SetupSettings, pack_setup
from antiphon.federation.sent_folders import SentFolders
from antiphon.pools.remote_exchange import Link, Patience
from antiphon.pools.remote_pool import RemotePool, RemoteRun, RemoteStates
from antiphon.privacy.announced_noise import AnnouncedNoise
from antiphon.recognizer import Recognizer
from antiphon.records.files import write_json
from antiphon.records.reading import read_as
from antiphon.records.writer import Listener
from antiphon.server.run_context import parts_of

NOTES = "federation.json"


@dataclass(frozen=True)
class RemoteClients:
    """Clients at sites, as they were announced when the experiment began."""

    link: Link
    announced: Mapping[str, Mapping[str, Announcement]]  # site -> client
    patience: Patience = Patience()
    ordered: bool = True  # add updates in the order of the cohort; False: as they arrive

    def __post_init__(self) -> None:
        sites_of(self.announced)

    @property
    def sites(self) -> dict[str, str]:
        return sites_of(self.announced)

    @property
    def _clients(self) -> dict[str, Announcement]:
        return {client: about for clients in self.announced.values() for client, about in clients.items()}

    @property
    def seconds(self) -> dict[str, float]:
        return {client: about.seconds for client, about in self._clients.items()}

    @property
    def sizes(self) -> dict[str, Any]:
        clients = self._clients.values()
        return {
            "clients": len(clients),
            "speakers": len(clients),
            "utterances": sum(client.num_utterances for client in clients),
            "hours": sum(client.seconds for client in clients) / 3600,
        }

    def check(self, experiment: Experiment) -> None:
        """Refuse what only a simulation can do."""
        if experiment.corruption != Corruption() or experiment.unreliability != Unreliability():
            raise ValueError("corruption and unreliability simulate clients: a federation has real ones")
        if experiment.clock is not None:
            raise ValueError("clock simulates the time of clients: a federation has real ones")
        for name, run in experiment.runs.items():
            if reason := _why_not(run) or self._other_kind(run):
                raise ValueError(f"run {name!r} cannot be part of a federation: {reason}")

    def _other_kind(self, run: Run) -> str:
        """Return which site has clients of another kind than a run: speakers or sessions."""
        kind = "session" if run.clients == BySession() else "speaker"
        for site, clients in self.announced.items() if run.data == "federated" else ():
            if any(not client.startswith(f"{kind}/") for client in clients):
                has = f"its clients are {kind}s, and those of site {site!r} are not"
                return f"{has}: join there with --clients {kind}"
        return ""

    def pool(
        self,
        experiment: Experiment,
        name: str,
        folder: Path,
        recognizer: Recognizer,
        worker: SpeechWorker,
        listener: Listener,
    ) -> tuple[Pool, RemoteStates]:
        assert worker.states is not None
        run = experiment.runs[name]
        settings = SetupSettings(
            base=tuple(worker.runtime.base),
            seed=experiment.seed,
            augment=experiment.augment,
            stacked=experiment.stacked,
            precision=experiment.precision,
            renew_lost_states=run.rounds.renew_lost_states,
            unlabelled=tuple(unlabelled_clients(run, list(self.sites), experiment.seed)),
            noise=_noise_of(run),
        )
        write_announced(folder.parent / NOTES, self.announced)
        states = RemoteStates(worker.states)
        remote = RemoteRun(id_of(folder), pack_setup(recognizer, settings), states, SentFolders())
        options = (self.patience, self.ordered, listener.at_sites)
        pool = RemotePool(self.link, self.sites, worker, remote, *options)
        if run.secure_aggregation is None or run.data != "federated":
            return pool, states
        # Imported here: it needs the package cryptography, which is optional.
        from antiphon.secure_aggregation.secure_pool import SecurePool

        return SecurePool(pool.ask, pool, run.secure_aggregation, remote.id), states


def sites_of(announced: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return the site of each client; ValueError if two sites announce the same one."""
    known: dict[str, str] = {}
    for site, clients in announced.items():
        for client in clients:
            if (other := known.setdefault(client, site)) != site:
                raise ValueError(
                    f"sites {other!r} and {site!r} both announce {client!r}: "
                    "give the clients of one of them other names"
                )
    return known


def _noise_of(run: Run) -> AnnouncedNoise | None:
    """Return what sites are told about the noise of a private run."""
    parts = [part for part in parts_of(run.algorithm) if hasattr(part, "announced")]
    noise: AnnouncedNoise | None = parts[0].announced(run.rounds.total) if parts else None
    return noise


def _why_not(run: Run) -> str:
    if run.data != "federated":
        is_mixed = "federated" in run.times or "both" in run.times
        return "its data would bring the speech of clients to the server" if is_mixed else ""
    if run.clients not in (BySpeaker(), BySession()):
        return "its clients are speakers or sessions at sites: leave out clients, or set by_session"
    if run.held_out:
        return "held_out would score the models of clients on the server: set held_out=0"
    return ""


@dataclass(frozen=True)
class RunNotes:
    """federation.json of a run: its name among all runs that sites know."""

    run: str


@dataclass(frozen=True)
class ExperimentNotes:
    """federation.json of an experiment: its clients by site."""

    sites: Mapping[str, Mapping[str, Announcement]]


def id_of(folder: Path) -> str:
    """Return the name of a run among all runs that sites know; it stays the same when a run is resumed."""
    path = folder / NOTES
    if not path.exists():
        write_json(path, {"run": uuid.uuid4().hex})
    return read_as(RunNotes, path).run


def write_announced(path: Path, announced: Mapping[str, Mapping[str, Announcement]]) -> None:
    """Remember the clients of an experiment: a resumed one has the same."""
    body = {site: {c: asdict(about) for c, about in clients.items()} for site, clients in announced.items()}
    write_json(path, {"sites": body})


def read_announced(path: Path) -> dict[str, dict[str, Announcement]]:
    return {site: dict(clients) for site, clients in read_as(ExperimentNotes, path).sites.items()}
