"""The geometric median: against a general minimiser, and what its name promises."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from antiphon.algorithms.fedavg import FedAvg
from antiphon.algorithms.geometric_median import GeometricMedian, geometric_median
from antiphon.core import Report, Task, Tensors, Update
from antiphon.pools.local import LocalPool, LocalUpdates
from antiphon.pools.recording import RecordingPool
from antiphon.server.optimizers import Sgd
from antiphon.server.weighting import ByExamples, Uniform


def held(points: Sequence[Sequence[float]]) -> LocalUpdates:
    """Updates whose entries are parted over two tensors."""
    rows = [torch.tensor(point, dtype=torch.float64) for point in points]
    updates = [
        Update({"a": row[:1], "b": row[1:]}, reports=(Report(str(place), {}),))
        for place, row in enumerate(rows)
    ]
    return LocalUpdates(tuple(updates), ())


def median_of(
    points: Sequence[Sequence[float]], iterations: int, weights: Sequence[float] = ()
) -> np.ndarray:
    start = {"a": torch.zeros(1).double(), "b": torch.zeros(len(points[0]) - 1).double()}
    log_weights = [math.log(weight) for weight in weights] or [0.0] * len(points)
    return flat(geometric_median(held(points), log_weights, start, iterations, 1e-9).mean)


def flat(tensors: Tensors) -> np.ndarray:
    return torch.cat([tensor.flatten() for tensor in tensors.values()]).numpy()


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_point_of_least_weighted_distance(seed: int) -> None:
    generator = np.random.default_rng(seed)
    points, weights = generator.standard_normal((7, 5)), generator.uniform(0.5, 2.0, 7)
    points[0] += 50.0

    def cost(point: np.ndarray) -> float:
        return float(weights @ np.linalg.norm(points - point, axis=1))

    found = median_of(points.tolist(), 300, weights.tolist())
    options = {"xatol": 1e-10, "fatol": 1e-14, "maxiter": 100_000, "maxfev": 100_000}
    best = minimize(cost, points.mean(axis=0), method="Nelder-Mead", options=options)
    assert cost(found) <= best.fun + 1e-10
    np.testing.assert_allclose(found, best.x, atol=1e-4)


def test_on_a_line_it_is_the_median() -> None:
    line = [[x, 0.0] for x in (0.0, 1.0, 2.0, 3.0, 1000.0)]
    np.testing.assert_allclose(median_of(line, 200), [2.0, 0.0], atol=1e-4)


def test_the_middle_of_a_square_stays_where_it_is() -> None:
    square = [[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]
    np.testing.assert_allclose(median_of(square, 1), [0.0, 0.0], atol=1e-15)


def test_the_start_and_one_step_by_hand() -> None:
    """1, 1 and 4 on a line. Their median norm is 1: weights 1, 1, 1/4 give 4/3. Then 3, 3, 3/8 give 20/17."""
    np.testing.assert_allclose(median_of([[1.0, 0.0], [1.0, 0.0], [4.0, 0.0]], 1), [20 / 17, 0.0], atol=1e-12)


def test_a_point_on_top_of_an_update_is_no_division_by_zero() -> None:
    np.testing.assert_allclose(median_of([[2.0, 5.0]] * 3, 5), [2.0, 5.0], atol=1e-12)
    np.testing.assert_allclose(median_of([[0.0, 0.0]] * 3, 5), [0.0, 0.0], atol=1e-12)


def test_a_client_that_does_not_move_does_not_hold_the_others_back() -> None:
    points = [[0.0, 0.0], [1.0, 0.1], [1.0, -0.1], [1.1, 0.0]]
    np.testing.assert_allclose(median_of(points, 8), median_of(points, 1000), atol=1e-3)
    assert median_of(points, 8)[0] > 0.9


class Mostly:
    """Clients send ones and a little more; "bad…" send a million times as much, the other way."""

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for client in clients:
            size = -1e6 if client.startswith("bad") else 1.0 + 0.01 * len(client)
            delta = {"w": torch.full((4,), size, dtype=torch.float64)}
            yield Update(delta, reports=(Report(client, {"num_utterances": 2.0, "loss": 1.0}),))


@pytest.mark.parametrize("weighting", [Uniform(), ByExamples()])
def test_clients_with_less_than_half_the_weight_cannot_take_the_model_away(
    weighting: Uniform | ByExamples,
) -> None:
    cohort = ["bad1", "a", "bb", "bad2", "ccc", "dddd", "eeeee"]
    inner = FedAvg(weighting=weighting, server=Sgd())
    median, average = GeometricMedian(inner), inner
    pool = RecordingPool(LocalPool(Mostly()), cohort, 1, lambda client: None, threading.Event())
    state = median.init({"w": torch.zeros(4, dtype=torch.float64)})
    after, _ = median.round(state, cohort, pool)
    assert -1.1 < float(after.params["w"][0]) < -0.9
    assert float(average.round(state, cohort, pool.pool)[0].params["w"][0]) > 1e5
    weights = {client: stats["weight"] for client, stats in pool.clients.items()}
    assert math.fsum(weights.values()) == pytest.approx(1.0)
    assert weights["bad1"] < 1e-4


def test_the_median_of_one_client_is_its_update() -> None:
    median = GeometricMedian(FedAvg(weighting=Uniform()))
    after, _ = median.round(median.init({"w": torch.zeros(4).double()}), ["a"], LocalPool(Mostly()))
    assert after.params["w"].tolist() == [-1.01] * 4


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="iterations must be at least 1, not 0"):
        GeometricMedian(iterations=0)
    with pytest.raises(ValueError, match="smoothing must be above 0"):
        GeometricMedian(smoothing=0.0)
