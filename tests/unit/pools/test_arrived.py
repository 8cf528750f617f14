"""What a client may not answer, in every pool and under every aggregation: it is named, the others go on."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cautious import Halved
from world import CONTEXT, LOCAL, POOLS, Case, World, assert_same, recording, stacked, start

from antiphon.algorithms.dga_rl import DgaRl
from antiphon.algorithms.fedavg import FedAvg, dga, fedavg
from antiphon.algorithms.geometric_median import GeometricMedian
from antiphon.algorithms.q_fedavg import QFedAvg
from antiphon.algorithms.scaffold import Scaffold
from antiphon.clients.states import ClientStates
from antiphon.core import Failure, Report, Task, Update, Worker
from antiphon.pools.local import LocalPool, arrived
from antiphon.pools.recording import RecordingPool
from antiphon.server.run_context import prepare
from antiphon.server.weighting import ByExamples, ByNorm, SoftmaxLoss, Uniform
from antiphon.tasks.client_work import CLIENT_WORK, Bounds, client_work
from antiphon.tasks.views import through

COHORT = [f"speaker/s0{number}" for number in range(4)]
CULPRIT = COHORT[1]
AGGREGATIONS = {
    "fedavg": fedavg(LOCAL),
    "dga softmax": dga(LOCAL, beta=2.0),
    "dga rl": DgaRl(dga(LOCAL, beta=2.0), num_validation=1),
    "geometric median": GeometricMedian(FedAvg(LOCAL, weighting=SoftmaxLoss()), iterations=1),
    "by norm": FedAvg(LOCAL, weighting=ByNorm()),
    "q-fedavg": QFedAvg(1.0, LOCAL),
    "scaffold": Scaffold(LOCAL),
}


# --- Faults ---------------------------------------------------------------------------------------


def with_stats(**stats: Any) -> Callable[[Update], Update]:
    """Report other numbers; None removes one."""

    def change(update: Update) -> Update:
        (report,) = update.reports
        changed = {name: value for name, value in {**report.stats, **stats}.items() if value is not None}
        return replace(update, reports=(replace(report, stats=changed),))

    return change


def with_last(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Update], Update]:
    """Send another last tensor: of SCAFFOLD, it is one of the control variate."""

    def changed(update: Update) -> Update:
        name = list(update.mean)[-1]
        return replace(update, mean={**update.mean, name: change(update.mean[name])})

    return changed


def spoilt(value: float, place: int = 0) -> Callable[[Update], Update]:
    """Write a value into the first tensor; the norm that the client claims stays finite."""

    def change(update: Update) -> Update:
        name, tensor = next(iter(update.mean.items()))
        tensor = tensor.clone()
        tensor.view(-1)[place] = value
        return replace(update, mean={**update.mean, name: tensor})

    return change


def about(client: str) -> Callable[[Update], Update]:
    return lambda update: replace(update, reports=(replace(update.reports[0], client=client),))


def blaming(client: str) -> Callable[[Update], Update]:
    return lambda update: Update.nothing(Failure(client, "it was not me"))


FAULTS: dict[str, tuple[Callable[[Update], Update], str]] = {
    "NaN": (spoilt(math.nan), "NaN or infinity in "),
    "NaN at the end": (spoilt(math.nan, -1), "NaN or infinity in "),
    "infinity": (spoilt(math.inf), "NaN or infinity in "),
    "a value whose square is too large": (spoilt(1e38), "its norm is inf"),
    "NaN in the last tensor": (with_last(lambda t: t * math.nan), "NaN or infinity in "),
    "another shape": (with_last(lambda t: torch.cat([t, t])), "has shape"),
    "a broadcastable shape": (with_last(lambda t: t[:1]), "has shape"),
    "another type": (with_last(torch.Tensor.double), "has type torch.float64, not torch.float32"),
    "half precision": (with_last(torch.Tensor.half), "has type torch.float16, not torch.float32"),
    "whole numbers": (with_last(torch.Tensor.long), "has type torch.int64, not torch.float32"),
    "a list": (with_last(torch.Tensor.tolist), "AttributeError"),
    "a tensor less": (lambda u: replace(u, mean=dict(list(u.mean.items())[:-1])), "is missing"),
    "a tensor more": (lambda u: replace(u, mean={**u.mean, "new": torch.ones(2)}), "'new' is unknown"),
    "no tensor": (lambda u: replace(u, mean={}), "is missing"),
    "loss NaN": (with_stats(loss=math.nan), "loss is nan"),
    "loss infinite": (with_stats(loss=-math.inf), "loss is -inf"),
    "loss negative": (with_stats(loss=-1e9), "loss: -1e+09 is not between -0.001 and 1e+06"),
    "loss huge": (with_stats(loss=1e9), "loss: 1e+09 is not between"),
    "loss missing": (with_stats(loss=None), "it did not report 'loss'"),
    "loss a text": (with_stats(loss="a secret"), "'loss' is a str, not a number"),
    "loss a truth": (with_stats(loss=True), "'loss' is a bool, not a number"),
    "loss a tensor": (with_stats(loss=torch.tensor(1.0)), "'loss' is a Tensor, not a number"),
    "no utterance": (with_stats(num_utterances=0.0), "num_utterances: 0 is not between 1 and"),
    "10^12 utterances": (with_stats(num_utterances=1e12), "num_utterances: 1e+12 is not between 1 and 1e+07"),
    "10^400 utterances": (with_stats(num_utterances=10**400), "num_utterances is too large"),
    "half an utterance": (with_stats(num_utterances=1.5), "num_utterances: 1.5 is not a whole number"),
    "a negative time": (with_stats(seconds=-1.0), "seconds: -1 is not between 0"),
    "a number nobody asked for": (with_stats(own=math.nan), "own is nan"),
    "another client's name": (about(COHORT[2]), "its report names another client"),
    "an unknown client's name": (about("speaker/nobody"), "its report names another client"),
    "two reports": (lambda u: replace(u, reports=u.reports * 2), "it has 2 reports, not one"),
    "no report": (lambda u: replace(u, reports=()), "it has 0 reports, not one"),
    "another client's failure": (blaming(COHORT[2]), "it reports about other clients"),
    "an unknown client's failure": (blaming("speaker/nobody"), "it reports about other clients"),
    "nothing, and a report": (lambda u: replace(u, log_weight=-math.inf), "it reports about other clients"),
    "an answer, and a failure": (
        lambda u: replace(u, failures=(Failure(CULPRIT, "ill"),)),
        "its answer does not fit the task",
    ),
}
SILENT = "it says nothing"
# Of these there is no message: tests/unit/pools/test_remote_pool.py has what can be wrong with messages.
UNSENDABLE = {
    *("a list", "loss NaN", "loss infinite", "loss a tensor", "a number nobody asked for"),
    *("another client's name", "an unknown client's name", "two reports", "no report"),
    *("another client's failure", "an unknown client's failure"),
    *("nothing, and a report", "an answer, and a failure"),
}
# Several processes take a second for a round. There each fault meets one aggregation, unless all are wanted:
# ANTIPHON_ALL_FAULTS=1 python -m pytest tests/unit/pools/test_arrived.py
ALL = bool(os.environ.get("ANTIPHON_ALL_FAULTS"))


@dataclass(frozen=True)
class Lying:
    """A worker with a client whose answers are changed on their way to the server."""

    worker: Worker
    change: Callable[[Update], Update]

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for client, update in zip(clients, self.worker.run(task, clients), strict=True):
            yield self.change(update) if client == CULPRIT else update


@dataclass(frozen=True)
class Round:
    """The state after a round, and what was recorded of it."""

    state: Any
    pool: RecordingPool


def run_round(
    world: World, aggregation: str, pool: str, folder: Path, change: Callable[[Update], Update]
) -> Round:
    case = Case(prepare(AGGREGATIONS[aggregation], CONTEXT))
    worker: Worker = world.worker(world.clients(), states=ClientStates(folder))
    if pool == "stacked":
        watched = recording(LocalPool(Lying(stacked(worker), change)), COHORT)
    else:
        watched = recording(POOLS[pool](Lying(worker, change)), COHORT)
    after, _ = case.algorithm.round(start(case, world.params()), COHORT, watched)
    return Round(after, watched)


def faults_of(aggregation: str, pool: str) -> list[str]:
    faults = [fault for fault in FAULTS if pool != "remote" or fault not in UNSENDABLE]
    if ALL or pool not in ("two processes", "remote"):
        return faults
    return faults[list(AGGREGATIONS).index(aggregation) :: len(AGGREGATIONS)]


every_pool = pytest.mark.parametrize("pool", POOLS)
every_aggregation = pytest.mark.parametrize("aggregation", AGGREGATIONS)


@every_pool
@every_aggregation
def test_a_client_whose_answer_is_wrong_is_named_and_changes_no_bit_of_the_round(
    world: World, aggregation: str, pool: str, tmp_path: Path
) -> None:
    silent = Update.nothing(Failure(CULPRIT, SILENT))
    without = run_round(world, aggregation, pool, tmp_path / "without", lambda update: silent)
    assert without.pool.failures == {CULPRIT: SILENT}
    expected = {**without.pool.entry(), "failures": None}
    for fault in faults_of(aggregation, pool):
        change, reason = FAULTS[fault]
        found = run_round(world, aggregation, pool, tmp_path / fault, change)
        assert found.pool.failures.keys() == {CULPRIT}, fault
        assert reason in found.pool.failures[CULPRIT], fault
        assert "secret" not in found.pool.failures[CULPRIT]
        assert_same(found.state, without.state, fault)
        assert {**found.pool.entry(), "failures": None} == expected, fault


@every_pool
@every_aggregation
def test_what_a_client_claims_about_the_size_of_its_update_changes_no_bit(
    world: World, aggregation: str, pool: str, tmp_path: Path
) -> None:
    honest = run_round(world, aggregation, pool, tmp_path / "honest", lambda update: update)
    assert honest.pool.failures == {}
    for claim in (0.0, 1e-9, -1.0, 1e30, None) if pool in ("local", "stacked") else (1e-9,):
        lie = with_stats(norm=claim, magnitude_mean=claim, magnitude_variance=claim)
        found = run_round(world, aggregation, pool, tmp_path / f"claim {claim}", lie)
        assert_same(found.state, honest.state, f"norm {claim}")
        assert found.pool.entry() == honest.pool.entry()


def test_a_round_without_the_culprit_is_the_same_to_the_last_bit(world: World) -> None:
    """Not only a round in which it fails."""
    change, _ = FAULTS["NaN"]
    task = fedavg(LOCAL).task(start(Case(fedavg(LOCAL)), world.params()))
    worker = world.worker(world.clients())
    others = [client for client in COHORT if client != CULPRIT]
    lied = LocalPool(Lying(worker, change)).reduce(task, COHORT, Uniform())
    without = LocalPool(worker).reduce(task, others, Uniform())
    assert_same(lied.mean, without.mean)
    assert lied.reports == without.reports


def test_the_server_s_norm_is_that_of_an_honest_client_to_the_last_bit(world: World) -> None:
    task = fedavg(LOCAL).task(start(Case(fedavg(LOCAL)), world.params()))
    worker = world.worker(world.clients())
    for client, update in zip(COHORT, worker.run(task, COHORT), strict=True):
        (reported,), (measured,) = update.reports, arrived(task)(update, client).reports
        assert reported.stats.keys() >= {"norm", "magnitude_mean", "magnitude_variance"}
        assert dict(measured.stats) == dict(reported.stats)


def changed_in_place(update: Update) -> Update:
    with torch.no_grad():
        next(iter(update.mean.values())).view(-1)[0] = math.nan
    return update


def exchanged_in_place(update: Update) -> Update:
    name, tensor = next(iter(update.mean.items()))
    update.mean[name] = tensor * math.nan
    return update


@pytest.mark.parametrize("pool", ["local", "stacked"])
@pytest.mark.parametrize("change", [changed_in_place, exchanged_in_place])
def test_a_delta_that_was_changed_after_it_was_measured_is_measured_again(
    world: World, change: Callable[[Update], Update], pool: str, tmp_path: Path
) -> None:
    found = run_round(world, "by norm", pool, tmp_path, change)
    assert found.pool.failures.keys() == {CULPRIT}
    assert "NaN or infinity in " in found.pool.failures[CULPRIT]


@pytest.mark.parametrize("pool", ["local", "stacked"])
def test_the_norm_of_a_changed_delta_is_that_of_the_change(world: World, pool: str, tmp_path: Path) -> None:
    def double(update: Update) -> Update:
        torch._foreach_mul_(list(update.mean.values()), 2.0)
        return update

    honest = run_round(world, "fedavg", pool, tmp_path / "honest", lambda update: update)
    doubled = run_round(world, "fedavg", pool, tmp_path / "doubled", double)
    norms = [found.pool.clients[CULPRIT]["norm"] for found in (doubled, honest)]
    assert norms[0] == pytest.approx(2 * norms[1], rel=1e-6)


# --- Work of others -------------------------------------------------------------------------------


@pytest.fixture
def share(monkeypatch: pytest.MonkeyPatch) -> Task:
    """A task of somebody else's, whose clients report a share."""
    monkeypatch.setattr(CLIENT_WORK, "_registered", dict(CLIENT_WORK._registered))
    bounds = {"share": Bounds(0, 1), "hours": Bounds(least=0, is_required=False)}
    client_work("test.share", "nothing", bounds)(lambda task, client: None)
    return Task("test.share")


