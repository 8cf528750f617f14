"""Flower as a carrier of messages, on the server: one run, and one message of it for each push.

This uses the state of Flower's SuperLink, in memory. It is not a public API: pin the version. What Flower
1.41 does by default, and what is done about it:

- A message to a site that never activated is refused: it waits here until the site is there.
- A site that was killed cannot activate for a minute, while it counts as connected: here it can.
- A site that activates again has lost what it had, and a lost site is an error reply: both are sent again.
- A reply arrives before its parts: it is passed on when all parts have arrived.
- A message is named by the hash of its content, and a site may answer any name: each holds a random ticket.
- A site that works cannot be stopped: cancelling forgets the message, and a late answer is dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from flwr.app.message.message import make_message, remove_content_from_message
from flwr.app.metadata import Metadata
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.supercore.constant import NOOP_FEDERATION_ID, NodeStatus, TaskType
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import NoObjectInStoreError

from antiphon.federation.flower_site import content_of, data_of, name_of
from antiphon.pools.remote_link import Channel, pushes, send_answer
from antiphon.pools.remote_messages import Message

LIFETIME = 30 * 86400.0  # seconds after which Flower drops a message; the deadline that counts is the pool's


@dataclass
class _Letter:
    site: str
    data: Message
    name: str = ""  # of the message at Flower; empty while it waits for its site
    activation: str = ""  # when the site had last activated as the message was sent


def _activate(state: Any, activate: Callable[[int, float], bool], node: int, interval: float) -> bool:
    state.deactivate_node(node)
    return activate(node, interval)


class ServerRelay:
    """Turns what the server's antiphon process pushes into messages of one run, and replies into answers."""

    def __init__(self, state: Any, keys: Mapping[str, bytes]) -> None:
        self._state = state
        self._nodes = {
            site: state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0) for site, key in keys.items()
        }
        own = {"override_config": {}, "federation_id": NOOP_FEDERATION_ID, "federation_config": None}
        nothing = dict.fromkeys(("fab_id", "fab_version", "fab_hash"))
        self._run = state.create_run(
            **nothing, **own, flwr_aid=NOOP_FLWR_AID, primary_task_type=TaskType.SERVER_APP
        )
        self._task = state.get_run_info(run_ids=[self._run])[0].primary_task_id
        state.claim_task(self._task)
        state.activate_task(self._task)
        state.activate_node = partial(_activate, state, state.activate_node)
        self._letters: dict[str, _Letter] = {}
        self._arriving: dict[str, str] = {}  # ticket -> reply whose parts are not all here yet
        self._lock = threading.Lock()

    def read(self, channel: Channel) -> None:
        for push in pushes(channel):  # ends with the antiphon process
            with self._lock:
                if push.message is not None:
                    self._letters[push.ticket] = _Letter(push.site, push.message)
                elif (letter := self._letters.pop(push.ticket, None)) is not None:
                    self._arriving.pop(push.ticket, None)
                    self._state.delete_messages({letter.name} - {""})

    def connected(self) -> dict[str, str]:
        """Return the sites that are connected, and when each of them activated."""
        infos = self._state.get_node_info(statuses=[NodeStatus.ONLINE])
        since = {info.node_id: info.last_activated_at for info in infos}
        return {site: since[node] for site, node in self._nodes.items() if node in since}

    def beat(self) -> bool:
        """Say that the run goes on; False if Flower has ended it."""
        return bool(self._state.acknowledge_task_heartbeat(self._task))

    def step(self, channel: Channel) -> None:
        """Send what waits for sites that are connected, and answer what has arrived, one reply at a time."""
        with self._lock:
            letters, connected = list(self._letters.items()), self.connected()
        for ticket, letter in letters:
            with self._lock:
                if ticket not in self._letters or letter.site not in connected:
                    continue
                if letter.activation != connected[letter.site]:
                    self._send(ticket, letter, connected[letter.site])
                    continue
                answer = self._receive(ticket, letter)
            if answer is not None:
                send_answer(channel, ticket, answer)

    def _send(self, ticket: str, letter: _Letter, activation: str) -> None:
        self._state.delete_messages({letter.name} - {""})
        self._arriving.pop(ticket, None)
        metadata = Metadata(
            run_id=self._run,
            message_id="",
            src_node_id=SUPERLINK_NODE_ID,
            dst_node_id=self._nodes[letter.site],
            reply_to_message_id="",
            group_id="",
            created_at=time.time(),
            ttl=LIFETIME,
            message_type="query",
        )
        message = make_message(metadata, content_of(ticket, letter.data))
        letter.name = name_of(message)
        letter.activation = activation
        session = self._state.start_session(self._run)
        missing = self._state.preregister_object_tree(get_object_tree(message), session)
        parts = get_all_nested_objects(message)
        for part in missing:
            self._state.store_object(self._run, session, part, parts[part].deflate())
        # Only now, when it is complete, may its site see it.
        self._state.store_message_ins(remove_content_from_message(message))

    def _receive(self, ticket: str, letter: _Letter) -> bytes | None:
        if ticket not in self._arriving:
            replies = self._state.get_message_res({letter.name}, self._run)
            if not replies:
                return None
            if replies[0].has_error():
                letter.activation = ""  # the site was lost: it is sent again
                return None
            self._arriving[ticket] = replies[0].metadata.message_id
        reply, store = self._arriving[ticket], self._state.object_store
        try:
            names = [tree.object_id for tree in iterate_object_tree(store.get_object_tree(reply))]
        except NoObjectInStoreError:  # the site was cut off, and Flower has given the reply up
            letter.activation = ""
            return None
        parts = {name: store.get(name) for name in names}
        if not all(parts.values()):
            return None
        del self._letters[ticket], self._arriving[ticket]
        self._state.delete_messages({letter.name})
        store.delete(reply)
        try:
            return bytes(data_of(inflate_object_from_contents(reply, parts).content))
        except Exception:  # whatever a site sends: the pool refuses it, and names the client
            return b""
