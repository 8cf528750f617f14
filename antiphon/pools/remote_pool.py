"""A pool whose clients are on other machines.

A task becomes one message for each client, and each reply becomes an update, which is checked and added to
the sum at once. A reply counts for the client that was asked, whatever it says. If anything is wrong with it,
that client is a named failure, and the round goes on.

By default, updates are added in the order of the cohort: the result has the same bits as `LocalPool`'s.
Nothing is sent anywhere for clients that live with the server: `valid/…`, `server/…`, and the clients of runs
on the server's own data.

`reduce` asks once: reports and updates arrive together. Secure aggregation asks four times, by `ask`.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from antiphon.core import Failure, Report, Task, Tensors, Update, Weigh, Worker, add_up
from antiphon.pools.flat_tensors import Buffer
from antiphon.pools.local import LocalUpdates, arrived
from antiphon.pools.remote_exchange import Exchange, Link, Outcome, Patience, Request
from antiphon.pools.remote_messages import (
    Message,
    WireError,
    digest_of,
    head_of,
    pack_body,
    reason_in,
    unpack,
    with_body,
)
from antiphon.records.writer import ClientStateFiles, Moment

MAX_STATS = 100  # numbers in a report
Watch = Callable[[Mapping[str, tuple[int, int]]], None]  # site -> clients that are done, and that were asked


def no_watch(sites: Mapping[str, tuple[int, int]]) -> None:
    """Show nothing."""


@dataclass
class RemoteStates:
    """The states that clients keep at their sites, as far as the server knows about them.

    The server never sees a state. It says with each task which versions a site must keep, and how far the run
    was set back when it was resumed. `here` has the states of clients that live with the server.
    """

    here: ClientStateFiles
    expected: dict[str, Moment] = field(default_factory=dict)
    kept_rounds: list[int] = field(default_factory=list)
    resumed_at: int = 0
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)  # new each time the run is set back

    def sync(self) -> None:
        self.here.sync()

    def wrote(self, client: str, moment: Moment) -> None:
        self.here.wrote(client, moment)
        self.expected[client] = max(moment, self.expected.get(client, moment))

    def prune(self, rounds: Iterable[int]) -> None:
        self.kept_rounds = sorted(rounds)
        self.here.prune(self.kept_rounds)

    def rollback(self, round: int) -> None:
        self.here.rollback(round)
        self.resumed_at, self.attempt = round, uuid.uuid4().hex

    def notes(self, client: str) -> dict[str, Any]:
        """Return what a site has to know about the states of a client."""
        return {
            "keep": self.kept_rounds,
            "attempt": self.attempt,
            "resumed_at": self.resumed_at,
            "expected": self.expected.get(client),
        }


class Parcels(Protocol):
    """Files of the server that tasks name."""

    def outgoing(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration of a task as it travels, with digests in place of paths."""

    def supply(self, digest: str) -> Message | None:
        """Return the message with the files of a digest."""


