from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from antiphon.privacy.accounting import Budget, Renyi, epsilon_of_rho
from antiphon.privacy.mechanisms import (
    Cap,
    CapL1,
    CapL2,
    Gaussian,
    Laplace,
    Rounded,
    gaussian_for,
    to_grid,
    utterance_sensitivity,
)
from antiphon.privacy.samplers import Seeded

CAPS = [CapL1(3.0), CapL2(2.0), CapL1(4.0), CapL2(3.0), CapL1(3.0, step=1.0)]
ORDERS = [1, 2, 1, 2, 1]


def counts(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def pooled(clients: tuple[tuple[float, ...], ...], cap: Cap) -> Tensor:
    return sum((cap(counts(*client)) for client in clients), start=torch.zeros(3, dtype=torch.float64))


# --- Sensitivity ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("cap", "order"), list(zip(CAPS, ORDERS, strict=True)), ids=range(len(CAPS)))
def test_no_client_moves_capped_counts_further_than_the_cap(cap: Cap, order: int) -> None:
    """Brute force: all data sets of two clients over three words with counts 0..4, and every neighbour."""
    speech = list(itertools.product((0.0, 1.0, 2.7, 4.0), repeat=3))
    furthest = 0.0
    for other in speech[::7]:
        without = pooled((other,), cap)
        for added in speech:
            gap = pooled((other, added), cap) - without
            furthest = max(furthest, float(torch.linalg.vector_norm(gap, order)))
    assert furthest <= cap.limit
    assert furthest > 0.9 * cap.limit  # and the bound is not idle


@pytest.mark.parametrize("weights", [(1.0, 0.0), (1.0, 0.6065), (1.0, 0.98)], ids=str)
def test_no_utterance_moves_rounded_counts_further_than_its_sensitivity(weights: tuple[float, float]) -> None:
    """Brute force: every list of two hypotheses of up to two words out of two, after any other."""
    texts = [text for length in range(3) for text in itertools.product((0, 1), repeat=length)]
    lists = []
    for hypotheses in itertools.product(texts, repeat=2):
        added = torch.zeros(2, dtype=torch.float64)
        for weight, text in zip(weights, hypotheses, strict=True):
            for word in text:
                added[word] += weight
        lists.append(added)
    rounded = Rounded(step=0.25)
    furthest = max(
        float((rounded(before + added) - rounded(before)).abs().sum()) for before in lists for added in lists
    )
    bound = utterance_sensitivity(2, weights, step=0.25)
    assert 0.85 * bound <= furthest <= bound


def test_under_a_cap_an_utterance_moves_counts_further_than_it_is_long_but_not_twice_the_cap() -> None:
    """Scaling to an l1 norm takes from all other words what it gives to new ones."""
    cap, said = CapL1(8.0, step=2.0**-20), counts(8.0, 0.0, 0.0)
    gap = float((cap(said + counts(0.0, 1.0, 0.0)) - cap(said)).abs().sum())
    assert gap == pytest.approx(16 / 9, abs=1e-4)  # 1 - 8/9 of the old word's 8 is lost, as much is won
    furthest = max(
        float((CapL1(2.0)(counts(*one)) - CapL1(2.0)(counts(*other))).abs().sum())
        for one in itertools.product((0.0, 1.0, 9.0), repeat=3)
        for other in itertools.product((0.0, 1.0, 9.0), repeat=3)
    )
    assert furthest == 4.0


def test_the_papers_sensitivity_is_that_of_one_word_said_once_and_no_more() -> None:
    once, twice = np.array([1.0, 1.0, 1.0]), np.array([0.0, 2.0, 0.0])  # two utterances
    assert np.abs(once).max() == 1  # for each word on its own: eq. 9
    assert np.abs(once).sum() == 3  # for the utterance
    assert np.abs(twice).max() == 2  # where its assumption fails


def test_capping_scales_so_that_words_keep_their_shares() -> None:
    found = CapL2(5.0, step=2.0**-20)(counts(6.0, 8.0, 0.0))
    np.testing.assert_allclose(found, [3, 4, 0], atol=2**-19)
    assert CapL1(100.0)(counts(1.5, 2.0, 0.25)).tolist() == [1.5, 2.0, 0.25]  # nothing to do


def test_caps_hold_to_the_last_bit_and_end_on_the_grid() -> None:
    random = np.random.default_rng(0)
    for cap, order in zip(CAPS, ORDERS, strict=True):
        for _ in range(200):
            found = cap(torch.from_numpy(random.gamma(0.3, 5.0, 50)))
            assert float(torch.linalg.vector_norm(found, order)) <= cap.limit
            assert torch.equal(to_grid(found, cap.step), found)


def test_without_rounding_on_the_client_rounding_would_add_to_the_sensitivity() -> None:
    """Why clients round: a cap of 1 spread over four words moves four roundings by a whole step each."""
    base, added = counts(0.3, 0.3, 0.3, 0.3), counts(0.25, 0.25, 0.25, 0.25)
    assert float((torch.round(base + added) - torch.round(base)).abs().sum()) == 4.0


@pytest.mark.parametrize("values", [(-1.0, 2.0), (math.nan, 1.0), (math.inf, 1.0)], ids=str)
def test_counts_that_are_not_counts_are_refused(values: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="finite and not negative"):
        CapL1(3.0)(counts(*values))


# --- Noise ----------------------------------------------------------------------------------------


def test_laplace_noise_has_the_scale_of_sensitivity_over_epsilon() -> None:
    mechanism = Laplace(sensitivity=3.0, epsilon=0.5, step=2.0**-10)
    noised = mechanism.add(torch.full((50_000,), 40.0, dtype=torch.float64), Seeded(1).words(0))
    assert stats.kstest(noised.numpy() - 40, stats.laplace(scale=6.0).cdf).pvalue > 0.01
    assert float((noised - 40).std()) == pytest.approx(math.sqrt(2) * 6, rel=0.02)


def test_gaussian_noise_has_the_scale_of_sensitivity_times_multiplier() -> None:
    mechanism = Gaussian(sensitivity=3.0, multiplier=2.0, step=2.0**-10)
    noised = mechanism.add(torch.zeros(50_000, dtype=torch.float64), Seeded(1).words(0))
    assert stats.kstest(noised.numpy(), stats.norm(scale=6.0).cdf).pvalue > 0.01


def test_noised_counts_are_on_the_grid_whatever_the_counts_were() -> None:
    """Mironov's attack needs outputs that one count can give and another cannot."""
    for value in (0.0, 1.0, 12345.0):
        noised = Laplace(1.0, 1.0).add(torch.full((1000,), value, dtype=torch.float64), Seeded(0).words(0))
        assert torch.equal(to_grid(noised), noised)


@pytest.mark.parametrize("mechanism", [Laplace(2.0, 0.7, 0.5), Gaussian(2.0, 1.3, 0.5)], ids=["l1", "l2"])
def test_rounding_of_the_scale_never_weakens_privacy(mechanism: Laplace | Gaussian) -> None:
    asked = 2.0 / 0.7 if isinstance(mechanism, Laplace) else 2.0 * 1.3
    assert asked <= mechanism.scale * mechanism.step < asked + mechanism.step


def test_sums_that_are_off_by_floating_point_are_repaired_and_uncapped_counts_refused() -> None:
    mechanism = Laplace(1.0, 1.0, step=1.0)
    near = mechanism.add(counts(3.0 + 1e-9, 5.0 - 1e-9), Seeded(0).words(0))
    assert torch.equal(near, mechanism.add(counts(3.0, 5.0), Seeded(0).words(0)))
    with pytest.raises(ValueError, match=r"not a multiple of 1\.0: clients must cap or round"):
        mechanism.add(counts(3.0, 5.4), Seeded(0).words(0))


@pytest.mark.parametrize("rounds", [1, 10])
def test_gaussian_noise_is_as_small_as_its_budget_lets_it_be(rounds: int) -> None:
    mechanism = gaussian_for(10.0, Budget(2.0, 1e-5), rounds)
    less = replace(mechanism, multiplier=mechanism.multiplier * (1 - 1.5 / mechanism.scale))
    assert less.scale == mechanism.scale - 1
    spent = [Renyi().epsilon([(each.loss, rounds)], 1e-5) for each in (mechanism, less)]
    assert spent[0] <= 2.0 < spent[1]
    by_hand = epsilon_of_rho(rounds * mechanism.loss_at(10.0).rho, 1e-5)
    assert 1.99 < by_hand <= spent[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: CapL1(0.0),
        lambda: CapL1(3.0, step=0.3),
        lambda: Laplace(1.0, 0.0),
        lambda: Gaussian(-1.0, 1.0),
        lambda: gaussian_for(1.0, Budget(1.0)),
    ],
    ids=["no limit", "step", "epsilon", "sensitivity", "delta"],
)
def test_settings_that_protect_nothing_are_refused(make: object) -> None:
    with pytest.raises(ValueError, match=r"needs|power of two"):
        make()  # type: ignore[operator]
