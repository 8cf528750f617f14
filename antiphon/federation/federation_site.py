"""A site of a federation: holds speech, does the tasks that its policy allows, and answers with updates.

Speech, texts, features and the states of clients stay in this process and on its disk. What leaves is the
announcement of its clients, and for each task an update and a report of numbers, or the reason for a failure.
"""

from __future__ import annotations

import json
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

import antiphon
from antiphon.clients.states import ClientStates
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Task, Tensors, Update, Worker
from antiphon.data.corpus import Corpus
from antiphon.data.store import Progress
from antiphon.federation.engine_process import EngineProcess, LocalSocket
from antiphon.federation.kits import Kit
from antiphon.federation.run_setup import SETTINGS, open_worker, unpack_setup
from antiphon.federation.site_policy import Ledger, Refused, SitePolicy
from antiphon.pools.flat_tensors import Buffer
from antiphon.pools.remote_answers import answer_task, failure
from antiphon.pools.remote_link import Channel
from antiphon.pools.remote_messages import Message, MissingBody, WireError, head_of, pack, unpack
from antiphon.records.files import file_name, write_text

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
MAX_SETUPS = 4  # runs whose setup a site keeps


def _run_one(worker: Worker, client: str, task: Task) -> Update:
    return next(iter(worker.run(task, [client])))


def announced(corpus: Corpus) -> dict[str, tuple[int, float]]:
    """Return each client of a corpus with its number of utterances and its seconds of speech."""
    clients: dict[str, tuple[int, float]] = {}
    for utterance in corpus.utterances():
        count, seconds = clients.get(f"speaker/{utterance.speaker}", (0, 0.0))
        clients[f"speaker/{utterance.speaker}"] = (count + 1, seconds + utterance.seconds)
    return {client: (count, round(seconds, 1)) for client, (count, seconds) in sorted(clients.items())}


