"""What one lying client of ten can do to a round: the cosine of the aggregate with that of an honest round.

The liar sends the opposite of its update, of the same norm. Its report is true, or claims what gives the
client the largest weight that the server accepts, or claims what the server refuses. The other clients are
honest. Clients have 2 to 20 utterances. The model is a small Conformer on noise with random texts, after some
rounds of federated averaging, so that the losses of the clients are near those of guessing (3.3 nats).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from common import TOKENS, make_store, parse_arguments, print_table, write_result

from antiphon.algorithms.fedavg import FedAvg
from antiphon.algorithms.geometric_median import geometric_median
from antiphon.algorithms.q_fedavg import QFedAvg
from antiphon.clients.client import ClientRuntime
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Pool, Report, ServerState, Task, Tensors, Update, Weigh, Worker
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.pools.local import LocalPool
from antiphon.server.run_context import RunContext, prepare
from antiphon.server.weighting import ByExamples, ByNorm, SoftmaxLoss, Uniform
from antiphon.tasks.local_training import LocalTraining

SEED = 7
LOCAL = LocalTraining(lr=0.2, epochs=1, batch_seconds=16.0)
NUM_CLIENTS, LARGEST = 10, 20
LIAR = 4  # of the clients, in the order of their names; it has 10 utterances
Aggregate = Callable[[Pool, ServerState, Sequence[str]], Tensors]


@dataclass(frozen=True)
class Lie:
    """Numbers that the liar reports instead of its own; `is_opposite`: it also turns its update round."""

    stats: Mapping[str, Any]
    is_opposite: bool = True


@dataclass(frozen=True)
class LyingWorker:
    """A worker one of whose clients lies."""

    worker: Worker
    liar: str
    lie: Lie

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for client, update in zip(clients, self.worker.run(task, clients), strict=True):
            yield self._spoil(update) if client == self.liar else update

    def _spoil(self, update: Update) -> Update:
        (report,) = update.reports
        mean = {name: -t if self.lie.is_opposite else t for name, t in update.mean.items()}
        return Update(mean, reports=(Report(report.client, {**report.stats, **self.lie.stats}),))


def weighted(weigh: Weigh) -> Aggregate:
    def aggregate(pool: Pool, state: ServerState, cohort: Sequence[str]) -> Tensors:
        return pool.reduce(FedAvg(LOCAL).task(state), cohort, weigh).mean

    return aggregate


def by_q(algorithm: QFedAvg) -> Aggregate:
    def aggregate(pool: Pool, state: ServerState, cohort: Sequence[str]) -> Tensors:
        task = replace(FedAvg(LOCAL).task(state), kind="q_fedavg.train")
        return pool.reduce(task, cohort, algorithm.log_weight).mean

    return aggregate


def median(pool: Pool, state: ServerState, cohort: Sequence[str]) -> Tensors:
    collected = pool.collect(FedAvg(LOCAL).task(state), cohort)
    zeros = {name: torch.zeros_like(p) for name, p in state.params.items()}
    return geometric_median(collected, [0.0] * len(collected.reports), zeros, 8, 1e-6).mean


KNOWN = RunContext(largest_client=LARGEST)
# name -> aggregation, the largest claim that the server accepts, a claim that it refuses
CASES: dict[str, tuple[Aggregate, dict[str, float], dict[str, float]]] = {
    "equal weights": (weighted(Uniform()), {}, {}),
    "geometric median": (median, {}, {}),
    "by norm": (weighted(ByNorm()), {"norm": 1e-9}, {}),
    "by utterances, sizes known": (
        weighted(prepare(ByExamples(), KNOWN)),
        {"num_utterances": 1e7},
        {"num_utterances": 1e12},
    ),
    "by utterances, max_utterances 10": (
        weighted(ByExamples(max_utterances=10)),
        {"num_utterances": 1e7},
        {"num_utterances": 1e12},
    ),
    "by utterances, no limit": (weighted(ByExamples()), {"num_utterances": 1e7}, {"num_utterances": 1e12}),
    "DGA softmax, β 0.3": (weighted(SoftmaxLoss(0.3)), {"loss": 0.0}, {"loss": -1e9}),
    "DGA softmax, β 2": (weighted(SoftmaxLoss(2.0)), {"loss": 0.0}, {"loss": -1e9}),
    "DGA softmax, β 2, min_loss 3": (weighted(SoftmaxLoss(2.0, 3.0)), {"loss": 0.0}, {"loss": -1e9}),
    "q-FedAvg, q 1": (by_q(QFedAvg(1.0)), {"start_loss": 1e6}, {"start_loss": 1e9}),
    "q-FedAvg, q 1, max_loss 10": (
        by_q(QFedAvg(1.0, max_loss=10.0)),
        {"start_loss": 1e6},
        {"start_loss": 1e9},
    ),
}


def cosine(left: Tensors, right: Tensors) -> float:
    flat = [torch.cat([t.flatten().double() for t in tensors.values()]) for tensors in (left, right)]
    return float(torch.nn.functional.cosine_similarity(flat[0], flat[1], dim=0))


def measure(folder: Path, rounds: int, dim: int) -> tuple[list[dict[str, Any]], float]:
    """Return the cosines of every case, and the mean loss of the clients."""
    store = make_store(folder, NUM_CLIENTS, LARGEST, (1.0, 3.0), 40)
    torch.manual_seed(SEED)
    model = CtcConfig(ConformerConfig(dim=dim, num_layers=2)).build(40, TOKENS.size)
    params = {name: p.detach().clone() for name, p in model.named_parameters()}
    sizes = {f"speaker/{number}": 2 * number + 2 for number in range(NUM_CLIENTS)}
    clients = {
        name: store.where("pool", [f"{number:06d}"])[:size]
        for number, (name, size) in enumerate(sizes.items())
    }
    worker, cohort = SpeechWorker(ClientRuntime(store, TOKENS, model, params), clients), sorted(clients)
    algorithm = FedAvg(LOCAL)
    state = algorithm.init(params).with_seed(SEED)
    for _ in range(rounds):
        state, _ = algorithm.round(state, cohort, LocalPool(worker))
    reports = LocalPool(worker).reduce(algorithm.task(state), cohort, Uniform()).reports
    loss = sum(report.stats["loss"] for report in reports) / len(reports)

    def aggregate_with(aggregate: Aggregate, lie: Lie) -> Tensors:
        return aggregate(LocalPool(LyingWorker(worker, cohort[LIAR], lie)), state, cohort)

    rows = []
    for name, (aggregate, accepted, refused) in CASES.items():
        honest = aggregate_with(aggregate, Lie({}, is_opposite=False))
        lies = {"true report": {}, "largest claim": accepted, "refused claim": refused}
        found = {key: cosine(honest, aggregate_with(aggregate, Lie(stats))) for key, stats in lies.items()}
        rows.append({"aggregation": name, "claim": accepted, "refused": refused, **found})
    return rows, loss


def main() -> None:
    arguments = parse_arguments(__doc__, "lies")
    torch.set_num_threads(1)
    rounds, dim = (1, 16) if arguments.quick else (20, 96)
    with tempfile.TemporaryDirectory() as folder:
        rows, loss = measure(Path(folder) / "corpus", rounds, dim)
    header = ["aggregation", "true report", "largest claim", "refused claim"]
    cells = [
        [f"{row[key]:.2f}" if row["refused"] or key != "refused claim" else "" for key in header[1:]]
        for row in rows
    ]
    print(f"mean loss of the clients: {loss:.2f} nats per token")
    print_table(header, [[row["aggregation"], *texts] for row, texts in zip(rows, cells, strict=True)])
    write_result(arguments, {"rows": rows, "loss": loss, "rounds": rounds})


if __name__ == "__main__":
    main()
