"""Clients in another process, at the other end of a socket, come to the bits of clients in this one."""

from __future__ import annotations

from pathlib import Path

import pytest
from elsewhere import remote
from world import ALGORITHMS, COMBINATIONS, Case, World, assert_same, run_rounds, start

from antiphon.clients.states import ClientStates
from antiphon.pools.local import LocalPool

CASES = {**ALGORITHMS, **COMBINATIONS}


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.safetensors"))}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_every_algorithm_ends_with_the_bits_of_the_local_pool(
    case: Case, world: World, tmp_path: Path
) -> None:
    clients = list(world.clients(case.clients))
    begin = start(case, world.params())
    here, there = tmp_path / "here", tmp_path / "there"
    local = run_rounds(case, begin, clients, LocalPool(world.worker_for(case, states=ClientStates(here))), 2)
    away = run_rounds(case, begin, clients, remote(world.worker_for(case, states=ClientStates(there))), 2)
    assert_same(away, local)
    assert files_in(there) == files_in(here)


@pytest.mark.parametrize("name", ["fedavg", "dga", "scaffold", "rehearsed"])
def test_as_they_arrive_differs_by_rounding_only(name: str, world: World, tmp_path: Path) -> None:
    case = CASES[name]
    clients = list(world.clients(case.clients))
    begin = start(case, world.params())
    local = run_rounds(
        case, begin, clients, LocalPool(world.worker_for(case, states=ClientStates(tmp_path / "here"))), 2
    )
    worker = world.worker_for(case, states=ClientStates(tmp_path / "there"))
    away = run_rounds(case, begin, clients, remote(worker, ordered=False), 2)
    assert_same(away, local, tolerance=1e-6)
