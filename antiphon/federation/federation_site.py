"""A site of a federation: holds speech or lists, does what its policy allows, and answers with updates.

Speech, texts, features, lists and the states of clients stay in this process and on its disk. What leaves is
the announcement of its clients, and for each task an update and a report of numbers, or the reason for a
failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

import antiphon
from antiphon.clients.states import ClientStates
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Task, Tensors, Update, Worker
from antiphon.data.corpus import Corpus
from antiphon.data.partition import BySession, BySpeaker, Partition
from antiphon.data.store import Progress
from antiphon.decoding.nbest import NBest, write_nbest
from antiphon.federation.run_setup import ADVICE, SETTINGS, open_worker, read_settings
from antiphon.federation.sent_folders import keep_files, local_paths
from antiphon.federation.site_lists import LISTS, SiteLists, read_list_settings
from antiphon.federation.site_policy import Ledger, Refused, SitePolicy
from antiphon.personalisation.list_clients import ListWorker
from antiphon.pools.flat_tensors import Buffer
from antiphon.pools.remote_answers import answer_task, failure
from antiphon.pools.remote_messages import Message, MissingBody, WireError, head_of, pack, plain, unpack
from antiphon.records.files import file_name, make_folder, write_text
from antiphon.records.reading import read_tensors

Notify = Callable[[str], None]
# The numbers in a report on training; an evaluation reports fewer.
REPORTED = (
    "loss",
    "num_utterances",
    "num_steps",
    "seconds",
    "norm",
    "magnitude_mean",
    "magnitude_variance",
    "num_labelled",
    "num_filtered",
    "confidence",
    "label_seconds",
)
KINDS: Mapping[str, Partition] = {"speaker": BySpeaker(), "session": BySession()}  # what a client can be
SETUPS, SENT, RANKED = "setups", "sent", "ranked"  # folders of a site
SiteWorker = SpeechWorker | ListWorker
KEPT = {"setup": (SETUPS, 4), "folder": (SENT, 12)}  # what is sent to be kept -> its folder, and how many


@dataclass(frozen=True)
class AnswerSizes:
    """The bytes of an answer: its tensors, the rest at most, and its tensors under secure aggregation."""

    setup: str  # digest
    tensors: int
    report: int
    masked: int


def _run_one(worker: Worker, client: str, kept: Path, task: Task) -> Update:
    task = replace(task, config=local_paths(task.config, kept))
    return next(iter(worker.run(task, [client])))


def announced(corpus: Corpus, kind: str = "speaker") -> dict[str, tuple[int, float]]:
    """Return each client of a corpus with its number of utterances and its seconds of speech."""
    clients: dict[str, tuple[int, float]] = {}
    for utterance in corpus.utterances():
        name = f"{kind}/{getattr(utterance, kind)}"
        count, seconds = clients.get(name, (0, 0.0))
        clients[name] = (count + 1, seconds + utterance.seconds)
    return {client: (count, round(seconds, 1)) for client, (count, seconds) in sorted(clients.items())}


@dataclass
class Site:
    """Answers messages, one after another. It never raises: one bad message must not end it."""

    name: str
    corpus: Corpus | None
    folder: Path  # for setups, states of clients, lists that were ranked, and the ledger
    policy: SitePolicy = SitePolicy()
    device: str = "auto"
    notify: Notify = lambda text: None
    progress: Progress | None = None
    clock: Callable[[], datetime] = datetime.now
    kind: str = "speaker"  # what a client with speech is: a speaker or a session
    lists: SiteLists | None = None
    _bodies: dict[str, Buffer] = field(default_factory=dict, init=False)
    _worker: tuple[str, str, SiteWorker] | None = field(default=None, init=False)  # run, setup
    _last: tuple[bytes, Message] | None = field(default=None, init=False)
    _members: tuple[str, dict[str, Any]] = field(default=("", {}), init=False)  # of a run: client -> member

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"a client is a {' or a '.join(KINDS)}, not {self.kind!r}")
        self.clients = announced(self.corpus, self.kind) if self.corpus is not None else {}
        make_folder(self.folder)
        self.ledger = Ledger.open(self.folder / "ledger.json")

    def answer(self, message: Message) -> Message:
        reply = self._named(lambda: self._allowed(message))
        return self._named(lambda: self._noted(message, reply))

    def _named(self, reply: Callable[[], Message]) -> Message:
        """Return a reply, or a message with the reason why there is none."""
        try:
            return reply()
        except MissingBody as error:
            return pack({"verb": "need", "digest": error.digest})
        except Refused as error:
            self.notify(f"refused: {error}")
            return failure(f"site {self.name!r} refuses by its policy: {error}")
        except WireError as error:
            self.notify(f"refused: {error}")
            return failure(f"site {self.name!r}: {error}")
        except Exception as error:  # what it says may be private: it stays here
            self.notify(plain(f"{type(error).__name__}: {error}"))
            return failure(f"site {self.name!r}: {type(error).__name__} (its own log says more)")

    def _allowed(self, message: Message) -> Message:
        """Return the answer to a message, within the bytes of a day. A greeting is always answered."""
        if self._last is not None and self._last[0] == message.head:
            return self._last[1]  # the first answer was lost on its way
        if head_of(message).get("verb") == "hello":
            return self.announcement()
        used = self.ledger.used(self.clock())
        self.policy.check_bytes(used, len(message))
        reply = self._answer(message)
        self.policy.check_bytes(used, len(message) + len(reply))
        return reply

    def _noted(self, message: Message, reply: Message) -> Message:
        """Note the bytes of a message and of its reply, whatever that is, and who has answered."""
        is_new = self._last is None or reply is not self._last[1]
        said = head_of(reply)
        is_answer = is_new and (said["verb"] == "answer" or said.get("step") == "mask")
        who = (str(said["run"]), str(said["client"])) if is_answer else ()
        self.ledger.add(self.clock(), len(message) + len(reply), *who)
        if said["verb"] in ("answer", "secure"):
            self._last = (message.head, reply)
        return reply

    def _answer(self, message: Message) -> Message:
        verb = head_of(message).get("verb")
        head, tensors = unpack(message, self._bodies)
        if verb in KEPT:
            folder, most = KEPT[verb]
            keep_files(tensors, self.folder / folder / head["body"]["sha256"], most)
            return pack({"verb": "ready"})
        if verb not in ("work", "secure"):
            raise WireError(
                f"a message says {verb!r}: this antiphon ({antiphon.__version__}) does not know that"
            )
        if message.body:
            self._bodies = {head["body"]["sha256"]: message.body}
        return self._work(head, tensors) if verb == "work" else self._secure(head, tensors)

    def announcement(self) -> Message:
        """Return what the site says about its clients before a run."""
        lists = {"lists": self.lists.announcement()} if self.lists is not None else {}
        return pack({"verb": "here", "version": antiphon.__version__, "clients": self.clients, **lists})

    def setups(self, main: str) -> list[Path]:
        """Return the setups that were sent and have this file."""
        return sorted(path.parent for path in (self.folder / SETUPS).glob(f"[!.]*/{main}"))

    def answer_sizes(self) -> Iterator[AnswerSizes]:
        """Yield how large an answer is for each model that was sent here."""
        for folder in self.setups(SETTINGS):
            names, tensors = read_settings(folder).base, read_tensors(folder / "model.safetensors", ADVICE)
            if missing := [name for name in names if name not in tensors]:
                raise ValueError(f"{folder} has no parameter {missing[0]!r:.80}. {ADVICE}")
            update = {name: tensors[name] for name in names}
            longest = max(self.clients, key=lambda client: len(client.encode()))
            about = {"verb": "answer", "run": "0" * 32, "client": longest, "moment": [10**6, 10**6]}
            stats = dict.fromkeys(REPORTED, -2.2250738585072014e-308)  # no number is written with more digits
            answer = pack({**about, "stats": stats, "state_bytes": 10**15}, update)
            numbers = torch.empty(sum(tensor.numel() for tensor in update.values()), dtype=torch.int32)
            masked = len(pack({}, {"masked": numbers}).body)
            yield AnswerSizes(folder.name, len(answer.body), len(answer.head), masked)

    def _work(self, head: Mapping[str, Any], tensors: Tensors) -> Message:
        if self.policy.only_secure:
            raise Refused("it takes part under secure aggregation only")
        client, worker = self._admitted(head)
        local = {**head, "config": local_paths(head["config"], self.folder / SENT)}
        return self._finished(client, worker, answer_task(worker, local, tensors))

    def _secure(self, head: Mapping[str, Any], tensors: Tensors) -> Message:
        """Answer one step of a secure sum."""
        # Imported here: it needs the package cryptography, which is optional.
        from antiphon.secure_aggregation.member import Member
        from antiphon.secure_aggregation.record_files import RecordFiles

        request = head.get("request")
        if not isinstance(request, dict):
            raise WireError("a message of secure aggregation has no request")
        is_first = request.get("step") == "work"
        client, worker = self._admitted({**head, **request}, is_first)
        run = str(head["run"])
        if self._members[0] != run:
            self._members = (run, {})
        if client not in self._members[1]:
            record = RecordFiles(self.folder / "secure" / run / file_name(client))
            work = partial(_run_one, worker, client, self.folder / SENT)
            self._members[1][client] = Member(client, work, record, self.policy.max_share)
        answer, sent = self._members[1][client].answer(request, tensors)
        about = {"verb": "secure", "run": run, "client": client, "step": request.get("step")}
        is_error = "error" in answer
        reply = failure(str(answer["error"])) if is_error else pack({**about, "answer": answer}, sent)
        return self._finished(client, worker, reply)

    def _admitted(self, head: Mapping[str, Any], is_task: bool = True) -> tuple[str, SiteWorker]:
        """Return the client of a message and the worker of its run, if the policy allows the task."""
        run, client, digest = (str(head.get(key)) for key in ("run", "client", "setup"))
        if client not in self.clients and not (self.lists and client in self.lists.clients):
            raise WireError(f"it has no client {client[:80]!r}")
        if not (run.isalnum() and digest.isalnum() and len(run) <= 64 and len(digest) == 64):
            raise WireError("the task does not name its run")
        setup = self.folder / SETUPS / digest
        if is_task:
            if not isinstance(head.get("config"), dict):
                raise WireError("the message has no task: it has no configuration")
            self.policy.check(head, self.ledger.num_answers(run, client), self.clock())
            local_paths(head["config"], self.folder / SENT)
        is_for_lists = (setup / LISTS).exists()
        if not is_for_lists and not (setup / SETTINGS).exists():
            raise MissingBody(digest)
        if is_for_lists == (client in self.clients):
            has = "speech" if is_for_lists else "lists"
            raise WireError(f"{client[:80]!r} has {has}, and the run is for the other kind")
        if is_task:
            noise = read_list_settings(setup).noise if is_for_lists else read_settings(setup).noise
            self.policy.check_privacy(head, noise, self.ledger)
        worker = self._worker_of(run, digest)
        if is_task:
            self._set_states(worker, run, client, head)
        return client, worker

    def _finished(self, client: str, worker: SiteWorker, reply: Message) -> Message:
        if worker.states is not None:
            worker.states.sync()
        return self._without_details(client, reply)

    def _worker_of(self, run: str, digest: str) -> SiteWorker:
        if self._worker is None or self._worker[:2] != (run, digest):
            setup = self.folder / SETUPS / digest
            self.notify(f"run {run[:8]}: opening the model")
            self._worker = (run, digest, self._open(run, setup))
        return self._worker[2]

    def _open(self, run: str, setup: Path) -> SiteWorker:
        if self.lists is not None and (setup / LISTS).exists():
            return self.lists.worker(setup, partial(self._keep_ranked, run))
        assert self.corpus is not None  # or it would have no client for this setup
        states = ClientStates(self.folder / "states" / run)
        options = (self.device, states, self.progress)
        return open_worker(setup, self.corpus, KINDS[self.kind], *options)

    def _keep_ranked(self, run: str, client: str, lists: Sequence[NBest]) -> None:
        """Write the lists of a client as they were ranked. They stay here."""
        path = self.folder / RANKED / run / f"{file_name(client)}.jsonl"
        make_folder(path.parent)
        write_nbest(path, lists)
        self.notify(f"run {run[:8]}: the lists of {client}, ranked again, are in {path}")

    def _set_states(self, worker: SiteWorker, run: str, client: str, task: Mapping[str, Any]) -> None:
        """Set the states of clients back if the server was resumed, and remove versions it needs no more."""
        states, notes = worker.states, task.get("states")
        if states is None or not isinstance(notes, dict):
            return
        mark = self.folder / "states" / run / "attempt.txt"
        attempt = str(notes.get("attempt"))
        if not mark.exists() or mark.read_text() != attempt:
            mark.parent.mkdir(parents=True, exist_ok=True)
            states.rollback(int(notes.get("resumed_at", 0)))
            write_text(mark, attempt)
        states.expected.pop(client, None)
        if expected := notes.get("expected"):
            states.expected[client] = (int(expected[0]), int(expected[1]))
        states.forget_lost(client, int(task["config"].get("round") or 0))
        if keep := notes.get("keep"):
            states.prune([int(round) for round in keep])

    def _without_details(self, client: str, reply: Message) -> Message:
        """Return the answer; of an error, only its kind, because its text may quote what was said."""
        head = head_of(reply)
        reason = str(head.get("reason", ""))
        kind, colon, _ = reason.partition(": ")
        if head["verb"] != "failure" or not (colon and kind.isidentifier()):
            return reply
        self.notify(plain(f"{client}: {reason}"))
        return failure(f"{kind} (the log of site {self.name!r} says more)")
