"""Posteriors, confidences, and lessons that travel in tasks."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from instructions import read_instruction

from antiphon import config
from antiphon.core import Report, Task, Update
from antiphon.tasks.pseudo_labels import (
    Evidence,
    Labelling,
    LowEntropy,
    Ngram,
    SentenceProbability,
    TeacherInstruction,
    TeachingPool,
    TokenProbability,
    TopPosterior,
)

INSTRUCTION = TeacherInstruction(
    Labelling(num_hypotheses=2, width=3, confidence=LowEntropy(0.25), lm=Ngram("lm.arpa", weight=0.3)),
    "",
    {"w": torch.tensor([1.0, 2.0]), "frozen": torch.tensor([5.0])},
)


# --- Numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_posteriors_are_a_softmax_of_scores_over_the_temperature(temperature: float) -> None:
    scores = [-3.0, -4.5, -900.0]
    powers = [math.exp(score / temperature) for score in scores]
    found = Labelling(num_hypotheses=1, temperature=temperature).posteriors(scores)
    assert found == pytest.approx([power / sum(powers) for power in powers], abs=1e-15)
    assert sum(found) == pytest.approx(1.0)


def test_scores_of_any_size_have_posteriors() -> None:
    assert Labelling().posteriors([-1e6, -1e6 - math.log(3)]) == pytest.approx([0.75, 0.25], rel=1e-9)
    assert Labelling().posteriors([-5.0]) == [1.0]


def test_a_confidence_by_entropy_is_1_minus_its_share_of_the_largest_there_is() -> None:
    entropy = -(0.5 * math.log(0.5) + 2 * 0.25 * math.log(0.25))  # 1.5 ln 2
    assert entropy == pytest.approx(1.5 * math.log(2))
    assert LowEntropy()(Evidence([0.5, 0.25, 0.25])) == pytest.approx(1 - entropy / math.log(3))
    assert LowEntropy()(Evidence([0.25] * 4)) == pytest.approx(0.0, abs=1e-15)
    assert LowEntropy()(Evidence([1.0])) == 1.0


def test_a_confidence_by_posterior_is_that_of_the_best() -> None:
    assert TopPosterior()(Evidence([0.6, 0.4])) == 0.6


def test_a_confidence_by_token_is_the_geometric_mean_of_their_probabilities() -> None:
    log_prob = math.log(0.9) + math.log(0.5) + math.log(0.6)
    assert TokenProbability()(Evidence([0.1], log_prob, 3)) == pytest.approx((0.9 * 0.5 * 0.6) ** (1 / 3))
    assert TokenProbability()(Evidence([0.1], -2.0, 0)) == pytest.approx(math.exp(-2.0))  # nothing was heard


def test_a_confidence_by_sentence_counts_the_language_model_too() -> None:
    heard, said = math.log(0.9 * 0.5 * 0.6), math.log(0.2)
    assert SentenceProbability()(Evidence([0.1], heard, 3, said)) == pytest.approx((0.27 * 0.2) ** (1 / 3))
    assert SentenceProbability()(Evidence([0.1], heard, 3)) == TokenProbability()(Evidence([0.1], heard, 3))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("num=0", "num_hypotheses must be from 1 to width"),
        ("num=9", "num_hypotheses must be from 1 to width"),
        ("temperature=0", "temperature must be above 0"),
        ("batch_seconds=0", "batch_seconds must be above 0"),
        ("confidence.threshold=1.5", "between 0 and 1"),
        ("lm.weight=-1", "must not be negative"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config.override(Labelling(lm=Ngram()), [setting])


# --- Lessons --------------------------------------------------------------------------------------


def test_a_lesson_is_read_as_it_was_told() -> None:
    task = Task("train", {"w": torch.tensor([0.0, 0.0])}, {"lr": 0.1})
    told = INSTRUCTION.add_to(task)
    assert told.tensors.keys() == {"w", "teacher/w"}  # what is not trained is the same as ever
    own, instruction = read_instruction(told)
    assert instruction is not None
    assert (instruction.labelling, instruction.model) == (INSTRUCTION.labelling, INSTRUCTION.model)
    assert torch.equal(instruction.teacher["w"], torch.tensor([1.0, 2.0]))
    assert own.tensors.keys() == {"w"}
    assert own.config["lr"] == 0.1


def test_a_task_without_a_lesson_is_left_alone() -> None:
    task = Task("train", {"w": torch.zeros(1)}, {"lr": 0.1})
    assert read_instruction(task) == (task, None)


class Recorded:
    """A pool that remembers who was told what."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []

    def reduce(self, task, cohort, weigh) -> Update:  # type: ignore[no-untyped-def]
        self.tasks.append(task)
        stats = {"num_labelled": 3.0, "num_filtered": 1.0, "confidence": 0.5}
        reports = (Report("a", stats), Report("b", {**stats, "num_filtered": 5.0, "confidence": 0.8}))
        return Update({}, reports=(*reports, Report("c", {"loss": 1.0})))

    def collect(self, task, cohort):  # type: ignore[no-untyped-def]
        self.tasks.append(task)
        stats = {"num_labelled": 2.0, "num_filtered": 0.0, "confidence": 0.25}
        return SimpleNamespace(reports=[Report("a", stats)])


def test_the_server_s_own_client_is_not_taught_and_the_counts_of_the_others_are_added_up() -> None:
    pool, task = Recorded(), Task("train", {"w": torch.zeros(2)})
    taught = TeachingPool(pool, INSTRUCTION)  # type: ignore[arg-type]
    assert taught.metrics == {"num_labelled": 0.0, "num_filtered": 0.0, "confidence": 0.0}
    taught.reduce(task, ["a", "b", "c"], lambda report: 0.0)
    taught.reduce(task, ["server/rehearsal"], lambda report: 0.0)
    expected = (4 * 0.5 + 8 * 0.8) / 12  # by utterance, not by client
    assert taught.metrics == {"num_labelled": 6.0, "num_filtered": 6.0, "confidence": pytest.approx(expected)}
    taught.collect(task, ["a", "b", "c"])
    taught.collect(task, ["server/rehearsal"])
    assert [read_instruction(carried)[1] is not None for carried in pool.tasks] == [True, False, True, False]
    expected = (2 * 0.25 + 8 * 0.8) / 10  # the last report of each client counts
    assert taught.metrics == {"num_labelled": 5.0, "num_filtered": 5.0, "confidence": pytest.approx(expected)}
