"""Seconds a round of the whole engine, over a bare PyTorch loop that takes the same steps.

The engine's side is everything a run does between two rounds: draw the cohort, build batches, train
each client, check and fold its update, the server's step, journal, clock, TensorBoard and a checkpoint
every round. The bare side is what one would write without it: batches ready in memory, one model,
`torch.optim.SGD` and `clip_grad_norm_` for each client, a running mean of parameters, and
`torch.optim.Adam` for the server. Both run in one process on one thread, client by client in turn, with
the same seeds (dropout included), and must end at the same parameters.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import TOKENS, make_store, parse_arguments, print_table, write_result
from torch import Tensor, nn

from antiphon.algorithms.fedavg import FedAvg, hierarchical
from antiphon.clients.client import Client, ClientRuntime
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Metrics, Pool, ServerState, Task, Tensors, Update
from antiphon.data.batches import Batch
from antiphon.data.partition import BySpeaker
from antiphon.data.store import FeatureStore
from antiphon.engine import Engine, Rounds
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.models.noise import noise_from
from antiphon.pools.local import LocalPool
from antiphon.server.optimizers import Adam
from antiphon.tasks.local_training import LocalTraining, seed_of

SEED = 7
LOCAL = LocalTraining(lr=0.05, epochs=2, batch_seconds=12.0, clip_norm=1.0)
SERVER = Adam()


@dataclass(frozen=True)
class Case:
    """A model and how much is done with it."""

    name: str
    encoder: ConformerConfig
    dim: int = 288
    num_clients: int = 40
    num_utterances: int = 6
    seconds: tuple[float, float] = (1.0, 5.0)
    cohort: int = 10
    rounds: int = 17  # the first of them warms up and is not counted


CASES = (
    Case("Conformer, 0.5 M", ConformerConfig(dim=96)),
    Case("Conformer, 3.1 M", ConformerConfig(dim=256)),
)
QUICK = (Case("tiny", ConformerConfig(dim=16, num_layers=1), 8, 4, 2, (1.0, 2.0), cohort=3, rounds=3),)


@dataclass(frozen=True)
class Spell:
    """How long something took: by the clock on the wall, and on the processor."""

    wall: float = 0.0
    cpu: float = 0.0

    @classmethod
    def now(cls) -> Spell:
        return cls(time.perf_counter(), time.process_time())

    def plus(self, start: Spell, end: Spell) -> Spell:
        return Spell(self.wall + end.wall - start.wall, self.cpu + end.cpu - start.cpu)


class Stopwatch:
    """Time always runs for someone: for the engine, unless said otherwise."""

    def __init__(self) -> None:
        self.laps: list[dict[str, Spell]] = []
        self.restart()

    def restart(self) -> None:
        self.side, self.began = "engine", Spell.now()
        self.spent = {"engine": Spell(), "bare": Spell(), "neither": Spell()}

    @contextmanager
    def running_for(self, side: str) -> Iterator[None]:
        before = self.side
        self._switch(side)
        try:
            yield
        finally:
            self._switch(before)

    def lap(self) -> None:
        self._switch(self.side)
        self.laps.append(self.spent)
        self.restart()

    def _switch(self, side: str) -> None:
        now = Spell.now()
        self.spent[self.side] = self.spent[self.side].plus(self.began, now)
        self.side, self.began = side, now


class Bare:
    """The loop one would write by hand."""

    def __init__(self, model: nn.Module, params: Tensors) -> None:
        self.model = model
        self.weights = list(model.parameters())
        self.server = [nn.Parameter(params[name].clone()) for name, _ in model.named_parameters()]
        betas = (SERVER.beta1, SERVER.beta2)
        self.adam = torch.optim.Adam(self.server, lr=SERVER.lr, betas=betas, eps=SERVER.epsilon)
        self.mean = [torch.zeros_like(weight) for weight in self.server]

    def begin(self) -> None:
        self.model.train()
        torch._foreach_zero_(self.mean)

    def train(self, batches: Sequence[tuple[Batch, Tensor]], share: float) -> None:
        """One client's steps, and its parameters' share of the mean."""
        with torch.no_grad():
            torch._foreach_copy_(self.weights, self.server)
        sgd = torch.optim.SGD(self.weights, lr=LOCAL.lr)
        for batch, keys in batches:
            sgd.zero_grad()
            with noise_from(keys):
                (self.model.losses(batch) / batch.token_lengths).mean().backward()
            nn.utils.clip_grad_norm_(self.weights, LOCAL.clip_norm)
            sgd.step()
        with torch.no_grad():
            torch._foreach_add_(self.mean, self.weights, alpha=share)

    def end(self) -> None:
        for weight, mean in zip(self.server, self.mean, strict=True):
            weight.grad = weight.detach() - mean
        self.adam.step()


@dataclass(frozen=True)
class InterleavedWorker:
    """Every client is trained twice, by the bare loop and by the engine's worker; who is first, alternates.

    Turns this short meet the same machine, however busy others keep it.
    """

    worker: SpeechWorker
    bare: Bare
    watch: Stopwatch

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for place, name in enumerate(clients):
            with self.watch.running_for("neither"):
                batches = self._prepare(task, name)
            share = 1 / len(clients)
            if place % 2:
                self._run_bare(batches, share)
            (update,) = self.worker.run(task, [name])
            if not place % 2:
                self._run_bare(batches, share)
            yield update

    def _prepare(self, task: Task, name: str) -> list[tuple[Batch, Tensor]]:
        """The client's batches and the keys of their dropout."""
        runtime = self.worker.runtime
        steps = Client(name, self.worker.clients[name], runtime).steps(LOCAL, seed_of(task))
        return [(runtime.feed(s.indices), runtime.keys([s.noise], s.indices[None]).flatten()) for s in steps]

    def _run_bare(self, batches: list[tuple[Batch, Tensor]], share: float) -> None:
        with self.watch.running_for("bare"):
            self.bare.train(batches, share)


