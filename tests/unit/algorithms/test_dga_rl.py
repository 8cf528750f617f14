"""DGA-RL by hand, against the weighting it duels with: features, rewards, rounds, whom it is measured on."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from garden import ALGORITHM, BAD, CLIENTS, GOOD, INNER, LOUD, QUIET, VALID, Garden, begin, params, watch
from torch import Tensor
from world import Broken

from antiphon import config
from antiphon.algorithms.dga_rl import DgaRl, Rewards, describe
from antiphon.algorithms.dga_rl_policy import Learnt, PerClient, PerCohort
from antiphon.algorithms.fedavg import dga
from antiphon.core import Report, Task, Update
from antiphon.engine import Rounds, sample_cohort
from antiphon.experiment.settings import Run
from antiphon.pools.local import LocalPool
from antiphon.server.optimizers import Adam, Sgd
from antiphon.server.run_context import RunContext
from antiphon.tasks.evaluation import measure


def told(client: str, loss: float, mean: float, variance: float) -> Report:
    return Report(client, {"loss": loss, "magnitude_mean": mean, "magnitude_variance": variance})


# --- Features and rewards -------------------------------------------------------------------------


def test_features_are_loss_and_log_magnitudes_as_they_are_and_within_the_cohort() -> None:
    reports = [told("a", 1.0, math.e, 1.0), told("b", 3.0, math.e, math.e**2), told("c", 5.0, math.e, 1.0)]
    wide, odd = math.sqrt(1.5), math.sqrt(0.5)
    expected = [
        [1.0, 1.0, 0.0, -wide, 0.0, -odd],
        [3.0, 1.0, 2.0, 0.0, 0.0, 2 * odd],
        [5.0, 1.0, 0.0, wide, 0.0, -odd],
    ]
    torch.testing.assert_close(describe(reports), torch.tensor(expected, dtype=torch.float64))


def test_a_cohort_of_one_and_a_client_that_did_not_move_have_features() -> None:
    features = describe([told("a", 2.0, 0.0, 0.0)])
    assert features[0, 0] == 2.0
    assert features[0, 3:].tolist() == [0.0, 0.0, 0.0]
    assert bool(features.isfinite().all())


def test_a_report_without_magnitudes_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'a' did not report magnitude_mean, magnitude_variance"):
        describe([Report("a", {"loss": 1.0})])


@pytest.mark.parametrize(
    ("policy", "rival", "reward"),
    [(0.2, 0.3, 1.0), (0.3, 0.2, -1.0), (0.25, 0.25, 0.1), (0.25, 0.375, 0.1), (0.375, 0.25, 0.1)],
)
def test_rewards_are_for_better_worse_and_similar(policy: float, rival: float, reward: float) -> None:
    threshold = 0.125 if 0.25 in (policy, rival) else 0.05
    assert Rewards(threshold=threshold)(policy, rival) == reward


@pytest.mark.parametrize("wrong", [{"better": 2.0}, {"worse": 0.5}, {"similar": -1.0}, {"threshold": -0.1}])
def test_rewards_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="rewards"):
        Rewards(**wrong)


# --- A round --------------------------------------------------------------------------------------


def test_without_exploration_the_first_round_is_the_rival_s_round() -> None:
    algorithm, cohort = replace(ALGORITHM, exploration=0.0), CLIENTS[4:9]
    after, metrics = algorithm.round(begin(algorithm), cohort, LocalPool(Garden(LOUD)))
    expected, _ = INNER.round(INNER.init(params()), cohort, LocalPool(Garden(LOUD)))
    torch.testing.assert_close(after.params, expected.params, rtol=1e-14, atol=0.0)
    assert metrics["reward"] == 0.1
    assert metrics["policy_cer"] == metrics["rival_cer"]


@pytest.mark.parametrize("is_won", [True, False])
def test_the_better_model_goes_on_with_its_optimiser_s_state(is_won: bool) -> None:
    """A policy that hates bad clients wins, one that loves them loses."""
    inner, cohort = dga(beta=0.0, server=Adam()), [*BAD[:3], *GOOD[:3]]
    policy = Prejudiced(taste=-20.0 if is_won else 20.0)
    algorithm = DgaRl(inner, policy, Rewards(threshold=0.0), 0.0, exaggeration=1.0, validation=VALID)
    state = replace(
        begin(algorithm), opt={"step": 3, "first": params(), "second": {"w": params()["w"] + 1e-4}}
    )
    pool = watch(Garden(LOUD), cohort)
    after, metrics = algorithm.round(state, cohort, pool)
    weights = [pool.clients[client]["weight"] for client in cohort]
    expected = [0.0] * 3 + [1 / 3] * 3 if is_won else [1 / 6] * 6
    assert weights == pytest.approx(expected, abs=1e-8)
    held = LocalPool(Garden(LOUD)).collect(inner.task(state), cohort)
    delta = held.combine([math.log(max(w, 1e-30)) for w in weights]).mean
    model, opt = Adam()(state.params, delta, state.opt)
    torch.testing.assert_close(after.params, model, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(after.opt["second"], opt["second"], rtol=1e-12, atol=0.0)
    assert (metrics["reward"], metrics["policy_won"]) == ((1.0, 1.0) if is_won else (-1.0, 0.0))
    cer = measure(pool, after.params, VALID)["cer"]
    assert cer == metrics["policy_cer" if is_won else "rival_cer"]
    assert cer == min(metrics["policy_cer"], metrics["rival_cer"])


@dataclass(frozen=True)
class Prejudiced(PerClient):
    """Scores bad clients, whose updates' entries all have one size, by its taste."""

    taste: float = 0.0

    def score(self, learnt: Learnt, features: Tensor) -> Tensor:
        return self.taste * (features[:, 2] < -10).double()


