"""Algorithms and wrappers under secure aggregation: the same rounds, to the step of fixed-point numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from world import ALGORITHMS, COMBINATIONS, Case, World, assert_same, run_rounds, start

from antiphon.algorithms.private import Private
from antiphon.clients.states import ClientStates
from antiphon.core import Pool
from antiphon.pools.local import LocalPool
from antiphon.secure_aggregation.rules import SecureAggregation
from antiphon.secure_aggregation.secure_pool import SecurePool, in_process
from antiphon.server.run_context import parts_of

CASES = {**ALGORITHMS, **COMBINATIONS}
# Server optimisers that divide by the size of a gradient magnify the rounding of entries near 0.
PLAIN_SERVERS = (
    "fedavg",
    "fedprox",
    "hierarchical momentum",
    "bmuf",
    "rehearsed subspace",
    "scaffold",
    "q_fed_avg",
    "fed_dyn",
    "afl",
    "ditto scaffold",
    "personal_layers scaffold",
    "federated_pruning rehearsed scaffold",
    "self_trained scaffold",
)


def rounds(world: World, case: Case, folder: Path, secure: bool, bound: float = 1.0) -> object:
    worker = world.worker_for(case, states=ClientStates(folder))
    pool: Pool = LocalPool(worker)
    if secure:
        settings = SecureAggregation(bound=bound, max_share=0.95)
        pool = SecurePool(in_process(worker, max_share=0.95), pool, settings, "run")
    clients = world.clients(case.clients)
    return run_rounds(case, start(case, world.params()), list(clients), pool, 2)


@pytest.mark.parametrize("name", PLAIN_SERVERS)
def test_rounds_under_masks_are_those_without(name: str, world: World, tmp_path: Path) -> None:
    case = CASES[name]
    plain, one, two = (
        rounds(world, case, tmp_path / kind, kind != "plain") for kind in ("plain", "one", "two")
    )
    assert_same(plain.params, one.params, tolerance=1e-6)  # type: ignore[attr-defined]
    assert_same(one, two)  # masks differ, sums do not


@pytest.mark.parametrize("name", ["dga rl", "geometric median, clipped", "rehearsed dga_rl"])
def test_algorithms_that_need_single_updates_say_so_and_are_refused(
    name: str, world: World, tmp_path: Path
) -> None:
    case = CASES[name]
    assert any(getattr(part, "collects", False) for part in parts_of(case.algorithm))
    with pytest.raises(ValueError, match="secure aggregation cannot collect updates"):
        rounds(world, case, tmp_path, secure=True)


def test_private_sums_under_masks_are_those_without_if_clients_clip(world: World, tmp_path: Path) -> None:
    case = CASES["private even"]
    private = case.algorithm
    assert isinstance(private, Private)
    trusting = replace(case, algorithm=replace(private, trusts_clients=True))
    bound = private.clipping.bound
    plain, secure = (
        rounds(world, trusting, tmp_path / kind, kind == "secure", bound) for kind in ("plain", "secure")
    )
    assert_same(plain.params, secure.params, tolerance=1e-6)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="Clipped: the server would have to change single updates"):
        rounds(world, case, tmp_path / "again", secure=True)
