"""Seconds of a private round over the same round without privacy, and the memory that noise needs.

Rounds: every cohort trains twice from the same state, once by FedAvg and once by `private` around it; who is
first, alternates. Both sides are a whole `round` of the algorithm, without journal and checkpoint, which are
the same for both. The private side clips on the client and on the server, writes and checks its record of
releases, accounts, and draws noise. It begins in round `bands`, where the noise has all its bands; the rows
before are drawn in the first round, which is not counted. Seconds are of the clock and of the processor.

Memory: a process draws the noise of bands + 2 rounds for the same number of parameters, and nothing else.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
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
from antiphon.algorithms.private import Private
from antiphon.clients.client import ClientRuntime
from antiphon.clients.worker import SpeechWorker
from antiphon.data.partition import BySpeaker
from antiphon.data.store import FeatureStore
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.pools.local import LocalPool
from antiphon.privacy.correlated_noise import noise_rows
from antiphon.privacy.participation import RoundRobin
from antiphon.privacy.update_accounting import Banded, Blt, Correlation, plan_noise
from antiphon.server.run_context import RunContext, prepare
from antiphon.server.weighting import Uniform
from antiphon.tasks.local_training import LocalTraining
from antiphon.tasks.update_clipping import EachLayer

SEED = 7
LOCAL = LocalTraining(lr=0.05, epochs=2, batch_seconds=12.0)
PLAIN = FedAvg(LOCAL, weighting=Uniform())


@dataclass(frozen=True)
class Size:
    """How much is done."""

    width: int = 256
    layers: int = 4
    dim: int = 288
    num_speakers: int = 40
    num_utterances: int = 6
    seconds: tuple[float, float] = (1.0, 5.0)
    cohort: int = 10
    rounds: int = 9  # of which the first is not counted
    separation: int = 64


QUICK = Size(16, 1, 8, 4, 2, (1.0, 2.0), 3, 3, 4)
NOISES: dict[str, tuple[Correlation, int]] = {
    "independent": (Banded(), 1),
    "banded": (Banded(), 0),
    "blt": (Blt(), 0),
}


def measure(size: Size, noise: str, store: FeatureStore, folder: Path) -> dict[str, Any]:
    """Run both sides."""
    torch.manual_seed(SEED)
    model = CtcConfig(ConformerConfig(dim=size.width, num_layers=size.layers)).build(size.dim, TOKENS.size)
    params = {name: p.detach().clone() for name, p in model.named_parameters()}
    speakers = BySpeaker()(store, np.arange(len(store)), SEED)
    copies = -(-size.separation * size.cohort // len(speakers))
    clients = {f"{name}-{copy}": at for name, at in speakers.items() for copy in range(copies)}
    correlation, bands = NOISES[noise]
    begin = size.separation
    total = begin + size.rounds
    turns, clipping = RoundRobin(size.separation), EachLayer(0.3)
    private = Private(PLAIN, delta=1e-6, clipping=clipping, cohorts=turns, bands=bands, noise=correlation)
    context = RunContext(tuple(clients), num_rounds=total, cohort=size.cohort, folder=folder, seed=SEED)
    private = prepare(private, context)
    pool = LocalPool(SpeechWorker(ClientRuntime(store, TOKENS, model, params), clients))
    state = replace(PLAIN.init(params).with_seed(SEED), round=begin)
    seconds: dict[str, list[tuple[float, float]]] = {"private": [], "plain": []}  # clock, processor
    for round in range(begin, total):
        now = replace(state, round=round)
        wrapped = replace(private.init(params), inner=now, released=round)
        cohort = private.draw(list(clients), size.cohort, SEED, round)
        sides: list[tuple[str, Any, Any]] = [("plain", PLAIN, now), ("private", private, wrapped)]
        for name, algorithm, start in sides if round % 2 else reversed(sides):
            began = time.perf_counter(), time.process_time()
            algorithm.round(start, cohort, pool)
            seconds[name].append((time.perf_counter() - began[0], time.process_time() - began[1]))
    return {
        "noise": noise,
        "bands": len(private.plan.coefficients) if noise != "blt" else 0,
        "num_parameters": sum(p.numel() for p in params.values()),
        **compare(*([clock for clock, _ in side[1:]] for side in seconds.values())),
        "processor": compare(*([processor for _, processor in side[1:]] for side in seconds.values())),
    }


def compare(private: Sequence[float], plain: Sequence[float]) -> dict[str, Any]:
    """Return the median over rounds of private / plain, its quartiles, that of all rounds, and seconds."""
    ratios = [ours / others for ours, others in zip(private, plain, strict=True)]
    return {
        "ratio": statistics.median(ratios),
        "ratio_of_sums": sum(private) / sum(plain),  # some rounds of noise with bands take longer
        "quartiles": statistics.quantiles(ratios)[::2],
        "private_seconds": statistics.median(private),
        "plain_seconds": statistics.median(plain),
    }


def draw_rows(noise: str, separation: int, num_parameters: int) -> dict[str, float]:
    """Draw the noise of separation + 2 rounds; return the memory of this process."""
    correlation, bands = NOISES[noise]
    private = Private(cohorts=RoundRobin(separation), bands=bands, noise=correlation)
    rounds = separation + 2
    plan = plan_noise(private.cohorts, bands, rounds, private.budget, correlation=correlation)
    before = memory_mib()["anonymous"]
    with tempfile.TemporaryDirectory() as folder:
        rows = noise_rows(bytes(32), plan.matrix, num_parameters, folder)
        for round in range(rounds):
            rows.row(round)
    return {"before": before, "peak": memory_mib()["peak"]}


def main() -> None:
    parser = argument_parser(__doc__, "private_rounds")
    parser.add_argument("--noise", nargs="+", choices=NOISES, default=list(NOISES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    size, rows = QUICK if arguments.quick else Size(), []
    for noise in arguments.noise:
        with tempfile.TemporaryDirectory() as folder:
            shape = (size.num_speakers, size.num_utterances, size.seconds, size.dim)
            store = make_store(Path(folder) / "corpus", *shape)
            row = measure(size, noise, store, Path(folder) / "run")
        case = [noise, str(size.separation), str(row["num_parameters"])]
        rows.append({**row, "memory_mib": in_fresh_process(__file__, case)})
    names = ["noise", "bands", "num_parameters", "ratio", "private_seconds", "plain_seconds"]
    cells = [
        [str(row[n]) if n in ("noise", "num_parameters") else f"{row[n]:.4g}" for n in names] for row in rows
    ]
    for row, line in zip(rows, cells, strict=True):
        line += [f"{row['processor'][n]:.4g}" for n in ("ratio", "ratio_of_sums")]
        line += [f"{row['memory_mib']['peak']:.0f}"]
    chosen = [] if arguments.noise == list(NOISES) else ["--noise", *arguments.noise]
    print_table([*names, "ratio, processor", "of all rounds", "peak MiB of drawing noise"], cells)
    write_result(arguments, {"settings": asdict(size), "local": asdict(LOCAL), "rows": rows}, *chosen)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        kind, apart, number = sys.argv[2:]
        print(json.dumps(draw_rows(kind, int(apart), int(number))))
    else:
        main()
