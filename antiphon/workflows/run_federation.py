"""A federation of real machines: make its kits, join it with a corpus, run a recipe in it, look at it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from antiphon.data.corpus import Corpus
from antiphon.experiment.runner import Scores, Screen, run_experiment
from antiphon.experiment.settings import Experiment
from antiphon.federation.engine_process import ask_engine
from antiphon.federation.federation_server import FederationServer
from antiphon.federation.federation_site import Site, serve
from antiphon.federation.kits import Kit, create_kits, open_kit
from antiphon.federation.remote_clients import NOTES, RemoteClients, read_announced
from antiphon.federation.site_policy import SitePolicy
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
    data: str | Path,
    *,
    policy: str | Path | None = None,
    device: str = "auto",
    dry_run: bool = False,
    stop: threading.Event | None = None,
    progress: Progress = no_progress,
    notify: Notify = no_messages,
) -> dict[str, Any]:
    """Join a federation with the speech of a corpus, and do the work that its server sends, until stopped.

    Each speaker of the corpus is a client. Speech, texts and features stay on this machine.

    Args:
        kit: The kit of this site.
        data: A corpus folder, made by antiphon corpus import.
        policy: A YAML file with limits on the work; without it, everything is allowed.
        device: cpu, cuda, cuda:1, or auto (the GPU if there is one).
        dry_run: Say what would leave this machine, and leave it at that.
        stop: An event that ends the work.
        progress: A function that is called with (stage, steps done, number of steps).
        notify: A function that is called with each line for the user.

    Returns:
        What leaves the machine before any work: the site's name and its clients.

    Example:
        antiphon.join_federation("kits/oslo", data="speech", dry_run=True)
    """
    opened = _open(kit, False)
    corpus, limits = Corpus.open(data), SitePolicy.read(Path(policy) if policy else None)
    with locked(opened.work):
        site = Site(opened.name, corpus, opened.work, limits, device, notify, partial(progress, "features"))
        sizes = [site.clients[client] for client in site.clients]
        notify(
            f"site {opened.name} of the federation {opened.fingerprint[:16]} at {opened.host}:{opened.port}"
        )
        notify(
            f"{len(sizes)} clients, {sum(n for n, _ in sizes)} utterances, {sum(s for _, s in sizes):.0f} s"
        )
        if dry_run:
            for line in leaving(site):
                notify(line)
        else:
            serve(opened, site, stop or threading.Event())
    return {"site": opened.name, "clients": site.clients}


def leaving(site: Site) -> Iterator[str]:
    """Yield what leaves a site's machine, to the byte."""
    announcement = site.announcement()
    yield f"before a run, once: {len(announcement)} bytes, which say"
    for client, (count, seconds) in site.clients.items():
        yield f"  {client}: {count} utterances, {seconds:g} s"
    yield "for each task of a client: one answer, with an update and a report of numbers"
    sizes = list(site.answer_sizes())
    for setup, (tensors, rest) in sizes:
        yield f"  model {setup[:8]}: {tensors} bytes for all its parameters, at most {rest} bytes of report"
    if not sizes:
        yield "  it is as large as the parameters that the server sends; no model has been sent here yet"
    yield "for a client that fails: the kind of the error, and no text of it"


def run_in_federation(
    experiment: Experiment,
    kit: str | Path,
    data: Path,
    out: Path,
    resume: bool,
    device: str,
    feature_processes: int,
    screen: Screen,
    only: Names,
    site_timeout: float,
    min_sites: int,
    skip_corrupt: bool,
    notify: Notify,
) -> dict[str, Scores]:
    """Run an experiment whose federated clients are at the sites of a federation."""
    opened = _open(kit, True)
    # The speakers of the server's corpus are all its own: the clients are elsewhere.
    speakers = experiment.speakers
    own = replace(speakers, pool=speakers.server or speakers.pool, server="", seed_fraction=1.0)
    experiment = replace(experiment, speakers=own)
    with locked(opened.work), FederationServer.open(opened, notify) as server:
        announced = server.greet(PATIENCE, min_sites or len(opened.sites))
        if resume and (out / NOTES).exists():
            announced = read_announced(out / NOTES)  # a resumed experiment has the clients it began with
        clients = RemoteClients(server.link, announced, Patience(timeout=site_timeout))
        clients.check(experiment)
        return run_experiment(
            experiment,
            data,
            out,
            resume,
            skip_corrupt,
            device,
            feature_processes,
            screen,
            only,
            elsewhere=clients,
        )


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
    answer = ask_engine(opened, "sites", seconds=20.0) if ask else {}
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
