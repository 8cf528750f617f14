"""What every combination of algorithms and wrappers promises: `world.COMBINATIONS`."""

from __future__ import annotations

import copy
import json
import math
import threading
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from world import (
    ALGORITHMS,
    BASES,
    COMBINATIONS,
    CONTEXT,
    COVERING,
    POOLS,
    ROUNDING,
    SEED,
    WRAPPERS,
    Case,
    World,
    assert_same,
    combined,
    start,
)

from antiphon.clients.states import ClientStates
from antiphon.core import ALGORITHMS as REGISTRY
from antiphon.core import Algorithm, Task, Update, Worker, lives_with_server, size_in_bytes
from antiphon.pools.recording import Faults, RecordingPool, no_faults
from antiphon.server.run_context import parts_of, prepare

PAIRS = [(names, "local") for names in COMBINATIONS] + [(names, "stacked") for names in COVERING]
COHORT = ["speaker/s00", "speaker/s01", "speaker/s02"]


@dataclass(frozen=True)
class Begun:
    """A combination after its first round, with what its clients have kept."""

    world: World
    case: Case
    pool: str
    folder: Path
    state: Any = None

    def round(
        self,
        cohort: Sequence[str] = COHORT,
        faults: Faults = no_faults,
        state: Any = None,
        counter: Counter | None = None,
    ) -> tuple[Any, Mapping[str, float], RecordingPool]:
        """Run the second round, or the one after a state: what comes of it, its metrics and its pool."""
        state = self.state if state is None else state
        pool: Any = POOLS[self.pool](self.world.worker_for(self.case, states=ClientStates(self.folder)))
        if counter is not None:
            pool = replace(pool, worker=counter.around(pool.worker))
        recording = RecordingPool(
            pool, cohort, 1, lambda client: None, threading.Event(), round=state.round, faults=faults
        )
        after, metrics = self.case.algorithm.round(state, cohort, recording)
        return after, metrics, recording

    def forget(self) -> None:
        """Remove what clients kept in the second round."""
        ClientStates(self.folder).rollback(1)

    def kept(self) -> dict[str, bytes]:
        """Return the files of all clients' states."""
        files = sorted(self.folder.rglob("*.safetensors"))
        return {str(file.relative_to(self.folder)): file.read_bytes() for file in files}


@dataclass(frozen=True)
class Second:
    """The second round of a combination, what it was given, and what clients had kept before and after."""

    before: Any
    kept_before: dict[str, bytes]
    after: Any
    metrics: Mapping[str, float]
    pool: RecordingPool
    counter: Counter
    kept: dict[str, bytes]


@pytest.fixture(scope="module")
def second(begun: Begun) -> Second:
    begun.forget()
    counter = Counter()
    before, kept_before = copy.deepcopy(begun.state), begun.kept()
    after, metrics, pool = begun.round(counter=counter)
    return Second(before, kept_before, after, metrics, pool, counter, begun.kept())


@pytest.fixture(scope="module", params=PAIRS, ids=lambda pair: f"{pair[0]}-{pair[1]}")
def begun(request: pytest.FixtureRequest, world: World, tmp_path_factory: pytest.TempPathFactory) -> Begun:
    names, pool = request.param
    case, folder = COMBINATIONS[names], tmp_path_factory.mktemp("clients")
    fresh = Begun(world, case, pool, folder)
    return Begun(world, case, pool, folder, fresh.round(state=start(case, world.params()))[0])


# --- Nobody is left out ---------------------------------------------------------------------------

# Counts of words in place of a model: `tests/unit/personalisation` runs it through the engine.
OTHER_CLIENTS = {"fmp"}


def test_every_algorithm_of_the_package_is_checked_here() -> None:
    """A new one is a line in `world.ALGORITHMS` or `world.BASES`, a new wrapper one in `world.WRAPPERS`."""
    cases = [*ALGORITHMS.values(), *COMBINATIONS.values()]
    checked = {type(part) for case in cases for part in parts_of(case.algorithm)}
    own = {cls for cls in (REGISTRY[name] for name in REGISTRY) if cls.__module__.startswith("antiphon.")}
    missing = {REGISTRY.name_of(cls) for cls in own - checked}
    assert missing == OTHER_CLIENTS
    wrappers = {REGISTRY.name_of(cls) for cls in own if typing.get_type_hints(cls).get("inner") is Algorithm}
    assert wrappers <= WRAPPERS.keys()


# --- Purity ---------------------------------------------------------------------------------------


def test_a_round_changes_nothing_it_was_given_and_does_the_same_twice(begun: Begun, second: Second) -> None:
    """The second time, clients find what they have kept in the meantime, and must not read it."""
    copied = copy.deepcopy(second.after)
    after, again, _ = begun.round()
    assert_same(begun.state, second.before)
    assert_same(second.after, copied)
    assert_same(second.after, after)
    assert dict(second.metrics) == dict(again)
    assert begun.kept() == second.kept
    assert second.kept_before.items() <= second.kept.items()


