"""Private updates: what a round releases, what one client can change, resuming, and what is refused."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon import config
from antiphon.algorithms.central import Central
from antiphon.algorithms.dga_rl import DgaRl
from antiphon.algorithms.ditto import Ditto
from antiphon.algorithms.fedavg import FedAvg, dga, fedavg, hierarchical
from antiphon.algorithms.geometric_median import GeometricMedian
from antiphon.algorithms.private import Private
from antiphon.algorithms.pruning import FederatedPruning
from antiphon.algorithms.q_fedavg import QFedAvg
from antiphon.algorithms.rehearsal import Rehearsed
from antiphon.algorithms.scaffold import Scaffold
from antiphon.core import Algorithm, Failure, Report, Stopped, Task, Tensors, Update
from antiphon.engine import Engine, Outcome, Rounds
from antiphon.experiment.settings import Run
from antiphon.pools.local import LocalPool
from antiphon.privacy.correlated_noise import NoiseRows
from antiphon.privacy.noise_key import derived_key, simulated_key
from antiphon.privacy.participation import PoissonSampling, RoundRobin
from antiphon.privacy.update_accounting import Blt, epsilon_of, plan_noise
from antiphon.privacy.update_ledger import SharedBudget
from antiphon.records.checkpoint import folder_of
from antiphon.records.journal import read
from antiphon.secure_aggregation.rules import SecureAggregation
from antiphon.seeding import derive
from antiphon.server.optimizers import Adam, Sgd
from antiphon.server.run_context import RunContext, prepare
from antiphon.server.weighting import ByExamples, ByNorm, Uniform
from antiphon.tasks.update_clipping import EachLayer, EachLayerByDimension, EachLayerByNorm, WholeUpdate

CLIENTS = [f"speaker/{number:02d}" for number in range(24)]
PARAMS = {"w": torch.ones(6, 3), "b": torch.zeros(4)}
INNER = FedAvg(weighting=Uniform())
EVERY_ROUND = RoundRobin(1)
SEED = 5
STEADY = Private(INNER, cohorts=EVERY_ROUND, cohort=8.0, rounds=6, simulated=True)


@dataclass
class Clients:
    """Clients whose answers follow from their names and the round; some answer in their own way."""

    size: float = 1.0
    special: dict[str, Tensors | None] = field(default_factory=dict)  # None: does not answer
    asked: list[str] = field(default_factory=list)

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for client in clients:
            self.asked.append(client)
            answer = self.special.get(client, self.answer(task, client))
            if answer is None:
                yield Update.nothing(Failure(client, "away"))
            else:
                stats = {"loss": 1.0, "num_utterances": 3.0, "norm": 1.0, "seconds": 1.0}
                yield Update(answer, reports=(Report(client, stats),))

    def answer(self, task: Task, client: str) -> Tensors:
        generator = torch.Generator().manual_seed(derive(task.moment[0], client))
        return {n: self.size * torch.randn(p.shape, generator=generator) for n, p in task.tensors.items()}


def released(
    algorithm: Private, clients: Clients, cohort: Sequence[str], params: Tensors = PARAMS
) -> Tensors:
    """What the first round subtracts from the model."""
    state = algorithm.init(params).with_seed(SEED)
    after, _ = algorithm.round(state, cohort, LocalPool(clients))
    return {name: p - after.params[name] for name, p in params.items()}


def length(tensors: Tensors) -> float:
    return math.sqrt(sum(float(tensor.double().pow(2).sum()) for tensor in tensors.values()))


def noise_of(algorithm: Private, round: int) -> torch.Tensor:
    """The noise of a round as the accountant counts it, in an entry of the mean."""
    key = derived_key(simulated_key(SEED), "noise")
    rows = NoiseRows(key, algorithm.plan.coefficients, 22, None)
    scale = algorithm.plan.deviation * algorithm.clipping.bound / algorithm.cohort
    return scale * torch.from_numpy(rows.row(round).copy())


# --- What a round releases ------------------------------------------------------------------------


@pytest.mark.parametrize("clipping", [WholeUpdate(0.4), EachLayer(0.4), EachLayerByDimension(0.4)])
def test_a_round_releases_the_sum_of_clipped_updates_and_noise_over_the_planned_cohort(clipping: Any) -> None:
    algorithm, clients, cohort = replace(STEADY, clipping=clipping), Clients(), CLIENTS[:5]
    moved = released(algorithm, clients, cohort)
    task = Task("train", PARAMS, {"round": 0})
    updates = [clipping(clients.answer(task, client)) for client in cohort]
    noise, at = noise_of(algorithm, 0), 0
    for name, p in PARAMS.items():
        total = sum(update[name].double() for update in updates)
        want = total / 8.0 + noise[at : at + p.numel()].view(p.shape)
        assert torch.allclose(moved[name].double(), want, atol=2e-6)
        at += p.numel()


def test_nobody_in_the_cohort_and_nobody_who_answers_both_release_noise_alone() -> None:
    nobody = released(STEADY, Clients(), [])
    silent = released(STEADY, Clients(special=dict.fromkeys(CLIENTS[:3])), CLIENTS[:3])
    noise = noise_of(STEADY, 0)
    assert torch.equal(nobody["w"], silent["w"])
    assert torch.allclose(nobody["w"].double().flatten(), noise[:18], atol=1e-6)


def test_the_scale_depends_on_the_plan_and_not_on_who_answered() -> None:
    still = {client: {n: torch.zeros_like(p) for n, p in PARAMS.items()} for client in CLIENTS}
    few = released(STEADY, Clients(special=dict(still)), CLIENTS[:1])
    many = released(STEADY, Clients(special=dict(still)), CLIENTS[:20])
    assert torch.equal(few["w"], many["w"])


def test_capped_weights_count_a_client_by_its_share_of_the_cap() -> None:
    """Three utterances of at most six: every update counts half."""
    halved = replace(STEADY, inner=FedAvg(weighting=ByExamples(max_utterances=6)), clipping=WholeUpdate(0.4))
    uniform = replace(STEADY, clipping=WholeUpdate(0.4))
    nobody, half, whole = (
        released(algorithm, Clients(), cohort)["w"]
        for algorithm, cohort in ((uniform, []), (halved, CLIENTS[:5]), (uniform, CLIENTS[:5]))
    )
    assert torch.allclose(half - nobody, (whole - nobody) / 2, atol=1e-6)
    capped = replace(halved, inner=FedAvg(weighting=ByExamples(max_utterances=2)))
    assert torch.allclose(released(capped, Clients(), CLIENTS[:5])["w"], whole, atol=1e-6)


# --- What one client can change -------------------------------------------------------------------


def by_norm(bound: float) -> EachLayerByNorm:
    return EachLayerByNorm(bound, (1.0, 0.3))


@settings(max_examples=40)
@given(
    power=st.floats(-3, 30),
    seed=st.integers(0, 9999),
    number=st.integers(1, 12),
    kind=st.sampled_from([WholeUpdate, EachLayer, EachLayerByDimension, by_norm]),
)
def test_replacing_or_removing_a_client_moves_the_release_by_no_more_than_its_bound(
    power: float, seed: int, number: int, kind: Any
) -> None:
    """Removing: C / cohort. Replacing: 2 C / cohort. In every layer, with that layer's bound."""
    clipping = kind(0.4)
    algorithm, cohort = replace(STEADY, clipping=clipping), CLIENTS[:number]
    generator = torch.Generator().manual_seed(seed)
    odd = {
        n: (10.0**power * torch.randn(p.shape, generator=generator)).nan_to_num() for n, p in PARAMS.items()
    }
    with_odd = released(algorithm, Clients(special={cohort[0]: odd}), cohort)
    without = released(algorithm, Clients(), cohort[1:])
    ordinary = released(algorithm, Clients(), cohort)
    rounding = 2e-6  # of float32 parameters near 1
    for other, times in ((without, 1), (ordinary, 2)):
        change = {name: with_odd[name] - p for name, p in other.items()}
        assert length(change) <= times * 0.4 / 8.0 + rounding
        if kind is not WholeUpdate:
            shares = clipping.shares({name: p.numel() for name, p in PARAMS.items()})
            for name, share in zip(PARAMS, shares, strict=True):
                limit = 0.4 * math.sqrt(share / sum(shares)) / 8.0
                assert length({name: change[name]}) <= times * limit + rounding


