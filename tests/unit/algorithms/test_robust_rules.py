"""Trimmed mean, Krum and norm bounding: values computed by hand, brute force, and what they refuse."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon import config
from antiphon.algorithms.fedavg import FedAvg
from antiphon.algorithms.krum import Krum, lowest, most_bad, scores
from antiphon.algorithms.norm_bounding import NormBounding
from antiphon.algorithms.trimmed_mean import TrimmedMean, share_of, single_updates, trimmed_mean
from antiphon.core import Algorithm, Report, Task, Update
from antiphon.pools.local import LocalPool
from antiphon.pools.recording import RecordingPool
from antiphon.server.optimizers import Sgd
from antiphon.server.run_context import RunContext, prepare
from antiphon.server.weighting import ByExamples, Uniform

PLAIN = FedAvg(weighting=Uniform(), server=Sgd())
POINTS = st.lists(st.lists(st.integers(-9, 9), min_size=2, max_size=2), min_size=1, max_size=9)


class Saying:
    """Clients that send given points, parted over two tensors."""

    def __init__(self, points: Mapping[str, Sequence[float]], num_utterances: Mapping[str, int] = {}) -> None:
        self.points, self.num_utterances = points, num_utterances

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for client in clients:
            point = torch.tensor(self.points[client], dtype=torch.float64)
            stats = {"num_utterances": float(self.num_utterances.get(client, 1)), "loss": 1.0, "norm": 0.0}
            yield Update({"a": point[:1], "b": point[1:]}, reports=(Report(client, stats),))


def round_of(
    algorithm: Algorithm[Any], points: Sequence[Sequence[float]], **more: Any
) -> tuple[list[float], dict[str, float], dict[str, float]]:
    """Return the aggregate, the weights in the journal, and the metrics of a round from zero."""
    named = {f"c{place:02d}": point for place, point in enumerate(points)}
    cohort = list(named)
    pool = RecordingPool(LocalPool(Saying(named, **more)), cohort, 1, lambda client: None, threading.Event())
    zeros = {"a": torch.zeros(1).double(), "b": torch.zeros(len(points[0]) - 1).double()}
    after, metrics = algorithm.round(algorithm.init(zeros), cohort, pool)
    weights = {client: stats["weight"] for client, stats in pool.clients.items()}
    return [-float(x) for name in ("a", "b") for x in after.params[name]], weights, dict(metrics)


# --- Trimmed mean ---------------------------------------------------------------------------------


def test_the_trimmed_mean_by_hand() -> None:
    """One value is cut off at each end: means of 2, 3, 4 and of 5, 6, 7 are left."""
    points = [[1.0, 5.0], [2.0, -100.0], [3.0, 6.0], [4.0, 7.0], [100.0, 8.0]]
    found, weights, metrics = round_of(TrimmedMean(PLAIN, trim=0.2), points)
    assert found == pytest.approx([3.0, 6.0])
    assert metrics["num_cut"] == 1
    # Of the six values that count, these come from each client.
    assert list(weights.values()) == pytest.approx([1 / 6, 1 / 6, 2 / 6, 2 / 6, 0 / 6])


@given(POINTS, st.integers(0, 4))
@settings(deadline=None, max_examples=60)
def test_every_entry_is_sorted_cut_and_averaged(points: list[list[int]], num_cut: int) -> None:
    num_cut = min(num_cut, (len(points) - 1) // 2)
    updates = [{"w": torch.tensor(point, dtype=torch.float64)} for point in points]
    mean, shares = trimmed_mean(updates, num_cut)
    for entry in range(2):
        values = sorted(point[entry] for point in points)[num_cut : len(points) - num_cut]
        assert float(mean["w"][entry]) == pytest.approx(sum(values) / len(values))
    assert math.fsum(shares) == pytest.approx(1.0)


def test_without_a_cut_it_is_the_mean() -> None:
    points = [[1.0, 2.0], [3.0, 5.0], [8.0, 2.0]]
    assert round_of(TrimmedMean(PLAIN, trim=0.0), points)[0] == pytest.approx([4.0, 3.0])
    assert round_of(TrimmedMean(PLAIN, trim=0.3), points[:1])[0] == pytest.approx([1.0, 2.0])


@pytest.mark.parametrize("huge", [1e6, -1e30])
def test_values_of_bad_clients_do_not_move_it_out_of_the_range_of_the_others(huge: float) -> None:
    good = np.random.default_rng(1).standard_normal((8, 3))
    found, _, _ = round_of(TrimmedMean(PLAIN, trim=0.2), [[huge] * 3, *good.tolist(), [huge] * 3])
    assert (good.min(axis=0) <= found).all()
    assert (found <= good.max(axis=0)).all()


def test_single_updates_are_those_that_were_sent_to_the_last_bit() -> None:
    generator = torch.Generator().manual_seed(3)
    sent = [torch.randn(5, generator=generator) * 10.0 ** (6 * place - 12) for place in range(5)]

    class Sends:
        def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
            for client in clients:
                yield Update({"w": sent[int(client)]}, reports=(Report(client, {}),))

    collected = LocalPool(Sends()).collect(Task("toy", {"w": torch.zeros(5)}), [str(n) for n in range(5)])
    for update, tensor in zip(single_updates(collected), sent, strict=True):
        assert torch.equal(update["w"], tensor)


def test_a_share_of_clients_is_rounded_down_without_the_error_of_the_product() -> None:
    assert [share_of(0.29, 100), share_of(0.3, 10), share_of(0.3, 9), share_of(0.49, 2)] == [29, 3, 2, 0]


# --- Krum -----------------------------------------------------------------------------------------


def brute_force(points: np.ndarray, num_bad: int) -> list[float]:
    """Blanchard et al., §4: the least sum of squared distances to any n − f − 2 others."""
    count = len(points)
    found = []
    for place in range(count):
        squares = [
            float(((points[place] - points[other]) ** 2).sum()) for other in range(count) if other != place
        ]
        found.append(min(map(sum, itertools.combinations(squares, count - num_bad - 2))))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_those_of_all_choices_of_neighbours(seed: int) -> None:
    generator = np.random.default_rng(seed)
    points, num_bad = generator.standard_normal((8, 3)), seed % 3
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    assert scores(distances.tolist(), num_bad) == pytest.approx(brute_force(points, num_bad))


def test_krum_takes_one_update_by_hand() -> None:
    """0, 1, 2, 4 and 50 with f = 1 have two neighbours each, and the scores 1 + 4, 1 + 1, 1 + 4, 4 + 9, ….

    The second is the lowest.
    """
    line = [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [4.0, 0.0], [50.0, 0.0]]
    found, weights, metrics = round_of(Krum(PLAIN, bad=0.2), line)
    assert found == pytest.approx([1.0, 0.0])
    assert weights == pytest.approx({"c00": 0, "c01": 1, "c02": 0, "c03": 0, "c04": 0})
    assert metrics["num_bad"] == 1


def test_multi_krum_is_the_mean_of_those_with_the_lowest_scores() -> None:
    line = [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [4.0, 0.0], [50.0, 0.0]]
    assert round_of(Krum(PLAIN, 0.2, num_averaged=3), line)[0] == pytest.approx([1.0, 0.0])
    assert round_of(Krum(PLAIN, 0.2, num_averaged=0), line)[0] == pytest.approx([7 / 4, 0.0])
    assert lowest([3.0, 1.0, 1.0], 1) == {1}


def test_with_few_answers_krum_bears_fewer_bad_clients() -> None:
    assert [most_bad(count) for count in (1, 2, 3, 4, 5, 7, 10)] == [0, 0, 0, 0, 1, 2, 3]
    assert all(2 * most_bad(count) + 2 < count <= 2 * most_bad(count) + 4 for count in range(3, 40))
    assert round_of(Krum(PLAIN, bad=0.4), [[1.0, 2.0]])[0] == pytest.approx([1.0, 2.0])
    found, _, metrics = round_of(Krum(PLAIN, bad=0.4), [[1.0, 2.0], [1.5, 2.0], [9.0, 9.0], [1.2, 2.0]])
    assert (found, metrics["num_bad"]) == (pytest.approx([1.2, 2.0]), 0)


@pytest.mark.parametrize("rule", [TrimmedMean(PLAIN, 0.3), Krum(PLAIN, 0.3), Krum(PLAIN, 0.3, 0)])
def test_three_of_ten_who_send_the_opposite_do_not_turn_the_round_around(rule: Algorithm[Any]) -> None:
    generator = np.random.default_rng(2)
    good = 1 + 0.1 * generator.standard_normal((7, 4))
    found, _, _ = round_of(rule, [*(-5 * good[:3]).tolist(), *good.tolist()])
    assert np.dot(found, good.mean(axis=0)) > 0.8 * np.square(good.mean(axis=0)).sum()
    mean, _, _ = round_of(PLAIN, [*(-5 * good[:3]).tolist(), *good.tolist()])
    assert np.dot(mean, good.mean(axis=0)) < 0


# --- Norm bounding --------------------------------------------------------------------------------


def test_norm_bounding_by_hand() -> None:
    """(3, 4) is cut from 5 to 1, (0.6, 0) stays: the mean of (0.6, 0.8) and (0.6, 0)."""
    found, _, metrics = round_of(NormBounding(PLAIN, bound=1.0), [[3.0, 4.0], [0.6, 0.0]])
    assert found == pytest.approx([0.6, 0.4])
    assert metrics["num_cut"] == 1


@given(POINTS, st.floats(0.1, 20.0))
@settings(deadline=None, max_examples=60)
def test_it_is_the_weighted_mean_of_the_cut_updates(points: list[list[int]], bound: float) -> None:
    numbers = {f"c{place:02d}": 1 + place for place in range(len(points))}
    algorithm = NormBounding(replace(PLAIN, weighting=ByExamples()), bound)
    found, _, _ = round_of(algorithm, points, num_utterances=numbers)
    rows = np.array(points, dtype=float)
    cut = rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True) / bound)
    expected = np.average(cut, axis=0, weights=list(numbers.values()))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_one_client_moves_the_model_by_its_share_of_the_bound() -> None:
    points = [[1e9, 0.0], *[[0.0, 0.0]] * 9]
    assert round_of(NormBounding(PLAIN, bound=2.0), points)[0] == pytest.approx([0.2, 0.0])


# --- What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "values", "message"),
    [
        (TrimmedMean, {"trim": 0.5}, r"below 0.5, not 0.5: where half of the clients are bad"),
        (TrimmedMean, {"trim": -0.1}, "trim is a share"),
        (Krum, {"bad": 0.5}, "bad is a share"),
        (Krum, {"num_averaged": -1}, "num_averaged must not be negative"),
        (NormBounding, {"bound": 0.0}, "bound is a norm above 0"),
        (TrimmedMean, {"inner": {"weighting": "by_examples"}}, "has no weights: set inner.weighting=uniform"),
        (Krum, {"inner": {"weighting": "by_examples"}}, "has no weights: set inner.weighting=uniform"),
    ],
)
def test_settings_that_make_no_sense_are_refused(rule: type, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config.from_dict(rule, values)


def context(cohort: int, clients: int = 36) -> RunContext:
    return RunContext(tuple(str(number) for number in range(clients)), cohort=cohort)


def test_krum_refuses_cohorts_that_cannot_bear_the_bad_clients() -> None:
    for cohort, clients in ((10, 36), (36, 10)):
        with pytest.raises(ValueError, match=r"more than 2f \+ 2 = 10 clients .* f = 4 bad ones, .* are 10"):
            prepare(Krum(PLAIN, bad=0.4), context(cohort, clients))
    assert prepare(Krum(PLAIN, bad=0.3), context(10)) == Krum(PLAIN, bad=0.3)
    with pytest.raises(ValueError, match="num_averaged is at most 7"):
        prepare(Krum(PLAIN, bad=0.3, num_averaged=8), context(10))


def test_norm_bounding_refuses_secure_aggregation() -> None:
    NormBounding().check_run(SimpleNamespace(secure_aggregation=None))
    with pytest.raises(ValueError, match="which secure_aggregation hides"):
        NormBounding().check_run(SimpleNamespace(secure_aggregation=object()))
