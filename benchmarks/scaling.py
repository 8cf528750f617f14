"""Seconds of the same seeded run in one process over two, and on paper what many GPUs would take.

Here: an engine with everything on (checkpoint every round), in one process and in two, each with one
thread, in turns; every run is a process (or two) of its own. The clock runs from the end of the first
round to the end of the last. All runs must end at the same parameters.

On paper: every GPU trains its share of the cohort in `--share-seconds`; then the processes exchange
their reports through gloo (short messages as a tree, reports round a ring; the time of a hop is measured
here) and add their shares up through NCCL, a ring within each machine and one over the machines, at the
bandwidths in LINKS.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import TOKENS, argument_parser, in_fresh_process, make_store, print_table, write_result
from safetensors.torch import load_file, save_file

from antiphon.algorithms.fedavg import hierarchical
from antiphon.clients.client import ClientRuntime
from antiphon.clients.worker import SpeechWorker
from antiphon.data.partition import BySpeaker
from antiphon.data.store import FeatureStore
from antiphon.engine import Engine, Listener, Rounds
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.pools.process_group import ProcessGroup, SingleProcess
from antiphon.pools.rendezvous import find_rank, join
from antiphon.pools.spawning import run_processes
from antiphon.pools.torch_group import TorchGroup
from antiphon.server.optimizers import Adam
from antiphon.tasks.local_training import LocalTraining

SEED = 7
LOCAL = LocalTraining(lr=0.05, epochs=2, batch_seconds=12.0, clip_norm=1.0)


@dataclass(frozen=True)
class Case:
    """A model and how much is done with it."""

    name: str
    encoder_dim: int
    dim: int = 288
    num_layers: int = 4
    num_clients: int = 40
    num_utterances: int = 6
    seconds: tuple[float, float] = (1.0, 5.0)
    cohort: int = 10
    rounds: int = 6  # the first of them warms up and is not counted
    repetitions: int = 5


CASES = {
    "small": Case("Conformer, 0.9 M", 96),
    "large": Case("Conformer, 6.2 M", 256, rounds=4),
    "quick": Case("tiny", 16, 8, 1, 4, 2, (1.0, 2.0), cohort=3, rounds=3, repetitions=1),
}


# --- One run, in a process or two of its own ------------------------------------------------------


class Stopwatch(Listener):
    """Starts when the first round has ended."""

    def finished(self, entry: Mapping[str, Any], clock: Mapping[str, Any]) -> None:
        if entry["round"] == 1:
            self.began = time.perf_counter()


def run_case(key: str, num_processes: int, corpus: Path, folder: Path) -> int:
    """Prints what it took as JSON, from the first process; the parameters it came to are left in a file."""
    process = find_rank(os.environ)
    if num_processes > 1 and process is None:
        return run_processes(num_processes)
    torch.set_num_threads(1)
    with join(process, "cpu") if process else nullcontext(SingleProcess()) as group:
        case, store = CASES[key], FeatureStore.open(corpus)
        torch.manual_seed(SEED)
        config = CtcConfig(ConformerConfig(dim=case.encoder_dim, num_layers=case.num_layers))
        model = config.build(case.dim, TOKENS.size)
        params = {name: p.detach().clone() for name, p in model.named_parameters()}
        everyone = BySpeaker()(store, np.arange(len(store)), SEED)
        worker = SpeechWorker(ClientRuntime(store, TOKENS, model, params), everyone)
        pool = group.pool(worker, lambda client: float(store.seconds[everyone[client]].sum()))
        watch, rounds = Stopwatch(), Rounds(total=case.rounds, cohort=case.cohort, valid_every=0)
        algorithm = hierarchical(LOCAL, Adam())
        engine = Engine(algorithm, pool, list(everyone), rounds, folder, SEED, listener=watch, group=group)
        after = engine.run(params).state.params
        seconds = (time.perf_counter() - watch.began) / (case.rounds - 1)
        answer = {"seconds": seconds, "num_parameters": sum(p.numel() for p in params.values())}
        answer |= measure_talk(group)
        if group.is_rank_zero:
            save_file(after, folder / "after.safetensors")
            print(json.dumps(answer))
    return 0


def measure_talk(group: ProcessGroup, times: int = 200) -> dict[str, float]:
    """Seconds for a message to get from one process to the other by gloo: an exchange is two of them.

    The links of two processes on one machine are faster; there are none between machines.
    """
    if not isinstance(group, TorchGroup):
        return {}
    group.links = None
    group.all_gather(lambda: None)
    began = time.perf_counter()
    for _ in range(times):
        group.all_gather(lambda: None)
    return {"hop_seconds": (time.perf_counter() - began) / times / 2}


# --- Both, in turns -------------------------------------------------------------------------------


def compare(key: str) -> dict[str, Any]:
    """The ratio is the median over repetitions of one process / two."""
    case = CASES[key]
    found: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
    results = []
    with tempfile.TemporaryDirectory() as folder:
        shape = (case.num_clients, case.num_utterances, case.seconds, case.dim)
        corpus = make_store(Path(folder) / "corpus", *shape).folder
        for repetition in range(case.repetitions):
            for num in (1, 2) if repetition % 2 else (2, 1):
                run = Path(folder) / f"run-{num}-{repetition}"
                found[num].append(in_fresh_process(__file__, [key, str(num), str(corpus), str(run)]))
                results.append(load_file(run / "after.safetensors"))
    difference = max(
        float((one[name] - results[0][name]).abs().max()) for one in results for name in results[0]
    )
    assert difference < 1e-4, f"the runs ended {difference:.1e} apart: not the same work"
    seconds = {num: [answer["seconds"] for answer in answers] for num, answers in found.items()}
    ratios = [one / two for one, two in zip(seconds[1], seconds[2], strict=True)]
    return {
        "case": case.name,
        "num_parameters": found[1][0]["num_parameters"],
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "seconds_one": statistics.median(seconds[1]),
        "seconds_two": statistics.median(seconds[2]),
        "hop_seconds": statistics.median(answer["hop_seconds"] for answer in found[2]),
        "largest_difference": difference,
        "settings": asdict(case),
    }


# --- On paper -------------------------------------------------------------------------------------

GPUS_PER_MACHINE = 8
EXCHANGES = 1  # a round: the reports; journal and checkpoint are written while the others go on
REPORT_BYTES = 250  # of one client, as JSON
# Bytes a second, one way. Between machines: for all GPUs of a machine together.
NVLINK = 450e9
LINKS = {"8 × 400 Gb/s": 8 * 50e9, "100 Gb/s": 12.5e9}
ETHERNET = 1e9  # what gloo's messages get of a network through TCP


def on_paper(share_seconds: float, clients: int, num_parameters: int, hop: float) -> list[dict[str, Any]]:
    """Seconds a round on 8 … 1,024 GPUs, `clients` on each; efficiency is that over one GPU without talk."""
    rows = []
    volume = 4 * num_parameters
    for num_gpus in (8, 16, 32, 64, 128, 256, 512, 1024):
        machines = num_gpus // GPUS_PER_MACHINE
        within = 2 * (GPUS_PER_MACHINE - 1) / GPUS_PER_MACHINE * volume / NVLINK
        tree = EXCHANGES * (1 + math.log2(num_gpus)) * hop
        ring = (num_gpus - 1) * hop + REPORT_BYTES * clients * num_gpus / ETHERNET
        for link, bandwidth in LINKS.items():
            between = 2 * (machines - 1) / machines * volume / bandwidth
            total = share_seconds + tree + ring + within + between
            row = {"num_gpus": num_gpus, "link": link, "cohort": clients * num_gpus}
            row |= {"all_reduce_seconds": within + between, "exchange_seconds": tree + ring}
            rows.append({**row, "round_seconds": total, "efficiency": share_seconds / total})
    return rows


def print_paper(rows: list[dict[str, Any]]) -> None:
    header = ["GPUs", "clients a round"]
    header += [f"{what}, {link}" for link in LINKS for what in ("ms a round", "efficiency")]
    table = []
    for num_gpus in dict.fromkeys(row["num_gpus"] for row in rows):
        mine = [row for row in rows if row["num_gpus"] == num_gpus]
        cells = [f"{num_gpus:,}", f"{mine[0]['cohort']:,}"]
        for row in mine:
            cells += [f"{1e3 * row['round_seconds']:.0f}", f"{100 * row['efficiency']:.1f} %"]
        table.append(cells)
    print_table(header, table)


def parse() -> argparse.Namespace:
    parser = argument_parser(__doc__, "scaling")
    parser.add_argument(
        "--share-seconds", type=float, help="a GPU's share of a round; default: measured here"
    )
    parser.add_argument("--share-clients", type=int, default=64, help="clients in that share")
    parser.add_argument("--parameters", type=int, help="of the model; default: the last one measured here")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    if arguments.case:
        key, num, corpus, folder = arguments.case
        sys.exit(run_case(key, int(num), Path(corpus), Path(folder)))
    results = [compare(key) for key in (("quick",) if arguments.quick else ("small", "large"))]
    rows = [
        [r["case"], f"{r['ratio']:.2f}", f"{r['seconds_one']:.2f} / {r['seconds_two']:.2f}",
         f"{1e6 * r['hop_seconds']:.0f} µs"]
        for r in results
    ]  # fmt: skip
    print_table(["model", "one process / two", "seconds a round", "a message"], rows)
    last = results[-1]
    case = last["settings"]
    measured = last["seconds_one"] / case["cohort"] * arguments.share_clients
    share, parameters = arguments.share_seconds or measured, arguments.parameters or last["num_parameters"]
    paper = on_paper(share, arguments.share_clients, parameters, last["hop_seconds"])
    print_paper(paper)
    assumptions = {
        "share_seconds": share,
        "share_is_measured_here": arguments.share_seconds is None,
        "share_clients": arguments.share_clients,
        "num_parameters": parameters,
        "gpus_per_machine": GPUS_PER_MACHINE,
        "exchanges_a_round": EXCHANGES,
        "report_bytes": REPORT_BYTES,
        "bytes_a_second": {"nvlink": NVLINK, "gloo": ETHERNET, **LINKS},
    }
    write_result(arguments, {"cases": results, "assumptions": assumptions, "on_paper": paper})


if __name__ == "__main__":
    main()
