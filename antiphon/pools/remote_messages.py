"""The wire format: one flat message for each task and each reply, with nothing in it that can be executed.

    antiphon | version | length of the head | SHA-256 of the head | head: JSON | body: safetensors

The head says what the message is about, and names its tensors in order. It also has the SHA-256 and the size
of the body. So a body that the receiver has already can be left out: many clients of one site share one copy.
The first fields have the same places in every version; a message of another version is refused by its number.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from antiphon.core import Tensors
from antiphon.pools.flat_tensors import Buffer, flatten, unflatten

VERSION = 1
PREFIX = struct.Struct("!8sHI32s")
NAME = b"antiphon"
MAX_HEAD = 16 * 2**20
MAX_BODY = 8 * 2**30


class WireError(ValueError):
    """A message that cannot be read. The text says why."""


class OtherVersion(WireError):
    """A message in another version of the wire format."""


class MissingBody(WireError):
    """A message whose body was left out, and must be sent after all. `digest` names the body."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"the body {digest[:12]}… of a message was left out and is not known here")
        self.digest = digest


@dataclass(frozen=True)
class Message:
    """A message as bytes: its head with everything before it, and its body, which may be left out."""

    head: bytes
    body: Buffer = b""
    digest: str = field(default="", compare=False)  # of the body, if it was computed while that arrived

    @classmethod
    def split(cls, data: Buffer) -> Message:
        """Return the message in `data`; WireError if that cannot be one."""
        if len(data) < PREFIX.size:
            raise WireError(f"a message has at least {PREFIX.size} bytes, not {len(data)}")
        name, version, size, _ = PREFIX.unpack_from(data)
        if name != NAME:
            raise WireError("this is not a message of antiphon: it begins with other bytes")
        if version != VERSION:
            raise OtherVersion(
                f"the message has version {version} of the wire format, and this side has version {VERSION}: "
                "install the same version of antiphon on the server and on all sites"
            )
        end = PREFIX.size + size
        if size > MAX_HEAD or len(data) - end > MAX_BODY:
            raise WireError(f"the message is too large: a head of {size} bytes, {len(data)} bytes in all")
        if len(data) < end:
            raise WireError(f"the message is cut off: its head has {len(data) - PREFIX.size} of {size} bytes")
        return cls(bytes(data[:end]), data[end:])

    def __bytes__(self) -> bytes:
        return self.head + self.body

    def __len__(self) -> int:
        return len(self.head) + len(self.body)

    def without_body(self) -> Message:
        return Message(self.head)


def pack(head: Mapping[str, Any], tensors: Tensors | None = None) -> Message:
    """Return a message; the head may hold whatever JSON can, without NaN and infinity."""
    return with_body(head, pack_body(tensors or {}), list(tensors or {}))


def pack_body(tensors: Tensors) -> Buffer:
    """Return tensors as safetensors; b"" if there are none."""
    return flatten(tensors) if tensors else b""


def with_body(head: Mapping[str, Any], body: Buffer, names: list[str], digest: str = "") -> Message:
    """Return a message with a body that is packed already; `digest` is its SHA-256, if it is known."""
    about = {"sha256": digest or digest_of(body), "bytes": len(body), "names": names}
    text = json.dumps({**head, "body": about}, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > MAX_HEAD or len(body) > MAX_BODY:
        raise WireError(
            f"a message may have a head of {MAX_HEAD} and a body of {MAX_BODY} bytes, "
            f"not {len(text)} and {len(body)}"
        )
    return Message(PREFIX.pack(NAME, VERSION, len(text), hashlib.sha256(text).digest()) + text, body)


def digest_of(body: Buffer) -> str:
    return hashlib.sha256(body).hexdigest()


def head_of(message: Message) -> dict[str, Any]:
    """Return the head of a message; WireError if it is damaged."""
    text = Message.split(message.head).head[PREFIX.size :]
    if hashlib.sha256(text).digest() != PREFIX.unpack_from(message.head)[3]:
        raise WireError("the head of a message is damaged: its checksum does not match")
    try:
        head = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the head of a message is not JSON ({error})") from None
    body = head.get("body") if isinstance(head, dict) else None
    if not isinstance(body, dict) or not (
        isinstance(body.get("sha256"), str)
        and isinstance(body.get("bytes"), int)
        and isinstance(body.get("names"), list)
    ):
        raise WireError("the head of a message does not describe its body")
    return dict(head)


def reason_in(head: Mapping[str, Any]) -> str:
    """Return the reason in the head of a failure: one line of at most 500 characters."""
    return plain(str(head.get("reason"))[:500])


def plain(text: str) -> str:
    """Return a text of another machine as one line: what it could do to a screen is taken out.

    >>> plain("out of memory\\x1b[2J")
    'out of memory [2J'
    """
    return "".join(character if character.isprintable() else " " for character in text)


def unpack(message: Message, known: Mapping[str, Buffer] | None = None) -> tuple[dict[str, Any], Tensors]:
    """Return head and tensors of a message; `known` holds bodies by digest, for one that was left out.

    A body in `known` was compared with its digest when it arrived.
    """
    head = head_of(message)
    about, body, digest = head["body"], message.body, message.digest
    if not body and about["bytes"]:
        digest = about["sha256"]
        if digest not in (known or {}):
            raise MissingBody(digest)
        body = (known or {})[digest]
    if len(body) != about["bytes"]:
        raise WireError(f"the body of a message has {len(body)} bytes, not {about['bytes']}: it is damaged")
    if (digest or digest_of(body)) != about["sha256"]:
        raise WireError("the body of a message is damaged: its checksum does not match")
    try:
        tensors = unflatten(body) if body else {}
    except ValueError as error:
        raise WireError(f"the body of a message is not in the safetensors format ({error})") from None
    names = about["names"]
    if any(not isinstance(name, str) for name in names) or sorted(names) != sorted(tensors):
        raise WireError("the head of a message names other tensors than its body holds")
    return head, {name: tensors[name] for name in names}  # the body has them in another order


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")
