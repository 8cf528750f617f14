"""Does `antiphon audit` confirm what private runs claim, and find faults that are planted in them?

    python benchmarks/audits.py

Every run trains a small recogniser by the real client code, with 4,000 canaries, and is audited from its
folder as `antiphon audit` does. Speech is noise: what canaries show does not depend on it. Each mechanism is
run as it is, and with faults that its accountant does not know. All runs claim the same ε. Three seeds.
Noise of clients is made for the clients that must stay until a sum is open. Here these are all of a round, so
there is as much noise as claimed, and no more.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from common import TOKENS, argument_parser, make_store, print_table, write_result

import antiphon
from antiphon.algorithms.fedavg import FedAvg
from antiphon.algorithms.private import Private
from antiphon.algorithms.rehearsal import SERVER_CLIENT
from antiphon.clients.client import ClientRuntime
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Pool
from antiphon.data.partition import BySpeaker
from antiphon.data.store import FeatureStore
from antiphon.engine import Engine, Rounds
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.pools.local import LocalPool
from antiphon.privacy.distributed_noise import Distributed, DistributedPlan
from antiphon.privacy.participation import PoissonSampling, RoundRobin
from antiphon.privacy.update_accounting import Blt, SampledPlan, _CorrelatedPlan
from antiphon.secure_aggregation.rules import SecureAggregation
from antiphon.secure_aggregation.secure_pool import SecurePool, in_process
from antiphon.server.weighting import Uniform
from antiphon.tasks.local_training import LocalTraining
from antiphon.tasks.noised_update import NoisedByClient
from antiphon.tasks.update_clipping import (
    AdaptiveUpdate,
    EachLayer,
    EachLayerByDimension,
    EachLayerByNorm,
    WholeUpdate,
    _Clipping,
)

BOUND = 0.3
SECURE = SecureAggregation(threshold=1.0)
COSINE = ("estimate", "low", "high")


@dataclass(frozen=True)
class Size:
    """How much is done."""

    width: int = 64
    dim: int = 32
    num_speakers: int = 24
    cohort: int = 8
    separation: int = 3  # two turns in six rounds
    rounds: int = 6
    canaries: int = 4000
    epsilon: float = 3.0
    delta: float = 1e-6


QUICK = Size(width=16, canaries=100)
SAMPLED = "flat, Poisson samples"
QUICKLY = ("flat, BandMF", SAMPLED, "flat, noise of clients")  # mechanisms of --quick


# --- Mechanisms and faults ------------------------------------------------------------------------


def mechanisms(size: Size) -> dict[str, Private]:
    """Return what is audited, by name."""
    turns, inner = RoundRobin(size.separation), FedAvg(LocalTraining(lr=0.05), weighting=Uniform())
    flat = Private(
        inner,
        size.epsilon,
        size.delta,
        WholeUpdate(BOUND),
        turns,
        simulated=True,
        canaries=size.canaries,
    )
    return {
        "flat, BandMF": flat,
        "each layer, BandMF": replace(flat, clipping=EachLayer(BOUND)),
        "each layer by dimension, BandMF": replace(flat, clipping=EachLayerByDimension(BOUND)),
        "each layer by norm, BandMF": replace(flat, clipping=EachLayerByNorm(BOUND)),
        "adaptive, BandMF": replace(flat, clipping=AdaptiveUpdate(BOUND)),
        "flat, independent noise": replace(flat, bands=1),
        "flat, BLT": replace(flat, noise=Blt()),
        SAMPLED: replace(flat, cohorts=PoissonSampling(1 / size.separation)),
        "flat, noise of clients": replace(flat, noise=Distributed(), trusts_clients=True),
    }


@contextmanager
def half_the_noise() -> Iterator[None]:
    """The accountant counts with the noise that was planned."""
    deviations = {kind: kind.deviation.fget for kind in (_CorrelatedPlan, SampledPlan, DistributedPlan)}
    correlated, distributed = _CorrelatedPlan.cost, DistributedPlan.cost

    def half(kind: Any) -> property:
        return property(lambda plan: deviations[kind](plan) / 2)

    def shift(plan: Any, rounds: int) -> Any:
        return replace(correlated(plan, rounds), shift=correlated(plan, rounds).shift / 2)

    def rho(plan: Any, rounds: int) -> Any:
        return replace(distributed(plan, rounds), rho=distributed(plan, rounds).rho / 4)

    with (
        patch.object(_CorrelatedPlan, "deviation", half(_CorrelatedPlan)),
        patch.object(_CorrelatedPlan, "cost", shift),
        patch.object(SampledPlan, "deviation", half(SampledPlan)),
        patch.object(DistributedPlan, "deviation", half(DistributedPlan)),
        patch.object(DistributedPlan, "cost", rho),
    ):
        yield


def no_clipping() -> AbstractContextManager[Any]:
    return patch.object(_Clipping, "__call__", lambda clipping, update, room=0.0: update)


@contextmanager
def turns_in_every_round() -> Iterator[None]:
    def always(*arguments: Any) -> bool:
        return True

    with patch.object(RoundRobin, "takes_part", always), patch.object(PoissonSampling, "takes_part", always):
        yield


def one_turn_too_many() -> AbstractContextManager[Any]:
    """Clients whose turn was in the first or second round come back one round later."""
    planned = RoundRobin.takes_part

    def more(turns: Any, client: str, round: int, seed: int, key: bytes) -> bool:
        repeated = 0 < round < turns.separation and planned(turns, client, round - 1, seed, key)
        return repeated or planned(turns, client, round, seed, key)

    return patch.object(RoundRobin, "takes_part", more)


def no_shares() -> AbstractContextManager[Any]:
    """Clients leave out their noise."""
    return patch.object(NoisedByClient, "noised", lambda view, whole, threshold, words: whole.copy())


Fault = Callable[[], AbstractContextManager[Any]]
FAULTS: dict[str, Fault] = {
    "": nullcontext,
    "half the noise": half_the_noise,
    "no clipping": no_clipping,
    "a turn in every round": turns_in_every_round,
    "one turn too many": one_turn_too_many,
    "clients add no noise": no_shares,
}


def faults_of(private: Private) -> dict[str, Fault]:
    """Return the faults that can be planted in a mechanism; the first one is none."""
    left_out = set()
    if not isinstance(private.noise, Distributed):
        left_out.add("clients add no noise")
    if isinstance(private.cohorts, PoissonSampling):
        left_out.add("one turn too many")  # there is no number of turns
    return {name: fault for name, fault in FAULTS.items() if name not in left_out}


# --- Runs -----------------------------------------------------------------------------------------


def run(private: Private, size: Size, store: FeatureStore, folder: Path, seed: int) -> None:
    """Train, and leave what canaries show in the folder."""
    torch.manual_seed(seed)
    encoder = ConformerConfig(dim=size.width, num_layers=1, num_heads=2)
    model = CtcConfig(encoder).build(size.dim, TOKENS.size)
    params = {name: p.detach().clone() for name, p in model.named_parameters()}
    clients = dict(BySpeaker()(store, np.arange(len(store)), seed))
    everyone = {**clients, SERVER_CLIENT: np.arange(4)}  # for clipping by norm
    worker = SpeechWorker(ClientRuntime(store, TOKENS, model, params), everyone)
    pool: Pool = LocalPool(worker)
    if isinstance(private.noise, Distributed):
        pool = SecurePool(in_process(worker, SECURE.max_share, seed), pool, SECURE, "run")
    rounds = Rounds(size.rounds, size.cohort, min_clients=0, valid_every=0)
    Engine(private, pool, list(clients), rounds, folder, seed=seed).run(params)


def audit_one(private: Private, size: Size, store: FeatureStore, seed: int) -> dict[str, Any]:
    """Run and audit once."""
    with tempfile.TemporaryDirectory() as folder:
        run(private, size, store, Path(folder), seed)
        found = antiphon.audit(folder)
    return {
        "claimed": found.claimed,
        "refuted": found.is_refuted,
        "at_least": found.at_least,
        "cosine": asdict(found.cosine),
    }


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print means over seeds: an estimate of ε without a fault, and with each fault what ε is at least."""
    found = {(row["mechanism"], row["fault"]): row["seeds"] for row in rows}
    lines = []
    for mechanism in dict.fromkeys(name for name, _ in found):
        seeds = found[mechanism, ""]
        estimate, low, high = (mean_of([one["cosine"] for one in seeds], key) for key in COSINE)
        cosine = f"{estimate:.1f} [{low:.1f}, {high:.1f}]"
        lines.append([mechanism, cosine, *(at_least(found.get((mechanism, fault), [])) for fault in FAULTS)])
    print("ε is at least this, and the seeds in which the claim is refuted")
    print_table(["mechanism", "no fault: by cosines", "no fault", *list(FAULTS)[1:]], lines)


