"""The remote pool against sites that are late, lost, mistaken or hostile."""

from __future__ import annotations

import math
import os
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from elsewhere import NoStates, Sites, fork, remote_run

from antiphon.core import Report, Task, Tensors, Update
from antiphon.pools.local import LocalPool
from antiphon.pools.remote_answers import answer_task, failure
from antiphon.pools.remote_exchange import Arrival, Patience
from antiphon.pools.remote_link import Channel, SocketLink, pushes, send_answer, send_error
from antiphon.pools.remote_messages import VERSION, Message, head_of, pack, unpack
from antiphon.pools.remote_pool import RemotePool, RemoteRun, RemoteStates
from antiphon.records.writer import peak_memory_mib

CLIENTS = [f"speaker/{letter}" for letter in "abcdef"]
SITES = {client: "oslo" if client < "speaker/d" else "quito" for client in CLIENTS}
TASK = Task("train", {"w": torch.tensor([1.0, 2.0]), "b": torch.zeros(1)}, {"round": 3, "call": 1})
QUICK = Patience(timeout=0.4, retries=2, backoff=0.01)


class Adding:
    """A worker whose update depends on the client alone."""

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for client in clients:
            delta = {name: tensor + ord(client[-1]) for name, tensor in task.tensors.items()}
            stats = {"loss": float(ord(client[-1])), "num_utterances": 1.0}
            yield Update(delta, reports=(Report(client, stats),))


def weigh(report: Report) -> float:
    return report.stats["loss"] / 50


Change = Callable[[dict, Tensors], Message | None]


@dataclass
class FaultyLink:
    """Answers at once, but changes what some clients say, answers twice, late or with an error."""

    changes: dict[str, Change] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)  # client -> errors of the link before it answers
    twice: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()
    queue: list[Arrival] = field(default_factory=list)
    pushed: list[tuple[str, str, int]] = field(default_factory=list)  # site, client, bytes of the body
    cancelled: list[str] = field(default_factory=list)
    reverse: bool = False

    def __post_init__(self) -> None:
        self.sites = Sites(lambda head, tensors: answer_task(Adding(), head, tensors))

    def push(self, site: str, message: Message) -> str:
        ticket, client = uuid.uuid4().hex, str(head_of(message).get("client"))
        self.pushed.append((site, client, len(message.body)))
        if self.errors.get(client, 0) > 0:
            self.errors[client] -= 1
            self.queue.append(Arrival(ticket, error="the connection was lost"))
            return ticket
        reply: Message | None = self.sites(site, message)
        if client in self.changes and reply is not None:
            head, tensors = unpack(reply)
            head.pop("body")
            reply = self.changes[client](head, tensors)
        if client not in self.never and reply is not None:
            self.queue += [Arrival(ticket, reply)] * (2 if client in self.twice else 1)
        return ticket

    def poll(self, seconds: float) -> Arrival | None:
        if not self.queue:
            time.sleep(min(seconds, 0.02))
            return None
        return self.queue.pop(-1 if self.reverse else 0)

    def cancel(self, ticket: str) -> None:
        self.cancelled.append(ticket)


def pool_over(link: FaultyLink | SocketLink, patience: Patience = QUICK, ordered: bool = True) -> RemotePool:
    return RemotePool(link, SITES, Adding(), remote_run(), patience, ordered)


def expected_from(clients: Sequence[str]) -> Update:
    return LocalPool(Adding()).reduce(TASK, clients, weigh)


def refusals(pool: RemotePool) -> dict[str, str]:
    update = pool.reduce(TASK, CLIENTS, weigh)
    failed = {failure.client: failure.reason for failure in update.failures}
    others = expected_from([client for client in CLIENTS if client not in failed])
    assert update.reports == others.reports
    for name, tensor in others.mean.items():
        assert torch.equal(update.mean[name], tensor)
    return failed


def altered(**values: object) -> Change:
    return lambda head, tensors: pack({**head, **values}, tensors)


def with_tensors(change: Callable[[Tensors], Tensors]) -> Change:
    return lambda head, tensors: pack(head, change(tensors))


