"""Flower as a carrier of messages, on a site: asks the server's Fleet API for messages, and answers them.

A SuperNode would start a process for each message, from code that the server sends. This takes only the
messages, over the same API: TLS, and in every request a signature with the key of the site.
"""

from __future__ import annotations

import queue
import threading
import time
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.app.message.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from antiphon.federation.engine_process import connect
from antiphon.pools.flat_tensors import Buffer
from antiphon.pools.remote_messages import Message

BEAT = HEARTBEAT_DEFAULT_INTERVAL / 3  # seconds
POLLS = (0.05, 1.0)  # seconds between two questions for work: the fewest after a message, the most when idle


def content_of(ticket: str, data: Message) -> RecordDict:
    records: dict[str, Any] = {"head": ConfigRecord({"ticket": ticket, "bytes": data.head})}
    if data.body:  # as an array, because Flower sends arrays in pieces
        array = Array(dtype="uint8", shape=(len(data.body),), stype="bytes", data=bytes(data.body))
        records["body"] = ArrayRecord({"bytes": array})
    return RecordDict(records)


def data_of(content: RecordDict) -> Message:
    body = content["body"]["bytes"].data if "body" in content else b""
    return Message(content["head"]["bytes"], body)


def name_of(message: FlowerMessage) -> str:
    """Give a new message its name; return the name."""
    message.metadata.__dict__["_message_id"] = message.object_id
    return str(message.metadata.message_id)


class SiteRelay:
    """Passes messages to the antiphon process of the site, and its answers back.

    httpx.HTTPError if the server is gone; ConnectionError if the antiphon process is.
    """

    def __init__(self, server: str, authority: Path, key: Path) -> None:
        private = load_ssh_private_key(key.read_bytes(), None)
        signed = NodeAuthHttpInterceptor(private, private.public_key())
        version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
        self._client = FleetHttpClient.from_server_address(
            server, False, authority.read_bytes(), interceptors=[version, signed]
        )
        self._key = public_key_to_bytes(private.public_key())

    def run(self) -> None:
        request = fleet_pb2.ActivateNodeRequest(
            public_key=self._key, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
        )
        self._node = Node(node_id=self._client.ActivateNode(request).node_id)
        pause, beaten = POLLS[0], time.monotonic()
        while True:
            if time.monotonic() - beaten > BEAT:
                self._beat()
                beaten = time.monotonic()
            pulled = self._client.PullMessages(fleet_pb2.PullMessagesRequest(node=self._node))
            if pulled.messages_list:
                self._answer(message_from_proto(pulled.messages_list[0]), pulled.message_object_trees[0])
                pause = POLLS[0]
            else:
                time.sleep(pause)
                pause = min(POLLS[1], 1.05 * pause)

    def _beat(self) -> None:
        self._client.SendNodeHeartbeat(
            heartbeat_pb2.SendNodeHeartbeatRequest(
                node=self._node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
            )
        )

    def _answer(self, envelope: FlowerMessage, tree: Any) -> None:
        own = {"node": self._node, "run_id": envelope.metadata.run_id}
        name = envelope.metadata.message_id
        parts = {}
        for branch in iterate_object_tree(tree):
            request = message_pb2.PullObjectRequest(**own, object_id=branch.object_id)
            parts[branch.object_id] = self._client.PullObject(request).object_content
        self._client.ConfirmMessageReceived(
            message_pb2.ConfirmMessageReceivedRequest(**own, message_object_id=name)
        )
        message = inflate_object_from_contents(name, parts)
        message.metadata.__dict__["_message_id"] = name
        answer = self._ask(data_of(message.content))
        reply = FlowerMessage(
            content_of(message.content["head"]["ticket"], Message(b"", answer)), reply_to=message
        )
        name_of(reply)
        pushed = self._client.PushMessages(
            fleet_pb2.PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[get_object_tree(reply)],
            )
        )
        parts = get_all_nested_objects(reply)
        for part in pushed.objects_to_push:
            content = parts[part].deflate()
            self._client.PushObject(
                message_pb2.PushObjectRequest(
                    **own, session_id=pushed.session_id, object_id=part, object_content=content
                )
            )

    def _ask(self, data: Message) -> Buffer:
        """Ask the antiphon process of the site; the server hears heartbeats meanwhile."""
        frames: queue.SimpleQueue[tuple[Any, Buffer] | None] = queue.SimpleQueue()
        channel = connect()
        channel.send({"head_bytes": len(data.head)}, data.head, data.body)
        threading.Thread(target=lambda: frames.put(channel.receive()), daemon=True).start()
        while True:
            try:
                frame = frames.get(timeout=BEAT)
            except queue.Empty:
                self._beat()
                continue
            channel.close()
            if frame is None:
                raise ConnectionError("the antiphon process of this site did not answer")
            return frame[1]
