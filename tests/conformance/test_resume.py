"""Runs of every combination that are killed and resumed: `world.COMBINATIONS` through the engine.

Some clients drop out of some rounds. Two processes that fold in order leave the files of one process, so what
the other tests show of one process (journal, bytes, weights, dropout) holds for two.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import Kill, SmallRun
from world import COMBINATIONS, COVERING, World

PAIRS = [(names, "local") for names in COMBINATIONS]
PAIRS += [(names, pool) for pool in ("stacked", "two processes") for names in COVERING]


@pytest.mark.parametrize(("names", "pool"), PAIRS)
def test_a_run_that_is_killed_three_times_is_the_undisturbed_run(
    names: str, pool: str, world: World, tmp_path: Path
) -> None:
    """In the middle of a round, when clients have kept something but nothing else is saved, and after it."""
    run = SmallRun(world, COMBINATIONS[names], tmp_path / "undisturbed", pool)
    last = run.run()
    killed = run.in_folder(tmp_path / "killed")
    # Each of two processes sees the replies of its own clients.
    killed.run_killed(Kill(2, "at a reply", reply=1 if pool == "two processes" else 2), resume=False)
    killed.run_killed(Kill(2, "before the checkpoint"))
    killed.run_killed(Kill(2, "after the checkpoint"))
    assert killed.run(resume=True) == last
    assert killed.contents() == run.contents()


@pytest.mark.parametrize("names", COVERING)
def test_two_processes_that_fold_in_order_leave_the_files_of_one(
    names: str, world: World, tmp_path: Path
) -> None:
    one = SmallRun(world, COMBINATIONS[names], tmp_path / "one")
    two = SmallRun(world, COMBINATIONS[names], tmp_path / "two", "two processes", ordered=True)
    assert one.run() == two.run()
    assert one.contents() == two.contents()
