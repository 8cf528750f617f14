"""Weights by word error rates that the server measures: by hand, against lies, and what is refused."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from world import SEED, World

from antiphon.algorithms.fedavg import FedAvg, dga
from antiphon.algorithms.private import Private
from antiphon.algorithms.validation_wer import ValidationWer
from antiphon.core import Report, Task, Update
from antiphon.experiment.settings import Run
from antiphon.pools.local import LocalPool
from antiphon.pools.recording import RecordingPool
from antiphon.secure_aggregation.rules import SecureAggregation
from antiphon.server.optimizers import Sgd
from antiphon.server.run_context import RunContext, prepare
from antiphon.server.weighting import ByExamples, Uniform
from antiphon.tasks.evaluation import measure

PLAIN = FedAvg(weighting=Uniform(), server=Sgd())
VALID = ("valid/a", "valid/b")


class Judged:
    """Clients whose models are given numbers, and two speakers with 50 words each.

    A model w makes |w| errors with each of them, so its WER is |w| / 50.
    """

    def __init__(self, models: Mapping[str, float], losses: Mapping[str, float] = {}) -> None:
        self.models, self.losses = models, losses

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        for client in clients:
            w = task.tensors["w"]
            if task.kind == "evaluate":
                counts = {"words": 50.0, "words_wrong": abs(float(w))}
                counts |= {"characters": 200.0, "characters_wrong": 0.0}
                yield Update({}, reports=(Report(client, counts),))
            else:
                stats = {"loss": self.losses.get(client, 1.0), "num_utterances": 5.0, "norm": 1.0}
                yield Update({"w": w - self.models[client]}, reports=(Report(client, stats),))


def round_of(algorithm: ValidationWer, worker: Judged) -> tuple[float, dict[str, float], Mapping[str, float]]:
    """Return the model after a round from w = 0, the weights in the journal, and the metrics."""
    cohort = sorted(worker.models)
    pool = RecordingPool(LocalPool(worker), cohort, 1, lambda client: None, threading.Event())
    ready = prepare(algorithm, RunContext(valid=VALID))
    after, metrics = ready.round(ready.init({"w": torch.zeros((), dtype=torch.float64)}), cohort, pool)
    weights = {client: stats["weight"] for client, stats in pool.clients.items()}
    return float(after.params["w"]), weights, metrics


def test_weights_by_hand() -> None:
    """Models 10, 11 and 12 have 20, 22 and 24 % WER: weights 1, e^−2 and e^−4 over their sum."""
    models = {"a": 10.0, "b": 11.0, "c": 12.0}
    w, weights, metrics = round_of(ValidationWer(PLAIN), Judged(models))
    total = 1 + math.exp(-2) + math.exp(-4)
    expected = {"a": 1 / total, "b": math.exp(-2) / total, "c": math.exp(-4) / total}
    assert weights == pytest.approx(expected)
    assert w == pytest.approx(sum(expected[client] * model for client, model in models.items()))
    assert metrics["best_wer"] == pytest.approx(0.2)
    assert metrics["worst_wer"] == pytest.approx(0.24)


def test_they_are_those_of_the_authors_code() -> None:
    """exp(100 − WER in per cent) of each client, normalised; above 100 % counts as 100 %."""
    models = {"a": 20.0, "b": 22.0, "c": 70.0}
    _, weights, _ = round_of(ValidationWer(PLAIN), Judged(models))
    values = {client: math.exp(100 - min(100.0, 100 * model / 50)) for client, model in models.items()}
    assert weights == pytest.approx({client: v / sum(values.values()) for client, v in values.items()})
    assert [ValidationWer(PLAIN).log_weight(wer) for wer in (1.0, 1.4)] == [-100.0, -100.0]


def test_a_beta_of_0_gives_equal_weights() -> None:
    _, weights, _ = round_of(ValidationWer(PLAIN, beta=0.0), Judged({"a": 3.0, "b": 40.0}))
    assert weights == pytest.approx({"a": 0.5, "b": 0.5})


def test_the_server_s_optimiser_takes_the_mean() -> None:
    half = FedAvg(weighting=Uniform(), server=Sgd(lr=0.5))
    models = {"a": 10.0, "b": 11.0}
    whole, _, _ = round_of(ValidationWer(PLAIN), Judged(models))
    assert round_of(ValidationWer(half), Judged(models))[0] == pytest.approx(whole / 2)


def test_what_clients_report_changes_nothing() -> None:
    models = {"a": 10.0, "b": 30.0}
    honest = round_of(ValidationWer(PLAIN), Judged(models))
    lying = round_of(ValidationWer(PLAIN), Judged(models, losses={"b": 0.0}))
    assert lying == honest


def test_the_weights_are_those_of_the_models_word_error_rates(world: World) -> None:
    """On real speech: the WER of each client's model, measured again, explains its weight."""
    case_clients = sorted(world.clients())[:3]
    worker = world.worker(world.clients())
    inner = FedAvg(weighting=Uniform(), server=Sgd())
    validation = ("valid/s08", "valid/s09")
    algorithm = ValidationWer(inner, beta=3.0, validation=validation)
    state = algorithm.init(world.params()).with_seed(SEED)
    pool = RecordingPool(LocalPool(worker), case_clients, 1, lambda client: None, threading.Event())
    algorithm.round(state, case_clients, pool)
    values = {}
    for client in case_clients:
        update = LocalPool(worker).reduce(inner.task(state), [client], Uniform())
        model = {name: p - update.mean[name] for name, p in state.params.items()}
        values[client] = math.exp(-3.0 * min(1.0, measure(LocalPool(worker), model, validation)["wer"]))
    expected = {client: value / sum(values.values()) for client, value in values.items()}
    assert {client: stats["weight"] for client, stats in pool.clients.items()} == pytest.approx(expected)