@pytest.mark.parametrize("exaggeration", [1.0, 4.0])
def test_models_are_measured_further_apart_than_the_candidates_are(exaggeration: float) -> None:
    """By hand: each is moved away from the other until they are `exaggeration` times as far apart."""
    inner, cohort = dga(beta=0.0, server=Sgd(lr=0.1)), [*BAD[:3], *GOOD[:3]]
    algorithm = DgaRl(
        inner, Prejudiced(taste=-2.0), exploration=0.0, exaggeration=exaggeration, validation=VALID
    )
    state, worker = begin(algorithm), Garden(LOUD)
    _, metrics = algorithm.round(state, cohort, LocalPool(worker))
    held = LocalPool(worker).collect(inner.task(state), cohort)
    ours, theirs = (
        inner.step(state, held.combine(log_weights).mean)[0].params["w"]
        for log_weights in ([-2.0] * 3 + [0.0] * 3, [0.0] * 6)
    )
    middle, half = (ours + theirs) / 2, exaggeration * (ours - theirs) / 2
    for name, seen in (("policy_cer", middle + half), ("rival_cer", middle - half)):
        assert metrics[name] == measure(LocalPool(worker), {"w": seen}, VALID)["cer"]
    assert metrics["policy_cer"] < metrics["rival_cer"]


def test_the_models_are_as_far_apart_as_the_final_effects_of_adam_with_its_bias_correction() -> None:
    """By hand for β1 = 0.5: in step t + k Adam uses 0.5^(k+1) / (1 − 0.5^(t+k)) of an aggregate.

    In round 1 these are 0.5/0.5, 0.25/0.75, 0.125/0.875, … = 1/1, 1/3, 1/7, …: they sum to 1.6067, the
    Erdős–Borwein constant E, and the first is 1. In round 2 they are 2/3, 2/7, … = 2 (E − 1) in sum, and the
    first is 2/3. In round 3: 4 (E − 1 − 1/3), and 4/7. Without the correction, the ratio is always 2.
    """
    erdos_borwein = 1.6066951524152917
    algorithm = DgaRl(dga(server=Adam(lr=0.1, beta1=0.5)), validation=VALID)
    state, found = begin(algorithm), []
    for _ in range(3):
        state, metrics = algorithm.round(state, CLIENTS[:6], LocalPool(Garden(LOUD)))
        found.append(metrics["exaggeration"])
    second = 2 * (erdos_borwein - 1) / (2 / 3)
    third = 4 * (erdos_borwein - 1 - 1 / 3) / (4 / 7)
    assert found == pytest.approx([erdos_borwein, second, third], rel=1e-9)


