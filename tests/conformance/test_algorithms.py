"""What every algorithm promises, on every pool: `world.ALGORITHMS` × `world.POOLS`."""

from __future__ import annotations

import copy
import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from world import (
    ALGORITHMS,
    FEDERATED,
    POOLS,
    ROUNDING,
    SEED,
    Broken,
    Case,
    World,
    assert_same,
    run_rounds,
    start,
)

from antiphon.core import Collected, Failure, Pool, Report, ServerState, Task, Tensors, Update, size_in_bytes
from antiphon.pools.recording import RecordingPool
from antiphon.records import checkpoint
from antiphon.server.run_context import parts_of

MakePool = Callable[..., Pool]


@pytest.fixture(params=POOLS)
def make_pool(request: pytest.FixtureRequest) -> MakePool:
    return POOLS[request.param]


@pytest.fixture
def rounding(request: pytest.FixtureRequest) -> float:
    return ROUNDING[request.node.callspec.params["make_pool"]]


def every(cases: dict[str, Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases.values(), ids=cases.keys())


def observed(pool: Pool, cohort: list[str]) -> RecordingPool:
    return RecordingPool(pool, cohort, 1, lambda client: None, threading.Event())


def cohort_of(case: Case, world: World) -> list[str]:
    return sorted(world.clients(case.clients))[: case.cohort]


@dataclass(frozen=True)
class First:
    """The first round of a case: the states before and after it, its metrics, what went through its pool."""

    before: ServerState
    after: ServerState
    metrics: Mapping[str, float]
    watched: RecordingPool
    remembered: Remembering


@pytest.fixture(scope="module")
def first_rounds() -> dict[tuple[int, MakePool], First]:
    return {}


@pytest.fixture
def first(
    case: Case, make_pool: MakePool, world: World, first_rounds: dict[tuple[int, MakePool], First]
) -> First:
    """The first round, which is run once for all tests that only look at it."""
    key, cohort = (id(case), make_pool), cohort_of(case, world)
    if key not in first_rounds:
        remembered = Remembering(make_pool(world.worker_for(case)))
        watched = observed(remembered, cohort)
        before = start(case, world.params())
        after, metrics = case.algorithm.round(before, cohort, watched)
        first_rounds[key] = First(before, after, metrics, watched, remembered)
    return first_rounds[key]


# --- Exact resume ---------------------------------------------------------------------------------


ON_ATTENTION = ("fedavg", "dga", "rehearsed subspace", "central")  # all of them would take a minute
PAIRS = [(name, "ctc") for name in ALGORITHMS] + [(name, "las") for name in ON_ATTENTION]


@pytest.mark.parametrize(("name", "model"), PAIRS)
def test_four_rounds_are_two_and_a_checkpoint_and_two_more(
    name: str, model: str, make_pool: MakePool, world: World, tmp_path: Path
) -> None:
    case = ALGORITHMS[name]
    clients = world.clients(case.clients)
    pool = make_pool(world.worker_for(case, model))
    half = run_rounds(case, start(case, world.params(model)), list(clients), pool, 2)
    checkpoint.save(tmp_path / "round-000002", half, {})
    straight = run_rounds(case, half, list(clients), pool, 2)

    torch.manual_seed(99)  # whatever the process drew before must not matter
    restored, _ = checkpoint.load(tmp_path / "round-000002", start(case, world.params(model)))
    pool = make_pool(world.worker_for(case, model))
    resumed = run_rounds(case, restored, list(clients), pool, 2)
    assert straight.round == 4
    assert_same(straight, resumed)


@every(ALGORITHMS)
def test_state_survives_a_checkpoint(case: Case, first: First, world: World, tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "round-000001", first.after, {"best": None})
    loaded, notes = checkpoint.load(tmp_path / "round-000001", start(case, world.params()))
    assert_same(loaded, first.after)
    assert notes == {"best": None}


# --- Purity ---------------------------------------------------------------------------------------


@every(ALGORITHMS)
def test_a_round_changes_nothing_it_was_given_and_does_the_same_twice(
    case: Case, first: First, make_pool: MakePool, world: World
) -> None:
    cohort, pool = cohort_of(case, world), make_pool(world.worker_for(case))
    state = first.after  # moments are not empty now
    before = copy.deepcopy(state)
    once, metrics = case.algorithm.round(state, cohort, pool)
    kept = copy.deepcopy(once)
    twice, again = case.algorithm.round(state, cohort, pool)
    assert_same(state, before)
    assert_same(once, kept)
    assert_same(once, twice)
    assert dict(metrics) == dict(again)


@every(ALGORITHMS)
def test_a_round_moves_what_it_trains_and_counts_itself(case: Case, first: First, world: World) -> None:
    assert_same(first.before, start(case, world.params()))
    params = first.after.params
    assert first.after.round == 1
    assert any(not torch.equal(params[name], p) for name, p in first.before.params.items())
    assert all(bool(p.isfinite().all()) for p in params.values())


@every(ALGORITHMS)
def test_another_seed_gives_another_model(
    case: Case, first: First, make_pool: MakePool, world: World
) -> None:
    pool, state = make_pool(world.worker_for(case)), start(case, world.params(), SEED + 1)
    other, _ = case.algorithm.round(state, cohort_of(case, world), pool)
    assert any(not torch.equal(p, other.params[name]) for name, p in first.after.params.items())


# --- Dropout --------------------------------------------------------------------------------------


@every(FEDERATED)
def test_a_round_without_some_clients_is_the_round_of_the_others(
    case: Case, make_pool: MakePool, world: World, rounding: float
) -> None:
    worker, cohort = world.worker_for(case), cohort_of(case, world)
    state = start(case, world.params())
    with_gap, _ = case.algorithm.round(state, cohort, make_pool(Broken(worker, frozenset(cohort[1:2]))))
    of_others, _ = case.algorithm.round(state, cohort[:1] + cohort[2:], make_pool(worker))
    assert_same(with_gap, of_others, tolerance=rounding * case.magnifies)


@every(FEDERATED)
def test_weights_are_shared_among_those_who_came_back(case: Case, make_pool: MakePool, world: World) -> None:
    cohort = cohort_of(case, world)
    pool = observed(make_pool(Broken(world.worker_for(case), frozenset(cohort[:1]))), cohort)
    case.algorithm.round(start(case, world.params()), cohort, pool)
    weights = {client: stats["weight"] for client, stats in pool.clients.items()}
    assert list(weights) == cohort[1:]
    assert math.fsum(weights.values()) == pytest.approx(1.0, abs=1e-12)
    assert pool.failures == {cohort[0]: "broken on purpose"}


@every(FEDERATED)
def test_the_delta_is_the_weighted_mean_of_the_clients_deltas(
    case: Case, first: First, make_pool: MakePool, world: World
) -> None:
    cohort = cohort_of(case, world)
    task, total = first.remembered.carried_for(cohort)[-1]  # what was combined last is what moved the model
    apart = make_pool(world.worker_for(case)).collect(task, cohort)
    for name, mean in total.mean.items():
        expected = sum(
            first.watched.clients[report.client]["weight"]
            * apart.combine(only(report, apart.reports)).mean[name]
            for report in apart.reports
        )
        torch.testing.assert_close(mean, expected, rtol=1e-4, atol=1e-6)


def only(chosen: Report, reports: tuple[Report, ...]) -> list[float]:
    """Log-weights that leave one client of many."""
    return [0.0 if report is chosen else -1e30 for report in reports]


class Remembering:
    """A pool that keeps what went through it."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.carried = pool, list[tuple[Task, Update]]()

    def reduce(self, task: Task, cohort, weigh) -> Update:  # type: ignore[no-untyped-def]
        self.carried.append((task, self.pool.reduce(task, cohort, weigh)))
        return self.carried[-1][1]

    def collect(self, task: Task, cohort) -> Collected:  # type: ignore[no-untyped-def]
        return RememberedCollected(self.pool.collect(task, cohort), task, self.carried)

    def carried_for(self, cohort: list[str]) -> list[tuple[Task, Update]]:
        return [pair for pair in self.carried if [report.client for report in pair[1].reports] == cohort]


@dataclass(frozen=True)
class RememberedCollected:
    held: Collected
    task: Task
    carried: list[tuple[Task, Update]]

    @property
    def reports(self) -> Sequence[Report]:
        return self.held.reports

    @property
    def failures(self) -> Sequence[Failure]:
        return self.held.failures

    def combine(self, log_weights: Sequence[float]) -> Update:
        self.carried.append((self.task, self.held.combine(log_weights)))
        return self.carried[-1][1]

    def distances(self, point: Tensors) -> Sequence[float]:
        return self.held.distances(point)


# --- The journal, and what travels ----------------------------------------------------------------


@every(ALGORITHMS)
def test_the_journal_entry_is_plain_json(case: Case, first: First, world: World) -> None:
    cohort = cohort_of(case, world)
    entry = {"round": 1, "cohort": cohort, **first.watched.entry(), "metrics": dict(first.metrics)}
    assert json.loads(json.dumps(entry, allow_nan=False)) == entry
    assert list(entry["clients"]) == cohort
    for stats in entry["clients"].values():
        assert {"loss", "weight", "num_utterances", "seconds"} <= stats.keys()
    assert entry["metrics"]["client_lr"] > 0
    losses = [stats["weight"] * stats["loss"] for stats in entry["clients"].values()]
    assert entry["loss"] == pytest.approx(math.fsum(losses))


@every(ALGORITHMS)
def test_the_bytes_counted_are_those_of_the_tensors_that_travel(
    case: Case, first: First, world: World
) -> None:
    cohort, watched = cohort_of(case, world), first.watched
    task, update = first.remembered.carried_for(cohort)[0]
    assert watched.bytes_down == len(cohort) * task.num_bytes
    if any(getattr(part, "up", None) for part in parts_of(case.algorithm)):  # encoded
        assert watched.bytes_up == sum(report.bytes_up for report in update.reports)
        assert watched.bytes_up < 0.6 * len(cohort) * size_in_bytes(update.mean)
    else:
        assert watched.bytes_up == len(cohort) * size_in_bytes(update.mean)


@pytest.mark.parametrize(("name", "prefix"), [("subspace", "encoder."), ("rehearsed subspace", "output.")])
def test_only_trained_parameters_travel_and_the_others_never_change(
    name: str, prefix: str, make_pool: MakePool, world: World
) -> None:
    case, params = ALGORITHMS[name], world.params()
    cohort = cohort_of(case, world)
    pool = Remembering(make_pool(world.worker_for(case)))
    watched = observed(pool, cohort)
    state = start(case, params)
    for _ in range(2):
        state, _ = case.algorithm.round(state, cohort, watched)
    trained: Tensors = {n: p for n, p in params.items() if n.startswith(prefix)}
    frozen = params.keys() - trained.keys()
    for task, update in pool.carried:
        assert task.tensors.keys() == update.mean.keys() == trained.keys()
    assert watched.bytes_up == 2 * len(cohort) * size_in_bytes(trained)
    assert frozen
    for n in frozen:
        assert torch.equal(state.params[n], params[n]), n
    assert any(not torch.equal(state.params[n], params[n]) for n in trained)
