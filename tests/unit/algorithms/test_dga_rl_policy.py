"""The policy's arithmetic: against plain loops, by hand, and on duels whose winner is known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from antiphon.algorithms.dga_rl_policy import (
    Comparison,
    PerClient,
    PerCohort,
    clients_of,
    empty_memory,
    remember,
    standardise,
)
from antiphon.core import Tensors
from antiphon.server.optimizers import Adam

SMALL = PerClient(hidden=5, bottleneck=3)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network(policy: PerClient = SMALL, num_features: int = 4, seed: int = 1) -> Tensors:
    """One whose last layer says something."""
    fresh = policy.begin(num_features, seed)["network"]
    return {name: random(*tensor.shape, seed=place) for place, (name, tensor) in enumerate(fresh.items())}


def comparison(num_clients: int, reward: float, seed: int) -> Comparison:
    played, rival = (random(num_clients, seed=seed + shift) for shift in (1, 2))
    return Comparison.between(random(num_clients, 4, seed=seed), played, rival, reward)


def memory_of(*comparisons: Comparison, capacity: int = 1000) -> Tensors:
    memory = empty_memory(4)
    for one in comparisons:
        memory = remember(memory, one, capacity)
    return memory


# --- The network ----------------------------------------------------------------------------------


def test_the_network_has_five_layers_and_a_bottleneck_before_the_last() -> None:
    fresh = PerClient(hidden=7, bottleneck=3).begin(6, seed=0)["network"]
    shapes = [tuple(fresh[f"{layer}.weight"].shape) for layer in range(5)]
    assert shapes == [(7, 6), (7, 7), (7, 7), (3, 7), (1, 3)]
    assert len(fresh) == 11
    assert fresh["price"].shape == ()


def test_scores_are_those_of_plain_loops() -> None:
    weights, inputs = network(), random(3, 4)
    for row, score in zip(inputs.tolist(), SMALL.scores(weights, inputs).tolist(), strict=True):
        values = row
        for layer in range(5):
            matrix, bias = weights[f"{layer}.weight"].tolist(), weights[f"{layer}.bias"].tolist()
            values = [
                b + sum(w * v for w, v in zip(line, values, strict=True))
                for line, b in zip(matrix, bias, strict=True)
            ]
            values = [max(0.0, v) for v in values] if layer < 4 else values
        assert score == pytest.approx(5 * math.tanh(values[0] / 5), rel=1e-12)


def test_the_network_of_the_paper_has_inputs_and_outputs_for_each_client_of_a_cohort() -> None:
    fresh = PerCohort(hidden=7, bottleneck=3, num_clients=5).begin(6, seed=0)["network"]
    shapes = [tuple(fresh[f"{layer}.weight"].shape) for layer in range(5)]
    assert shapes == [(7, 15), (7, 7), (7, 7), (3, 7), (5, 3)]  # 3 features of 5 clients


def test_the_network_of_the_paper_by_plain_loops() -> None:
    """Three of four clients answer: the inputs of the last are 0, and its output is not used."""
    policy = PerCohort(hidden=5, bottleneck=3, num_clients=4)
    fresh = policy.begin(6, seed=1)["network"]
    weights = {name: random(*tensor.shape, seed=place) for place, (name, tensor) in enumerate(fresh.items())}
    inputs = random(3, 6)
    values = [value for row in inputs.tolist() for value in row[:3]] + [0.0] * 3
    for layer in range(5):
        matrix, bias = weights[f"{layer}.weight"].tolist(), weights[f"{layer}.bias"].tolist()
        sums = [sum(w * v for w, v in zip(line, values, strict=True)) for line in matrix]
        values = [b + total for b, total in zip(bias, sums, strict=True)]
        values = [max(0.0, v) for v in values] if layer < 4 else values
    expected = [5 * math.tanh(value / 5) for value in values[:3]]
    assert policy.scores(weights, inputs).tolist() == pytest.approx(expected, rel=1e-12)
    # Positions matter to it, unlike to the network of one client.
    assert policy.scores(weights, inputs.flip(0)).flip(0).tolist() != pytest.approx(expected, rel=1e-3)


def test_the_network_of_the_paper_learns_from_cohorts_of_different_sizes() -> None:
    """As if it had learnt from each cohort alone: what pads a smaller one is not seen."""
    policy = PerCohort(hidden=5, bottleneck=3, num_clients=5, shrinkage=0.0)
    fresh = policy.begin(4, seed=1)["network"]
    weights = {name: random(*tensor.shape, seed=place) for place, (name, tensor) in enumerate(fresh.items())}
    comparisons = [comparison(2, 1.0, 0), comparison(5, -1.0, 1), comparison(3, 0.1, 2)]
    apart = [float(policy.loss(weights, memory_of(one))) for one in comparisons]
    assert float(policy.loss(weights, memory_of(*comparisons))) == pytest.approx(sum(apart) / 3, rel=1e-12)
    learnt = {"network": weights, "opt": None, "duels": memory_of(*comparisons)}
    after = policy.learn(learnt, comparison(2, 1.0, 3), seed=0)
    # Inputs of the fifth client of a cohort are seen only where five answered: with that round gone, never.
    assert not torch.equal(after["network"]["0.weight"][:, 8:], weights["0.weight"][:, 8:])
    learnt["duels"] = memory_of(comparisons[0], comparisons[2])
    after = policy.learn(learnt, comparison(2, 1.0, 3), seed=0)
    assert torch.equal(after["network"]["0.weight"][:, 6:], weights["0.weight"][:, 6:])
    assert not torch.equal(after["network"]["0.weight"][:, :6], weights["0.weight"][:, :6])


def test_a_fresh_policy_scores_everyone_zero() -> None:
    learnt = SMALL.begin(4, seed=3)
    assert SMALL.score(learnt, random(5, 4)).tolist() == [0.0] * 5
    assert not torch.equal(learnt["network"]["0.weight"], SMALL.begin(4, seed=4)["network"]["0.weight"])


@pytest.mark.parametrize("num_clients", [1, 2, 7, 40])
def test_scores_follow_the_clients_whatever_their_order_and_number(num_clients: int) -> None:
    learnt = {"network": network(), "opt": None, "duels": memory_of(comparison(3, 1.0, 5))}
    features, order = random(num_clients, 4), torch.randperm(num_clients)
    scores = SMALL.score(learnt, features)
    assert scores.shape == (num_clients,)
    torch.testing.assert_close(SMALL.score(learnt, features[order]), scores[order], rtol=1e-12, atol=1e-12)


def test_scores_stay_within_their_limit() -> None:
    assert float(SMALL.scores(network(), 1e6 * random(20, 4)).abs().max()) <= 5.0


def test_features_are_standardised_and_those_that_do_not_vary_are_zero() -> None:
    rows = torch.tensor([[1.0, 7.0, 1e-7], [4.0, 7.0, 2e-7], [4.0, 7.0, 3e-7]], dtype=torch.float64)
    expected = [[-math.sqrt(2), 0, 0], [math.sqrt(0.5), 0, 0], [math.sqrt(0.5), 0, 0]]
    torch.testing.assert_close(standardise(rows, rows), torch.tensor(expected, dtype=torch.float64))
    assert standardise(rows[:1], rows[:1]).tolist() == [[0.0, 0.0, 0.0]]


# --- The memory -----------------------------------------------------------------------------------


def test_the_oldest_duels_make_room() -> None:
    comparisons = [comparison(2, reward, seed) for seed, reward in enumerate([1.0, -1.0, 0.1, 1.0, -1.0])]
    memory = memory_of(*comparisons, capacity=3)
    assert memory["reward"].tolist() == [0.1, 1.0, -1.0]
    assert torch.equal(memory["features"], torch.stack([one.features for one in comparisons[2:]]))


def test_cohorts_of_different_sizes_are_remembered_side_by_side() -> None:
    comparisons = [comparison(2, 1.0, 0), comparison(5, -1.0, 1), comparison(3, 0.1, 2)]
    memory = memory_of(*comparisons)
    assert memory["count"].tolist() == [2, 5, 3]
    assert torch.equal(clients_of(memory), torch.cat([one.features for one in comparisons]))


def test_padding_changes_no_loss() -> None:
    policy, weights = PerClient(hidden=5, bottleneck=3, shrinkage=0.0), network()
    comparisons = [comparison(2, 1.0, 0), comparison(5, -1.0, 1), comparison(3, 0.1, 2)]
    apart = [float(policy.loss(weights, memory_of(one))) for one in comparisons]
    assert float(policy.loss(weights, memory_of(*comparisons))) == pytest.approx(sum(apart) / 3, rel=1e-12)


# --- Learning -------------------------------------------------------------------------------------


def test_a_duel_is_the_difference_of_two_softmaxes() -> None:
    played, rival = torch.tensor([0.0, math.log(3)]).double(), torch.tensor([7.0, 7.0]).double()
    one = Comparison.between(random(2, 4), played, rival, 0.1)
    assert one.contrast.tolist() == pytest.approx([-0.25, 0.25])
    assert one.unevenness == pytest.approx(2 * ((1 + 9) / 16 - 1 / 2))


def test_losses_of_uneven_weights_are_put_down_to_the_price_and_not_to_clients() -> None:
    """Features that say nothing, a noisy policy that always loses."""
    policy = PerClient()
    learnt = policy.begin(6, seed=0)
    before = float(learnt["network"]["price"])
    for round in range(60):
        features, rival = random(8, 6, seed=round), torch.zeros(8, dtype=torch.float64)
        played = policy.score(learnt, features) + 0.5 * random(8, seed=1000 + round)
        learnt = policy.learn(learnt, Comparison.between(features, played, rival, -1.0), round)
    assert float(learnt["network"]["price"]) > before + 0.1
    assert float(policy.score(learnt, random(100, 6, seed=99)).std()) < 0.6


@pytest.mark.parametrize(("reward", "target"), [(1.0, 1.0), (-1.0, 0.0), (0.1, 0.55)])
def test_the_loss_is_the_cross_entropy_of_the_reward(reward: float, target: float) -> None:
    one, weights = comparison(4, reward, 3), network()
    scores = SMALL.scores(weights, one.features).tolist()
    margin = sum(d * q for d, q in zip(one.contrast.tolist(), scores, strict=True))
    margin -= math.log1p(math.exp(float(weights["price"]))) * one.unevenness
    chance = 1 / (1 + math.exp(-margin))
    expected = -target * math.log(chance) - (1 - target) * math.log(1 - chance)
    expected += SMALL.shrinkage * sum(q * q for q in scores) / 4
    assert float(SMALL.loss(weights, memory_of(one))) == pytest.approx(expected, rel=1e-12)


def test_the_gradient_is_reward_less_baseline_times_what_was_played_differently() -> None:
    """By q_k it is −(p − σ(m)) d_k: checked on the last layer, whose inputs are found by other means."""
    policy, one = PerClient(hidden=5, bottleneck=3, shrinkage=0.0, limit=1e6), comparison(4, 1.0, 3)
    weights = {name: tensor.requires_grad_() for name, tensor in network().items()}
    (gradient,) = torch.autograd.grad(policy.loss(weights, memory_of(one)), [weights["4.weight"]])
    with torch.no_grad():
        hidden = torch.stack(
            [  # the score with only one of the last layer's weights on
                policy.scores(
                    {**weights, "4.weight": line[None], "4.bias": torch.zeros(1).double()}, one.features
                )
                for line in torch.eye(3, dtype=torch.float64)
            ]
        )
        price = torch.log1p(weights["price"].exp())
        chance = torch.sigmoid(one.contrast @ policy.scores(weights, one.features) - price * one.unevenness)
    expected = -(1.0 - chance) * (hidden @ one.contrast)
    assert float(expected.abs().max()) > 0
    torch.testing.assert_close(gradient[0], expected, rtol=1e-8, atol=1e-10)


def test_an_optimum_is_the_expected_reward() -> None:
    """Even duels with one contrast, won three times out of four: tanh(½ Σ d q) goes to the mean reward, ½."""
    policy = PerClient(16, 8, shrinkage=0.0, optimizer=Adam(lr=0.01, epsilon=1e-6), steps=500)
    features = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    contrast = torch.tensor([0.3, -0.3], dtype=torch.float64)
    learnt = policy.begin(1, seed=0)
    for reward in (1.0, 1.0, -1.0):
        learnt = {
            **learnt,
            "duels": remember(learnt["duels"], Comparison(features, contrast, 0.0, reward), 10),
        }
    learnt = policy.learn(learnt, Comparison(features, contrast, 0.0, 1.0), seed=0)
    margin = float(contrast @ policy.score(learnt, features))
    assert math.tanh(margin / 2) == pytest.approx(0.5, abs=1e-3)


def test_learning_changes_nothing_it_was_given_and_is_the_same_twice() -> None:
    before = {"network": network(), "opt": None, "duels": memory_of(comparison(3, 1.0, 5))}
    kept = {name: tensor.clone() for name, tensor in before["network"].items()}
    one, again = (SMALL.learn(before, comparison(4, -1.0, 9), seed=2) for _ in range(2))
    for name, tensor in before["network"].items():
        assert torch.equal(tensor, kept[name])
        assert torch.equal(one["network"][name], again["network"][name])
    assert not torch.equal(one["network"]["4.weight"], kept["4.weight"])
    assert before["duels"]["reward"].tolist() == [1.0]


@pytest.mark.parametrize(
    "wrong", [{"hidden": 0}, {"batch": 0}, {"memory": 0}, {"limit": 0.0}, {"shrinkage": -1.0}, {"steps": -1}]
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PerClient(**wrong)  # type: ignore[arg-type]