def test_an_optimiser_that_does_not_say_how_long_a_delta_acts_needs_a_number() -> None:
    @dataclass(frozen=True)
    class Foreign:
        lr: float = 0.1

    with pytest.raises(ValueError, match="does not say how long a delta acts: set a number"):
        DgaRl(dga(server=Foreign()))  # type: ignore[arg-type]
    assert DgaRl(dga(server=Foreign()), exaggeration=2.0).exaggeration == 2.0  # type: ignore[arg-type]


@dataclass
class Deaf(Garden):
    """Every model makes the same number of errors."""

    def evaluate(self, task: Task, client: str) -> Update:
        stats = {"words": 10.0, "words_wrong": 4.0, "characters": 50.0, "characters_wrong": 9.0}
        return Update({}, reports=(Report(client, stats),))


def test_on_a_tie_the_weights_of_the_rival_go_on() -> None:
    """The noise of exploration has shown nothing: it does not reach the model."""
    algorithm, cohort = replace(ALGORITHM, exploration=2.0), CLIENTS[2:9]
    after, metrics = algorithm.round(begin(algorithm), cohort, LocalPool(Deaf(LOUD)))
    expected, _ = INNER.round(INNER.init(params()), cohort, LocalPool(Deaf(LOUD)))
    assert metrics["policy_cer"] == metrics["rival_cer"] == 0.18
    assert metrics["reward"] == 0.1
    assert metrics["policy_won"] == 0.0
    torch.testing.assert_close(after.params, expected.params, rtol=1e-14, atol=0.0)


def test_the_network_of_the_paper_takes_cohorts_up_to_its_size() -> None:
    algorithm = replace(ALGORITHM, policy=PerCohort(num_clients=6))
    state = begin(algorithm)
    for size, lost in [(6, 0), (6, 2), (3, 0)]:
        worker = Broken(Garden(LOUD), frozenset(CLIENTS[:lost]))
        state, _ = algorithm.round(state, CLIENTS[:size], LocalPool(worker))
    assert state.learnt["duels"]["count"].tolist() == [6, 4, 3]
    with pytest.raises(ValueError, match="the policy's network is for 6 clients, but 7 answered"):
        algorithm.round(state, CLIENTS[:7], LocalPool(Garden(LOUD)))
    with pytest.raises(ValueError, match=r"rounds\.cohort is 10, .* set policy\.per_cohort\.num_clients"):
        Run(DgaRl(policy=PerCohort(num_clients=6)), rounds=Rounds(total=2, cohort=10))


def test_noise_is_a_function_of_features_the_same_for_all_clients_of_a_round() -> None:
    """With more clients than features, noise is linear in them: least squares leaves nothing."""
    state = replace(begin(), round=3)
    inputs = torch.randn(9, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = ALGORITHM._noise(state, inputs)
    direction = torch.linalg.lstsq(inputs, noise[:, None]).solution
    torch.testing.assert_close((inputs @ direction)[:, 0], noise)
    assert not torch.allclose(noise, ALGORITHM._noise(begin(), inputs))
    draws = [ALGORITHM._noise(replace(state, round=0, seed=seed), inputs) for seed in range(300)]
    # Over rounds, a client with inputs of length √6 has the deviation that was asked for.
    expected = ALGORITHM.exploration * inputs.norm(dim=1) / math.sqrt(6)
    torch.testing.assert_close(torch.stack(draws).std(dim=0), expected, rtol=0.15, atol=0.0)


def test_weights_follow_the_clients_when_the_cohort_is_shuffled() -> None:
    state = begin()
    for round in range(8):  # until the network says something
        cohort = sample_cohort(CLIENTS, 6, 1, round)
        state, _ = ALGORITHM.round(state, cohort, LocalPool(Garden(QUIET)))
    found = []
    for cohort in (CLIENTS[3:10], CLIENTS[9:2:-1]):
        pool = watch(Garden(QUIET), cohort, state.round)
        after, _ = ALGORITHM.round(state, cohort, pool)
        found.append(({client: pool.clients[client]["weight"] for client in CLIENTS[3:10]}, after))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-9)
    torch.testing.assert_close(found[0][1].params, found[1][1].params, rtol=1e-9, atol=0.0)


