"""The server's side of secure aggregation: a pool that sees sums only."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from antiphon.core import (
    Collected,
    Failure,
    Pool,
    Report,
    Task,
    Tensors,
    Unusable,
    Update,
    Weigh,
    Worker,
    lives_with_server,
    size_in_bytes,
)
from antiphon.pools.local import check_stats, expected_tensors
from antiphon.privacy.samplers import Seeded
from antiphon.secure_aggregation.masks import (
    LARGEST,
    FixedPoint,
    WholeSteps,
    add_pair_mask,
    layout_of,
    public_key,
    self_mask,
    unflatten,
)
from antiphon.secure_aggregation.member import PARCEL_BYTES, Member, Message
from antiphon.secure_aggregation.rules import SecureAggregation
from antiphon.secure_aggregation.secret_sharing import join
from antiphon.seeding import derive
from antiphon.tasks.noised_update import without_noise
from antiphon.tasks.views import VIEWS, View, views_of

# Sends each client its message; yields the answers as they arrive, or the reason why there is none.
Exchange = Callable[[Mapping[str, Message]], Iterator[tuple[str, Message | str]]]


class _SumClosed(Exception):
    """Fewer than t clients are left, so the sum stays closed."""


@dataclass(frozen=True)
class SecurePool:
    """Sums the updates of remote clients under masks. `pool` serves clients that live with the server."""

    exchange: Exchange
    pool: Pool
    settings: SecureAggregation
    run: str  # names the run; sessions of one run are numbered by round and call

    def collect(self, task: Task, cohort: Sequence[str]) -> Collected:
        if all(map(lives_with_server, cohort)):
            return self.pool.collect(task, cohort)
        raise ValueError(
            "secure aggregation cannot collect updates: several weightings of the same updates reveal single "
            "ones. DGA-RL and the geometric median need this; choose an algorithm that sums once for each "
            "task, or set secure_aggregation to null"
        )

    def reduce(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        own = [client for client in cohort if lives_with_server(client)]
        clients = [client for client in cohort if not lives_with_server(client)]
        update = self.pool.reduce(task, own, weigh) if own else Update.nothing()
        return update + self._sum(task, clients, weigh) if clients else update

    def _sum(self, task: Task, cohort: Sequence[str], weigh: Weigh) -> Update:
        session = f"{self.run}/{task.moment[0]}/{task.moment[1]}"
        needed = self.settings.needed(len(cohort))
        steps = _Sum(self.exchange, self.settings, session, needed, task, _summable(task), weigh)
        try:
            steps.check_enough("start", cohort)
            return steps.run(cohort)
        except _SumClosed as error:
            return Update.nothing(*(Failure(c, steps.failures.get(c, str(error))) for c in cohort))


def _summable(task: Task) -> Tensors:
    """Return tensors like those of an answer; refuse tasks whose answers cannot be summed under masks."""
    views = views_of(task) if VIEWS in task.config else []
    for view in views:
        if type(view).arrive is not View.arrive or type(view).decode is not View.decode:
            raise ValueError(
                f"secure aggregation cannot be used with {type(view).__name__}: the server would have to "
                "change single updates when they arrive, and it cannot see them"
            )
    like = expected_tensors(task, views)
    if like is None:
        raise ValueError(
            f"secure aggregation does not know what clients answer to {task.kind!r}: declare it with "
            "client_work(kind, answers=...)"
        )
    return like


@dataclass
class _Sum:
    """One secure sum, step by step. A client that does not answer a step, or answers wrongly, is left out."""

    exchange: Exchange
    settings: SecureAggregation
    session: str
    needed: int
    task: Task
    like: Tensors
    weigh: Weigh
    failures: dict[str, str] = field(default_factory=dict)
    bytes_up: dict[str, int] = field(default_factory=dict)

    def run(self, cohort: Sequence[str]) -> Update:
        head = {"kind": self.task.kind, "config": dict(self.task.config)}
        work = self.ask("work", dict.fromkeys(cohort, (head, self.task.tensors)), self._accept_work)
        work = {client: work[client] for client in cohort if client in work}  # in cohort order
        reports = {c: Report(c, answer["stats"], 0, answer["state_bytes"]) for c, answer in work.items()}
        log_weights = {client: self._log_weight(report) for client, report in reports.items()}
        log_weights = {client: value for client, value in log_weights.items() if client not in self.failures}
        mean: Tensors = {}
        if self.like:
            roster = {client: work[client]["keys"] for client in log_weights}
            self.check_enough("weights", roster)
            mean, members = self._masked_mean(roster, log_weights)
            log_weights = {client: log_weights[client] for client in log_weights if client in members}
        top = max(log_weights.values())
        total = top + math.log(sum(math.exp(value - top) for value in log_weights.values()))
        answered = tuple(replace(reports[client], bytes_up=self.bytes_up[client]) for client in log_weights)
        left_out = tuple(Failure(c, self.failures[c]) for c in cohort if c not in log_weights)
        return Update(mean, total, answered, left_out)

    def _masked_mean(
        self, roster: dict[str, list[str]], log_weights: Mapping[str, float]
    ) -> tuple[Tensors, set[str]]:
        """Return the mean, and the clients that are in it."""
        number = {client: i for i, client in enumerate(sorted(roster))}
        share: Message = ({"roster": roster, "threshold": self.needed}, {})
        shared = self.ask("share", dict.fromkeys(roster, share), self._accept_parcels(len(roster)))
        top = max(log_weights[client] for client in shared)
        weights = {c: round(LARGEST * math.exp(log_weights[c] - top)) for c in sorted(shared)}
        _, noise = without_noise(self.task)
        numbers = WholeSteps(noise.step) if noise else FixedPoint(self.settings.bound, weights)
        requests: dict[str, Message] = {}
        for client in shared:
            parcels = np.stack([shared[peer][1][number[client]] for peer in sorted(shared)])
            head = {"weights": weights, "bound": self.settings.bound}
            requests[client] = (head, {"parcels": torch.from_numpy(parcels)})
        total = np.zeros(sum(tensor.numel() for tensor in self.like.values()), dtype=np.uint32)
        masked = self.ask("mask", requests, self._fold_into(total))
        survivors, dropped = sorted(masked), sorted(shared.keys() - masked.keys())
        reveal: Message = ({"survivors": survivors, "dropped": dropped}, {})
        revealed = self.ask(
            "reveal", dict.fromkeys(survivors, reveal), _accept_shares(set(survivors), set(dropped))
        )
        few = sorted(revealed)[: self.needed]
        opened = {client: join({number[c] + 1: revealed[c][client] for c in few}) for client in shared}
        for client in survivors:
            if hashlib.sha256(opened[client]).hexdigest() != shared[client][0]:
                raise _SumClosed(f"the shares of {client!r} do not match its commitment")
            total -= self_mask(opened[client], self.session, len(total))
        for client in dropped:  # its masks cancel what the survivors added for it
            key = X25519PrivateKey.from_private_bytes(opened[client])
            if public_key(key) != roster[client][0]:
                raise _SumClosed(f"the shares of {client!r} do not match its public key")
            for peer in survivors:
                add_pair_mask(total, key, client, peer, roster[peer][0], self.session)
        return unflatten(numbers.decode(total, survivors), self.like), set(survivors)

    def ask(
        self, step: str, requests: Mapping[str, Message], accept: Callable[[Message], Any]
    ) -> dict[str, Any]:
        """Return the accepted answers of one step."""
        messages = {
            client: ({"step": step, "session": self.session, **head}, tensors)
            for client, (head, tensors) in requests.items()
        }
        accepted = {}
        for client, answer in self.exchange(messages):
            try:
                if isinstance(answer, str):
                    raise ValueError(answer)
                head, tensors = answer
                sent = size_in_bytes(tensors) + len(json.dumps(head).encode())
                self.bytes_up[client] = self.bytes_up.get(client, 0) + sent
                if "error" in head:
                    raise ValueError(str(head["error"]))
                accepted[client] = accept(answer)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self.failures[client] = f"{error} (secure aggregation, step {step})"
        for client in requests.keys() - accepted.keys() - self.failures.keys():
            self.failures[client] = f"no answer (secure aggregation, step {step})"
        self.check_enough(step, accepted)
        return accepted

    def check_enough(self, step: str, clients: Collection[str]) -> None:
        needed = self.needed if self.like else 1
        if len(clients) < needed:
            raise _SumClosed(f"the sum stays closed: {len(clients)} clients left at {step}, {needed} needed")

    def _log_weight(self, report: Report) -> float:
        try:
            log_weight = self.weigh(report)
        except Unusable as error:
            self.failures[report.client] = str(error)
            return -math.inf
        if not math.isfinite(log_weight):
            self.failures[report.client] = f"its weight is not finite (log-weight {log_weight})"
        return log_weight

    def _accept_work(self, answer: Message) -> dict[str, Any]:
        head, _ = answer
        if head["layout"] != layout_of(self.like):
            raise ValueError("its answer does not fit the task: other tensors, shapes or types")
        check_stats(self.task.kind, head["stats"])
        if [len(bytes.fromhex(key)) for key in head["keys"]] != [32, 32]:
            raise ValueError("it sent no two public keys")
        return head

    def _accept_parcels(self, num_clients: int) -> Callable[[Message], tuple[str, np.ndarray]]:
        def accept(answer: Message) -> tuple[str, np.ndarray]:
            head, tensors = answer
            return str(head["commitment"]), _array(
                tensors["parcels"], (num_clients, PARCEL_BYTES), torch.uint8
            )

        return accept

    def _fold_into(self, total: np.ndarray) -> Callable[[Message], bool]:
        """Return a function that adds a masked update to a sum, so that memory does not grow."""

        def accept(answer: Message) -> bool:
            _, tensors = answer
            np.add(total, _array(tensors["masked"], total.shape, torch.int32).view(np.uint32), out=total)
            return True

        return accept


def _accept_shares(survivors: set[str], dropped: set[str]) -> Callable[[Message], dict[str, bytes]]:
    def accept(answer: Message) -> dict[str, bytes]:
        head, _ = answer
        if (head["seeds"].keys(), head["keys"].keys()) != (survivors, dropped):
            raise ValueError("it revealed other shares than those asked for")
        return {client: bytes.fromhex(share) for client, share in {**head["seeds"], **head["keys"]}.items()}

    return accept


def _array(tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> np.ndarray:
    if (tuple(tensor.shape), tensor.dtype) != (shape, dtype):
        raise ValueError(f"it sent {tensor.dtype}{list(tensor.shape)}, not {dtype}{list(shape)}")
    return tensor.cpu().numpy()


def in_process(worker: Worker, max_share: float, seed: int = 0) -> Exchange:
    """Return an exchange with members in this process, for simulations: their noise follows from the seed."""
    members: dict[str, Member] = {}

    def member(client: str) -> Member:
        if client not in members:
            noise = Seeded(derive(seed, "noise of a client", client))
            members[client] = Member(
                client,
                lambda task: next(iter(worker.run(task, [client]))),
                max_share=max_share,
                randomness=noise,
            )
        return members[client]

    def exchange(messages: Mapping[str, Message]) -> Iterator[tuple[str, Message | str]]:
        for client, (head, tensors) in messages.items():
            yield client, member(client).answer(head, tensors)

    return exchange
