"""What one client can change in a private round, by brute force: real training, every pool, parts of a model.

One client is replaced by another one with other speech, or leaves. Noise is the same in both rounds, so the
difference of what they release is what the noise has to hide: C / N for a client that leaves, 2 C / N for one
that is replaced, in every layer with the bound of that layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from world import FRONTEND, LOCAL, MASKS, MODELS, POOLS, SEED, SERVER_CLIENT, World

from antiphon.algorithms.fedavg import FedAvg
from antiphon.algorithms.private import Private
from antiphon.clients.client import ClientRuntime
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Tensors, Worker
from antiphon.models.adapters import AdaptedConfig, LowRank
from antiphon.privacy.participation import RoundRobin
from antiphon.server.weighting import Uniform
from antiphon.tasks.update_clipping import (
    AdaptiveUpdate,
    EachLayer,
    EachLayerByDimension,
    EachLayerByNorm,
    UpdateClipping,
    WholeUpdate,
)

BOUND, PLANNED = 0.02, 5.0  # far below the length of an update
ROUNDING = 2e-6
NAMES = ("speaker/s00", "speaker/s01", "speaker/s02", "speaker/s03")
CLIPPINGS = [WholeUpdate(BOUND), EachLayer(BOUND), EachLayerByDimension(BOUND), EachLayerByNorm(BOUND)]
CLIPPINGS += [AdaptiveUpdate(BOUND)]
TRAINED = {"all": ("*",), "subspace": ("encoder.*",), "low rank": ("*adapter_*",)}


def worker_of(world: World, trained: str, odd: str) -> SpeechWorker:
    """A worker whose first client has the speech of the client `odd`."""
    config: Any = MODELS["ctc"]
    if trained == "low rank":
        config = AdaptedConfig(config, LowRank(rank=2))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = config.build(FRONTEND.dim, world.tokens.size)
    base = {name: p.detach().clone() for name, p in model.named_parameters()}
    clients = {**world.clients(), SERVER_CLIENT: world.store.where("test")}
    clients[NAMES[0]] = clients[odd]
    return SpeechWorker(ClientRuntime(world.store, world.tokens, model, base, MASKS), clients)


def released(worker: Worker, base: Tensors, algorithm: Private, cohort: Sequence[str], pool: Any) -> Tensors:
    """What a round subtracts from the parameters that are trained."""
    after, _ = algorithm.round(algorithm.init(base).with_seed(SEED), cohort, pool(worker))
    moved = {name: (p - after.params[name]).double() for name, p in base.items()}
    return {name: change for name, change in moved.items() if bool(change.any())}


def length(tensors: Tensors) -> float:
    return math.hypot(*(float(tensor.norm()) for tensor in tensors.values()))


@pytest.mark.parametrize("clipping", CLIPPINGS, ids=lambda clipping: type(clipping).__name__)
@pytest.mark.parametrize("trained", TRAINED)
@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS.keys())
def test_one_client_moves_a_release_by_no_more_than_its_bound_in_any_layer(
    pool: Callable[[Worker], Any], trained: str, clipping: UpdateClipping, world: World
) -> None:
    local = replace(LOCAL, lr=5.0)
    inner = FedAvg(local, weighting=Uniform(), trainable=TRAINED[trained])
    algorithm = Private(
        inner,
        epsilon=1e6,
        clipping=clipping,
        cohorts=RoundRobin(1),
        noise_multiplier=0.01,
        cohort=PLANNED,
        rounds=4,
        simulated=True,
    )
    ordinary = worker_of(world, trained, NAMES[0])
    base = ordinary.runtime.base
    all_four = released(ordinary, base, algorithm, NAMES, pool)
    replaced = released(worker_of(world, trained, NAMES[3]), base, algorithm, NAMES, pool)
    without = released(ordinary, base, algorithm, NAMES[1:], pool)
    sizes = {name: tensor.numel() for name, tensor in all_four.items()}
    assert (len(sizes) < len(base)) == (trained != "all")
    for other, times in ((without, 1), (replaced, 2)):
        change = {name: tensor - other[name] for name, tensor in all_four.items()}
        limit = times * BOUND / PLANNED
        assert 0.1 * limit < length(change) <= limit + ROUNDING
        for name, share in zip(sizes, shares_of(clipping, sizes, all_four), strict=True):
            assert float(change[name].norm()) <= limit * math.sqrt(share) + ROUNDING


def shares_of(clipping: UpdateClipping, sizes: dict[str, int], moved: Tensors) -> list[float]:
    """The share of each layer in the bound, if layers have bounds of their own."""
    if isinstance(clipping, WholeUpdate | EachLayerByNorm):  # norms are learnt in the round
        return [1.0] * len(sizes)
    shares = clipping.shares(sizes)
    return [share / sum(shares) for share in shares]
