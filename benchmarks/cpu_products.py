"""Training on a CPU with the products of MKL, PyTorch's own choice, and with those that antiphon chooses.

    python benchmarks/cpu_products.py

Clients train a Conformer on noise of many lengths, with both kinds of products in turn, from the same state.
Seconds are those of the processor, one thread. Memory is that of a process that trains with one kind only, at
its peak. On processors other than AMD's, both kinds are the same (`clients.cpu_products`).
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import (
    TOKENS,
    argument_parser,
    in_fresh_process,
    make_store,
    memory_mib,
    print_table,
    write_result,
)

from antiphon.algorithms.fedavg import FedAvg
from antiphon.clients import cpu_products
from antiphon.clients.client import ClientRuntime
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Tensors
from antiphon.data.partition import BySpeaker
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.pools.local import LocalPool
from antiphon.tasks.local_training import LocalTraining

DIM = 416  # values of a frame, as a frozen encoder gives them
ENOUGH_WORK = {"MKL": math.inf, "chosen": cpu_products.ENOUGH_WORK}


@dataclass(frozen=True)
class Case:
    """A model and the seconds of its batches."""

    width: int = 256
    layers: int = 2
    batch_seconds: float = 60.0
    num_clients: int = 12
    num_utterances: int = 12


CASES = (Case(128), Case(batch_seconds=12.0), Case(), Case(layers=4))
QUICK = (Case(16, 1, 2.0, 2, 2),)


class Clients:
    """Clients with noise of one to twelve seconds, and a model."""

    def __init__(self, folder: Path, case: Case) -> None:
        store = make_store(folder / "corpus", case.num_clients, case.num_utterances, (1.0, 12.0), DIM)
        torch.manual_seed(0)
        model = CtcConfig(ConformerConfig(case.width, case.layers)).build(DIM, TOKENS.size)
        self.params = {name: p.detach().clone() for name, p in model.named_parameters()}
        speakers = dict(BySpeaker()(store, np.arange(len(store)), 0))
        self.names = list(speakers)
        self.pool = LocalPool(SpeechWorker(ClientRuntime(store, TOKENS, model, self.params), speakers))
        self.algorithm = FedAvg(LocalTraining(lr=0.1, batch_seconds=case.batch_seconds))

    def train(self, client: str, products: str) -> tuple[float, Tensors]:
        """Return the seconds of a round of one client, and the parameters after it."""
        cpu_products.ENOUGH_WORK = ENOUGH_WORK[products]
        began = time.process_time()
        after, _ = self.algorithm.round(self.algorithm.init(self.params), [client], self.pool)
        return time.process_time() - began, after.params


def compare(case: Case) -> dict[str, Any]:
    """Train with both kinds in turn."""
    with tempfile.TemporaryDirectory() as folder:
        clients, rows = Clients(Path(folder), case), []
        for kind in ENOUGH_WORK:  # warm up
            clients.train(clients.names[0], kind)
        for place, name in enumerate(clients.names):
            order = sorted(ENOUGH_WORK, reverse=bool(place % 2))
            found = {kind: clients.train(name, kind) for kind in order}
            rows.append([found[kind][0] for kind in ENOUGH_WORK])
            check_same(clients.params, found["MKL"][1], found["chosen"][1])
    ratios = [mkl / chosen for mkl, chosen in rows]
    return {
        **asdict(case),
        "num_parameters": sum(p.numel() for p in clients.params.values()),
        "ratio": statistics.median(ratios),
        "quartiles": statistics.quantiles(ratios)[::2],
        "seconds": dict(zip(ENOUGH_WORK, map(statistics.median, zip(*rows, strict=True)), strict=True)),
    }


def check_same(start: Tensors, slow: Tensors, fast: Tensors) -> None:
    """Products that are exact to float32 train the same model, but for rounding."""
    moved = math.hypot(*(float((slow[name] - start[name]).norm()) for name in start))
    apart = math.hypot(*(float((slow[name] - fast[name]).norm()) for name in start))
    if apart > 1e-3 * moved:
        raise AssertionError(f"the models are {apart / moved:.2g} of a step apart")


def peak_memory(case: Case, products: str) -> dict[str, float]:
    """Train with one kind."""
    with tempfile.TemporaryDirectory() as folder:
        clients = Clients(Path(folder), case)
        for name in clients.names * 3:
            clients.train(name, products)
    return memory_mib()


def main() -> None:
    arguments = argument_parser(__doc__, "cpu_products").parse_args()
    torch.set_num_threads(1)
    rows, lines = [], []
    for case in QUICK if arguments.quick else CASES:
        memory = {
            kind: in_fresh_process(__file__, [json.dumps(asdict(case)), kind])["peak"] for kind in ENOUGH_WORK
        }
        rows.append({**compare(case), "peak_mib": memory})
        low, high = rows[-1]["quartiles"]
        size = f"{rows[-1]['num_parameters'] / 1e6:.1f} M, {case.batch_seconds:g} s"
        ratio = f"{rows[-1]['ratio']:.2f} [{low:.2f}, {high:.2f}]"
        lines.append([size, ratio, *(f"{mib:.0f}" for mib in memory.values())])
    names = ["parameters, batches", "seconds: MKL / chosen [quartiles]", "peak MiB: MKL", "chosen"]
    print_table(names, lines)
    write_result(arguments, {"processor": cpu_products.processor_vendor(), "rows": rows})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        torch.set_num_threads(1)
        print(json.dumps(peak_memory(Case(**json.loads(sys.argv[2])), sys.argv[3])))
    else:
        main()
