"""Our fold, weighting and server optimiser against Flower's strategies, on updates kept as a fixture."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from antiphon.core import Report, Update, add_up
from antiphon.server.optimizers import Adagrad, Adam, Sgd, Yogi
from antiphon.server.weighting import ByExamples

FIXTURE = json.loads((Path(__file__).parents[2] / "fixtures" / "flower_aggregation.json").read_text())
CASES = FIXTURE["cases"]


def tensors(values):
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}


def aggregate(clients):
    """The weighted mean delta (old − new) of one round's clients."""
    updates = []
    for number, client in enumerate(clients):
        report = Report(f"client/{number}", {"num_utterances": client["num_examples"]})
        delta = {name: -change for name, change in tensors(client["change"]).items()}
        updates.append(Update(delta, ByExamples()(report), (report,)))
    return add_up(updates).mean


def assert_follows(case, optimizer_of_step):
    params, opt = tensors(FIXTURE["start"]), None
    for step, (clients, theirs) in enumerate(
        zip(FIXTURE["rounds"], CASES[case]["params"], strict=True), start=1
    ):
        params, opt = optimizer_of_step(step)(params, aggregate(clients), opt)
        torch.testing.assert_close(params, tensors(theirs), rtol=1e-12, atol=1e-13)


def test_fed_avg_equals_sgd_with_lr_one():
    assert_follows("fed_avg", lambda step: Sgd())


def test_fed_avg_m_equals_sgd_with_momentum():
    settings = CASES["fed_avg_m"]["settings"]
    optimizer = Sgd(lr=settings["server_learning_rate"], momentum=settings["server_momentum"])
    assert_follows("fed_avg_m", lambda step: optimizer)


def test_fed_adam_numbered_from_zero_and_without_tau_equals_adam():
    settings = CASES["fed_adam_textbook"]["settings"]
    assert settings["tau"] == 0
    assert CASES["fed_adam_textbook"]["first_round"] == 0
    optimizer = Adam(settings["eta"], settings["beta_1"], settings["beta_2"], epsilon=0.0)
    assert_follows("fed_adam_textbook", lambda step: optimizer)


def test_fed_adam_as_flower_runs_it_equals_adam_with_its_constants_translated():
    # Flower: eta·c(t+1)·m / (sqrt(v) + tau) with c(t) = sqrt(1−β2^t) / (1−β1^t): round t is debiased as
    # t+1. Ours: lr·c(t)·m / (sqrt(v) + epsilon·sqrt(1−β2^t)). Equal for the lr and epsilon below.
    settings = CASES["fed_adam"]["settings"]
    beta1, beta2 = settings["beta_1"], settings["beta_2"]

    def correction(t: int) -> float:
        return math.sqrt(1 - beta2**t) / (1 - beta1**t)

    def translated(step: int) -> Adam:
        lr = settings["eta"] * correction(step + 1) / correction(step)
        return Adam(lr, beta1, beta2, settings["tau"] / math.sqrt(1 - beta2**step))

    assert CASES["fed_adam"]["first_round"] == 1
    assert_follows("fed_adam", translated)


def test_fed_yogi_equals_yogi():
    settings = CASES["fed_yogi"]["settings"]
    optimizer = Yogi(settings["eta"], settings["beta_1"], settings["beta_2"], settings["tau"])
    assert_follows("fed_yogi", lambda step: optimizer)


def test_the_fixture_makes_yogis_second_moment_both_grow_and_shrink():
    opt, shrunk, grown = None, 0, 0
    params = tensors(FIXTURE["start"])
    for clients in FIXTURE["rounds"]:
        before = torch.zeros(3, 4) if opt is None else opt["second"]["weight"]
        params, opt = Yogi()(params, aggregate(clients), opt)
        shrunk += int((opt["second"]["weight"] < before).sum())
        grown += int((opt["second"]["weight"] > before).sum())
    assert min(shrunk, grown) >= 10


def test_fed_adagrad_equals_adagrad():
    settings = CASES["fed_adagrad"]["settings"]
    assert_follows("fed_adagrad", lambda step: Adagrad(settings["eta"], settings["tau"]))


@pytest.mark.parametrize("case", CASES)
def test_every_case_of_the_fixture_goes_somewhere_else(case):
    others = [tensors(CASES[other]["params"][-1]) for other in CASES if other != case]
    mine = tensors(CASES[case]["params"][-1])
    assert all((mine["weight"] - other["weight"]).abs().max() > 1e-4 for other in others)
