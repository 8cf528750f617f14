"""An exchange: ask clients at sites, one message each, and take what they answer, in spite of the network.

A link moves messages and nothing else; every rule about time is here. A site does one task at a time, so its
clock starts when it is asked, and again at each of its answers. A site that is silent for longer than the
timeout fails with all its clients. An error of the link is tried again after a pause, which doubles and has a
random part. Answers that nobody waits for any more are ignored.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from antiphon.pools.remote_messages import Message, WireError, head_of

LOOK = 0.5  # the most seconds between two looks at the clock
MAX_NEEDS = 5  # what a site may ask for before a task: setup, tensors, a teacher, two language models


@dataclass(frozen=True)
class Arrival:
    """What came back for a ticket: a message, or an error of the link."""

    ticket: str
    message: Message | None = None
    error: str = ""


class Link(Protocol):
    """What a network must offer. Messages to one site arrive in the order in which they were pushed."""

    def push(self, site: str, message: Message) -> str:
        """Send a message on its way; return a ticket that the answer will have."""

    def poll(self, seconds: float) -> Arrival | None:
        """Return the next arrival; None if there is none for this long."""

    def cancel(self, ticket: str) -> None:
        """Forget a message whose answer is not wanted any more."""


@dataclass(frozen=True)
class Patience:
    """How long the server waits for sites, and how often it asks again."""

    timeout: float = 600.0  # seconds that a site may take for one client
    retries: int = 3  # times that a client is asked again after an error of the link
    backoff: float = 1.0  # seconds before the first retry; twice as many before each further one
    window: int = 32  # clients that are asked at the same time: so many answers may have to wait in memory

    def __post_init__(self) -> None:
        if self.timeout <= 0 or self.window < 1 or self.retries < 0 or self.backoff < 0:
            raise ValueError(f"timeout and window must be above 0, retries and backoff at least 0: {self}")

    def pause(self, attempt: int) -> float:
        """Return the seconds before a retry, between half and one and a half of 2^attempt · backoff."""
        return self.backoff * 2**attempt * random.uniform(0.5, 1.5)


@dataclass(frozen=True)
class Request:
    site: str
    message: Message


Outcome = Message | str  # what a client answered, or why it did not


class Exchange:
    """Asks each client of `requests` once, and yields their outcomes in this order, or as they arrive.

    `supply` returns what a site may ask for by its digest: the setup of the run, or a model that a task
    names. `heard` is called with each client whose outcome is known, as soon as it is. Leave the context to
    cancel everything that is still open.
    """

    def __init__(
        self,
        link: Link,
        patience: Patience,
        requests: Mapping[str, Request],
        supply: Callable[[str], Message | None],
        ordered: bool = True,
        heard: Callable[[str], None] = lambda client: None,
    ) -> None:
        self.link, self.patience, self.requests = link, patience, requests
        self.supply, self.ordered, self.heard = supply, ordered, heard
        self.ignored = 0  # late, repeated and unknown arrivals
        self._unasked, self._left = deque(requests), dict.fromkeys(requests)
        self._open: dict[str, str] = {}  # ticket -> client
        self._parcels: dict[str, str] = {}  # ticket of what a site had asked for -> site
        self._again: dict[str, float] = {}  # client -> when it is asked again
        self._attempts: dict[str, int] = {}
        self._done: dict[str, Outcome] = {}
        self._heard: dict[str, float] = {}  # site -> when its clock started
        self._silent: dict[str, str] = {}  # site -> why its clients are not asked any more
        self._sent: set[tuple[str, str]] = set()  # site and digest of a body that it was sent
        self._ask()

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *error: Any) -> None:
        for ticket in (*self._open, *self._parcels):
            self.link.cancel(ticket)

    def outcomes(self) -> Iterator[tuple[str, Outcome]]:
        while self._left:
            self._ask()
            while (client := self._ready()) is not None:
                del self._left[client]
                yield client, self._done.pop(client)
                self._ask()
            if self._left:
                self._listen()

    def _ready(self) -> str | None:
        candidates = self._left if self.ordered else self._done
        first = next(iter(candidates), None)
        return first if first in self._done else None

    def _ask(self) -> None:
        """Push what is due: clients in order, as many as the window allows, and retries."""
        now = time.monotonic()
        for client in [client for client, due in self._again.items() if due <= now]:
            del self._again[client]
            self._push(client)
        while self._unasked and len(self._left) - len(self._unasked) < self.patience.window:
            self._push(self._unasked.popleft())

    def _push(self, client: str) -> None:
        site, message = self.requests[client].site, self.requests[client].message
        if site in self._silent:
            self._finish(client, self._silent[site])
            return
        body = (site, head_of(message)["body"]["sha256"])
        if not self._is_busy(site):
            self._heard[site] = time.monotonic()
        ticket = self.link.push(site, message.without_body() if body in self._sent else message)
        self._open[ticket] = client
        self._sent.add(body)

    def _is_busy(self, site: str) -> bool:
        return site in self._parcels.values() or any(
            self.requests[client].site == site for client in self._open.values()
        )

    def _listen(self) -> None:
        arrival = self.link.poll(min(LOOK, self.patience.timeout / 4))
        if arrival is not None:
            self._take(arrival)
        now = time.monotonic()
        for site in {self.requests[client].site for client in self._open.values()}:
            if now - self._heard[site] > self.patience.timeout:
                self._give_up(site, f"site {site!r} did not answer for {self.patience.timeout:g} s")

    def _give_up(self, site: str, reason: str) -> None:
        self._silent[site] = reason
        for ticket, client in list(self._open.items()):
            if self.requests[client].site == site:
                del self._open[ticket]
                self.link.cancel(ticket)
                self._finish(client, reason)

    def _take(self, arrival: Arrival) -> None:
        if (site := self._parcels.pop(arrival.ticket, "")) or arrival.ticket in self._open:
            client = self._open.pop(arrival.ticket, "")
            self._heard[site or self.requests[client].site] = time.monotonic()
        else:
            self.ignored += 1
            return
        if not client:
            return
        if arrival.message is None:
            self._retry(client, arrival.error)
            return
        try:
            head = head_of(arrival.message)
        except WireError as error:
            self._finish(client, f"site {self.requests[client].site!r}: {error}")
            return
        if head.get("verb") == "need":
            self._provide(client, str(head.get("digest")))
        else:
            self._finish(client, arrival.message)

    def _finish(self, client: str, outcome: Outcome) -> None:
        self._done[client] = outcome
        self.heard(client)

    def _retry(self, client: str, error: str) -> None:
        attempt = self._attempts[client] = self._attempts.get(client, 0) + 1
        if attempt > self.patience.retries:
            self._finish(client, f"site {self.requests[client].site!r}: {error}")
        else:
            self._again[client] = time.monotonic() + self.patience.pause(attempt - 1)

    def _provide(self, client: str, digest: str) -> None:
        """Send a site what it asks for, once, and then the task again."""
        site, message = self.requests[client].site, self.requests[client].message
        self._attempts[client] = self._attempts.get(client, 0) + 1
        parcel = message if head_of(message)["body"]["sha256"] == digest else self.supply(digest)
        if parcel is None or self._attempts[client] > self.patience.retries + MAX_NEEDS:
            self._finish(client, f"site {site!r} asks for {digest[:12]}…, which the server cannot send")
            return
        if parcel is message:
            self._sent.discard((site, digest))
        elif (site, digest) not in self._sent:
            self._sent.add((site, digest))
            self._parcels[self.link.push(site, parcel)] = site
        self._push(client)
