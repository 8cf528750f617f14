"""Several processes against one: what every algorithm comes to, on `world.ALGORITHMS`."""

from __future__ import annotations

import pytest
from twins import Twins, side_by_side
from world import ALGORITHMS, Case, World, assert_same, run_rounds, start

from antiphon.core import Pool, ServerState
from antiphon.pools.local import LocalPool

every = pytest.mark.parametrize("case", ALGORITHMS.values(), ids=ALGORITHMS.keys())


def two_rounds(case: Case, world: World, pool: Pool) -> ServerState:
    return run_rounds(case, start(case, world.params()), list(world.clients(case.clients)), pool, 2)


@every
def test_processes_agree_with_one_to_rounding_and_to_the_bit_when_ordered(case: Case, world: World) -> None:
    worker = world.worker_for(case)
    alone = two_rounds(case, world, LocalPool(worker))

    def together(ordered: bool) -> ServerState:
        pool = Twins(worker, ordered=ordered)
        return side_by_side(lambda group: two_rounds(case, world, pool), ordered=ordered)

    assert_same(together(ordered=True), alone)
    assert_same(together(ordered=False), alone, tolerance=1e-6 * case.magnifies)
