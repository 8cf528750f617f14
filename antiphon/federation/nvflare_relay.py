"""NVFLARE as a carrier of messages. Its processes import this file; nothing else of antiphon runs in them.

`ServerRelay` is a component of NVFLARE's server, `SiteRelay` of its client at a site. Each passes messages
between NVFLARE and a socket of the antiphon process on its machine, which has the algorithm or the speech.
There are no jobs. So a message does not pass through the processes of a job, and sites may come and go.

A site asks for its next message, and gets the first that it has not answered. What is lost on the way, at
whichever step, is therefore sent again: the site asks again. Each question has a name, so that a message for
an older one is noticed.

This uses messages and streams between the processes of NVFLARE 2.9.0. They are not part of the public API:
pin the version. NVFLARE authenticates each of them, by certificate and by the token of a registered site.
"""

from __future__ import annotations

import os
import random
import threading
import uuid
from contextlib import closing
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import CellMessageAuthHeaderKey
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_types import Stream

from antiphon.federation.engine_process import connect
from antiphon.federation.nvflare_streams import Incoming, Memory, pieces
from antiphon.pools.remote_link import MAX_ANSWER, Channel, Place, Push, pushes, send_error, send_part

CHANNEL = "antiphon"
NEXT, TASK, ANSWER = "next", "task", "answer"  # topics
QUESTION, TICKET, HEAD = "antiphon_question", "antiphon_ticket", "antiphon_head"  # headers
PATIENCE = 10.0  # seconds after which a site asks again
RETRY = 1.0  # seconds before a site asks again if the server cannot be reached
HANDOVER = 2.0  # seconds that an answer may take from NVFLARE's confirmation to `_answered`


class ServerRelay(FLComponent):
    """Sends what the server's antiphon process pushes to sites that ask, and passes their answers back."""

    def __init__(self) -> None:
        super().__init__()
        self._letters: dict[str, Push] = {}  # ticket -> what is not answered yet
        self._questions: dict[str, str] = {}  # site -> its question, which waits for a message
        self._lock = threading.Condition()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_START:
            self._cell, self._channel = fl_ctx.get_engine().get_cell(), connect()
            threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        self._cell.register_request_cb(channel=CHANNEL, topic=NEXT, cb=self._asked)
        self._cell.register_stream_cb(CHANNEL, ANSWER, self._answered)
        for push in pushes(self._channel):
            with self._lock:
                if push.message is not None:
                    self._letters[push.ticket] = push
                else:
                    self._letters.pop(push.ticket, None)
            self._send(push.site)
        os._exit(1)  # the antiphon process does not listen any more

    def _asked(self, request: Message) -> Message:
        site = str(request.get_header(CellMessageAuthHeaderKey.CLIENT_NAME))
        answered = request.get_header(TICKET)
        with self._lock:
            # The site may ask before `_answered` has begun: its last message must not be sent again.
            self._lock.wait_for(lambda: answered not in self._letters, HANDOVER)
            self._questions[site] = str(request.get_header(QUESTION))
        self._send(site)
        return make_reply(ReturnCode.OK)

    def _send(self, site: str) -> None:
        """Send a site its first message that is not answered, if it asks and there is one."""
        with self._lock:
            push = next((push for push in self._letters.values() if push.site == site), None)
            question = self._questions.pop(site, None) if push is not None else None
        if push is None or push.message is None or question is None:
            return
        headers = {QUESTION: question, TICKET: push.ticket, HEAD: len(push.message.head)}
        message = Message(headers, Memory(push.message.head, push.message.body))
        self._cell.send_stream(CHANNEL, TASK, site, message, reliable=True)

    def _answered(self, future: Any, stream: Stream, resume: bool) -> None:
        headers = stream.get_headers()
        ticket, site = str(headers[TICKET]), headers[CellMessageAuthHeaderKey.CLIENT_NAME]
        with self._lock:
            push = self._letters.get(ticket)
            if push is None or push.site != site:
                raise ValueError("nobody waits for this answer any more")
            del self._letters[ticket]  # already: the site asks for the next one as soon as this has arrived
            self._lock.notify_all()
        try:
            self._pass_on(ticket, stream)
        except Exception:
            with self._lock:
                self._letters = {ticket: push, **self._letters}
            self._send(site)
            raise

    def _pass_on(self, ticket: str, stream: Stream) -> None:
        name, size, at = uuid.uuid4().hex, stream.get_size(), 0
        head_bytes = int(stream.get_headers()[HEAD])
        if not 0 < size <= MAX_ANSWER:
            send_error(self._channel, ticket, f"an answer of {size} bytes is refused")
            return
        for piece in pieces(stream):
            send_part(self._channel, ticket, Place(name, head_bytes, size, at), piece)
            at += len(piece)
        if at != size:
            raise ValueError(f"an answer has {at} bytes in place of {size}")


class SiteRelay(FLComponent):
    """Asks the server for messages, one after another, and answers them with its antiphon process."""

    def __init__(self) -> None:
        super().__init__()
        self._question = ""  # that waits for a message
        self._answered = ""  # the ticket of the last answer
        self._lock = threading.Lock()
        self._begun, self._over, self._ended = threading.Event(), threading.Event(), threading.Event()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_START:
            self._cell = fl_ctx.get_engine().get_cell()
            self._cell.register_stream_cb(CHANNEL, TASK, self._received)
            threading.Thread(target=self._ask, daemon=True, name="antiphon-site").start()
        elif event_type == EventType.SYSTEM_END:
            for event in (self._ended, self._begun, self._over):
                event.set()

    def _ask(self) -> None:
        where = {"channel": CHANNEL, "topic": NEXT, "target": FQCN.ROOT_SERVER}
        while True:
            self._begun.clear()
            self._over.clear()
            if self._ended.is_set():  # after both are cleared: the end sets them for good
                return
            self._question = question = uuid.uuid4().hex
            request = Message({QUESTION: question, TICKET: self._answered})
            reply = self._cell.send_request(**where, request=request, timeout=PATIENCE, optional=True)
            is_heard = reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK
            if is_heard:
                self._begun.wait(PATIENCE)
            with self._lock:
                is_open, self._question = self._question == question, ""
            if not is_open:
                self._over.wait()
            elif not is_heard:
                self._ended.wait(RETRY * random.uniform(0.5, 1.5))

    def _received(self, future: Any, stream: Stream, resume: bool) -> None:
        headers = stream.get_headers()
        with self._lock:
            if not self._question or headers[QUESTION] != self._question:
                raise ValueError("this site does not wait for this message any more")
            self._question = ""
        self._begun.set()
        try:
            with closing(connect()) as channel:
                self._answer(channel, headers, stream)
        finally:
            self._over.set()

    def _answer(self, channel: Channel, headers: dict[str, Any], stream: Stream) -> None:
        channel.send_pieces({"head_bytes": headers[HEAD]}, stream.get_size(), pieces(stream))
        frame = channel.begin()
        if frame is None:
            raise ConnectionError("the antiphon process of this site did not answer")
        about = {TICKET: headers[TICKET], HEAD: frame[0]["head_bytes"]}
        answer = Message(about, Incoming(channel, frame[1]))
        self._cell.send_stream(CHANNEL, ANSWER, FQCN.ROOT_SERVER, answer, reliable=True).result()
        self._answered = headers[TICKET]