def test_a_client_that_does_not_clip_and_a_client_that_sends_nan_move_no_more() -> None:
    for value in (1e30, math.nan, math.inf):
        wrong = {name: torch.full_like(p, value) for name, p in PARAMS.items()}
        change = released(STEADY, Clients(special={CLIENTS[0]: wrong}), CLIENTS[:3])
        others = released(STEADY, Clients(), CLIENTS[1:3])
        moved = length({name: p - others[name] for name, p in change.items()})
        assert moved <= STEADY.clipping.bound / 8.0 + 2e-6


def test_an_update_without_a_report_does_not_slip_past_the_clipping() -> None:
    class Sly(LocalPool):
        def reduce(self, task: Task, cohort: Sequence[str], weigh: Any) -> Update:
            hidden = Update({name: 9 + p for name, p in PARAMS.items()}, 5.0)
            return super().reduce(task, cohort, weigh) + hidden

    state = STEADY.init(PARAMS).with_seed(SEED)
    with pytest.raises(ValueError, match="without the report"):
        STEADY.round(state, CLIENTS[:3], Sly(Clients()))


# --- A run ----------------------------------------------------------------------------------------


def engine(folder: Path, algorithm: Algorithm, clients: Any = None, rounds: int = 8, **more: Any) -> Engine:
    settings = Rounds(rounds, 4, min_clients=0, valid_every=0)
    return Engine(algorithm, LocalPool(clients or Clients()), CLIENTS, settings, folder, SEED, **more)


