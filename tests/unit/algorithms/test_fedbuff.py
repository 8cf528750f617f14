"""FedBuff and FedAsync against sequences of events computed by hand, and against federated averaging."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from timed_runs import SPEEDS, Constant, TimedRun
from toy_runs import Toy
from world import assert_same

from antiphon.algorithms.fedasync import FedAsync
from antiphon.algorithms.fedavg import FedAvg, dga, hierarchical
from antiphon.algorithms.fedbuff import FedBuff
from antiphon.algorithms.private import Private
from antiphon.algorithms.rehearsal import Rehearsed
from antiphon.core import Algorithm
from antiphon.engine import Rounds
from antiphon.experiment.settings import Run
from antiphon.secure_aggregation.rules import SecureAggregation
from antiphon.server.optimizers import Adam, Sgd
from antiphon.server.run_context import RunContext
from antiphon.server.staleness import Equal, Hinge, Polynomial
from antiphon.server.weighting import SoftmaxLoss, Uniform
from antiphon.tasks.local_training import LocalTraining

PLAIN = FedAvg(weighting=Uniform(), server=Sgd(lr=1.0))
ROUNDS = Rounds(total=5, cohort=3)
EQUAL = dict.fromkeys("abcdefgh", 2.0)

# Clients a, b and c need 1, 2 and 5 seconds, all three are at work, and two answers make a step. Answers that
# arrive in the same moment count in the order in which the clients began.
#   step   answers (staleness)   ends at   still at work, with the version that they began from
EVENTS: list[tuple[dict[str, int], float, dict[str, int]]] = [
    ({"a": 0, "b": 0}, 2.0, {"c": 0}),
    ({"a": 0, "b": 0}, 4.0, {"c": 0}),
    ({"c": 2, "a": 0}, 5.0, {"b": 2}),
    ({"b": 1, "a": 0}, 6.0, {"c": 3}),
    ({"a": 0, "b": 0}, 8.0, {"c": 3}),
]


def states(run: TimedRun) -> list[Any]:
    """The state after each round."""
    made = [run.run(total=1)]
    made += [run.run(total=total, resume=True) for total in range(2, run.rounds.total + 1)]
    return made


# --- Events ---------------------------------------------------------------------------------------


def test_answers_and_their_staleness_are_those_computed_by_hand(tmp_path: Path) -> None:
    run = TimedRun(FedBuff(PLAIN, buffer=2), tmp_path, ROUNDS)
    after = states(run)
    for entry, state, (answers, ends, left) in zip(run.entries, after, EVENTS, strict=True):
        assert set(entry["clients"]) == set(entry["cohort"]) == set(answers)
        assert entry["simulated_time"] == state.now == ends
        assert entry["metrics"]["staleness"] == sum(answers.values()) / 2
        assert entry["metrics"]["largest_staleness"] == max(answers.values())
        assert {client: version for client, version, *_ in state.at_work} == left
        assert set(state.versions) == set(map(str, left.values()))
    assert [entry["simulated_seconds"] for entry in run.entries] == [2.0, 2.0, 1.0, 1.0, 2.0]
    assert all(
        stats["simulated_seconds"] == SPEEDS[client]
        for entry in run.entries
        for client, stats in entry["clients"].items()
    )


@pytest.mark.parametrize("staleness", [Polynomial(), Polynomial(1.0), Hinge(2.0, 1), Equal()])
def test_a_step_is_the_mean_of_the_damped_updates(tmp_path: Path, staleness: Any) -> None:
    """(1/K) Σ s(τ_i) Δ_i, with the updates 1, 10 and 100 of a, b and c."""
    moves = {"a": 1.0, "b": 10.0, "c": 100.0}
    expected = 0.0
    for (answers, _, _), state in zip(
        EVENTS, states(TimedRun(FedBuff(PLAIN, 2, staleness), tmp_path, ROUNDS)), strict=True
    ):
        expected -= sum(staleness(steps) * moves[client] for client, steps in answers.items()) / 2
        assert state.params["w"].tolist() == pytest.approx([expected] * 2, rel=1e-6)


def test_staleness_factors_are_those_of_the_papers() -> None:
    assert [Polynomial()(steps) for steps in (0, 1, 3)] == pytest.approx([1.0, 2**-0.5, 0.5])
    assert [Hinge(10.0, 4)(steps) for steps in (0, 4, 5, 6)] == pytest.approx([1, 1, 1 / 11, 1 / 21])


def test_softmax_weights_are_damped_after_they_were_normalised(tmp_path: Path) -> None:
    """Third step: c with loss 2 and staleness 2, a with loss 1; β = 0.5."""
    worker = Constant(losses={"a": 1.0, "b": 1.0, "c": 2.0})
    algorithm = FedBuff(replace(PLAIN, weighting=SoftmaxLoss(0.5)), 2)
    run = TimedRun(algorithm, tmp_path, ROUNDS, worker=worker)
    before, after = states(run)[1:3]
    share = 1 / (1 + math.exp(0.5))  # of c: exp(-1) / (exp(-1) + exp(-0.5))
    expected = share * 100 / math.sqrt(3) + (1 - share) * 1
    assert (before.params["w"] - after.params["w"]).tolist() == pytest.approx([expected] * 2, rel=1e-6)
    weights = {client: stats["weight"] for client, stats in run.entries[2]["clients"].items()}
    assert weights["c"] == pytest.approx(share / math.sqrt(3) / (share / math.sqrt(3) + 1 - share))


def test_every_answer_is_mixed_in_at_once(tmp_path: Path) -> None:
    """FedAsync with α = 0.5: a answers after 1 s; b and then a after 2 s; a, after 3 s."""
    run = TimedRun(FedAsync(mixing=0.5), tmp_path, replace(ROUNDS, total=4))
    after = [state.params["w"][0].item() for state in states(run)]
    first = -0.5  # a began from 0
    share = 0.5 / math.sqrt(2)  # b began from 0, and one step is between
    second = (1 - share) * first + share * (0.0 - 10.0)
    third = (1 - share) * second + share * (first - 1.0)  # a began from the first step
    # c is at work; b and a began after the second and the third step, and a is the first to answer.
    fourth = 0.5 * third + 0.5 * (third - 1.0)
    assert after == pytest.approx([first, second, third, fourth], rel=1e-6)
    assert [entry["simulated_time"] for entry in run.entries] == [1.0, 2.0, 2.0, 3.0]
    assert [list(entry["clients"]) for entry in run.entries] == [["a"], ["b"], ["a"], ["a"]]


def test_a_client_that_fails_does_not_count_as_an_answer(tmp_path: Path) -> None:
    """a never answers: b and c make the first step, after 5 seconds."""
    options = {"faults": lambda task, client: "away" if client == "a" else ""}
    run = TimedRun(FedBuff(PLAIN, 2), tmp_path, Rounds(total=1, cohort=3), options=options)
    run.run()
    (entry,) = run.entries
    assert (set(entry["clients"]), entry["failures"]) == ({"b", "c"}, {"a": "away"})
    assert entry["simulated_time"] == 5.0


# --- Federated averaging --------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [PLAIN, FedAvg(), hierarchical(server=Adam()), dga(beta=2.0)])
def test_with_equal_speeds_and_a_buffer_for_all_it_is_federated_averaging(
    inner: FedAvg, tmp_path: Path
) -> None:
    rounds = Rounds(total=5, cohort=4)
    runs = [
        TimedRun(algorithm, tmp_path / name, rounds, EQUAL, Toy())
        for name, algorithm in (("buffered", FedBuff(inner, buffer=4)), ("average", inner))
    ]
    buffered, average = (run.run() for run in runs)
    assert_same(buffered.params, average.params)
    assert not buffered.versions
    keys = ("round", "cohort", "clients", "loss", "bytes_down", "bytes_up", "simulated_time")
    for one, other in zip(runs[0].entries, runs[1].entries, strict=True):
        assert {key: one[key] for key in keys} == {key: other[key] for key in keys}


# --- Resume ---------------------------------------------------------------------------------------

SLOW = {client: 1.0 + number**2 for number, client in enumerate("abcdefgh")}


@pytest.mark.parametrize(
    "algorithm",
    [FedBuff(dga(beta=2.0, server=Adam()), buffer=2), FedAsync(LocalTraining(lr=0.5)), FedBuff(PLAIN, 1)],
    ids=["fedbuff", "fedasync", "buffer of one"],
)
def test_a_run_resumed_after_any_step_leaves_the_same_bits(algorithm: Algorithm[Any], tmp_path: Path) -> None:
    rounds = Rounds(total=7, cohort=4, keep_last=1)
    whole = TimedRun(algorithm, tmp_path / "whole", rounds, SLOW, Toy())
    last = whole.run()
    assert last.at_work
    assert len(last.versions) > 1
    for stop in range(1, rounds.total):
        stopped = replace(whole, folder=tmp_path / f"stopped after {stop}")
        stopped.run(total=stop)
        assert_same(stopped.run(resume=True), last)
        assert stopped.files(7) == whole.files(7)


# --- What is refused ------------------------------------------------------------------------------

REFUSED: list[tuple[str, Algorithm[Any], dict[str, Any]]] = [
    ("buffer 5 is above the 4 clients at work", FedBuff(buffer=5), {"rounds": Rounds(cohort=4)}),
    ("waits for no client", FedBuff(buffer=2), {"rounds": Rounds(deadline=5.0)}),
    ("waits for no client", FedAsync(), {"rounds": Rounds(over_selection=1.3)}),
    ("a step waits for 2 only", FedBuff(buffer=2), {"rounds": Rounds(min_clients=3)}),
    ("hides updates in the sum", FedBuff(buffer=2), {"secure_aggregation": SecureAggregation()}),
    ("hides updates in the sum", FedAsync(), {"secure_aggregation": SecureAggregation()}),
    ("hides updates in the sum", Rehearsed(FedAsync()), {"secure_aggregation": SecureAggregation()}),
]


@pytest.mark.parametrize(("reason", "algorithm", "settings"), REFUSED)
def test_runs_that_do_not_fit_are_refused(
    reason: str, algorithm: Algorithm[Any], settings: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=reason):
        Run(algorithm, **settings)


@pytest.mark.parametrize("inner", [FedBuff(FedAvg(weighting=Uniform())), FedAsync()])
def test_private_around_an_asynchronous_algorithm_is_refused(inner: Algorithm[Any]) -> None:
    with pytest.raises(ValueError, match=f"private around {'fed_buff|fed_async'}"):
        Private(inner)


def test_a_buffer_above_the_number_of_clients_is_refused() -> None:
    with pytest.raises(ValueError, match="buffer 4 is above the 3 clients of the run"):
        FedBuff(buffer=4).prepare(RunContext(("a", "b", "c")))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Polynomial(power=-0.5), r"power must not be negative, not -0\.5"),
        (lambda: Hinge(slope=0.0), "slope must be above 0"),
        (lambda: Hinge(free=-1), "free must not be negative"),
    ],
)
def test_old_answers_never_count_more(make: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make()


@pytest.mark.parametrize("make", [lambda: FedBuff(buffer=0), lambda: FedAsync(mixing=0.0)])
def test_settings_without_a_meaning_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="fed_"):
        make()


def test_the_state_has_no_versions_that_nobody_needs(tmp_path: Path) -> None:
    run = TimedRun(FedBuff(PLAIN, 2), tmp_path, ROUNDS)
    for state in states(run):
        assert set(state.versions) == {str(version) for _, version, *_ in state.at_work}
        assert all(torch.isfinite(p["w"]).all() for p in state.versions.values())