# --- What is wrong with a reply is named, and the others are the round ------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (altered(moment=[2, 1]), r"site 'oslo': the reply is about moment \[2, 1\], and the task about"),
        (altered(run="another"), "the reply is about run 'another'"),
        (altered(client="speaker/f"), "the reply is about client 'speaker/f', and the task about"),
        (altered(verb="hello"), "the reply is about verb 'hello'"),
        (altered(stats={"loss": "much"}), "^'loss' is a str, not a number$"),
        (altered(stats={"loss": True}), "'loss' is a bool, not a number"),
        (altered(stats={"loss": -1e9, "num_utterances": 1.0}), r"^loss: -1e\+09 is not between"),
        (altered(stats={"loss": 1.0}), "it did not report 'num_utterances'"),
        (altered(stats=[1.0]), "a report is a mapping"),
        (altered(stats={f"n{i}": 0.0 for i in range(101)}), "at most 100 numbers"),
        (altered(state_bytes=-1), "the size of its state is not a number of bytes"),
        (altered(state_bytes="8"), "the size of its state is not a number of bytes"),
        (with_tensors(lambda t: {**t, "w": t["w"] * math.nan}), "^NaN or infinity in w$"),
        (with_tensors(lambda t: {**t, "w": t["w"].double()}), "'w' has type torch.float64"),
        (with_tensors(lambda t: {**t, "w": torch.zeros(3)}), r"'w' has shape \(3,\), not \(2,\)"),
        (with_tensors(lambda t: {"w": t["w"]}), "'b' is missing"),
        (with_tensors(lambda t: {**t, "x": t["b"]}), "'x' is unknown"),
        (lambda head, tensors: failure("out of memory\x1b[2J\n"), r"^out of memory \[2J $"),
        (
            lambda head, tensors: Message(pack(head, tensors).head, pack(head, tensors).body[:-1]),
            "site 'oslo': the body of a message has",
        ),
        (
            lambda head, tensors: Message(b"antiphon" + struct.pack("!H", VERSION + 1) + bytes(99)),
            rf"site 'oslo': the message has version {VERSION + 1} .* this side has version {VERSION}",
        ),
    ],
)
def test_a_wrong_reply_is_a_named_failure_of_its_client(change: Change, reason: str) -> None:
    failed = refusals(pool_over(FaultyLink({"speaker/b": change})))
    assert list(failed) == ["speaker/b"]
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(failed["speaker/b"])


def test_a_second_reply_and_a_late_one_are_ignored() -> None:
    link = FaultyLink(twice=frozenset(CLIENTS))
    pool = pool_over(link)
    assert refusals(pool) == {}
    assert pool.ignored >= 5  # the very last one may still be in the queue
    link.queue.append(Arrival("a ticket of an earlier round", pack({"verb": "answer"})))
    assert refusals(pool) == {}
    assert pool.ignored >= 7


# --- Time -----------------------------------------------------------------------------------------


def test_a_silent_site_fails_with_its_clients_and_is_asked_again_in_the_next_round() -> None:
    link = FaultyLink(never=frozenset(CLIENTS[3:]))
    began = time.monotonic()
    failed = refusals(pool_over(link))
    assert failed == dict.fromkeys(CLIENTS[3:], "site 'quito' did not answer for 0.4 s")
    assert time.monotonic() - began < 2.0  # once for the site, not once for each client
    assert len(link.cancelled) == 3
    link.never = frozenset()
    assert refusals(pool_over(link)) == {}


def test_the_clock_of_a_site_starts_again_at_each_answer() -> None:
    """Six clients of one site, 0.2 s each, are no reason to fail with a timeout of 0.4 s."""

    def serve(channel: Channel) -> None:
        sites = Sites(lambda head, tensors: answer_task(Adding(), head, tensors))
        for push in pushes(channel):
            if push.message is not None:
                time.sleep(0.2)
                send_answer(channel, push.ticket, bytes(sites(push.site, push.message)))

    link = SocketLink()
    channel = fork(serve)
    link.attach(channel)
    pool = replace(pool_over(link), sites=dict.fromkeys(CLIENTS, "oslo"))
    assert refusals(pool) == {}
    channel.close()


def test_an_error_of_the_link_is_tried_again_and_named_at_last() -> None:
    link = FaultyLink(errors={"speaker/a": 2, "speaker/e": 3})
    assert refusals(pool_over(link)) == {"speaker/e": "site 'quito': the connection was lost"}
    assert sum(client == "speaker/a" for _, client, _ in link.pushed) == 3


