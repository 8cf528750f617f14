"""The engine on clients made of nothing: whom it draws, what it keeps, and what it refuses."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from toy_runs import CLIENTS, Toy, Trial
from world import LOCAL, World, assert_same

from antiphon.algorithms.fedavg import FedAvg, hierarchical
from antiphon.core import Failure, Pool, Report, ServerState, Stopped, Task, Tensors, Update
from antiphon.engine import Engine, Rounds, sample_cohort
from antiphon.pools.local import LocalPool
from antiphon.records.checkpoint import folder_of, load, saved_rounds
from antiphon.records.journal import read
from antiphon.server.optimizers import Sgd

# --- Cohorts --------------------------------------------------------------------------------------


def test_a_cohort_is_distinct_clients_of_the_pool() -> None:
    for round in range(50):
        cohort = sample_cohort(CLIENTS, 5, seed=1, round=round)
        assert len(set(cohort)) == 5
        assert set(cohort) <= set(CLIENTS)


def test_a_cohort_larger_than_the_pool_is_the_pool() -> None:
    assert sorted(sample_cohort(CLIENTS, 100, seed=1, round=0)) == CLIENTS


def test_a_cohort_depends_on_seed_and_round_only() -> None:
    cohorts = [sample_cohort(CLIENTS, 4, seed=1, round=r) for r in range(10)]
    assert cohorts == [sample_cohort(CLIENTS, 4, seed=1, round=r) for r in range(10)]
    assert sample_cohort(CLIENTS, 4, seed=1, round=9) == cohorts[9]
    assert cohorts != [sample_cohort(CLIENTS, 4, seed=2, round=r) for r in range(10)]
    assert len({tuple(cohort) for cohort in cohorts}) == 10


def test_all_clients_are_drawn_alike_and_in_any_place() -> None:
    rounds = 4000
    drawn = [sample_cohort(CLIENTS, 3, seed=5, round=r) for r in range(rounds)]
    anywhere = Counter(client for cohort in drawn for client in cohort)
    assert chisquare([anywhere[client] for client in CLIENTS]).pvalue > 0.01
    for place in range(3):
        there = Counter(cohort[place] for cohort in drawn)
        assert chisquare([there[client] for client in CLIENTS]).pvalue > 0.01


def test_pairs_of_clients_meet_alike() -> None:
    drawn = [frozenset(sample_cohort(CLIENTS, 2, seed=8, round=r)) for r in range(4000)]
    pairs = Counter(drawn)
    assert len(pairs) == 28
    assert chisquare(list(pairs.values())).pvalue > 0.01


def test_the_cohorts_of_a_run_are_those_of_its_seed(undisturbed: Trial) -> None:
    cohorts = [entry["cohort"] for entry in undisturbed.entries if entry["round"]]
    assert cohorts == [sample_cohort(CLIENTS, 3, seed=11, round=r) for r in range(6)]


def test_as_a_round_begins_the_next_cohort_is_expected(tmp_path: Path) -> None:
    expected: list[Sequence[str]] = []
    rounds = Rounds(total=5, cohort=3, valid_every=0)
    engine = Engine(hierarchical(), LocalPool(Toy()), CLIENTS, rounds, tmp_path, 11, expect=expected.append)
    engine.run({"w": torch.ones(4), "b": torch.zeros(2)})
    cohorts = [entry["cohort"] for entry in read(tmp_path / "journal.jsonl")]
    assert expected == cohorts[1:]


# --- What is kept ---------------------------------------------------------------------------------


def test_a_run_keeps_its_last_checkpoints_and_the_best(undisturbed: Trial) -> None:
    assert undisturbed.saved == [4, 5, 6]


@pytest.mark.parametrize(("keep_last", "kept"), [(1, [4, 6]), (3, [4, 5, 6]), (10, [0, 1, 2, 3, 4, 5, 6])])
def test_keep_last_says_how_many(tmp_path: Path, keep_last: int, kept: list[int]) -> None:
    trial = Trial(tmp_path, keep_last=keep_last)
    trial.run()
    assert trial.saved == kept


def test_the_best_is_saved_whatever_save_every_says(tmp_path: Path) -> None:
    trial = Trial(tmp_path, save_every=5, keep_last=1)
    outcome = trial.run()
    assert trial.saved == [4, 6]
    assert outcome.best_round == 4


def test_the_outcome_is_the_best_round_by_validation(undisturbed: Trial, tmp_path: Path) -> None:
    four = Trial(tmp_path, total=4).run()
    outcome = undisturbed.run(resume=True)
    assert (outcome.best_round, outcome.state.round) == (4, 6)
    assert_same(outcome.best, four.state.params)


def test_of_two_equally_good_rounds_the_earlier_is_the_best(tmp_path: Path) -> None:
    assert Trial(tmp_path, wers=[0.5] * 7).run().best_round == 0


def test_without_validation_the_last_round_is_the_outcome(tmp_path: Path) -> None:
    trial = Trial(tmp_path, valid_every=0)
    assert trial.run().best_round == 6
    assert [entry["round"] for entry in trial.entries] == [1, 2, 3, 4, 5, 6]
    assert not any("valid" in entry for entry in trial.entries)


def test_validation_comes_every_so_many_rounds_and_at_the_end(tmp_path: Path) -> None:
    trial = Trial(tmp_path, valid_every=4)
    trial.run()
    assert [entry["round"] for entry in trial.entries if "valid" in entry] == [0, 4, 6]


def test_journal_and_clock_have_a_line_a_round(undisturbed: Trial) -> None:
    assert [entry["round"] for entry in undisturbed.entries] == list(range(7))
    clock = read(undisturbed.folder / "clock.jsonl")
    assert [line["round"] for line in clock] == list(range(7))
    assert all(line["rss_mib"] > 0 and line["seconds"] >= line["train_seconds"] for line in clock)


def test_a_run_without_resume_begins_anew(trial: Trial, undisturbed: Trial) -> None:
    trial.run(
        Toy(lambda round, client: Update.nothing(Failure(client, "ill")) if client > "speaker/c" else None)
    )
    trial.run()
    assert trial.files(6) == undisturbed.files(6)


# --- Faults of clients ----------------------------------------------------------------------------


def test_too_few_answers_stop_the_run_with_everything_saved(tmp_path: Path, undisturbed: Trial) -> None:
    trial = Trial(tmp_path, min_clients=2)
    ill = Toy(lambda round, client: Update.nothing(Failure(client, "ill")) if round == 3 else None)
    with pytest.raises(Stopped, match=r"0 of 3 clients answered, 2 needed \(speaker/.: ill; "):
        trial.run(ill)
    assert trial.saved[-1] == 3
    assert [entry["round"] for entry in trial.entries] == [0, 1, 2, 3]
    trial.run(resume=True)
    assert trial.files(6) == undisturbed.files(6)


def test_the_round_goes_on_while_enough_answer_and_names_the_others(tmp_path: Path) -> None:
    victims = {round: sample_cohort(CLIENTS, 3, 11, round)[1] for round in range(6)}

    def faulty(round: int, client: str) -> Update | None:
        if client != victims[round]:
            return None
        stats = {"loss": 1.0, "num_utterances": 3.0, "norm": 1.0}
        bad = {"w": torch.full((4,), torch.nan), "b": torch.zeros(2)}
        return Update(bad, reports=(Report(client, stats),))

    sizes = {}

    class Weighed(Toy):
        def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
            sizes[task.moment[0]] = task.num_bytes
            yield from super().run(task, clients)

    trial = Trial(tmp_path, min_clients=2)
    trial.run(Weighed(faulty))
    for entry in trial.entries[1:]:
        victim = victims[entry["round"] - 1]
        assert entry["failures"] == {victim: "NaN or infinity in w"}
        assert list(entry["clients"]) == [client for client in entry["cohort"] if client != victim]
        assert sum(stats["weight"] for stats in entry["clients"].values()) == pytest.approx(1.0)
        assert entry["bytes_down"] == 3 * sizes[entry["round"] - 1] > 3 * 24
        assert entry["bytes_up"] == 2 * 24


def test_the_journal_holds_no_figure_that_json_lacks(undisturbed: Trial) -> None:
    for line in (undisturbed.folder / "journal.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} in the journal"))


# --- Algorithms that do not keep their promises ----------------------------------------------------


@dataclass(frozen=True)
class Wrong:
    """An algorithm of a stranger with a mistake in it."""

    start: Callable[[Tensors], Any] = lambda params: ServerState(0, params)
    step: Callable[[ServerState], Any] = lambda state: replace(state, round=state.round + 1)
    metrics: Mapping[str, Any] = field(default_factory=dict)

    def init(self, params: Tensors) -> Any:
        return self.start(params)

    def round(self, state: Any, cohort: Sequence[str], pool: Pool) -> tuple[Any, Any]:
        pool.reduce(Task("train", state.params, {"seed": 1}), cohort, lambda report: 0.0)
        return self.step(state), self.metrics


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (Wrong(start=lambda params: params), r"Wrong.init must return a ServerState .*, not a dict"),
        (Wrong(start=lambda params: ServerState(0, params, [1])), r"a list \(at state/opt\)"),
        (Wrong(step=lambda state: state), "Wrong: the state after round 0 is of round 0"),
        (Wrong(step=lambda state: ServerState(1, state.params)), "Wrong: the state lost its seed"),
        (Wrong(metrics={"norm": torch.ones(1)}), "Wrong: metric 'norm' is a Tensor, not a number"),
    ],
    ids=["no state", "cannot be saved", "same round", "no seed", "no number"],
)
def test_what_an_algorithm_must_not_return_is_refused(algorithm: Wrong, message: str, tmp_path: Path) -> None:
    engine = Engine(algorithm, LocalPool(Toy()), CLIENTS, Rounds(total=2, valid_every=0), tmp_path, seed=11)
    with pytest.raises(ValueError, match=message):
        engine.run({"w": torch.ones(2)})


# --- Steps of the server that diverge --------------------------------------------------------------


def run_to_the_end(algorithm: Any, folder: Path, pool: Pool | None = None, **rounds: int) -> None:
    settings = Rounds(**{"total": 6, "cohort": 3, "valid_every": 0, "save_every": 4, **rounds})
    engine = Engine(algorithm, pool or LocalPool(Toy()), CLIENTS, settings, folder, seed=11)
    engine.run({"w": torch.ones(4), "b": torch.zeros(2)})


def test_a_server_whose_step_diverges_is_named_with_its_setting_and_the_round(tmp_path: Path) -> None:
    algorithm = FedAvg(server=Sgd(lr=1e38), server_schedule=Late())
    message = r"^round 3: the server's optimiser made .* \(server: Sgd\(lr=1e\+38.*factor: 1\)$"
    with pytest.raises(Stopped, match=message):
        run_to_the_end(algorithm, tmp_path)
    assert saved_rounds(tmp_path / "checkpoints")[-1] == 2
    state, _ = load(folder_of(tmp_path / "checkpoints", 2), ServerState(0, {}))
    assert all(bool(torch.isfinite(tensor).all()) for tensor in state.params.values())
    assert [entry["round"] for entry in read(tmp_path / "journal.jsonl")] == [1, 2]


def test_a_stranger_s_step_that_diverges_is_named_too(tmp_path: Path) -> None:
    def step(state: ServerState) -> ServerState:
        return replace(state, round=state.round + 1, params={**state.params, "b": state.params["b"] / 0})

    with pytest.raises(Stopped, match=r"^round 1: the server's step \(Wrong\) made NaN or infinity in 'b', "):
        run_to_the_end(Wrong(step=step), tmp_path)


def test_clients_that_fail_on_huge_parameters_are_not_blamed(world: World, tmp_path: Path) -> None:
    """A rate of 1e12 leaves finite parameters, on which the losses of honest clients are not finite."""
    clients = world.clients()
    algorithm = FedAvg(LOCAL, server=Sgd(lr=1e12))
    rounds = Rounds(total=3, cohort=3, valid_every=0)
    engine = Engine(algorithm, LocalPool(world.worker(clients)), list(clients), rounds, tmp_path, seed=11)
    message = (
        r"^0 of 3 clients answered, 1 needed \(speaker/.*; after 1 rounds the parameters are 5e\+09 times as "
        r"large as at the start: the steps of earlier rounds diverged, not these clients \(server: Sgd\(lr=1"
    )
    with pytest.raises(Stopped, match=message):
        engine.run(world.params())


def test_clients_that_fail_on_usual_parameters_are_told_as_before(tmp_path: Path) -> None:
    ill = Toy(lambda round, client: Update.nothing(Failure(client, "ill")) if round == 3 else None)
    with pytest.raises(Stopped, match=r"0 of 3 clients answered, 1 needed \(.*: ill\)$"):
        run_to_the_end(hierarchical(), tmp_path, LocalPool(ill))


@dataclass(frozen=True)
class Late:
    """A schedule that is almost 0 for two rounds."""

    def __call__(self, round: int) -> float:
        return 1.0 if round >= 2 else 1e-40


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"total": 0}, "must be at least 1"),
        ({"min_clients": 4}, "min_clients 4 is above cohort 3"),
        ({"keep_last": 0}, "keep_last must be at least 1"),
        ({"valid_every": -1}, "valid_every at least 0"),
    ],
)
def test_rounds_that_make_no_sense_are_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rounds(**{"cohort": 3, **wrong})


def test_more_answers_than_there_are_clients_cannot_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="min_clients is 9 but there are 8 clients"):
        Trial(tmp_path, cohort=9, min_clients=9).run()