@dataclass(frozen=True)
class InterleavedAlgorithm:
    """FedAvg, and around each of its rounds the beginning and the end of a bare one.

    A lap ends where the next round begins: journal, checkpoint and the drawing of the cohort are in it.
    """

    algorithm: FedAvg
    bare: Bare
    watch: Stopwatch

    def init(self, params: Tensors) -> ServerState:
        return self.algorithm.init(params)

    def round(self, state: ServerState, cohort: Sequence[str], pool: Pool) -> tuple[ServerState, Metrics]:
        if state.round > 0:
            self.watch.lap()
        else:
            self.watch.restart()
        with self.watch.running_for("bare"):
            self.bare.begin()
        after = self.algorithm.round(state, cohort, pool)
        with self.watch.running_for("bare"):
            self.bare.end()
        return after


def measure(case: Case, store: FeatureStore, folder: Path) -> dict[str, Any]:
    """Runs both sides; the ratio is the median over rounds of engine / bare."""
    torch.manual_seed(SEED)
    config = CtcConfig(case.encoder)
    models = [config.build(case.dim, TOKENS.size) for _ in range(2)]
    params = {name: p.detach().clone() for name, p in models[0].named_parameters()}
    everyone = BySpeaker()(store, np.arange(len(store)), SEED)
    runtime, bare, watch = (
        ClientRuntime(store, TOKENS, models[0], params),
        Bare(models[1], params),
        Stopwatch(),
    )
    engine = Engine(
        InterleavedAlgorithm(hierarchical(LOCAL, SERVER), bare, watch),  # type: ignore[type-var]
        LocalPool(InterleavedWorker(SpeechWorker(runtime, everyone), bare, watch)),
        list(everyone),
        Rounds(total=case.rounds, cohort=case.cohort, valid_every=0, save_every=1),
        folder,
        SEED,
    )
    outcome = engine.run(params)
    watch.lap()
    difference = relative_difference(list(outcome.state.params.values()), bare.server, list(params.values()))
    assert difference < 1e-3, f"the two sides ended {difference:.2e} apart: not the same work"
    num_parameters = sum(tensor.numel() for tensor in params.values())
    return {
        "case": case.name,
        "num_parameters": num_parameters,
        "difference": difference,
        **times(watch.laps[1:]),
    }


def relative_difference(ours: list[Tensor], theirs: Sequence[Tensor], start: list[Tensor]) -> float:
    """‖ours − theirs‖ over the distance that training went."""
    ours_flat, theirs_flat, start_flat = (
        torch.cat([t.detach().flatten() for t in x]) for x in (ours, theirs, start)
    )
    return float((ours_flat - theirs_flat).norm() / (theirs_flat - start_flat).norm())


def times(laps: Sequence[dict[str, Spell]]) -> dict[str, Any]:
    """By either clock: the median over rounds of engine / bare, its quartiles, and median seconds."""
    found: dict[str, Any] = {}
    for clock in ("wall", "cpu"):
        engine, bare = ([getattr(lap[side], clock) for lap in laps] for side in ("engine", "bare"))
        ratios = [ours / theirs for ours, theirs in zip(engine, bare, strict=True)]
        found[clock] = {
            "ratio": statistics.median(ratios),
            "quartiles": statistics.quantiles(ratios)[::2],
            "engine_seconds": statistics.median(engine),
            "bare_seconds": statistics.median(bare),
        }
    return found


def main() -> None:
    arguments = parse_arguments(__doc__, "overhead")
    torch.set_num_threads(1)
    results, rows = [], []
    for case in QUICK if arguments.quick else CASES:
        with tempfile.TemporaryDirectory() as folder:
            shape = (case.num_clients, case.num_utterances, case.seconds, case.dim)
            store = make_store(Path(folder) / "corpus", *shape)
            result = measure(case, store, Path(folder) / "run")
        results.append({**result, "settings": asdict(case)})
        wall, cpu = result["wall"], result["cpu"]
        seconds = f"{wall['engine_seconds']:.3f} / {wall['bare_seconds']:.3f}"
        row = [case.name, f"{wall['ratio']:.3f}", f"{cpu['ratio']:.3f}", seconds]
        rows.append([*row, f"{result['difference']:.0e}"])
    header = ["model", "engine / bare, wall", "processor", "seconds a round", "difference at the end"]
    print_table(header, rows)
    write_result(
        arguments, {"threads": 1, "local": asdict(LOCAL), "server": asdict(SERVER), "cases": results}
    )


if __name__ == "__main__":
    main()