def test_pauses_double_and_vary() -> None:
    patience = Patience(backoff=2.0)
    first, third = ([patience.pause(attempt) for _ in range(200)] for attempt in (0, 2))
    assert all(1.0 <= pause <= 3.0 for pause in first)
    assert all(4.0 <= pause <= 12.0 for pause in third)
    assert max(first) - min(first) > 1.0


# --- Order, and memory ----------------------------------------------------------------------------


def test_updates_are_added_in_cohort_order_whatever_order_they_arrive_in() -> None:
    assert refusals(pool_over(FaultyLink(reverse=True))) == {}
    arriving = pool_over(FaultyLink(reverse=True), ordered=False).reduce(TASK, CLIENTS, weigh)
    assert [report.client for report in arriving.reports] == CLIENTS[::-1]
    assert torch.allclose(arriving.mean["w"], expected_from(CLIENTS).mean["w"], rtol=1e-6)


def test_collected_updates_are_in_cohort_order() -> None:
    for ordered in (True, False):
        link = FaultyLink({"speaker/b": altered(run="x")}, reverse=True)
        held = pool_over(link, ordered=ordered).collect(TASK, CLIENTS)
        there = [client for client in CLIENTS if client != "speaker/b"]
        assert [report.client for report in held.reports] == there
        assert [failure.client for failure in held.failures] == ["speaker/b"]
        here = LocalPool(Adding()).collect(TASK, there)
        weights = [0.1, 0.5, -1.0, 0.0, 2.0]
        assert torch.equal(held.combine(weights).mean["w"], here.combine(weights).mean["w"])


@pytest.mark.parametrize("ordered", [True, False])
def test_how_far_each_site_is_is_shown_as_its_clients_answer_or_fail(ordered: bool) -> None:
    """The last client of the cohort answers first: it is shown before its update is added."""
    seen: list[dict[str, tuple[int, int]]] = []
    link = FaultyLink({"speaker/b": altered(run="x")}, errors={"speaker/e": 9}, reverse=True)
    pool = replace(pool_over(link, ordered=ordered), watch=lambda sites: seen.append(dict(sites)))
    pool.reduce(TASK, CLIENTS, weigh)
    assert seen[0] == {"oslo": (0, 3), "quito": (1, 3)}
    assert [sum(done for done, _ in sites.values()) for sites in seen] == list(range(1, 7))
    assert seen[-1] == {"oslo": (3, 3), "quito": (3, 3)}


def test_at_most_a_window_of_clients_is_asked_at_once() -> None:
    open_now: list[int] = []

    class Watched(FaultyLink):
        def push(self, site: str, message: Message) -> str:
            ticket = super().push(site, message)
            open_now.append(len(self.queue))
            return ticket

    many = [f"speaker/{number:03d}x" for number in range(40)]
    pool = pool_over(Watched(reverse=True), replace(QUICK, window=4, timeout=5.0))
    pool = replace(pool, sites=dict.fromkeys(many, "oslo"))
    assert len(pool.reduce(TASK, many, lambda report: 0.0).reports) == 40
    assert max(open_now) <= 4


@pytest.mark.parametrize("ordered", [True, False])
def test_memory_does_not_grow_with_the_cohort(ordered: bool) -> None:
    """To hold 48 updates of 4 MB would need 160 MB more than to hold 8."""
    task = Task("train", {"w": torch.zeros(10**6)}, {"round": 0, "call": 0})

    def peak(num_clients: int) -> float:
        """Return the MiB that a new process needed at most."""
        many = [f"speaker/{number:03d}" for number in range(num_clients)]
        pool = pool_over(FaultyLink(reverse=True), Patience(timeout=30.0, window=4), ordered)
        pool = replace(pool, sites=dict.fromkeys(many, "oslo"))
        read, write = os.pipe()
        if (child := os.fork()) == 0:
            try:
                assert len(pool.reduce(task, many, lambda report: 0.0).reports) == num_clients
                os.write(write, str(peak_memory_mib()).encode())
            finally:
                os._exit(0)
        os.close(write)
        with open(read) as answer:
            highest = float(answer.read())
        os.waitpid(child, 0)
        return highest

    assert peak(48) < peak(8) + 40


