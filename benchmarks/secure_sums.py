"""Secure aggregation beside the plain sum: seconds of a client and of the server, and bytes.

Updates of one million parameters, 10 and 50 clients, without dropouts and with one client in ten that leaves
before it sends its masked update. Both ways sum the same vectors; nothing is trained. The ratios are to the
plain sum of the same clients in the same process, and to a client that sends its float32 values as they are.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from common import parse_arguments, print_table, write_result

from antiphon.core import Report, Task, Update
from antiphon.pools.local import LocalPool
from antiphon.secure_aggregation.member import Member, Message
from antiphon.secure_aggregation.rules import SecureAggregation
from antiphon.secure_aggregation.secure_pool import SecurePool
from antiphon.server.weighting import Uniform
from antiphon.tasks.client_work import client_work

KIND = "benchmark.vector"


@client_work(KIND, answers="parameters")
def answer(task: Task, client: Any) -> Update:
    """The kind of work that `Vectors` does."""
    raise AssertionError("its updates are there already")


@dataclass
class Vectors:
    """Clients whose updates are there already: client k has `base` + k / 1000."""

    base: torch.Tensor

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for client in clients:
            yield Update({"w": self.base + int(client[1:]) / 1000}, reports=(Report(client, {}),))


@dataclass
class TimedMembers:
    """Members in this process, with the seconds that each of them takes."""

    members: Mapping[str, Member]
    dropped: frozenset[str]
    seconds: Counter[str] = field(default_factory=Counter)
    bytes_down: Counter[str] = field(default_factory=Counter)

    def __call__(self, messages: Mapping[str, Message]) -> Iterator[tuple[str, Message | str]]:
        for client, (head, tensors) in messages.items():
            if client in self.dropped and head["step"] == "mask":
                yield client, "no answer"
                continue
            if head["step"] != "work":  # the first request has the model, which every way sends
                sizes = (tensor.numel() * tensor.element_size() for tensor in tensors.values())
                self.bytes_down[client] += len(str(head)) + sum(sizes)
            began = time.perf_counter()
            answer = self.members[client].answer(head, tensors)
            self.seconds[client] += time.perf_counter() - began
            yield client, answer


def measure(num_clients: int, num_dropped: int, size: int, repeats: int) -> dict[str, Any]:
    clients = [f"c{number}" for number in range(num_clients)]
    worker = Vectors(torch.rand(size, generator=torch.Generator().manual_seed(0)) - 0.5)
    kept = clients[num_dropped:]
    runs: dict[str, list[float]] = {"client": [], "server": [], "plain": []}
    for repeat in range(repeats + 1):  # the first one warms up
        task = Task(KIND, {"w": torch.zeros(size)}, {"round": repeat, "call": 0})
        began = time.perf_counter()
        plain = LocalPool(worker).reduce(task, kept, Uniform())
        runs["plain"].append(time.perf_counter() - began)
        members = {c: Member(c, lambda task, c=c: next(worker.run(task, [c]))) for c in clients}
        exchange = TimedMembers(members, frozenset(clients[:num_dropped]))
        pool = SecurePool(exchange, LocalPool(worker), SecureAggregation(), "benchmark")
        began = time.perf_counter()
        update = pool.reduce(task, clients, Uniform())
        whole = time.perf_counter() - began
        runs["client"].append(exchange.seconds[clients[-1]])
        runs["server"].append(whole - sum(exchange.seconds.values()))
        assert float((update.mean["w"] - plain.mean["w"]).abs().max()) < 1e-6
    medians = {name: statistics.median(values[1:]) for name, values in runs.items()}
    sent = update.reports[-1].bytes_up
    return {
        "num_clients": num_clients,
        "num_dropped": num_dropped,
        **{f"{name}_seconds": value for name, value in medians.items()},
        "server_over_plain": medians["server"] / medians["plain"],
        "bytes_up": sent,
        "bytes_up_over_float32": sent / (4 * size),
        "bytes_down_more": exchange.bytes_down[clients[-1]],
    }


def main() -> None:
    arguments = parse_arguments(__doc__, "secure_sums")
    size, repeats = (10_000, 1) if arguments.quick else (1_000_000, 5)
    cases = [(10, 0), (10, 1)] if arguments.quick else [(10, 0), (10, 1), (50, 0), (50, 5)]
    rows = [measure(*case, size, repeats) for case in cases]
    names = ["num_clients", "num_dropped", "client_seconds", "server_seconds", "server_over_plain"]
    names += ["bytes_up_over_float32", "bytes_down_more"]
    print_table(names, [[f"{row[name]:.4g}" for name in names] for row in rows])
    write_result(arguments, {"parameters": size, "repeats": repeats, "cases": rows})


if __name__ == "__main__":
    main()