@pytest.mark.parametrize(
    ("stats", "reason"),
    [
        ({"share": 0.0}, ""),
        ({"share": 1, "hours": 1e9, "anything": -3.0}, ""),
        ({"share": 1.01}, "share: 1.01 is not between 0 and 1"),
        ({"hours": 3.0}, "it did not report 'share'"),
        ({"share": 0.5, "hours": -1.0}, "hours: -1 is not between 0 and inf"),
    ],
)
def test_work_declares_the_bounds_of_its_own_numbers(
    share: Task, stats: dict[str, float], reason: str
) -> None:
    update = arrived(share)(Update({}, reports=(Report("c", stats),)), "c")
    assert [failure.reason for failure in update.failures] == ([reason] if reason else [])


def test_of_work_that_declares_no_tensors_the_first_answer_decides() -> None:
    arrive, stats = arrived(Task("unheard of")), Report("a", {})
    first = arrive(Update({"w": torch.ones(2)}, reports=(stats,)), "a")
    other = arrive(Update({"w": torch.ones(3)}, reports=(replace(stats, client="b"),)), "b")
    assert not first.failures
    assert other.failures == (Failure("b", "its answer does not fit the task: 'w' has shape (3,), not (2,)"),)


def test_a_refused_answer_does_not_decide() -> None:
    arrive = arrived(Task("unheard of"))
    bad = arrive(Update({"v": torch.tensor(math.nan)}, reports=(Report("a", {}),)), "a")
    good = arrive(Update({"w": torch.ones(2)}, reports=(Report("b", {}),)), "b")
    assert bad.failures == (Failure("a", "NaN or infinity in v"),)
    assert not good.failures


def test_a_view_that_cannot_read_an_answer_makes_a_failure_of_its_client() -> None:
    task = through(Task("train", {"w": torch.zeros(2)}), Halved())
    stats = {"loss": 1.0, "num_utterances": 1.0}
    update = arrived(task)(Update({"w": None}, reports=(Report("c", stats),)), "c")  # type: ignore[dict-item]
    assert update.is_empty
    assert update.failures[0].client == "c"


def test_a_report_that_a_weighting_cannot_use_is_a_failure_of_its_client() -> None:
    class Counting:
        def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
            for client in clients:
                stats = {"num_utterances": 2.0} if client != "b" else {}
                yield Update({"w": torch.ones(1)}, reports=(Report(client, stats),))

    update = LocalPool(Counting()).reduce(Task("unheard of"), ["a", "b", "c"], ByExamples())
    assert [report.client for report in update.reports] == ["a", "c"]
    (failure,) = update.failures
    assert failure.client == "b"
    assert "did not report 'num_utterances'" in failure.reason
