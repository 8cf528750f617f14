"""A member of a cohort under secure aggregation: a client that masks its update.

A member answers four requests in a session: "work", "share", "mask", "reveal". It never raises, and it checks
by itself what protects it: the order of requests, the threshold, the weights, and that it reveals one kind of
share for each peer. A request against the rules ends the session, and nothing more is revealed in it.

A member reveals once for an update: two sums over the same updates could reveal single ones. It keeps the
four requests and answers of its last reveal (`MemberRecord`), so that a server that was stopped can ask again
and gets the same answers. After a session without a reveal it may begin again, with new keys. The sums of
several sessions over the same updates then cannot be combined to an update of one client: those who revealed
in a session, at least t, are in no later one.

If a task adds noise (`tasks.noised_update`), a member draws its share when it masks: it then knows the
threshold, below which it reveals nothing. In a federation the noise comes from the operating system, and the
server has no part in it. Answers that were revealed are kept, so they are never drawn anew.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from antiphon.core import Task, Tensors, Unusable, Update
from antiphon.privacy.samplers import Randomness, Secure
from antiphon.secure_aggregation.masks import (
    FixedPoint,
    add_pair_mask,
    agree,
    flatten,
    layout_of,
    public_key,
    self_mask,
)
from antiphon.secure_aggregation.rules import MIN_CLIENTS
from antiphon.secure_aggregation.secret_sharing import SHARE_BYTES, split
from antiphon.tasks.noised_update import NoisedByClient, without_noise

STEPS = ("work", "share", "mask", "reveal")
NONCE_BYTES, TAG_BYTES = 12, 16
PARCEL_BYTES = NONCE_BYTES + 2 * SHARE_BYTES + TAG_BYTES  # two shares, encrypted for one peer
SUMMED = "this update was summed before, and two sums over the same updates can reveal single ones"
Message = tuple[dict[str, Any], Tensors]  # a request or an answer: JSON values and tensors


class Refused(ValueError):
    """The member does not answer this request, and leaves the session."""


@dataclass(frozen=True)
class Revealed:
    """What a member keeps of its last reveal: the digests of the requests, and the answers to them."""

    session: str
    digests: tuple[str, ...]
    answers: tuple[Message, ...]


class MemberRecord(Protocol):
    """What a member must remember, also when its process ends. `add` returns when it is on disk."""

    @property
    def last(self) -> Revealed | None: ...
    def has(self, digest: str) -> bool: ...
    def add(self, revealed: Revealed, used: tuple[str, ...]) -> None: ...


@dataclass
class MemoryRecord:
    """A record for simulations: it ends with its process."""

    last: Revealed | None = None
    used: set[str] = field(default_factory=set)  # digests of tasks and updates that were revealed

    def has(self, digest: str) -> bool:
        return digest in self.used

    def add(self, revealed: Revealed, used: tuple[str, ...]) -> None:
        self.last = revealed
        self.used.update(used)


@dataclass
class Session:
    """The secrets of a member in one session. They are never stored."""

    name: str
    mask_key: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate, repr=False)
    share_key: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate, repr=False)
    seed: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    values: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)
    noise: NoisedByClient | None = None  # then `values` are on its grid, without noise
    round: int = 0
    used: tuple[str, ...] = ()  # digests of the task and of the update
    roster: Mapping[str, list[str]] = field(default_factory=dict)  # client -> its two public keys
    threshold: int = 0
    weights: Mapping[str, int] = field(default_factory=dict)
    shares: dict[str, tuple[bytes, bytes]] = field(default_factory=dict, repr=False)  # of peers' secrets
    digests: tuple[str, ...] = ()  # of the requests so far
    answers: tuple[Message, ...] = field(default=(), repr=False)


@dataclass
class Member:
    """One client of a secure sum. Its update and its secrets stay here."""

    client: str
    work: Callable[[Task], Update]
    record: MemberRecord = field(default_factory=MemoryRecord)
    max_share: float = 0.5  # of the weight, for one client; with more, the mean is close to its update
    randomness: Randomness = Secure()  # of its noise
    _session: Session | None = field(default=None, init=False, repr=False)

    def answer(self, head: Mapping[str, Any], tensors: Tensors) -> Message:
        """Return the answer to a request; {"error": reason} if it is refused."""
        session, self._session = self._session, None  # an error ends the session
        try:
            step, name = str(head["step"]), str(head["session"])
            number, digest = STEPS.index(step), digest_of(head, tensors)
            last = self.record.last
            if last is not None and last.session == name:
                if last.digests[number] == digest:
                    return last.answers[number]
                if session is None and step != "work":
                    raise Refused(SUMMED)
            if step == "work":
                session = Session(name)
            elif session is not None and (name, digest) == (session.name, session.digests[-1]):
                self._session = session  # the last answer was lost on its way
                return session.answers[-1]
            if session is None or session.name != name or len(session.digests) != number:
                raise Refused(f"step {step!r} is out of turn")
            answer: Message = getattr(self, f"_{step}")(session, head, tensors)
            session.digests, session.answers = (*session.digests, digest), (*session.answers, answer)
            if step == "reveal":
                self.record.add(Revealed(name, session.digests, session.answers), session.used)
            else:
                self._session = session
            return answer
        except InvalidTag:
            return {"error": "the shares of a peer were changed on their way"}, {}
        except Exception as error:  # an error of one client must not end the process of its site
            kind = "" if isinstance(error, Refused | Unusable) else f"{type(error).__name__}: "
            return {"error": f"{kind}{error}"}, {}

    def _work(self, session: Session, head: Mapping[str, Any], tensors: Tensors) -> Message:
        task = Task(head["kind"], tensors, head["config"])
        # The number of the round does not change an update.
        same = {key: value for key, value in task.config.items() if key not in ("round", "call")}
        digest = digest_of({"kind": task.kind, "config": same}, tensors)
        self._check_unused(digest)
        task, session.noise = without_noise(task)
        session.round = task.moment[0]
        update = self.work(task)
        if update.is_empty:
            raise Refused(update.failures[0].reason)
        if not all(tensor.is_floating_point() for tensor in update.mean.values()):
            raise Refused("only floating-point tensors can be added up")
        session.values = session.noise.on_grid(update.mean) if session.noise else flatten(update.mean)
        session.used = (digest, hashlib.sha256(session.values.tobytes()).hexdigest())
        if update.mean:  # an answer of numbers only has nothing to mask
            self._check_unused(session.used[1])
        (report,) = update.reports
        return {
            "stats": dict(report.stats),
            "state_bytes": report.state_bytes,
            "layout": layout_of(update.mean),
            "keys": [public_key(session.mask_key), public_key(session.share_key)],
        }, {}

    def _share(self, session: Session, head: Mapping[str, Any], tensors: Tensors) -> Message:
        roster, threshold = dict(head["roster"]), int(head["threshold"])
        if not (threshold >= MIN_CLIENTS and 2 * threshold > len(roster) >= threshold):
            raise Refused(
                f"a threshold of {threshold} for {len(roster)} clients: it must be at least {MIN_CLIENTS}, "
                "and more than half of the clients"
            )
        if roster.get(self.client) != [public_key(session.mask_key), public_key(session.share_key)]:
            raise Refused("the roster has other keys for this client")
        if len({key for keys in roster.values() for key in keys}) < 2 * len(roster):
            raise Refused("the public keys in the roster are not distinct")
        secret_key = session.mask_key.private_bytes_raw()
        pairs = zip(
            split(session.seed, threshold, len(roster)),
            split(secret_key, threshold, len(roster)),
            strict=True,
        )
        parcels = b""
        for peer, pair in zip(sorted(roster), pairs, strict=True):
            key = agree(session.share_key, roster[peer][1], "share", session.name, self.client, peer)
            nonce = secrets.token_bytes(NONCE_BYTES)
            parcels += nonce + ChaCha20Poly1305(key).encrypt(nonce, b"".join(pair), None)
        session.roster, session.threshold = roster, threshold
        sent = torch.frombuffer(bytearray(parcels), dtype=torch.uint8).view(len(roster), PARCEL_BYTES)
        return {"commitment": hashlib.sha256(session.seed).hexdigest()}, {"parcels": sent}

    def _mask(self, session: Session, head: Mapping[str, Any], tensors: Tensors) -> Message:
        weights = {str(client): int(weight) for client, weight in head["weights"].items()}
        if self.client not in weights or not weights.keys() <= session.roster.keys():
            raise Refused("the members are not clients of the roster")
        if len(weights) < session.threshold:
            raise Refused(f"{len(weights)} members, {session.threshold} needed")
        self._check_shares(weights, set(weights))
        session.weights, session.shares = weights, self._open(session, weights, tensors["parcels"].numpy())
        masked = self._encoded(session, weights, float(head["bound"]))
        masked += self_mask(session.seed, session.name, len(masked))
        for peer in weights.keys() - {self.client}:
            add_pair_mask(masked, session.mask_key, self.client, peer, session.roster[peer][0], session.name)
        session.values = np.empty(0)
        return {}, {"masked": torch.from_numpy(masked.view(np.int32))}

    def _encoded(self, session: Session, weights: Mapping[str, int], bound: float) -> np.ndarray:
        """Return the update as elements of the ring, with its noise."""
        if session.noise is None:
            return FixedPoint(bound, weights).encode(session.values, self.client)
        if len(set(weights.values())) > 1:
            raise Refused("noise of clients is accounted for weights that are all the same")
        words = self.randomness.words(session.round)
        return session.noise.noised(session.values, session.threshold, words).astype(np.uint32)

    def _open(
        self, session: Session, weights: Mapping[str, int], parcels: np.ndarray
    ) -> dict[str, tuple[bytes, bytes]]:
        """Decrypt the shares that the members sent to this client."""
        shares = {}
        for peer, parcel in zip(sorted(weights), parcels, strict=True):
            key = agree(session.share_key, session.roster[peer][1], "share", session.name, peer, self.client)
            nonce, sealed = parcel[:NONCE_BYTES].tobytes(), parcel[NONCE_BYTES:].tobytes()
            pair = ChaCha20Poly1305(key).decrypt(nonce, sealed, None)
            shares[peer] = (pair[:SHARE_BYTES], pair[SHARE_BYTES:])
        return shares

    def _reveal(self, session: Session, head: Mapping[str, Any], tensors: Tensors) -> Message:
        survivors, dropped = set(head["survivors"]), set(head["dropped"])
        if both := sorted(survivors & dropped):
            raise Refused(f"both shares of {both[0]!r} were asked for: they would unmask its update")
        if survivors | dropped != session.shares.keys():
            raise Refused("survivors and dropped clients are not the members of this session")
        if self.client not in survivors:
            raise Refused("this client has sent its masked update: it has not dropped out")
        if len(survivors) < session.threshold:
            raise Refused(f"{len(survivors)} survivors, {session.threshold} needed")
        self._check_shares(session.weights, survivors)
        for digest in session.used:
            self._check_unused(digest)
        return {
            "seeds": {peer: session.shares[peer][0].hex() for peer in sorted(survivors)},
            "keys": {peer: session.shares[peer][1].hex() for peer in sorted(dropped)},
        }, {}

    def _check_unused(self, digest: str) -> None:
        if self.record.has(digest):
            raise Refused(SUMMED)

    def _check_shares(self, weights: Mapping[str, int], members: set[str]) -> None:
        """Refuse weights with which the mean would be close to one client's update."""
        if min(weights.values()) < 0 or max(weights.values()) >= 2**31:
            raise Refused("a weight is negative or above 2^31")
        total, largest = (f(weights[member] for member in members) for f in (sum, max))
        if largest > self.max_share * total:
            raise Refused(
                f"one client has more than {self.max_share:g} of the weight, and the mean would be close to "
                "its update: use flatter weights (a smaller beta), or a larger secure_aggregation.max_share"
            )


def digest_of(head: Mapping[str, Any], tensors: Tensors) -> str:
    """Return a SHA-256 digest of a message."""
    digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
