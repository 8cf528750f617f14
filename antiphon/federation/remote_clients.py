"""The clients of a federation, for an experiment: who they are, and the pool that reaches them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from antiphon.clients.faults import Unreliability
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Pool
from antiphon.data.corruption.corrupted_clients import Corruption
from antiphon.data.partition import BySpeaker
from antiphon.experiment.settings import Experiment, Run
from antiphon.experiment.teaching import unlabelled_clients
from antiphon.federation.federation_server import Announcement
from antiphon.federation.run_setup import SetupSettings, pack_setup
from antiphon.pools.remote_exchange import Link, Patience
from antiphon.pools.remote_pool import RemotePool, RemoteRun, RemoteStates
from antiphon.recognizer import Recognizer
from antiphon.records.files import write_text

NOTES = "federation.json"


@dataclass(frozen=True)
class RemoteClients:
    """Clients at sites, as they were announced when the experiment began."""

    link: Link
    announced: Mapping[str, Mapping[str, Announcement]]  # site -> client
    patience: Patience = Patience()

    def __post_init__(self) -> None:
        known: dict[str, str] = {}
        for site, clients in self.announced.items():
            for client in clients:
                if (other := known.setdefault(client, site)) != site:
                    raise ValueError(
                        f"sites {other!r} and {site!r} both announce {client!r}: "
                        "give the speakers of one of them other names"
                    )

    @property
    def sites(self) -> dict[str, str]:
        return {client: site for site, clients in self.announced.items() for client in clients}

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
        for name, run in experiment.runs.items():
            if reason := _why_not(run):
                raise ValueError(f"run {name!r} cannot be part of a federation: {reason}")

    def pool(
        self, experiment: Experiment, name: str, folder: Path, recognizer: Recognizer, worker: SpeechWorker
    ) -> tuple[Pool, RemoteStates]:
        assert worker.states is not None
        run = experiment.runs[name]
        settings = SetupSettings(
            base=tuple(worker.runtime.base),
            seed=experiment.seed,
            augment=experiment.augment,
            stacked=experiment.stacked,
            bfloat16=experiment.bfloat16,
            renew_lost_states=run.rounds.renew_lost_states,
            unlabelled=tuple(unlabelled_clients(run, list(self.sites), experiment.seed)),
        )
        write_announced(folder.parent / NOTES, self.announced)
        states = RemoteStates(worker.states)
        remote = RemoteRun(_id_of(folder), pack_setup(recognizer, settings), states)
        pool = RemotePool(self.link, self.sites, worker, remote, self.patience)
        if run.secure_aggregation is None or run.data != "federated":
            return pool, states
        # Imported here: it needs the package cryptography, which is optional.
        from antiphon.secure_aggregation.secure_pool import SecurePool

        return SecurePool(pool.ask, pool, run.secure_aggregation, remote.id), states


def _why_not(run: Run) -> str:
    if run.data != "federated":
        is_mixed = "federated" in run.times or "both" in run.times
        return "its data would bring the speech of clients to the server" if is_mixed else ""
    if run.clients != BySpeaker():
        return "its clients are speakers at sites: leave out clients"
    if run.held_out:
        return "held_out would score the models of clients on the server: set held_out=0"
    return ""


def _id_of(folder: Path) -> str:
    """Return the name of a run among all runs that sites know; it stays the same when a run is resumed."""
    path = folder / NOTES
    if not path.exists():
        write_text(path, json.dumps({"run": uuid.uuid4().hex}))
    return str(json.loads(path.read_text())["run"])


def write_announced(path: Path, announced: Mapping[str, Mapping[str, Announcement]]) -> None:
    """Remember the clients of an experiment: a resumed one has the same."""
    body = {site: {c: asdict(about) for c, about in clients.items()} for site, clients in announced.items()}
    write_text(path, json.dumps({"sites": body}, indent=2) + "\n")


def read_announced(path: Path) -> dict[str, dict[str, Announcement]]:
    sites = json.loads(path.read_text())["sites"]
    return {
        site: {c: Announcement(**about) for c, about in clients.items()} for site, clients in sites.items()
    }
