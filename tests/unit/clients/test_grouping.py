from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from world import World

from antiphon.clients.client import Client
from antiphon.clients.footprint import COPIES, HELD, Footprint
from antiphon.clients.grouping import LAUNCH, Plan, grouped
from antiphon.local import LocalTraining

LOCAL = LocalTraining(lr=0.3, epochs=2, batch_seconds=1.0)


class Planned:
    """Stands for a plan: a client's name and the shapes of its steps."""

    def __init__(self, name: str, shapes: Sequence[tuple[int, int]]) -> None:
        self.client = type("Named", (), {"id": name})()
        self.steps = list(shapes)
        self.shapes = np.array(shapes)


def cost(group: Sequence[Planned]) -> int:
    """Step by step, from the definition."""
    total = 0
    for number in range(max(len(plan.steps) for plan in group)):
        at_work = [plan.steps[number] for plan in group if number < len(plan.steps)]
        rows, frames = (max(shape[side] for shape in at_work) for side in (0, 1))
        total += LAUNCH + len(at_work) * rows * frames
    return total


def cuts(plans: Sequence[Planned]) -> Iterator[list[Sequence[Planned]]]:
    """Every way to cut a list into neighbours."""
    if not plans:
        yield []
    for end in range(1, len(plans) + 1):
        for rest in cuts(plans[end:]):
            yield [plans[:end], *rest]


shapes = st.tuples(st.integers(1, 6), st.integers(100, 5000))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(shapes, min_size=1, max_size=4), min_size=1, max_size=6))
def test_groups_are_the_cheapest_of_all_ways_to_cut(drawn: list[list[tuple[int, int]]]) -> None:
    plans = [Planned(f"client {number}", steps) for number, steps in enumerate(drawn)]
    groups = grouped(plans, Footprint(), most=256)  # type: ignore[arg-type]
    flat = [plan for group in groups for plan in group]
    assert sorted(plan.client.id for plan in flat) == sorted(plan.client.id for plan in plans)
    assert [len(plan.steps) for plan in flat] == sorted((len(plan.steps) for plan in flat), reverse=True)
    found = sum(cost(group) for group in groups)  # type: ignore[arg-type]
    assert found == min(sum(cost(group) for group in cut) for cut in cuts(flat))  # type: ignore[arg-type]


def test_equal_clients_are_one_group_and_unlike_ones_are_apart() -> None:
    equal = [Planned(f"{number:03}", [(4, 300)] * 4) for number in range(64)]
    assert [len(group) for group in grouped(equal, Footprint(), most=256)] == [64]  # type: ignore[arg-type]
    wide = [Planned(f"wide {number}", [(100, 100)]) for number in range(8)]
    long = [Planned(f"long {number}", [(1, 10_000)]) for number in range(8)]
    groups = grouped([*wide, *long], Footprint(), most=256)  # type: ignore[arg-type]
    assert [{plan.client.id[:4] for plan in group} for group in groups] == [{"wide"}, {"long"}]


def test_no_group_is_larger_than_allowed() -> None:
    equal = [Planned(f"{number:03}", [(1, 10)]) for number in range(10)]
    groups = grouped(equal, Footprint(), most=4)  # type: ignore[arg-type]
    assert max(len(group) for group in groups) <= 4
    assert len(groups) == 3


def test_groups_fit_the_memory_and_put_those_with_most_steps_first(world: World) -> None:
    bench = world.bench("ctc")
    clients = {name: own[: 1 + number % 5] for number, (name, own) in enumerate(world.clients().items())}
    plans = [Plan(c := Client(n, own, bench), list(c.steps(LOCAL, 1))) for n, own in clients.items()]
    footprint = Footprint(room=100.0 / (1 - HELD), update=25.0 / COPIES, linear=0.0)
    groups = grouped(plans, footprint, most=256)
    assert [len(group) for group in groups] == [4, 4]
    numbers = [len(plan.steps) for group in groups for plan in group]
    assert numbers == sorted(numbers, reverse=True)
    assert sorted(plan.client.id for group in groups for plan in group) == sorted(clients)


def test_a_client_that_does_not_fit_is_a_group_of_its_own() -> None:
    plans = [Planned("small", [(1, 10)]), *(Planned(f"huge {n}", [(1, 10**9)]) for n in range(3))]
    footprint = Footprint(room=1e6, linear=1.0)
    groups = grouped(plans, footprint, most=256)  # type: ignore[arg-type]
    assert [[plan.client.id for plan in group] for group in groups] == [[plan.client.id] for plan in plans]


def test_nobody_is_in_no_group() -> None:
    assert grouped([], Footprint(), most=4) == []


def test_a_footprint_grows_with_clients_rows_and_the_square_of_frames() -> None:
    footprint = Footprint(room=1000.0 / (1 - HELD), update=10.0 / COPIES, linear=1.0, quadratic=0.1)
    shapes = np.array([[[1, 10], [3, 10]]] * 2)  # 3 · (10 + 0.1 · 100) = 60 bytes, and 10 for the parameters
    assert footprint.fits(np.array([14, 15]), shapes).tolist() == [True, False]


def test_shapes_are_rows_and_longest_frames_of_each_step(world: World) -> None:
    bench = world.bench("ctc")
    name, own = next(iter(world.clients().items()))
    plan = Plan(client := Client(name, own, bench), list(client.steps(LOCAL, 1)))
    frames = [[int(world.store.num_frames[index]) for index in step.indices] for step in plan.steps]
    assert plan.shapes.tolist() == [[len(row), max(row)] for row in frames]
    assert sum(map(len, frames)) == 2 * len(client.usable)
