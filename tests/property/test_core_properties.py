from __future__ import annotations

import copy
import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core import Failure, Report, RunningMean, Update, add_up

log_weights = st.floats(min_value=-1e4, max_value=1e4)
values = st.lists(st.floats(min_value=-100, max_value=100), min_size=3, max_size=3)


@st.composite
def updates(draw, max_size: int = 8, min_size: int = 1) -> list[Update]:
    """Updates of two tensors, with log-weights near each other or very far apart."""
    base = draw(log_weights)
    near = st.floats(min_value=-5, max_value=5).map(lambda x: base + x)
    result = []
    for number in range(draw(st.integers(min_size, max_size))):
        vector = torch.tensor(draw(values), dtype=torch.float64)
        mean = {"a": vector[:2].clone(), "b": vector[2:].clone()}
        report = Report(f"client/{number}", {"loss": 1.0})
        result.append(Update(mean, draw(near | log_weights), (report,)))
    return result


def softmax_mean(items: list[Update]) -> dict[str, torch.Tensor]:
    shares = torch.softmax(torch.tensor([u.log_weight for u in items], dtype=torch.float64), 0)
    return {
        name: sum(share * u.mean[name] for share, u in zip(shares, items, strict=True))
        for name in items[0].mean
    }


def assert_close(left: Update, right: Update) -> None:
    # Values are at most 100, a fold of 8 makes at most 8 roundings of them; log-weights are up to
    # 1e4, where float64 resolves 2e-12: shares, hence means, are as exact as that.
    torch.testing.assert_close(left.mean, right.mean, rtol=0, atol=1e-9)
    assert math.isclose(left.log_weight, right.log_weight, rel_tol=1e-13, abs_tol=1e-11)


@given(updates())
def test_the_fold_is_the_softmax_of_the_log_weights(items):
    total = add_up(items)
    torch.testing.assert_close(total.mean, softmax_mean(items), rtol=0, atol=1e-9)
    expected = torch.logsumexp(torch.tensor([u.log_weight for u in items], dtype=torch.float64), 0).item()
    assert math.isclose(total.log_weight, expected, rel_tol=1e-13, abs_tol=1e-11)


@given(updates(), st.floats(min_value=-1e4, max_value=1e4))
def test_adding_a_constant_to_every_log_weight_changes_no_mean(items, shift):
    shifted = add_up(u.with_log_weight(u.log_weight + shift) for u in items)
    torch.testing.assert_close(add_up(items).mean, shifted.mean, rtol=0, atol=1e-8)


@given(updates(min_size=3, max_size=3))
def test_addition_is_associative_up_to_rounding(items):
    a, b, c = items
    assert_close((a + b) + c, a + (b + c))
    assert ((a + b) + c).reports == (a + (b + c)).reports


@given(updates(min_size=2, max_size=2))
def test_addition_is_commutative_up_to_rounding(items):
    a, b = items
    assert_close(a + b, b + a)


@given(updates(), st.integers(0, 8))
def test_any_grouping_gives_the_same_total(items, cut):
    assert_close(add_up(items[:cut]) + add_up(items[cut:]), add_up(items))


@given(updates(max_size=1))
def test_nothing_is_the_identity_and_carries_its_failures(items):
    (update,) = items
    failure = Failure("client/9", "no usable utterance")
    for total in (update + Update.nothing(failure), Update.nothing(failure) + update):
        assert all(torch.equal(total.mean[name], update.mean[name]) for name in update.mean)
        assert total.log_weight == update.log_weight
        assert total.reports == update.reports
        assert total.failures == (failure,)
    assert (Update.nothing() + Update.nothing()).is_empty


@given(updates())
def test_no_update_handed_in_changes(items):
    kept = copy.deepcopy(items)
    add_up(items)
    sum(items, start=Update.nothing())
    for update, copied in zip(items, kept, strict=True):
        assert all(torch.equal(update.mean[name], copied.mean[name]) for name in update.mean)
        assert (update.log_weight, update.reports) == (copied.log_weight, copied.reports)


@given(updates())
def test_a_mean_of_equal_updates_is_that_update(items):
    same = [u.with_log_weight(v.log_weight) for u, v in zip([items[0]] * len(items), items, strict=True)]
    assert all(torch.equal(add_up(same).mean[name], items[0].mean[name]) for name in items[0].mean)


@given(updates())
def test_reports_and_failures_keep_their_order(items):
    failures = [Failure(f"client/{n}", "gone") for n in range(len(items))]
    pairs = [part for u, f in zip(items, failures, strict=True) for part in (u, Update.nothing(f))]
    total = add_up(pairs)
    assert [r.client for r in total.reports] == [u.reports[0].client for u in items]
    assert list(total.failures) == failures


@given(updates(min_size=3))
def test_a_total_taken_early_does_not_change_when_more_is_added(items):
    running = RunningMean()
    for update in items[:-1]:
        running.add(update)
    early = running.total()
    kept = copy.deepcopy(early.mean)
    running.add(items[-1])
    assert all(torch.equal(early.mean[name], kept[name]) for name in kept)
