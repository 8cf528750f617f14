"""Seconds a round of the whole engine, over a bare PyTorch loop that takes the same steps.

The engine's side is everything a run does between two rounds: draw the cohort, build batches, train
each client, check and fold its update, the server's step, journal, clock, TensorBoard and a checkpoint
every round. The bare side is what one would write without it: batches ready in memory, one model,
`torch.optim.SGD` and `clip_grad_norm_` for each client, a running mean of parameters, and
`torch.optim.Adam` for the server. Both run in one process on one thread, round by round in turn, with
the same seeds (dropout included), and must end at the same parameters.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import TOKENS, make_store, parse_arguments, print_table, write_result
from torch import Tensor, nn

from antiphon.algorithms.fedavg import FedAvg, hierarchical
from antiphon.clients.client import Bench, Client
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Metrics, Pool, ServerState, Tensors
from antiphon.data.batches import Batch
from antiphon.data.partition import BySpeaker
from antiphon.data.store import FeatureStore
from antiphon.engine import Engine, Rounds
from antiphon.local import LocalTraining
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.pools.local import LocalPool
from antiphon.seeding import derive
from antiphon.server_opt import Adam

SEED = 7
LOCAL = LocalTraining(lr=0.05, epochs=2, batch_seconds=18.0, clip_norm=1.0)
SERVER = Adam()


@dataclass(frozen=True)
class Case:
    """A model and how much is done with it."""

    name: str
    encoder: ConformerConfig
    dim: int = 288
    num_clients: int = 40
    num_utterances: int = 6
    seconds: tuple[float, float] = (2.0, 6.0)
    cohort: int = 10
    rounds: int = 8  # the first of them warms up and is not counted


CASES = (
    Case("Conformer, 0.5 M", ConformerConfig(dim=96)),
    Case("Conformer, 3.1 M", ConformerConfig(dim=256)),
)
QUICK = (Case("tiny", ConformerConfig(dim=16, num_layers=1), 8, 4, 2, (1.0, 2.0), cohort=3, rounds=3),)


@dataclass(frozen=True)
class Spell:
    """How long something took: by the clock on the wall, and on the processor."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Spell:
        return cls(time.perf_counter(), time.process_time())

    def since(self, start: Spell) -> Spell:
        return Spell(self.wall - start.wall, self.cpu - start.cpu)


class Bare:
    """The loop one would write by hand."""

    def __init__(self, model: nn.Module, params: Tensors) -> None:
        self.model = model
        self.weights = list(model.parameters())
        self.server = [nn.Parameter(params[name].clone()) for name, _ in model.named_parameters()]
        betas = (SERVER.beta1, SERVER.beta2)
        self.adam = torch.optim.Adam(self.server, lr=SERVER.lr, betas=betas, eps=SERVER.epsilon)
        self.mean = [torch.zeros_like(weight) for weight in self.server]

    def round(self, work: Sequence[tuple[int, list[Batch]]]) -> None:
        """One round: for every client its seed and its batches."""
        self.model.train()
        torch._foreach_zero_(self.mean)
        for seed, batches in work:
            self.train(seed, batches)
            with torch.no_grad():
                torch._foreach_add_(self.mean, self.weights, alpha=1 / len(work))
        for weight, mean in zip(self.server, self.mean, strict=True):
            weight.grad = weight.detach() - mean
        self.adam.step()

    def train(self, seed: int, batches: list[Batch]) -> None:
        with torch.no_grad():
            torch._foreach_copy_(self.weights, self.server)
        sgd = torch.optim.SGD(self.weights, lr=LOCAL.lr)
        torch.manual_seed(seed)
        for batch in batches:
            sgd.zero_grad()
            (self.model.losses(batch) / batch.token_lengths).mean().backward()
            nn.utils.clip_grad_norm_(self.weights, LOCAL.clip_norm)
            sgd.step()


