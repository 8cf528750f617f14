"""The server's half of marginal personalisation: pooled unigrams, on every pool, by hand-computed values."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from twins import Twins
from world import Broken, assert_same

from antiphon.algorithms.fmp import MARGINAL, Fmp, FmpState, background_params
from antiphon.core import Pool, Task, Worker
from antiphon.engine import Engine, Rounds, sample_cohort
from antiphon.personalisation.word_cache import Cache, MarginalWorker
from antiphon.pools.local import LocalPool
from antiphon.privacy.release import Released
from antiphon.records import checkpoint

SIZE = 4
COUNTS = {"a": [0, 2, 0, 0], "b": [0, 1, 3, 0], "c": [1, 0, 0, 1]}
BACKGROUND = [0.1, 0.2, 0.3, 0.4]
POOLS: dict[str, Callable[[Worker], Pool]] = {
    "local": LocalPool,
    "two processes": Twins,
    "two processes, ordered": lambda worker: Twins(worker, ordered=True),
}


def cache(counts: list[float]) -> Cache:
    return Cache().plus(np.flatnonzero(counts), np.array(counts, dtype=float)[np.flatnonzero(counts)])


def worker(counts: Mapping[str, list[float]] = COUNTS, **more: object) -> MarginalWorker:
    return MarginalWorker({name: cache(row) for name, row in counts.items()}, SIZE, **more)  # type: ignore[arg-type]


def begin(algorithm: Fmp) -> FmpState:
    return algorithm.init(background_params(BACKGROUND))


def values(state: FmpState) -> list[float]:
    found: list[float] = state.params[MARGINAL].tolist()
    return found


@pytest.fixture(params=POOLS)
def make_pool(request: pytest.FixtureRequest) -> Callable[[Worker], Pool]:
    return POOLS[request.param]


@pytest.mark.parametrize("differences", [False, True])
def test_the_marginal_is_the_unigram_of_all_clients_words_together(
    make_pool: Callable[[Worker], Pool], differences: bool
) -> None:
    algorithm = Fmp(differences=differences)
    state, metrics = algorithm.round(begin(algorithm), list(COUNTS), make_pool(worker()))
    assert values(state) == pytest.approx([1 / 8, 3 / 8, 3 / 8, 1 / 8], abs=1e-12)
    assert metrics["mass"] == pytest.approx(8.0)
    assert metrics["num_clients"] == 3
    assert state.round == 1


def test_a_round_of_some_clients_is_their_unigram_alone() -> None:
    state, _ = Fmp().round(begin(Fmp()), ["a", "c"], LocalPool(worker()))
    assert values(state) == pytest.approx([1 / 4, 2 / 4, 0, 1 / 4])


def test_only_with_differences_does_the_last_marginal_travel() -> None:
    sent: list[Task] = []

    class Watching(MarginalWorker):
        def run(self, task, clients):  # type: ignore[no-untyped-def]
            sent.append(task)
            return super().run(task, clients)

    caches = worker().caches
    for differences in (False, True):
        algorithm = Fmp(differences)
        algorithm.round(begin(algorithm), list(COUNTS), LocalPool(Watching(caches, SIZE)))
    assert [list(task.tensors) for task in sent] == [[], [MARGINAL]]


def test_a_difference_is_to_the_marginal_that_was_sent() -> None:
    task = Task(MARGINAL, background_params(BACKGROUND), {"differences": True})
    (update,) = worker().run(task, ["b"])
    assert update.mean[MARGINAL].tolist() == pytest.approx([-0.1, 0.25 - 0.2, 0.75 - 0.3, -0.4])


def test_earlier_rounds_fade_by_decay() -> None:
    algorithm = Fmp(decay=0.5)
    state, _ = algorithm.round(begin(algorithm), ["a"], LocalPool(worker()))
    assert values(state) == pytest.approx([0, 1, 0, 0])  # the background is no count and does not fade in
    state, metrics = algorithm.round(state, ["b"], LocalPool(worker()))
    assert values(state) == pytest.approx([0, 2 / 5, 3 / 5, 0])  # 0.5 · [0 2 0 0] + [0 1 3 0]
    assert metrics["mass"] == pytest.approx(5.0)
    state, _ = algorithm.round(state, ["c"], LocalPool(worker()))
    assert values(state) == pytest.approx([1 / 4.5, 1 / 4.5, 1.5 / 4.5, 1 / 4.5])


def test_without_decay_earlier_rounds_are_forgotten() -> None:
    state, _ = Fmp().round(begin(Fmp()), ["a"], LocalPool(worker()))
    state, _ = Fmp().round(state, ["b"], LocalPool(worker()))
    assert values(state) == pytest.approx([0, 1 / 4, 3 / 4, 0])


def test_clients_who_said_nothing_are_left_out_and_a_round_of_them_changes_nothing(
    make_pool: Callable[[Worker], Pool],
) -> None:
    silent = worker({**COUNTS, "d": [0, 0, 0, 0]})
    state, _ = Fmp().round(begin(Fmp()), ["a", "d"], make_pool(silent))
    assert values(state) == pytest.approx([0, 1, 0, 0])
    state, metrics = Fmp().round(begin(Fmp()), ["d"], make_pool(silent))
    assert values(state) == BACKGROUND
    assert state.round == 1
    assert metrics["num_clients"] == 0


@dataclass(frozen=True)
class AddRound:
    """Counts that are known to have passed through here."""

    def __call__(self, counts: Tensor, round: int, memory: Mapping[str, Any] | None) -> Released:
        return Released(counts + 2.0 * (round + 1), {"before": memory}, {"epsilon": 0.5})


def test_what_is_released_are_pooled_counts_of_the_round() -> None:
    state, metrics = Fmp(release=AddRound()).round(begin(Fmp()), list(COUNTS), LocalPool(worker()))
    assert values(state) == pytest.approx([3 / 16, 5 / 16, 5 / 16, 3 / 16])
    assert metrics["mass"] == pytest.approx(16.0)
    state, metrics = Fmp(release=AddRound()).round(state, list(COUNTS), LocalPool(worker()))
    assert metrics == {"mass": pytest.approx(8 + 4 * SIZE), "num_clients": 3, "epsilon": 0.5}
    assert state.released == {"before": {"before": None}}


def test_a_release_of_nothing_leaves_the_marginal_as_it_was() -> None:
    nothing = Fmp(release=lambda counts, round, memory: Released(counts * 0, {}, {}))
    state, _ = nothing.round(begin(Fmp()), list(COUNTS), LocalPool(worker()))
    assert values(state) == BACKGROUND
    assert state.round == 1


def test_a_cap_bounds_what_a_client_adds_to_the_pool() -> None:
    def at_most_two(counts: Tensor) -> Tensor:
        return counts * min(1.0, 2.0 / float(counts.sum()))

    state, metrics = Fmp().round(begin(Fmp()), list(COUNTS), LocalPool(worker(cap=at_most_two)))
    assert metrics["mass"] == pytest.approx(6.0)
    assert values(state) == pytest.approx([1 / 6, 2.5 / 6, 1.5 / 6, 1 / 6])


# --- What every algorithm promises ----------------------------------------------------------------


every = pytest.mark.parametrize(
    "algorithm", [Fmp(), Fmp(differences=True), Fmp(decay=0.9)], ids=["plain", "differences", "decay"]
)


@every
def test_two_rounds_are_one_and_a_checkpoint_and_one_more(
    algorithm: Fmp, make_pool: Callable[[Worker], Pool], tmp_path: Path
) -> None:
    pool = make_pool(worker())
    half, _ = algorithm.round(replace(begin(algorithm), seed=3), ["a", "b"], pool)
    before = copy.deepcopy(half)
    straight, _ = algorithm.round(half, ["b", "c"], pool)
    assert_same(half, before)
    checkpoint.save(tmp_path / "round-000001", half, {})
    restored, _ = checkpoint.load(tmp_path / "round-000001", begin(algorithm))
    assert_same(restored, half)
    resumed, _ = algorithm.round(restored, ["b", "c"], pool)
    assert_same(resumed, straight)


@every
def test_a_round_without_some_clients_is_the_round_of_the_others(
    algorithm: Fmp, make_pool: Callable[[Worker], Pool]
) -> None:
    gap, _ = algorithm.round(begin(algorithm), list(COUNTS), make_pool(Broken(worker(), frozenset("b"))))
    others, _ = algorithm.round(begin(algorithm), ["a", "c"], make_pool(worker()))
    assert_same(gap, others, tolerance=1e-12)


def test_processes_agree_with_one_to_the_bit_when_ordered() -> None:
    alone, _ = Fmp().round(begin(Fmp()), list(COUNTS), LocalPool(worker()))
    together, _ = Fmp().round(begin(Fmp()), list(COUNTS), Twins(worker(), ordered=True))
    assert_same(together, alone)


def test_the_engine_draws_cohorts_journals_and_resumes(tmp_path: Path) -> None:
    def run(folder: Path, total: int, resume: bool = False) -> FmpState:
        rounds = Rounds(total=total, cohort=2)
        engine = Engine(Fmp(decay=0.5), LocalPool(worker()), list(COUNTS), rounds, folder, seed=5)
        state = engine.run(background_params(BACKGROUND), resume).state
        assert isinstance(state, FmpState)
        return state

    straight = run(tmp_path / "straight", 4)
    run(tmp_path / "stopped", 2)
    assert_same(run(tmp_path / "stopped", 4, resume=True), straight)
    expected = torch.zeros(SIZE, dtype=torch.float64)
    for number in range(4):
        cohort = sample_cohort(sorted(COUNTS), 2, 5, number)
        expected = 0.5 * expected + sum(torch.tensor(COUNTS[name], dtype=torch.float64) for name in cohort)
    torch.testing.assert_close(straight.params[MARGINAL], expected / expected.sum())
    entries = (tmp_path / "straight" / "journal.jsonl").read_text().splitlines()
    assert json.loads(entries[-1])["metrics"]["mass"] == pytest.approx(float(expected.sum()))


# --- Refusals -------------------------------------------------------------------------------------


def test_other_parameters_than_one_vector_are_refused() -> None:
    with pytest.raises(ValueError, match="one vector called 'marginal'"):
        Fmp().init({"w": torch.zeros(3)})


def test_a_decay_beyond_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match="decay must be between 0"):
        Fmp(decay=1.5)


def test_other_work_and_other_clients_are_refused() -> None:
    with pytest.raises(ValueError, match="no client work of kind 'train'"):
        list(worker().run(Task("train"), ["a"]))
    with pytest.raises(ValueError, match="no client 'z' among the 3"):
        list(worker().run(Task(MARGINAL), ["z"]))