def test_cohorts_of_any_size_and_cohorts_that_lose_clients() -> None:
    state = begin()
    for size, lost in [(1, 0), (5, 2), (2, 1), (12, 0)]:
        cohort = CLIENTS[:size]
        worker = Broken(Garden(LOUD), frozenset(cohort[:lost]))
        state, _ = ALGORITHM.round(state, cohort, LocalPool(worker))
    assert state.learnt["duels"]["count"].tolist() == [1, 3, 1, 12]
    alone = state.learnt["duels"]["contrast"][0]
    assert alone.tolist() == [0.0] * 12  # one client has all the weight whoever weighs


def test_when_nobody_answers_there_is_no_step() -> None:
    worker = Broken(Garden(LOUD), frozenset(CLIENTS))
    with pytest.raises(ValueError, match="no client's update arrived"):
        ALGORITHM.round(begin(), CLIENTS[:2], LocalPool(worker))


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="exaggeration must be at least 1"):
        DgaRl(exaggeration=0.5)


def test_exploration_fades() -> None:
    algorithm = replace(ALGORITHM, exploration=2.0, exploration_decay=0.5)
    state, deviations = begin(algorithm), []
    for _ in range(3):
        state, metrics = algorithm.round(state, CLIENTS[:4], LocalPool(Garden(LOUD)))
        deviations.append(metrics["exploration"])
    assert deviations == [2.0, 1.0, 0.5]


# --- Who it is measured on ------------------------------------------------------------------------


def test_the_validation_clients_are_a_fixed_part_of_the_run_s() -> None:
    clients = [f"valid/{number}" for number in range(9)]
    some = DgaRl(num_validation=4).prepare(RunContext(valid=tuple(clients))).validation
    assert len(some) == 4
    assert set(some) < set(clients)
    assert some == DgaRl(num_validation=4).prepare(RunContext(valid=tuple(clients[::-1]))).validation
    assert DgaRl().prepare(RunContext(valid=tuple(clients))).validation == tuple(clients)
    named = DgaRl(validation=("valid/3",))
    assert named.prepare(RunContext(valid=tuple(clients))) == named


def test_validation_clients_that_are_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match="num_validation is 3 but there are 2 clients"):
        DgaRl(num_validation=3).prepare(RunContext(valid=VALID))
    with pytest.raises(ValueError, match="no client 'valid/9'; there are valid/0, valid/1"):
        DgaRl(validation=("valid/9",)).prepare(RunContext(valid=VALID))
    with pytest.raises(ValueError, match="DGA-RL has no validation clients"):
        DgaRl(INNER).round(begin(DgaRl(INNER)), CLIENTS[:2], LocalPool(Garden(LOUD)))


def test_settings_go_to_a_dict_and_back() -> None:
    algorithm = DgaRl(INNER, PerClient(hidden=9), Rewards(similar=0.0), num_validation=2, validation=VALID)
    assert config.from_dict(DgaRl, config.to_dict(algorithm)) == algorithm
    old = {"policy": {"hidden": 9, "bottleneck": 4}, "exaggeration": 10.0}  # before there were two networks
    assert config.from_dict(DgaRl, old) == DgaRl(policy=PerClient(hidden=9), exaggeration=10.0)
