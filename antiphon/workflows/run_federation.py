"""A federation of real machines: make its kits, join it with data, run a recipe in it, look at it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from antiphon.data.corpus import Corpus
from antiphon.experiment.runner import Scores, Screen, run_experiment
from antiphon.experiment.settings import Experiment
from antiphon.federation.engine_process import ask_engine
from antiphon.federation.federation_server import FederationServer, read_announcements
from antiphon.federation.federation_site import Site
from antiphon.federation.kits import Kit, create_kits, open_kit
from antiphon.federation.remote_clients import NOTES, RemoteClients, read_announced
from antiphon.federation.remote_lists import RemoteLists, read_known_lists, read_lists
from antiphon.federation.site_lists import KINDS, LISTS, SiteLists, lines_about
from antiphon.federation.site_policy import SitePolicy
from antiphon.federation.site_service import serve
from antiphon.pools.remote_exchange import Patience
from antiphon.records.lock import locked
from antiphon.workflows.arguments import Names, Notify, Progress, names_of, no_messages, no_progress

PATIENCE = 60.0  # seconds in which sites join, before a run begins without the missing ones


def create_federation(
    server: str, sites: Names, out: str | Path, *, days: int = 360, carrier: str = "nvflare"
) -> list[Path]:
    """Make the kits of a federation: one for the server and one for each site.

    Keep the folder `authority` offline: its key makes certificates.

    Args:
        server: The address at which sites reach the server: HOST:PORT.
        sites: The names of the sites, separated by commas on the command line.
        out: The new folder for the kits.
        days: The days after which the certificates expire.
        carrier: What moves the messages: nvflare or flower.

    Returns:
        The folders of the kits, the server's first.

    Example:
        kits = antiphon.create_federation("speech.example.org:8002", ["berlin", "oslo"], "kits")
    """
    return create_kits(server, names_of(sites), Path(out), days, carrier)


def join_federation(
    kit: str | Path,
    data: str | Path | None = None,
    *,
    lists: str | Path | None = None,
    clients: str = "",
    policy: str | Path | None = None,
    device: str = "auto",
    dry_run: bool = False,
    stop: threading.Event | None = None,
    progress: Progress = no_progress,
    notify: Notify = no_messages,
) -> dict[str, Any]:
    """Join a federation with speech or N-best lists, and do the work that its server sends, until stopped.

    Each speaker, or each session, is a client. Speech, texts, features and lists stay on this machine.

    Args:
        kit: The kit of this site.
        data: A corpus folder, made by antiphon corpus import.
        lists: A file of N-best lists in time order (JSON lines, plain or .gz), for antiphon personalize. If
            they have references, the server gets the number of errors of each client.
        clients: What a client is: speaker, session or meeting. By default, speakers of `data` and meetings of
            `lists`.
        policy: A YAML file with limits on the work; without it, everything is allowed.
        device: cpu, cuda, cuda:1, or auto (the GPU if there is one).
        dry_run: Say what would leave this machine, and stop.
        stop: An event that ends the work.
        progress: A function that is called with (stage, steps done, number of steps).
        notify: A function that is called with each line for the user.

    Returns:
        What leaves the machine before any work: the site's name and its clients.

    Example:
        antiphon.join_federation("kits/oslo", data="speech", dry_run=True)
    """
    opened = _open(kit, False)
    if data is None and lists is None:
        raise ValueError("a site joins with speech (--data), with N-best lists (--lists), or with both")
    if clients not in ("", *KINDS):
        raise ValueError(f"a client is a {', a '.join(KINDS)}, not {clients!r}")
    corpus, limits = Corpus.open(data) if data else None, SitePolicy.read(Path(policy) if policy else None)
    own_lists = SiteLists.read(Path(lists), clients or "meeting") if lists else None
    with locked(opened.work):
        options = (opened.work, limits, device, notify, partial(progress, "features"))
        kind = KINDS[clients or "speaker"]
        site = Site(opened.name, corpus, *options, kind=kind, lists=own_lists)
        notify(
            f"site {opened.name} of the federation {opened.fingerprint[:32]} at {opened.host}:{opened.port}"
        )
        for line in _sizes(site):
            notify(line)
        if limits.epsilon:
            costs = site.ledger.costs
            spent = f"{site.ledger.epsilon(costs, limits.delta):.3g} in {len(costs)} private runs"
            notify(f"epsilon of a client: {spent}, of {limits.epsilon:g} at delta {limits.delta:g}")
        if dry_run:
            for line in leaving(site):
                notify(line)
        else:
            serve(opened, site, stop or threading.Event())
    return {"site": opened.name, "clients": site.clients, "lists": own_lists.facts() if own_lists else {}}


def _sizes(site: Site) -> Iterator[str]:
    """Yield how much speech a site has, and how many lists."""
    if site.corpus is not None:
        sizes = site.clients.values()
        yield f"{len(sizes)} clients, {sum(n for n, _ in sizes)} utterances, {sum(s for _, s in sizes):.0f} s"
    if site.lists is not None:
        yield f"{len(site.lists.clients)} clients with {site.lists.num_lists} N-best lists"


def leaving(site: Site) -> Iterator[str]:
    """Yield what leaves a site's machine, to the byte."""
    announcement = site.announcement()
    yield f"before a run, once: {len(announcement)} bytes, which say"
    for client, (count, seconds) in site.clients.items():
        yield f"  {client}: {count} utterances, {seconds:g} s"
    if site.lists is not None:
        yield from lines_about(site.lists, site.setups(LISTS))
    if site.corpus is not None:
        yield from _updates(site)
    yield "for a client that fails: the kind of the error, and no text of it"