@dataclass(frozen=True)
class RemoteRun:
    """One run, as sites know it: its name among all runs, and what a site needs to take part in it."""

    id: str
    setup: Message  # front end, tokens and model: travels once, and is cached by its digest
    states: RemoteStates
    parcels: Parcels | None = None  # None: no task names a file

    @property
    def setup_digest(self) -> str:
        return str(head_of(self.setup)["body"]["sha256"])

    def supply(self, digest: str) -> Message | None:
        if digest == self.setup_digest:
            return self.setup
        return self.parcels.supply(digest) if self.parcels else None

    def outgoing(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration of a task as it travels."""
        return self.parcels.outgoing(task) if self.parcels else dict(task)


@dataclass
class RemotePool:
    """Sends tasks to sites. `sites` says which site speaks for which client; others are clients `here`."""

    link: Link
    sites: Mapping[str, str]  # client -> site
    here: Worker
    run: RemoteRun
    patience: Patience = Patience()
    ordered: bool = True  # add updates in the order of the cohort; False: as they arrive
    watch: Watch = no_watch  # called when a client is done with a task, or has failed
    ignored: int = field(default=0, init=False)  # late, repeated and unknown replies so far

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        return add_up(update.weighted_by(weigh) for update in self._updates(task, cohort))

    def collect(self, task: Task, cohort: Sequence[str]) -> LocalUpdates:
        by_client: dict[str, Update] = {}
        for update in self._updates(task, cohort):
            client = (update.reports or update.failures)[0].client
            by_client[client] = update
        replies = [by_client[client] for client in cohort]
        updates = tuple(update for update in replies if not update.is_empty)
        return LocalUpdates(updates, tuple(failure for update in replies for failure in update.failures))

    def _updates(self, task: Task, cohort: Sequence[str]) -> Iterator[Update]:
        """Yield the update of each client, empty for one that failed."""
        arrive = arrived(task)
        away = self._requests(task, [client for client in cohort if client in self.sites])
        exchange = self._exchange(away, self.ordered)
        with exchange:  # the sites are working now
            outcomes = exchange.outcomes()
            for client in cohort if self.ordered else [client for client in cohort if client not in away]:
                if client in away:
                    _, outcome = next(outcomes)
                    yield arrive(self._read(task, client, outcome), client)
                else:
                    yield from map(arrive, self.here.run(task, [client]), [client])
            for client, outcome in outcomes:
                yield arrive(self._read(task, client, outcome), client)
        self.ignored += exchange.ignored

    def _exchange(self, requests: Mapping[str, Request], ordered: bool) -> Exchange:
        """Return an exchange that says how far each site is."""
        asked, done = Counter(request.site for request in requests.values()), Counter[str]()

        def heard(client: str) -> None:
            done[requests[client].site] += 1
            self.watch({site: (done[site], asked[site]) for site in asked})

        return Exchange(self.link, self.patience, requests, self.run.supply, ordered, heard)

    def ask(self, messages: Mapping[str, tuple[dict[str, Any], Tensors]]) -> Iterator[tuple[str, Any]]:
        """Send each client a message of its own: JSON values and tensors.

        Yields what comes back as it arrives: such a pair too, or the reason why there is none.
        """
        requests = {}
        bodies: dict[int, tuple[Buffer, str]] = {}  # clients may get the same tensors: they are packed once
        for client, (request, tensors) in messages.items():
            if id(tensors) not in bodies:
                body = pack_body(tensors)
                bodies[id(tensors)] = (body, digest_of(body))
            body, digest = bodies[id(tensors)]
            if "config" in request:  # of a task
                request = {**request, "config": self.run.outgoing(request["config"])}
            head = {**self._about("secure", client, len(messages)), "request": request}
            requests[client] = Request(self.sites[client], with_body(head, body, list(tensors), digest))
        with self._exchange(requests, ordered=False) as exchange:
            for client, outcome in exchange.outcomes():
                try:
                    yield client, outcome if isinstance(outcome, str) else self._answer(client, outcome)
                except WireError as error:
                    yield client, f"site {self.sites[client]!r}: {error}"
        self.ignored += exchange.ignored

    def _answer(self, client: str, message: Message) -> tuple[dict[str, Any], Tensors] | str:
        head, tensors = unpack(message)
        if head.get("verb") == "failure":
            return reason_in(head)
        asked = {"verb": "secure", "run": self.run.id, "client": client}
        answer = head.get("answer")
        if any(head.get(key) != wanted for key, wanted in asked.items()) or not isinstance(answer, dict):
            raise WireError("the reply is about something else")
        return answer, tensors

    def _requests(self, task: Task, clients: Sequence[str]) -> dict[str, Request]:
        body = pack_body(task.tensors) if clients else b""
        digest, names, size = digest_of(body), list(task.tensors), len(clients)
        what = {"kind": task.kind, "config": self.run.outgoing(task.config)}
        heads = ({**self._about("work", client, size), **what} for client in clients)
        messages = (with_body(head, body, names, digest) for head in heads)
        return {c: Request(self.sites[c], message) for c, message in zip(clients, messages, strict=True)}

    def _about(self, verb: str, client: str, cohort: int) -> dict[str, Any]:
        run = {"run": self.run.id, "setup": self.run.setup_digest, "states": self.run.states.notes(client)}
        return {"verb": verb, **run, "cohort": cohort, "client": client}

    def _read(self, task: Task, client: str, outcome: Outcome) -> Update:
        if isinstance(outcome, str):
            return Update.nothing(Failure(client, outcome))
        try:
            return self._update(task, client, *unpack(outcome))
        except WireError as error:
            return Update.nothing(Failure(client, f"site {self.sites[client]!r}: {error}"))

    def _update(self, task: Task, client: str, head: Mapping[str, Any], tensors: Tensors) -> Update:
        if head.get("verb") == "failure":
            return Update.nothing(Failure(client, reason_in(head)))
        asked = {"verb": "answer", "run": self.run.id, "client": client, "moment": list(task.moment)}
        for key, wanted in asked.items():
            if head.get(key) != wanted:
                raise WireError(f"the reply is about {key} {head.get(key)!r}, and the task about {wanted!r}")
        stats = head.get("stats")
        if not isinstance(stats, dict) or len(stats) > MAX_STATS:
            raise WireError(f"a report is a mapping of at most {MAX_STATS} numbers")
        report = Report(client, stats, state_bytes=head.get("state_bytes", 0))
        device = next((tensor.device for tensor in task.tensors.values()), torch.device("cpu"))
        return Update({name: tensor.to(device) for name, tensor in tensors.items()}, reports=(report,))
