from __future__ import annotations

import math

import pytest
import torch

from antiphon.core import Report, Update, add_up
from antiphon.server.run_context import RunContext, prepare
from antiphon.server.weighting import ByExamples, ByNorm, SoftmaxLoss, Uniform


def shares(weighting, *stats: dict[str, float]) -> list[float]:
    """The weight of each client in the folded mean, read off one-hot updates."""
    units = torch.eye(len(stats), dtype=torch.float64)
    updates = [
        Update({"w": units[k]}, weighting(Report(f"client/{k}", stat))) for k, stat in enumerate(stats)
    ]
    return add_up(updates).mean["w"].tolist()


def test_uniform_gives_every_client_the_same_weight():
    assert shares(Uniform(), {}, {}, {}, {}) == pytest.approx([0.25] * 4)


def test_by_examples_gives_weights_in_proportion_to_utterances():
    counts = [{"num_utterances": n} for n in (1, 3, 4)]
    assert shares(ByExamples(), *counts) == pytest.approx([0.125, 0.375, 0.5])


def test_by_examples_counts_no_client_for_more_than_the_limit():
    counts = ({"num_utterances": 1}, {"num_utterances": 3}, {"num_utterances": 10**7})
    assert shares(ByExamples(max_utterances=4), *counts) == pytest.approx([0.125, 0.375, 0.5])
    with pytest.raises(ValueError, match="max_utterances must not be negative, not -1"):
        ByExamples(max_utterances=-1)


def test_the_limit_is_the_largest_client_that_the_server_knows_of_unless_it_is_set():
    known = RunContext(largest_client=40)
    assert prepare(ByExamples(), known) == ByExamples(max_utterances=40)
    assert prepare(ByExamples(max_utterances=7), known) == ByExamples(max_utterances=7)
    assert prepare(ByExamples(), RunContext()) == ByExamples()


def test_softmax_loss_gives_exp_of_minus_beta_loss():
    # exp(-2 * loss) of losses 0, ln 2 / 2, ln 4 / 2 is 1, 1/2, 1/4.
    losses = [{"loss": 0.0}, {"loss": math.log(2) / 2}, {"loss": math.log(4) / 2}]
    assert shares(SoftmaxLoss(beta=2.0), *losses) == pytest.approx([4 / 7, 2 / 7, 1 / 7])


def test_softmax_loss_favours_the_client_with_the_smaller_loss():
    small, large = shares(SoftmaxLoss(), {"loss": 1.0}, {"loss": 2.0})
    assert small > large


def test_softmax_loss_counts_no_loss_for_less_than_the_limit():
    clean = shares(SoftmaxLoss(beta=0.5), {"loss": 2.0}, {"loss": 3.0})
    assert shares(SoftmaxLoss(beta=0.5, min_loss=2.0), {"loss": 0.0}, {"loss": 3.0}) == clean
    assert shares(SoftmaxLoss(beta=0.5), {"loss": -0.5}, {"loss": 0.0}) == [0.5, 0.5]


def test_softmax_loss_survives_losses_whose_exponential_underflows():
    assert shares(SoftmaxLoss(beta=20.0), {"loss": 500.0}, {"loss": 500.0}) == pytest.approx([0.5, 0.5])


def test_by_norm_makes_every_client_pull_equally_hard():
    norms = [1.0, 2.0, 4.0]
    weights = shares(ByNorm(), *({"norm": norm} for norm in norms))
    assert weights == pytest.approx([4 / 7, 2 / 7, 1 / 7])
    pulls = [weight * norm for weight, norm in zip(weights, norms, strict=True)]
    assert pulls == pytest.approx([pulls[0]] * 3)


def test_by_norm_with_power_two_gives_the_mean_of_least_variance():
    norms = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
    best = torch.tensor(shares(ByNorm(power=2.0), *({"norm": norm} for norm in norms.tolist())))
    variance = ((best * norms) ** 2).sum()
    for seed in range(100):
        other = torch.rand(3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert ((other / other.sum() * norms) ** 2).sum() >= variance - 1e-12


def test_a_client_that_did_not_move_has_no_say_by_norm():
    assert shares(ByNorm(), {"norm": 0.0}, {"norm": 1.0}, {"norm": 1.0}) == pytest.approx([0.0, 0.5, 0.5])


def test_a_cohort_in_which_nobody_moved_still_has_a_mean():
    assert sum(shares(ByNorm(), {"norm": 0.0}, {"norm": 0.0})) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("weighting", "key"), [(ByExamples(), "num_utterances"), (SoftmaxLoss(), "loss"), (ByNorm(), "norm")]
)
def test_a_missing_or_unusable_number_is_named_with_its_client(weighting, key):
    with pytest.raises(ValueError, match=rf"'speaker/84' did not report '{key}'.*seconds"):
        weighting(Report("speaker/84", {"seconds": 2.0}))
    with pytest.raises(ValueError, match=rf"'speaker/84' reported '{key}' = nan"):
        weighting(Report("speaker/84", {key: math.nan}))


def test_a_client_with_no_utterances_or_a_negative_norm_is_refused():
    with pytest.raises(ValueError, match="'speaker/84' trained on 0 utterances"):
        ByExamples()(Report("speaker/84", {"num_utterances": 0}))
    with pytest.raises(ValueError, match="'speaker/84' reports a negative norm"):
        ByNorm()(Report("speaker/84", {"norm": -1.0}))