def _updates(site: Site) -> Iterator[str]:
    """Yield how large the answers of clients with speech are."""
    yield "for each task of a client: one answer, with an update and a report of numbers"
    sizes = list(site.answer_sizes())
    for one in sizes:
        about = f"{one.tensors} bytes for all its parameters, at most {one.report} bytes of report"
        yield f"  model {one.setup[:8]}: {about}"
        yield f"    under secure aggregation, {one.masked} bytes of masked parameters instead; and for each"
        yield "    client of the cohort 94 bytes of encrypted shares, and one share: 66 digits, with its name"
    if not sizes:
        yield "  it is as large as the parameters that the server sends; no model has been sent here yet"


@dataclass(frozen=True)
class SiteOptions:
    """How the server meets its sites: its kit, and how long and for how many of them it waits."""

    kit: str | Path
    timeout: float = 600.0  # seconds that a site may take for one client
    min_sites: int = 0  # sites that must join; 0: all
    as_they_arrive: bool = False  # add updates as they arrive; else in the order of the cohort
    notify: Notify = no_messages


@contextmanager
def joined_sites(options: SiteOptions, out: Path, resume: bool) -> Iterator[RemoteClients]:
    """Open a federation from its server, wait for its sites, and yield their clients.

    A resumed experiment in `out` has the clients that it began with.
    """
    with _open_server(options) as (server, enough):
        announced = server.greet(PATIENCE, enough, read_announcements, "utterances")
        if resume and (out / NOTES).exists():
            announced = read_announced(out / NOTES)
        patience = Patience(timeout=options.timeout)
        yield RemoteClients(server.link, announced, patience, ordered=not options.as_they_arrive)


@contextmanager
def joined_lists(options: SiteOptions, out: Path | None, resume: bool) -> Iterator[RemoteLists]:
    """Open a federation from its server, wait for its sites, and yield their clients with N-best lists."""
    with _open_server(options) as (server, enough):
        announced = server.greet(PATIENCE, enough, read_lists, "lists")
        if resume and out is not None:
            announced = read_known_lists(out) or announced
        yield RemoteLists(server.link, announced, Patience(timeout=options.timeout))


@contextmanager
def _open_server(options: SiteOptions) -> Iterator[tuple[FederationServer, int]]:
    """Yield the server of a kit, and the number of sites that must join."""
    opened = _open(options.kit, True)
    with locked(opened.work), FederationServer.open(opened, options.notify) as server:
        yield server, options.min_sites or len(opened.sites)


def on_server(experiment: Experiment) -> Experiment:
    """Return the experiment for the server's corpus: all its speakers are the server's own."""
    speakers = experiment.speakers
    own = replace(speakers, pool=speakers.server or speakers.pool, server="", seed_fraction=1.0)
    return replace(experiment, speakers=own)


def run_in_federation(
    experiment: Experiment,
    data: Path,
    out: Path,
    resume: bool,
    skip_corrupt: bool,
    device: str,
    feature_processes: int,
    screen: Screen,
    only: Names,
    sites: SiteOptions,
) -> dict[str, Scores]:
    """Run an experiment whose federated clients are at the sites of a federation."""
    experiment = on_server(experiment)
    with joined_sites(sites, out, resume) as clients:
        clients.check(experiment)
        options = (resume, skip_corrupt, device, feature_processes, screen, only)
        return run_experiment(experiment, data, out, *options, elsewhere=clients)


def federation_status(kit: str | Path, *, ask: bool = True) -> dict[str, Any]:
    """Look at a federation from its server: the sites, and which of them are connected now.

    Args:
        kit: The kit of the server.
        ask: Ask the server which sites are connected.

    Returns:
        Address, fingerprint, the day on which certificates expire, whether a run is in progress, and for each
        site whether it is connected.

    Example:
        print(antiphon.federation_status("kits/server")["sites"])
    """
    opened = _open(kit, True)
    answer = ask_engine(opened, "sites") if ask else {}
    connected = answer.get("sites", [])
    return {
        "server": f"{opened.host}:{opened.port}",
        "fingerprint": opened.fingerprint,
        "expires": f"{opened.ends:%Y-%m-%d}",
        "running": "sites" in answer,
        "sites": {site: site in connected for site in opened.sites},
    }


def _open(kit: str | Path, is_server: bool) -> Kit:
    opened = open_kit(Path(kit))
    if opened.is_server != is_server:
        wanted = "the server's kit" if is_server else "the kit of a site"
        raise ValueError(f"{kit} is the kit of {opened.name!r}: give {wanted}")
    return opened