def test_a_round_counts_itself_moves_the_model_and_depends_on_the_seed(begun: Begun, tmp_path: Path) -> None:
    state = start(begun.case, begun.world.params(), SEED + 1)
    other, _, _ = replace(begun, folder=tmp_path).round(state=state)
    assert other.round == begun.state.round == 1
    assert all(bool(p.isfinite().all()) for p in begun.state.params.values())
    assert any(not torch.equal(begun.state.params[name], p) for name, p in state.params.items())
    assert any(not torch.equal(begun.state.params[name], p) for name, p in other.params.items())


@pytest.mark.parametrize("base", BASES)
def test_two_passes_in_a_round_are_two_rounds(base: str, world: World, tmp_path: Path) -> None:
    """In the second pass, clients find what they kept in the first."""
    plain = Begun(world, COMBINATIONS[base], "local", tmp_path / "plain")
    state = start(plain.case, world.params())
    for _ in range(2):
        state, _, _ = plain.round(state=state)
    twice = Begun(world, COMBINATIONS[f"twice {base}"], "local", tmp_path / "twice")
    after, _, _ = twice.round(state=start(twice.case, world.params()))
    assert_same(replace(after, round=2), state)


# --- Dropout --------------------------------------------------------------------------------------


def test_a_round_without_some_clients_is_the_round_of_the_others(begun: Begun) -> None:
    gone, others = COHORT[1], [COHORT[0], COHORT[2]]
    begun.forget()
    of_others, _, _ = begun.round(others)
    kept = begun.kept()
    begun.forget()
    with_gap, _, pool = begun.round(faults=lambda task, client: "away" if client == gone else "")
    rounding = ROUNDING[begun.pool]
    assert_same(with_gap, of_others, tolerance=rounding * begun.case.magnifies)
    assert pool.failures == {gone: "away"}
    assert list(pool.clients) == others
    assert math.fsum(stats["weight"] for stats in pool.clients.values()) == pytest.approx(1.0, abs=1e-12)
    assert begun.kept().keys() == kept.keys()
    if not rounding:
        assert begun.kept() == kept
    assert not any(f"{gone.rpartition('/')[2]}/000001" in name for name in kept)


# --- The journal, and what travels ----------------------------------------------------------------


class Counter:
    """Counts the bytes of tasks and answers where the clients are."""

    def __init__(self) -> None:
        self.down = self.up = 0
        self.tasks = dict[str, int]()

    def around(self, worker: Worker) -> Worker:
        self.worker = worker
        return self

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for client, update in zip(clients, self.worker.run(task, clients), strict=True):
            if not lives_with_server(client):
                self.down += task.num_bytes
                self.up += size_in_bytes(update.mean)
                self.tasks[client] = self.tasks.get(client, 0) + 1
            yield update


def test_the_journal_knows_every_client_every_task_and_every_byte(begun: Begun, second: Second) -> None:
    counter = second.counter
    entry = {"round": 2, "cohort": COHORT, **second.pool.entry(), "metrics": dict(second.metrics)}
    assert json.loads(json.dumps(entry, allow_nan=False)) == entry
    assert list(entry["clients"]) == COHORT
    assert entry["failures"] == {}
    for client, stats in entry["clients"].items():
        assert {"loss", "weight", "num_utterances", "seconds"} <= stats.keys()
        assert stats.get("tasks", 1) == counter.tasks[client]
    assert entry["loss"] == pytest.approx(
        math.fsum(stats["weight"] * stats["loss"] for stats in entry["clients"].values())
    )
    assert entry["metrics"]["client_lr"] > 0
    assert (entry["bytes_down"], entry["bytes_up"]) == (counter.down, counter.up)
    assert counter.up > 0
    passes = 2 ** sum(type(part) is WRAPPERS["twice"] for part in parts_of(begun.case.algorithm))
    kinds = 2 if type(list(parts_of(begun.case.algorithm))[-1]).__name__ == "Cautious" else 1
    assert set(counter.tasks.values()) == {passes * kinds}


def test_clients_report_how_much_they_keep(second: Second) -> None:
    kept = {name.split("/")[0] for name in second.kept if "/000001." in name}
    expected = {client for client, stats in second.pool.clients.items() if stats.get("state_bytes", 0) > 0}
    assert {client.replace("/", "%2F") for client in expected} == {c for c in kept if "server" not in c}


# --- Wrong orders ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("rehearsed federated_pruning fed_avg", "write federated_pruning around rehearsed"),
        ("rehearsed twice federated_pruning fed_avg", "write federated_pruning around rehearsed"),
        ("self_trained federated_pruning scaffold", "write federated_pruning around self_trained"),
        ("personal_layers federated_pruning cautious", "write federated_pruning around personal_layers"),
        ("ditto federated_pruning q_fed_avg", "write federated_pruning around ditto"),
        ("ditto self_trained fed_avg", "write self_trained around ditto"),
        ("ditto rehearsed self_trained fed_avg", "write self_trained around ditto"),
        ("ditto personal_layers fed_avg", "write personal_layers around ditto"),
        ("federated_pruning twice federated_pruning fed_avg", "a model is pruned once"),
    ],
)
def test_wrong_orders_are_refused_before_a_run_and_the_right_one_is_named(names: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        combined(names)


@pytest.mark.parametrize("names", COMBINATIONS)
def test_preparing_twice_is_preparing_once(names: str) -> None:
    assert prepare(COMBINATIONS[names].algorithm, CONTEXT) == COMBINATIONS[names].algorithm
