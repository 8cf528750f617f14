"""Small speech models on a CPU: ten clients trained at once, and one after another.

    python benchmarks/stacked_cpu.py

A round of FedAvg of the same ten clients, with one torch thread, both ways in turn. Clients have noise: in
most cases, all utterances of a case are equally long, so that nothing is padded, which is the best case for
stacking. The utterances of other cases have half to one and a half times that length. Then a launch has the
batches of all clients (`padded`), or those that are about equally long (`split`).

The last column says whether a client gets the same bits in stacks of ten and of three clients. Several
processes need that: how many clients a process has depends on the number of processes.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import TOKENS, argument_parser, make_store, print_table, write_result

from antiphon.clients import cpu_products
from antiphon.clients.client import ClientRuntime
from antiphon.clients.stacked import grouping
from antiphon.clients.stacked.stacked_worker import StackedWorker
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Task, Tensors, Update, Worker
from antiphon.data.partition import BySpeaker
from antiphon.experiment.preparation import choose_device
from antiphon.models.blstm import BlstmConfig
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.pools.local import LocalPool
from antiphon.server.weighting import Uniform
from antiphon.tasks.local_training import LocalTraining

DIM = 80  # values of a frame
COHORT = 10
NUM_LAYERS = 2
ROUNDS = 5
TOLERANCE = 1e-3  # of the update: float32 sums in another order
# Seconds of a batch -> utterances in it. A client takes the more steps, the smaller they are.
BATCHES = {1.0: 1, 4.0: 2, 12.0: 4, 60.0: 12}
SPLIT = 500  # the cost of a launch in frames; that of a GPU puts all clients in one launch here


@dataclass(frozen=True)
class Case:
    """A model, and the batches of its clients."""

    kind: str
    width: int
    batch_seconds: float
    clients: str = "equal"  # or: padded, split

    @property
    def config(self) -> CtcConfig:
        if self.kind == "blstm":
            return CtcConfig(BlstmConfig(self.width, NUM_LAYERS, stack=1))
        return CtcConfig(ConformerConfig(self.width, NUM_LAYERS))

    @property
    def num_steps(self) -> int:
        return 4 if self.batch_seconds <= 4 else 1


KINDS, WIDTHS = ("blstm", "conformer"), (16, 64, 256)
CASES = [
    *(Case(kind, width, seconds) for kind in KINDS for width in WIDTHS for seconds in (1.0, 4.0, 12.0)),
    *(Case(kind, 64, 60.0) for kind in KINDS),
    *(Case("conformer", 64, seconds, way) for seconds in (1.0, 12.0) for way in ("padded", "split")),
]
QUICK = [Case("blstm", 16, 1.0), Case("conformer", 16, 1.0, "split")]


class Clients:
    """Clients with noise, a model, and both workers."""

    def __init__(self, folder: Path, case: Case) -> None:
        num = BATCHES[case.batch_seconds]
        length = 0.99 * case.batch_seconds / num
        spread = 0.0 if case.clients == "equal" else 0.5
        seconds = (length * (1 - spread), length * (1 + spread))
        store = make_store(folder / "corpus", COHORT, num * case.num_steps, seconds, DIM)
        torch.manual_seed(0)
        model = case.config.build(DIM, TOKENS.size)
        self.params: Tensors = {name: p.detach().clone() for name, p in model.named_parameters()}
        speakers = dict(BySpeaker()(store, np.arange(len(store)), 0))
        runtime = ClientRuntime(store, TOKENS, model, self.params)
        self.workers: dict[str, Worker] = {
            "alone": SpeechWorker(runtime, speakers),
            "stacked": StackedWorker(runtime, speakers),
        }
        self.names = list(speakers)
        local = LocalTraining(lr=0.1, batch_seconds=case.batch_seconds)
        self.task = Task("train", self.params, {**local.to_task(), "round": 0, "seed": 11})

    def round(self, kind: str) -> tuple[float, Update]:
        """Return the processor seconds of a round, and its mean update."""
        began = time.process_time()
        update = LocalPool(self.workers[kind]).reduce(self.task, self.names, Uniform())
        return time.process_time() - began, update

    def same_bits(self) -> bool:
        """Whether clients get the same bits in stacks of three and of all."""
        worker = self.workers["stacked"]
        whole = [dict(update.mean) for update in worker.run(self.task, self.names)]
        part = [dict(update.mean) for update in worker.run(self.task, self.names[:3])]
        return all(
            torch.equal(few[name], many[name]) for few, many in zip(part, whole, strict=False) for name in few
        )


def compare(case: Case, num_rounds: int) -> dict[str, Any]:
    """Train both ways in turn; the medians over rounds."""
    grouping.LAUNCH = SPLIT if case.clients == "split" else 10**9
    with tempfile.TemporaryDirectory() as folder:
        clients = Clients(Path(folder), case)
        (_, alone), (_, stacked) = clients.round("alone"), clients.round("stacked")  # warm up
        check_same(alone.mean, stacked.mean)
        rows = []
        for number in range(num_rounds):
            order = ("alone", "stacked") if number % 2 else ("stacked", "alone")
            seconds = {kind: clients.round(kind)[0] for kind in order}
            rows.append((seconds["alone"], seconds["stacked"]))
        is_same = clients.same_bits()
    ratios = [alone / stacked for alone, stacked in rows]
    return {
        **asdict(case),
        "num_parameters": sum(p.numel() for p in clients.params.values()),
        "ratio": statistics.median(ratios),
        "quartiles": statistics.quantiles(ratios)[::2] if len(ratios) > 1 else ratios * 2,
        "seconds": dict(
            zip(("alone", "stacked"), map(statistics.median, zip(*rows, strict=True)), strict=True)
        ),
        "same_bits": is_same,
    }


def check_same(alone: Tensors, stacked: Tensors) -> None:
    """Both ways train the same model, but for rounding."""
    moved = math.hypot(*(float(alone[name].norm()) for name in alone))
    apart = math.hypot(*(float((alone[name] - stacked[name]).norm()) for name in alone))
    if apart > TOLERANCE * moved:
        raise AssertionError(f"the updates are {apart / moved:.2g} of themselves apart")


def main() -> None:
    arguments = argument_parser(__doc__, "stacked_cpu").parse_args()
    torch.set_num_threads(1)
    choose_device("cpu")  # deterministic, as a run is
    rows, lines = [], []
    for case in QUICK if arguments.quick else CASES:
        row = compare(case, 1 if arguments.quick else ROUNDS)
        low, high = row["quartiles"]
        model = f"{case.kind} {case.width}, {row['num_parameters'] / 1e6:.2f} M"
        ratio = f"{row['ratio']:.2f} [{low:.2f}, {high:.2f}]"
        lines.append(
            [model, f"{case.batch_seconds:g} s, {case.clients}", ratio, "yes" if row["same_bits"] else "no"]
        )
        rows.append(row)
        print(lines[-1], f"{row['seconds']['alone']:.3f}", flush=True)
    print_table(["model", "batches", "alone / stacked [quartiles]", "same bits"], lines)
    write_result(arguments, {"processor": cpu_products.processor_vendor(), "cohort": COHORT, "rows": rows})


if __name__ == "__main__":
    main()