# --- Each body travels once ------------------------------------------------------------------------


def test_the_tensors_of_a_task_travel_once_for_each_site() -> None:
    link = FaultyLink()
    refusals(pool_over(link))
    assert [(site, client) for site, client, body in link.pushed if body] == [
        ("oslo", "speaker/a"),
        ("quito", "speaker/d"),
    ]


def test_a_site_that_lost_a_body_gets_it_again() -> None:
    class Forgetful(FaultyLink):
        def push(self, site: str, message: Message) -> str:
            ticket = super().push(site, message)
            if len(self.pushed) == 2:
                self.sites.bodies.clear()
            return ticket

    link = Forgetful()
    assert refusals(pool_over(link)) == {}
    assert sum(body > 0 for site, _, body in link.pushed if site == "oslo") == 2


def test_a_site_without_the_setup_asks_for_it_and_gets_it_once() -> None:
    setup = pack({"verb": "setup"}, {"model": torch.arange(5.0)})
    have: set[str] = set()

    def answer(head: dict, tensors: Tensors) -> Message:
        if head["verb"] == "setup":
            have.add(head["body"]["sha256"])
            return pack({"verb": "ready"})
        if head["setup"] not in have:
            return pack({"verb": "need", "digest": head["setup"]})
        return answer_task(Adding(), head, tensors)

    link = FaultyLink()
    link.sites = Sites(answer)
    pool = replace(pool_over(link), run=RemoteRun("run", setup, RemoteStates(NoStates())))
    pool = replace(pool, sites=dict.fromkeys(CLIENTS, "oslo"))
    assert refusals(pool) == {}
    assert sum(client == "None" for _, client, _ in link.pushed) == 1


def test_a_site_that_asks_for_anything_else_fails() -> None:
    asking = lambda head, tensors: pack({"verb": "need", "digest": "f" * 64})  # noqa: E731
    failed = refusals(pool_over(FaultyLink({"speaker/c": asking})))
    assert failed == {"speaker/c": "site 'oslo' asks for ffffffffffff…, which the server cannot send"}


# --- A real socket --------------------------------------------------------------------------------


def test_what_was_not_answered_is_sent_again_through_the_next_channel() -> None:
    def dies_after_two(channel: Channel) -> None:
        sites = Sites(lambda head, tensors: answer_task(Adding(), head, tensors))
        for number, push in enumerate(pushes(channel)):
            if number == 2:
                return
            if push.message is not None:
                send_answer(channel, push.ticket, bytes(sites(push.site, push.message)))

    def lives(channel: Channel) -> None:
        sites = Sites(lambda head, tensors: answer_task(Adding(), head, tensors))
        for push in pushes(channel):
            if push.message is not None:
                send_answer(channel, push.ticket, bytes(sites(push.site, push.message)))

    link = SocketLink()

    def attach() -> None:
        first = fork(dies_after_two)
        link.attach(first).join()
        link.attach(fork(lives))

    threading.Thread(target=attach, daemon=True).start()
    assert refusals(pool_over(link, Patience(timeout=20.0))) == {}


def test_errors_of_the_other_end_are_tried_again() -> None:
    def refuses_once(channel: Channel) -> None:
        sites = Sites(lambda head, tensors: answer_task(Adding(), head, tensors))
        refused = set()
        for push in pushes(channel):
            if push.message is None:
                continue
            client = head_of(push.message)["client"]
            if client not in refused:
                refused.add(client)
                send_error(channel, push.ticket, "the site is not connected")
            else:
                send_answer(channel, push.ticket, bytes(sites(push.site, push.message)))

    link = SocketLink()
    channel = fork(refuses_once)
    link.attach(channel)
    assert refusals(pool_over(link, replace(QUICK, timeout=20.0))) == {}
    channel.close()


def test_a_wrong_frame_ends_the_channel_and_not_the_process() -> None:
    def babbles(channel: Channel) -> None:
        channel._stream.sendall(b"\xff" * 64)
        channel.receive()  # until this test closes its end

    link = SocketLink()
    channel = fork(babbles)
    link.attach(channel).join(timeout=3)
    assert link.poll(0.05) is None
    channel.close()
