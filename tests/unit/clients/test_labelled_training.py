"""Training on labels made on a client: the same stacked and alone, and who cannot be trained is named."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from instructions import read_instruction
from runtimes import HEARD, talkative
from world import MODELS, Doubled, World

from antiphon.clients.client import Client, PseudoLabels, WeightedTranscript
from antiphon.clients.labeller import Labeller
from antiphon.clients.stacked.stacked_worker import StackedWorker
from antiphon.clients.train import train
from antiphon.clients.worker import SpeechWorker
from antiphon.core import Task, Tensors, Update
from antiphon.tasks.local_training import LocalTraining
from antiphon.tasks.pseudo_labels import TeacherInstruction, TopPosterior

LOCAL = LocalTraining(lr=0.3, epochs=1, batch_seconds=1.0)
LAS: Any = MODELS["las"]
CONFIGS: dict[str, Any] = {
    **MODELS,
    # As many frames as the CTC model, whose guesses must have an alignment here too.
    "joint las": replace(LAS, encoder=replace(LAS.encoder, stack=2), ctc_weight=0.3, label_smoothing=0.1),
}


def task(tensors: Tensors, instruction: TeacherInstruction = TeacherInstruction(HEARD)) -> Task:
    return instruction.add_to(Task("train", tensors, {**LOCAL.to_task(), "round": 0, "seed": 11}))


def assert_equal(one: Update, other: Update) -> None:
    assert {**one.reports[0].stats, "label_seconds": 0} == {**other.reports[0].stats, "label_seconds": 0}
    assert all(torch.equal(one.mean[name], other.mean[name]) for name in other.mean)


@pytest.mark.parametrize("name", CONFIGS)
def test_stacked_clients_get_what_they_get_alone(
    unheard: World, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, teacher, label = talkative(unheard, CONFIGS[name]), talkative(unheard), Labeller._label
    # An untrained decoder repeats itself: a CTC model's guesses are as good for it, and have an alignment.
    ctc = Labeller(teacher)
    ctc._follow(TeacherInstruction(HEARD))
    monkeypatch.setattr(Labeller, "_label", lambda self, own, instruction: label(ctc, own, instruction))
    clients = {name: own[: 1 + n % 4] for n, (name, own) in enumerate(sorted(unheard.clients().items()))}
    told = task(runtime.base)
    alone = list(SpeechWorker(runtime, clients).run(told, list(clients)))
    with caplog.at_level(logging.WARNING, "antiphon"):
        stacked = list(StackedWorker(runtime, clients).run(told, list(clients)))
    assert not caplog.text  # nothing fell back to one after another
    assert sum(update.reports[0].stats.get("num_labelled", 0) for update in alone if update.reports) > 5
    for left, right in zip(stacked, alone, strict=True):
        assert left.failures == right.failures
        for key, tensor in right.mean.items():
            torch.testing.assert_close(left.mean[key], tensor, rtol=1e-10, atol=1e-10)
        for one, other in zip(left.reports, right.reports, strict=True):
            stats = [{k: v for k, v in each.stats.items() if k != "label_seconds"} for each in (one, other)]
            assert stats[0] == pytest.approx(stats[1], rel=1e-10)


def test_hard_labels_that_are_true_train_as_texts_do(world: World, unheard: World) -> None:
    written, unwritten = talkative(world), talkative(unheard)
    indices = world.clients()["speaker/s02"]
    true = {
        i: (WeightedTranscript(tuple(world.tokens.encode(world.store.text(i))), 1.0),)
        for i in indices.tolist()
    }
    own, _ = read_instruction(task(written.base))
    expected = train(own, Client("speaker/s02", indices, written))
    assert_equal(train(own, Client("speaker/s02", indices, unwritten, PseudoLabels(true))), expected)


def test_a_client_whose_labels_are_all_filtered_out_is_named_and_the_others_go_on(unheard: World) -> None:
    runtime, clients = talkative(unheard), unheard.clients()
    names = ["speaker/s00", "speaker/s01", "speaker/s02"]
    strict = task(runtime.base, TeacherInstruction(replace(HEARD, confidence=TopPosterior(1.0))))
    for worker in (SpeechWorker(runtime, clients), StackedWorker(runtime, clients)):
        written, *others = worker.run(strict, names)
        assert written.reports[0].client == "speaker/s00"
        for update, name in zip(others, names[1:], strict=True):
            assert update.is_empty
            assert update.failures[0].client == name
            assert "no usable label for any of" in update.failures[0].reason


def test_a_client_that_cannot_be_labelled_is_named_and_the_others_go_on(
    unheard: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, clients, feed = talkative(unheard), unheard.clients(), Doubled.__call__
    broken = set(clients["speaker/s01"].tolist())

    def lost(self: Doubled, places: np.ndarray) -> Any:
        if broken & set(places.tolist()):
            raise OSError("the disk went away")
        return feed(self, places)

    monkeypatch.setattr(Doubled, "__call__", lost)
    for worker in (SpeechWorker(runtime, clients), StackedWorker(runtime, clients)):
        first, second = worker.run(task(runtime.base), ["speaker/s01", "speaker/s02"])
        assert first.failures[0].reason == "OSError: the disk went away"
        assert second.reports


def test_a_client_without_texts_is_unusable_to_those_who_do_not_label(unheard: World) -> None:
    runtime = talkative(unheard)
    own, _ = read_instruction(task(runtime.base))
    (update,) = SpeechWorker(runtime, unheard.clients()).run(own, ["speaker/s01"])
    assert "no usable utterance" in update.failures[0].reason


def test_a_report_says_numbers_only(unheard: World) -> None:
    runtime = talkative(unheard)
    (update,) = SpeechWorker(runtime, unheard.clients()).run(task(runtime.base), ["speaker/s01"])
    stats = update.reports[0].stats
    assert {"num_labelled", "num_filtered", "confidence", "label_seconds"} <= stats.keys()
    assert all(type(value) is float for value in stats.values())
    assert stats["num_labelled"] + stats["num_filtered"] == len(unheard.clients()["speaker/s01"])
    assert update.mean.keys() == runtime.base.keys()  # the teacher does not come back