def run(
    folder: Path, algorithm: Algorithm, clients: Any = None, rounds: int = 8, resume: bool = False
) -> Outcome:
    return engine(folder, algorithm, clients, rounds).run(PARAMS, resume)


BANDED = Private(hierarchical(server=Adam()), cohorts=RoundRobin(4, 2), simulated=True)
SAMPLED = replace(BANDED, cohorts=PoissonSampling(0.2))
BUFFERED = replace(BANDED, noise=Blt())


@pytest.mark.parametrize("algorithm", [BANDED, SAMPLED], ids=["banded", "sampled"])
def test_the_journal_has_epsilon_after_every_round(algorithm: Private, tmp_path: Path) -> None:
    run(tmp_path, algorithm)
    entries = read(tmp_path / "journal.jsonl")
    plan = plan_noise(algorithm.cohorts, 0, 8, algorithm.budget)
    spent = [epsilon_of((plan.cost(rounds),), algorithm.delta) for rounds in range(1, 9)]
    assert [entry["metrics"]["epsilon"] for entry in entries] == spent
    assert spent[-1] == pytest.approx(8.0, rel=1e-3)


@pytest.mark.parametrize("algorithm", [BANDED, SAMPLED], ids=["banded", "sampled"])
def test_the_engine_asks_the_clients_that_the_plan_draws(algorithm: Private, tmp_path: Path) -> None:
    clients = Clients()
    run(tmp_path, algorithm, clients)
    cohorts = [entry["cohort"] for entry in read(tmp_path / "journal.jsonl")]
    assert cohorts == [algorithm.draw(CLIENTS, 4, SEED, round) for round in range(8)]
    assert clients.asked == [client for cohort in cohorts for client in cohort]


@pytest.mark.parametrize("simulated", [True, False])
@pytest.mark.parametrize("algorithm", [BANDED, SAMPLED, BUFFERED], ids=["banded", "sampled", "buffered"])
def test_a_run_that_is_stopped_after_any_round_resumes_to_the_same_bits(
    algorithm: Private, simulated: bool, tmp_path: Path
) -> None:
    algorithm = replace(algorithm, simulated=simulated, rounds=8)
    whole = run(tmp_path / "whole", algorithm).state
    for stop in (1, 4, 7):
        folder = tmp_path / f"stop{stop}"
        if not simulated:
            folder.mkdir()
            shutil.copy(tmp_path / "whole" / "noise.key", folder)
        run(folder, algorithm, rounds=stop)
        again = run(folder, algorithm, resume=True).state
        assert all(torch.equal(p, whole.params[name]) for name, p in again.params.items())
        assert (folder / "journal.jsonl").read_bytes() == (tmp_path / "whole" / "journal.jsonl").read_bytes()
        assert again.released == 8


def test_noise_differs_by_key_and_the_key_is_nowhere_in_the_folder(tmp_path: Path) -> None:
    secret = replace(BANDED, simulated=False)
    first, second = run(tmp_path / "a", secret).state, run(tmp_path / "b", secret).state
    assert not torch.equal(first.params["w"], second.params["w"])
    key = (tmp_path / "a" / "noise.key").read_bytes()
    for file in (tmp_path / "a").rglob("*"):
        if file.is_file() and file.name != "noise.key":
            contents = file.read_bytes()
            assert key not in contents
            assert key.hex().encode() not in contents


def test_a_run_does_not_resume_with_another_key_or_other_rounds(tmp_path: Path) -> None:
    secret = replace(BANDED, simulated=False, rounds=8)
    run(tmp_path, secret, rounds=3)
    (tmp_path / "noise.key").unlink()
    with pytest.raises(ValueError, match="began with another key"):
        run(tmp_path, secret, resume=True)
    shutil.rmtree(tmp_path)
    run(tmp_path, BANDED, rounds=8)
    with pytest.raises(ValueError, match="other rounds"):
        run(tmp_path, BANDED, rounds=12, resume=True)