@dataclass
class Interleaved:
    """FedAvg with a bare round before each of its own.

    The engine's time for a round runs from there to the beginning of the next: journal, checkpoint and
    drawing of a cohort included. Batches of the bare round are made before its clock starts.
    """

    algorithm: FedAvg
    bare: Bare
    clients: dict[str, Client]
    bare_spells: list[Spell] = field(default_factory=list)
    engine_spells: list[Spell] = field(default_factory=list)
    began: Spell | None = None

    def init(self, params: Tensors) -> ServerState:
        return self.algorithm.init(params)

    def round(self, state: ServerState, cohort: Sequence[str], pool: Pool) -> tuple[ServerState, Metrics]:
        self.finish()
        work = self._work(state, cohort)
        start = Spell.now()
        self.bare.round(work)
        self.bare_spells.append(Spell.now().since(start))
        self.began = Spell.now()
        return self.algorithm.round(state, cohort, pool)

    def finish(self) -> None:
        """Ends the engine's round that is under way."""
        if self.began is not None:
            self.engine_spells.append(Spell.now().since(self.began))
            self.began = None

    def _work(self, state: ServerState, cohort: Sequence[str]) -> list[tuple[int, list[Batch]]]:
        base = int(LOCAL.task_config(state)["seed"])  # type: ignore[arg-type]
        work = []
        for name in cohort:
            seed, client = derive(base, name), self.clients[name]
            plan = client.training_batches(LOCAL.batch_seconds, LOCAL.epochs, LOCAL.steps, seed)
            work.append((seed, [client.batch(indices) for indices in plan]))
        return work


def measure(case: Case, store: FeatureStore, folder: Path) -> dict[str, Any]:
    """Runs both sides; the ratio is the median over rounds of engine / bare."""
    torch.manual_seed(SEED)
    config = CtcConfig(case.encoder)
    models = [config.build(case.dim, TOKENS.size) for _ in range(2)]
    params = {name: p.detach().clone() for name, p in models[0].named_parameters()}
    everyone = BySpeaker()(store, np.arange(len(store)), SEED)
    bench = Bench(store, TOKENS, models[0], params)
    clients = {name: Client(name, own, bench) for name, own in everyone.items()}
    bare = Bare(models[1], params)
    both = Interleaved(hierarchical(LOCAL, SERVER), bare, clients)
    rounds = Rounds(total=case.rounds, cohort=case.cohort, valid_every=0, save_every=1)
    pool = LocalPool(SpeechWorker(bench, everyone))
    outcome = Engine(both, pool, list(everyone), rounds, folder, SEED).run(params)  # type: ignore[type-var]
    both.finish()
    difference = relative_difference(list(outcome.state.params.values()), bare.server, list(params.values()))
    assert difference < 1e-3, f"the two sides ended {difference:.2e} apart: not the same work"
    num_parameters = sum(tensor.numel() for tensor in params.values())
    return {"case": case.name, "num_parameters": num_parameters, "difference": difference, **times(both)}


def relative_difference(ours: list[Tensor], theirs: Sequence[Tensor], start: list[Tensor]) -> float:
    """‖ours − theirs‖ over the distance that training went."""
    ours_flat, theirs_flat, start_flat = (torch.cat([t.detach().flatten() for t in x]) for x in (ours, theirs, start))
    return float((ours_flat - theirs_flat).norm() / (theirs_flat - start_flat).norm())


def times(both: Interleaved) -> dict[str, Any]:
    bare, engine = both.bare_spells[1:], both.engine_spells[1:]
    found: dict[str, Any] = {}
    for clock in ("wall", "cpu"):
        of_bare, of_engine = ([getattr(spell, clock) for spell in side] for side in (bare, engine))
        ratios = [e / b for e, b in zip(of_engine, of_bare, strict=True)]
        found[clock] = {
            "ratio": statistics.median(ratios),
            "ratios": ratios,
            "engine_seconds": statistics.median(of_engine),
            "bare_seconds": statistics.median(of_bare),
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
    write_result(arguments, {"threads": 1, "local": asdict(LOCAL), "server": asdict(SERVER), "cases": results})


if __name__ == "__main__":
    main()
