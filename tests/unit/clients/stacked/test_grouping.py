from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from world import World

from antiphon.clients.client import Client
from antiphon.clients.stacked.footprint import COPIES, HELD, WAITING, Footprint
from antiphon.clients.stacked.grouping import LAUNCH, Plan, cut, launches
from antiphon.tasks.local_training import LocalSteps, LocalTraining

LOCAL = LocalTraining(lr=0.3, epochs=2, batch_seconds=1.0)
WANTED = LocalSteps({}, LOCAL, seed=1)


class Planned:
    """Stands for a plan: the shapes of its steps."""

    def __init__(self, shapes: Sequence[tuple[int, int]]) -> None:
        self.steps = list(shapes)
        self.shapes = np.array(shapes)


def cost(batches: Sequence[tuple[int, int]]) -> int:
    """Of a launch, from the definition."""
    rows, frames = (max(shape[side] for shape in batches) for side in (0, 1))
    return LAUNCH + len(batches) * rows * frames


def cuts(batches: Sequence[tuple[int, int]]) -> Iterator[list[Sequence[tuple[int, int]]]]:
    """Every way to cut a list into neighbours."""
    if not batches:
        yield []
    for end in range(1, len(batches) + 1):
        for rest in cuts(batches[end:]):
            yield [batches[:end], *rest]


shapes = st.tuples(st.integers(1, 6), st.integers(100, 5000))


@settings(deadline=None, max_examples=60)
@given(st.lists(shapes, min_size=1, max_size=9))
def test_launches_are_the_cheapest_of_all_ways_to_cut_the_batches_by_length(
    drawn: list[tuple[int, int]],
) -> None:
    found = [
        [drawn[place] for place in members] for members in cut(np.array(drawn), Footprint(), max_clients=256)
    ]
    flat = [batch for batches in found for batch in batches]
    assert flat == sorted(drawn, key=lambda shape: (shape[1], shape[0]))
    assert sum(map(cost, found)) == min(sum(map(cost, way)) for way in cuts(flat))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(shapes, min_size=1, max_size=4), max_size=6), st.integers(1, 6))
def test_every_step_of_every_client_is_launched_once_and_in_order(
    drawn: list[list[tuple[int, int]]], most: int
) -> None:
    found = list(launches([Planned(steps) for steps in drawn], Footprint(), most))  # type: ignore[arg-type]
    for place, steps in enumerate(drawn):
        assert [launch.number for launch in found if place in launch.members] == list(range(len(steps)))
    assert all(1 <= len(set(launch.members)) == len(launch.members) <= most for launch in found)


def test_equal_clients_are_one_launch_and_unlike_ones_are_apart() -> None:
    equal = [Planned([(4, 300)] * 4)] * 64
    found = list(launches(equal, Footprint(), max_clients=256))  # type: ignore[arg-type]
    assert [launch.members.tolist() for launch in found] == [list(range(64))] * 4
    wide_then_long, long_then_wide = Planned([(100, 100), (1, 9999)]), Planned([(1, 9999), (100, 100)])
    mixed = [wide_then_long, long_then_wide] * 8
    found = list(launches(mixed, Footprint(), max_clients=256))  # type: ignore[arg-type]
    even, odd = list(range(0, 16, 2)), list(range(1, 16, 2))
    assert [launch.members.tolist() for launch in found] == [even, odd, odd, even]


def test_no_launch_is_larger_than_allowed() -> None:
    sizes = [len(members) for members in cut(np.array([(1, 10)] * 10), Footprint(), max_clients=4)]
    assert max(sizes) <= 4
    assert len(sizes) == 3


def test_launches_fit_the_memory(world: World) -> None:
    runtime = world.runtime("ctc")
    clients = {name: own[: 1 + number % 5] for number, (name, own) in enumerate(world.clients().items())}
    plans = [
        Plan(c := Client(n, own, runtime), list(c.steps(LOCAL, 1)), WANTED) for n, own in clients.items()
    ]
    footprint = Footprint(room=100.0 / (1 - HELD), update=25.0 / COPIES, linear=0.0)
    first = [launch for launch in launches(plans, footprint, max_clients=256) if launch.number == 0]
    assert [len(launch.members) for launch in first] == [4, 4]


def test_a_batch_that_does_not_fit_is_launched_alone() -> None:
    batches = np.array([(1, 10), *[(1, 10**9)] * 3])
    assert [len(members) for members in cut(batches, Footprint(room=1e6, linear=1.0), max_clients=256)] == [
        1
    ] * 4


def test_nobody_is_launched_when_nobody_came() -> None:
    assert list(launches([], Footprint(), max_clients=4)) == []


def test_a_footprint_grows_with_clients_rows_and_the_square_of_frames() -> None:
    footprint = Footprint(room=1000.0 / (1 - HELD), update=10.0 / COPIES, linear=1.0, quadratic=0.1)
    shapes = np.array([[3, 10]] * 2)  # 3 · (10 + 0.1 · 100) = 60 bytes, and 10 for the parameters
    assert footprint.fits(np.array([14, 15]), shapes).tolist() == [True, False]


def test_so_many_clients_are_under_way_as_their_parameters_and_updates_fit() -> None:
    footprint = Footprint(room=1000.0, update=10.0)
    assert footprint.max_in_training(max_clients=256) == int(HELD * 1000 / (WAITING * 10))
    assert footprint.max_in_training(max_clients=4) == 4
    assert Footprint(room=1.0, update=10.0).max_in_training(max_clients=4) == 1


def test_shapes_are_rows_and_longest_frames_of_each_step(world: World) -> None:
    runtime = world.runtime("ctc")
    name, own = next(iter(world.clients().items()))
    plan = Plan(client := Client(name, own, runtime), list(client.steps(LOCAL, 1)), WANTED)
    frames = [[int(world.store.num_frames[index]) for index in step.indices] for step in plan.steps]
    assert plan.shapes.tolist() == [[len(row), max(row)] for row in frames]
    assert sum(map(len, frames)) == 2 * len(client.usable)