def at_least(seeds: Sequence[Mapping[str, Any]]) -> str:
    """Return the larger bound of the two tests, and in how many seeds it refutes the claim."""
    if not seeds:
        return ""
    bounds = [max(one["at_least"], one["cosine"]["low"]) for one in seeds]
    mean = statistics.mean(bounds)
    return f"{mean:{'.1f' if mean < 100 else ',.0f'}}, {sum(one['refuted'] for one in seeds)} of {len(seeds)}"


def mean_of(found: Sequence[Mapping[str, Any]], key: str) -> float:
    return statistics.mean(one[key] for one in found)


def main() -> None:
    parser = argument_parser(__doc__, "audits")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    size, seeds = (QUICK, [0]) if arguments.quick else (Size(), arguments.seeds)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder) / "corpus", size.num_speakers, 1, (1.0, 1.2), size.dim)
        for name, private in mechanisms(size).items():
            if arguments.quick and name not in QUICKLY:
                continue
            for fault, plant in faults_of(private).items():
                with plant():
                    found = [audit_one(private, size, store, seed) for seed in seeds]
                rows.append({"mechanism": name, "fault": fault, "seeds": found})
                print(f"{name}, {fault or 'no fault'}: done", flush=True)
    show(rows)
    write_result(arguments, {"seeds": seeds, "settings": asdict(size), "rows": rows})


if __name__ == "__main__":
    main()
