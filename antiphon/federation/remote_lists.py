"""Clients with N-best lists at the sites of a federation: who they are, and the pool that reaches them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from antiphon.clients.states import ClientStates
from antiphon.core import Stopped, Worker, lives_with_server
from antiphon.federation.federation_server import is_name, read_head
from antiphon.federation.remote_clients import NOTES, id_of, sites_of
from antiphon.federation.site_lists import KINDS
from antiphon.pools.remote_exchange import Link, Patience
from antiphon.pools.remote_messages import Message
from antiphon.pools.remote_pool import RemotePool, RemoteRun, RemoteStates
from antiphon.records.files import make_folder, write_json
from antiphon.records.reading import read_as


@dataclass(frozen=True)
class ListAnnouncement:
    """What a site says about one of its clients: no more than this."""

    kind: str  # session or speaker
    num_lists: int
    has_references: bool

    @property
    def size(self) -> int:
        return self.num_lists


Announced = Mapping[str, Mapping[str, ListAnnouncement]]  # site -> client


def read_lists(site: str, message: Message) -> dict[str, ListAnnouncement]:
    """Return the clients with lists in a site's answer to a greeting; none if it has no lists."""
    lists = read_head(site, message).get("lists")
    if lists is None:
        return {}
    kind, clients = (lists.get("kind"), lists.get("clients")) if isinstance(lists, dict) else ("", None)
    if not isinstance(kind, str) or kind not in KINDS.values() or not isinstance(clients, dict):
        raise Stopped(f"site {site!r} announces lists of no known kind of clients")
    found = {}
    for client, about in clients.items():
        count, has = about if isinstance(about, list) and len(about) == 2 else (None, None)
        if type(count) is not int or type(has) is not bool or count < 1:
            raise Stopped(f"site {site!r} announces {client[:80]!r} with {about!r:.80}, which makes no sense")
        if lives_with_server(client) or client.startswith("earlier/") or not is_name(client):
            raise Stopped(f"site {site!r} announces {client[:80]!r}, which cannot be the name of a client")
        found[client] = ListAnnouncement(kind, count, has)
    return found


@dataclass(frozen=True)
class ListNotes:
    """federation.json of a personalisation: its clients by site."""

    sites: Mapping[str, Mapping[str, ListAnnouncement]]


@dataclass(frozen=True)
class RemoteLists:
    """Clients with lists, as they were announced when the rounds began."""

    link: Link
    announced: Announced
    patience: Patience = Patience()

    def __post_init__(self) -> None:
        sites_of(self.announced)

    @property
    def sites(self) -> dict[str, str]:
        return sites_of(self.announced)

    @property
    def clients(self) -> dict[str, ListAnnouncement]:
        """All clients, in the order of the sites and of their files."""
        return {c: about for clients in self.announced.values() for c, about in clients.items()}

    def check(self, client: str) -> None:
        """Refuse sites whose clients are of another kind, and a federation without lists."""
        if not self.clients:
            raise ValueError("no site has N-best lists: join there with --lists")
        for site, clients in self.announced.items():
            for about in clients.values():
                if about.kind != KINDS[client]:
                    raise ValueError(
                        f"the clients of site {site!r} are {about.kind}s, and --client says {client}: "
                        f"join there with --clients {client}, or set --client {about.kind}"
                    )

    def pool(self, folder: Path, setup: Message, here: Worker) -> RemotePool:
        """Return the pool of a run of rounds in a folder; `here` has the server's own clients."""
        make_folder(folder)
        states = RemoteStates(ClientStates(folder / "clients"))
        return RemotePool(self.link, self.sites, here, RemoteRun(id_of(folder), setup, states), self.patience)


def write_lists(path: Path, announced: Announced) -> None:
    """Remember the clients of a personalisation: a resumed one has the same."""
    body = {site: {c: asdict(about) for c, about in clients.items()} for site, clients in announced.items()}
    write_json(path, {"sites": body})


def read_known_lists(out: Path) -> dict[str, dict[str, ListAnnouncement]] | None:
    """Return the clients of the personalisation in a folder; None if there is none."""
    path = out / NOTES
    return {s: dict(c) for s, c in read_as(ListNotes, path).sites.items()} if path.exists() else None