# --- Settings -------------------------------------------------------------------------------------


def test_secure_aggregation_is_refused_by_name() -> None:
    with pytest.raises(
        ValueError, match=r"^validation_wer combines .* cannot be used with secure_aggregation"
    ):
        Run(ValidationWer(PLAIN), secure_aggregation=SecureAggregation())


def test_private_updates_are_refused() -> None:
    with pytest.raises(ValueError, match="validation_wer: it combines single updates"):
        Private(ValidationWer(PLAIN), 8.0)


@pytest.mark.parametrize("inner", [dga(), FedAvg(weighting=ByExamples())])
def test_another_weighting_is_refused(inner: FedAvg) -> None:
    with pytest.raises(ValueError, match=r"weighting by validation WER .* set inner\.weighting=uniform"):
        ValidationWer(inner)


@pytest.mark.parametrize("wrong", [{"beta": -1.0}, {"num_validation": -1}])
def test_negative_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        ValidationWer(PLAIN, **wrong)


def test_validation_clients_that_are_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match="num_validation is 3 but there are 2 clients"):
        prepare(ValidationWer(PLAIN, num_validation=3), RunContext(valid=VALID))
    with pytest.raises(ValueError, match=r"no client 'valid/c'; there are valid/a, valid/b"):
        prepare(ValidationWer(PLAIN, validation=("valid/c",)), RunContext(valid=VALID))
    with pytest.raises(ValueError, match="has no validation clients"):
        ValidationWer(PLAIN).round(
            ValidationWer(PLAIN).init({"w": torch.zeros(1)}), ["a"], LocalPool(Judged({}))
        )


def test_attackers_whose_models_recognise_nothing_have_no_weight() -> None:
    """−10 times an update: a model of −100 where an honest one is 10."""
    worker = Judged({"a": 10.0, "b": 10.0, "c": -100.0})
    _, weights, _ = round_of(ValidationWer(PLAIN), worker)
    assert weights["c"] < 1e-30