def test_a_round_is_not_released_again_with_other_answers(tmp_path: Path) -> None:
    """A checkpoint is lost, and a client that answered before is away now: the difference is its update."""
    secret = replace(BANDED, simulated=False)
    run(tmp_path, secret)
    last = read(tmp_path / "journal.jsonl")[-1]["cohort"]
    shutil.rmtree(folder_of(tmp_path / "checkpoints", 8))
    with pytest.raises(ValueError, match="round 8 was released before, with other answers"):
        run(tmp_path, secret, Clients(special={last[0]: None}), resume=True)
    run(tmp_path, secret, resume=True)  # the same answers, the same release


def test_the_run_stops_before_the_budget_is_exceeded(tmp_path: Path) -> None:
    """With half the noise that eight rounds need, the budget ends earlier; resuming does not reset it."""
    plan = plan_noise(BANDED.cohorts, 0, 8, BANDED.budget)
    loud = replace(BANDED, noise_multiplier=plan.multiplier / 1.3)
    for resume in (False, True):
        clients = Clients()
        with pytest.raises(Stopped, match="the privacy budget allows no further round"):
            run(tmp_path, loud, clients, resume=resume)
        entries = read(tmp_path / "journal.jsonl")
        assert 0 < len(entries) < 8
        assert entries[-1]["metrics"]["epsilon"] <= 8.0
        assert len(clients.asked) == (0 if resume else sum(len(entry["cohort"]) for entry in entries))
    after = len(entries) + 1
    assert epsilon_of((replace(plan, multiplier=loud.noise_multiplier).cost(after),), 1e-6) > 8.0


def test_rounds_beyond_the_plan_are_not_run(tmp_path: Path) -> None:
    with pytest.raises(Stopped, match="planned for 5 rounds"):
        run(tmp_path, replace(BANDED, rounds=5))
    assert len(read(tmp_path / "journal.jsonl")) == 5


def test_two_runs_share_a_budget_and_the_second_one_stops(tmp_path: Path) -> None:
    budget = SharedBudget(str(tmp_path / "budget.json"), 11.0)
    shared = replace(BANDED, shared_budget=budget)
    run(tmp_path / "first", shared)
    with pytest.raises(Stopped, match="all runs on these clients"):
        run(tmp_path / "second", shared)
    done = read(tmp_path / "second" / "journal.jsonl")
    ledger = json.loads((tmp_path / "budget.json").read_text())
    assert 0 < len(done) < 8
    assert sorted(entry["rounds"] for entry in ledger["runs"].values()) == [len(done), 8]
    run(tmp_path / "first", shared, resume=True)  # a finished run costs nothing again


# --- Refusals -------------------------------------------------------------------------------------


class Twice:
    """Asks its clients twice."""

    def __init__(self, second: str) -> None:
        self.second = second

    def init(self, params: Tensors) -> Any:
        return INNER.init(params)

    def round(self, state: Any, cohort: Sequence[str], pool: Any) -> tuple[Any, dict[str, float]]:
        task = INNER.task(state)
        if self.second == "weights":
            pool.reduce(task, cohort, lambda report: -report.stats["loss"])
        update = pool.reduce(task, cohort, Uniform())
        if self.second == "collect":
            pool.collect(task, cohort)
        if self.second == "ask":
            pool.reduce(task, cohort, Uniform())
        return INNER.step(state, update.mean)


@pytest.mark.parametrize(
    ("inner", "reason"),
    [
        (dga(), "fed_avg: the weighting softmax_loss depends on what clients report"),
        (fedavg(), "fed_avg: the number of utterances has no cap"),
        (FedAvg(weighting=ByNorm()), "the weighting by_norm depends"),
        (Rehearsed(dga()), "private around fed_avg: the weighting softmax_loss"),
        (DgaRl(INNER), "dga_rl: it combines single updates"),
        (GeometricMedian(INNER), "geometric_median: it combines single updates"),
        (QFedAvg(), "q_fed_avg: its weights and its step size depend on the losses"),
        (Scaffold(), "scaffold: control variates"),
        (Central(), "central: it trains on all speech in one place"),
    ],
)
def test_algorithms_without_a_bound_are_refused_by_name_when_settings_are_read(
    inner: Any, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        Private(inner)


def test_pruning_and_a_second_private_are_refused_inside() -> None:
    for inner, reason in ((FederatedPruning(INNER), "prune after"), (Private(INNER), "noise once")):
        with pytest.raises(ValueError, match=reason):
            Run(Private(inner), rounds=Rounds(min_clients=0))


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ("ask", "asked twice in a round"),
        ("weights", "weights of this algorithm"),
        ("collect", "be collected"),
    ],
)
def test_an_unknown_algorithm_that_asks_for_more_is_refused_in_its_first_round(
    second: str, reason: str
) -> None:
    algorithm = replace(STEADY, inner=Twice(second))
    clients = Clients()
    with pytest.raises(ValueError, match=reason):
        released(algorithm, clients, CLIENTS[:2])
    assert len(clients.asked) == (0 if second == "weights" else 2)