@dataclass
class Site:
    """Answers messages, one after another. It never raises: one bad message must not end it."""

    name: str
    corpus: Corpus
    folder: Path  # for setups, states of clients, and the ledger
    policy: SitePolicy = SitePolicy()
    device: str = "auto"
    notify: Notify = lambda text: None
    progress: Progress | None = None
    clock: Callable[[], datetime] = datetime.now
    _bodies: dict[str, Buffer] = field(default_factory=dict, init=False)
    _worker: tuple[str, str, SpeechWorker] | None = field(default=None, init=False)  # run, setup
    _last: tuple[bytes, Message] | None = field(default=None, init=False)
    _members: tuple[str, dict[str, Any]] = field(default=("", {}), init=False)  # of a run: client -> member

    def __post_init__(self) -> None:
        self.clients = announced(self.corpus)
        self.ledger = Ledger.open(self.folder / "ledger.json")

    def answer(self, message: Message) -> Message:
        try:
            if self._last is not None and self._last[0] == message.head:
                return self._last[1]  # the first answer was lost on its way
            reply = self._answer(message)
            self.policy.check_bytes(self.ledger.used(self.clock()), len(message) + len(reply))
            self._note(message, reply)
            return reply
        except MissingBody as error:
            return pack({"verb": "need", "digest": error.digest})
        except Refused as error:
            self.notify(f"refused: {error}")
            return failure(f"site {self.name!r} refuses by its policy: {error}")
        except WireError as error:
            return failure(f"site {self.name!r}: {error}")
        except Exception as error:  # what it says may be private: it stays here
            self.notify(f"{type(error).__name__}: {error}")
            return failure(f"site {self.name!r}: {type(error).__name__} (its own log says more)")

    def _note(self, message: Message, reply: Message) -> None:
        asked, said = head_of(message), head_of(reply)
        is_answer = said["verb"] == "answer" or said.get("step") == "mask"
        who = (str(asked["run"]), str(asked["client"])) if is_answer else ()
        self.ledger.add(self.clock(), len(message) + len(reply), *who)
        if said["verb"] in ("answer", "secure"):
            self._last = (message.head, reply)

    def _answer(self, message: Message) -> Message:
        verb = head_of(message).get("verb")
        if verb == "hello":
            return self.announcement()
        head, tensors = unpack(message, self._bodies)
        if verb == "setup":
            self._keep_setup(head["body"]["sha256"], tensors)
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
        return pack({"verb": "here", "version": antiphon.__version__, "clients": self.clients})

    def answer_sizes(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield each model that was sent here, with the bytes of an answer: its tensors, and the rest."""
        for folder in sorted((self.folder / "setups").glob("*")):
            names = json.loads((folder / SETTINGS).read_text())["base"]
            tensors = load_file(folder / "model.safetensors")
            update = {name: tensors[name] for name in names}
            longest = max(self.clients, key=lambda client: len(client.encode()))
            about = {"verb": "answer", "run": "0" * 32, "client": longest, "moment": [10**6, 10**6]}
            stats = dict.fromkeys(REPORTED, -2.2250738585072014e-308)  # no number is written with more digits
            answer = pack({**about, "stats": stats, "state_bytes": 10**15}, update)
            yield folder.name, (len(answer.body), len(answer.head))

    def _keep_setup(self, digest: str, files: Tensors) -> None:
        setups = self.folder / "setups"
        setups.mkdir(parents=True, exist_ok=True)
        unpack_setup(files, setups / digest)
        by_age = sorted(setups.iterdir(), key=lambda path: path.stat().st_mtime)
        for old in by_age[:-MAX_SETUPS]:
            shutil.rmtree(old, ignore_errors=True)

    def _work(self, head: Mapping[str, Any], tensors: Tensors) -> Message:
        if self.policy.only_secure:
            raise Refused("it takes part under secure aggregation only")
        client, worker = self._admitted(head)
        return self._finished(client, worker, answer_task(worker, head, tensors))

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
            work = partial(_run_one, worker, client)
            self._members[1][client] = Member(client, work, record, self.policy.max_share)
        answer, sent = self._members[1][client].answer(request, tensors)
        about = {"verb": "secure", "run": run, "client": client, "step": request.get("step")}
        is_error = "error" in answer
        reply = failure(str(answer["error"])) if is_error else pack({**about, "answer": answer}, sent)
        return self._finished(client, worker, reply)

    def _admitted(self, head: Mapping[str, Any], is_task: bool = True) -> tuple[str, SpeechWorker]:
        """Return the client of a message and the worker of its run, if the policy allows the task."""
        run, client, digest = (str(head.get(key)) for key in ("run", "client", "setup"))
        if client not in self.clients:
            raise WireError(f"it has no client {client[:80]!r}")
        if not (run.isalnum() and digest.isalnum() and len(run) <= 64 and len(digest) == 64):
            raise WireError("the task does not name its run")
        if is_task:
            self.policy.check(head, self.ledger.num_answers(run, client), self.clock())
            refuse_paths(head.get("config"))
        worker = self._worker_of(run, digest)
        if is_task:
            self._set_states(worker, run, client, head)
        return client, worker

    def _finished(self, client: str, worker: SpeechWorker, reply: Message) -> Message:
        if worker.states is not None:
            worker.states.sync()
        return self._without_details(client, reply)

    def _worker_of(self, run: str, digest: str) -> SpeechWorker:
        if self._worker is None or self._worker[:2] != (run, digest):
            setup = self.folder / "setups" / digest
            if not (setup / "setup.json").exists():
                raise MissingBody(digest)
            self.notify(f"run {run[:8]}: opening the model")
            states = ClientStates(self.folder / "states" / run)
            self._worker = (run, digest, open_worker(setup, self.corpus, self.device, states, self.progress))
        return self._worker[2]

    def _set_states(self, worker: SpeechWorker, run: str, client: str, task: Mapping[str, Any]) -> None:
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
        self.notify(f"{client}: {reason}")
        return failure(f"{kind} (the log of site {self.name!r} says more)")


def refuse_paths(settings: Any) -> None:
    """Refuse tasks whose views name a file: a server must not choose what a site opens."""

    def search(value: Any) -> None:
        if isinstance(value, list):
            for item in value:
                search(item)
        elif isinstance(value, dict):
            for key, item in value.items():
                if key in ("path", "model", "folder") and item:
                    raise WireError(f"the task names the file {str(item)[:80]!r}, which is on the server")
                search(item)

    if isinstance(settings, dict):
        search(json.loads(str(settings.get("views", "[]"))))


def serve(kit: Kit, site: Site, stop: threading.Event) -> None:
    """Answer what the server asks until `stop` is set. NVFLARE is started again whenever it ends."""
    local = LocalSocket()
    process: EngineProcess | None = None
    pause, started = 1.0, 0.0
    try:
        while not stop.is_set():
            if process is None or not process.is_alive():
                if process is not None:
                    site.notify(f"the connection has ended: starting it again in {pause:.0f} s")
                    stop.wait(pause * random.uniform(0.5, 1.5))
                    pause = 1.0 if time.monotonic() - started > 60 else min(60.0, 2 * pause)
                process, started = EngineProcess(kit, local), time.monotonic()
            stream = local.accept(0.5)
            if stream is not None:
                _answer_one(Channel(stream), site)
    finally:
        if process is not None:
            process.end()
        local.close()


def _answer_one(channel: Channel, site: Site) -> None:
    frame = channel.receive()
    if frame is not None:
        envelope, payload = frame
        size = int(envelope["head_bytes"])
        answer = site.answer(Message(bytes(payload[:size]), payload[size:]))
        with suppress(ConnectionError):
            channel.send({}, answer.head, answer.body)
    channel.close()