def test_cohorts_that_the_plan_did_not_draw_are_refused_before_any_work() -> None:
    clients, turns = Clients(), replace(STEADY, cohorts=RoundRobin(3))
    for cohort in (CLIENTS, [turns.draw(CLIENTS, 8, SEED, 0)[0]] * 2):
        with pytest.raises(ValueError, match="not planned for it, or one twice"):
            released(turns, clients, cohort)
    assert clients.asked == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"held_out": 0.2}, "held_out scores models on clients"),
        ({"rounds": Rounds(min_clients=0, save_every=2)}, r"rounds\.save_every=1"),
        ({"rounds": Rounds()}, r"rounds\.min_clients=0"),
        ({"secure_aggregation": SecureAggregation()}, "trusts_clients=true"),
        ({"algorithm": Rehearsed(Private(INNER))}, "write private around rehearsed"),
        ({"algorithm": Private(INNER, trusts_clients=True)}, "trusts_clients=false"),
    ],
)
def test_runs_that_would_release_more_are_refused_when_settings_are_read(change: Any, reason: str) -> None:
    fine = {"algorithm": Private(INNER), "rounds": Rounds(min_clients=0)}
    Run(**fine)
    with pytest.raises(ValueError, match=reason):
        Run(**{**fine, **change})


def test_secure_aggregation_needs_a_grid_as_fine_as_the_clipping() -> None:
    trusting = Private(INNER, clipping=WholeUpdate(0.3), trusts_clients=True)
    rounds = Rounds(min_clients=0)
    Run(trusting, rounds=rounds, secure_aggregation=SecureAggregation(bound=0.3))
    with pytest.raises(ValueError, match=r"secure_aggregation\.bound to 0\.3 or less"):
        Run(trusting, rounds=rounds, secure_aggregation=SecureAggregation())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"epsilon": 0.0}, "epsilon above 0"),
        ({"delta": 0.0}, "delta between 0 and 1"),
        ({"bands": -1}, "must not be negative"),
        ({"key_file": "k", "simulated": True}, "leave out key_file"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Private(INNER, **settings)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"delta": 0.1}, "well below 1 / 24 clients"),
        (
            {"cohorts": RoundRobin(24)},
            "24 clients make cohorts of 1 on average, and rounds are planned for 4",
        ),
        ({"cohorts": PoissonSampling(0.9)}, "cohorts of 21.6 on average"),
        ({"bands": 9}, "9 bands of noise need a separation"),
        ({"cohorts": PoissonSampling(0.2), "bands": 3}, "use round_robin"),
    ],
)
def test_plans_that_do_not_fit_the_run_are_refused_before_it_begins(
    settings: Any, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=reason):
        engine(tmp_path, replace(BANDED, **settings))


def test_settings_are_written_and_read_back() -> None:
    algorithm = Private(
        Ditto(Rehearsed(hierarchical(server=Sgd(lr=0.5)))),
        clipping=EachLayerByDimension(0.2),
        cohorts=PoissonSampling(0.05),
        shared_budget=SharedBudget("budget.json", 4.0),
    )
    tree = config.to_dict(Run(algorithm, rounds=Rounds(min_clients=0)))
    assert config.from_dict(Run, tree).algorithm == algorithm


def test_noise_with_buffers_is_chosen_by_its_name() -> None:
    tree = config.to_dict(BANDED)
    assert config.from_dict(Private, {**tree, "noise": "blt"}).noise == Blt()
    assert config.from_dict(Private, {**tree, "noise": {"blt": {"buffers": 2}}}).noise == Blt(2)
    assert config.override(BANDED, ["noise=blt", "noise.buffers=3"]).noise == Blt(3)


def test_preparing_twice_is_preparing_once(tmp_path: Path) -> None:
    context = RunContext(tuple(CLIENTS), num_rounds=8, cohort=4, folder=tmp_path)
    once = prepare(replace(BANDED, simulated=False), context)
    assert prepare(once, context) == once
