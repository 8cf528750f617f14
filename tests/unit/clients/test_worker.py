from __future__ import annotations

import math
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from world import World, stacked

from antiphon.algorithms.rehearsal import SERVER_CLIENT
from antiphon.clients.faults import SimulatedFaults, Unreliability
from antiphon.clients.worker import SpeechWorker, refuse_nonfinite
from antiphon.core import Failure, Report, Task, Update, Worker, add_up
from antiphon.data.store import FeatureStore
from antiphon.pools.local import LocalPool
from antiphon.pools.recording import RecordingPool
from antiphon.records.files import Damaged
from antiphon.server.weighting import Uniform
from antiphon.tasks.client_work import CLIENT_WORK, work_for
from antiphon.tasks.local_training import LocalTraining

CONFIG: dict[str, Any] = {
    "lr": 0.05,
    "epochs": 1,
    "steps": 0,
    "batch_seconds": 60.0,
    "clip_norm": 1.0,
    "proximal": 0.0,
    "round": 0,
    "seed": 3,
}


def task_of(world: World, **config: Any) -> Task:
    return Task("train", world.params(), {**CONFIG, **config})


def answers(worker: Any, task: Task, clients: list[str]) -> dict[str, Update]:
    """One answer for each client, in the order asked: anything else is no worker."""
    given = dict(zip(clients, worker.run(task, clients), strict=True))
    for client, update in given.items():
        named = [report.client for report in update.reports] + [f.client for f in update.failures]
        assert named == [client]
    return given


def reason(update: Update) -> str:
    assert update.is_empty
    return update.failures[0].reason


# --- One client's failure is its own --------------------------------------------------------------


def test_the_configuration_of_a_task_is_local_training() -> None:
    assert LocalTraining.from_task(CONFIG) == LocalTraining()


def test_a_client_that_raises_is_named_and_the_others_answer(world: World, monkeypatch: Any) -> None:
    clients, worker = world.clients(), world.worker(world.clients())
    text = world.store.text
    broken = set(clients["speaker/s01"].tolist())

    def lost(index: int) -> str:
        if int(index) in broken:
            raise OSError("the disk went away")
        return text(index)

    monkeypatch.setattr(world.store, "text", lost)
    given = answers(worker, task_of(world), ["speaker/s00", "speaker/s01", "speaker/s02"])
    assert reason(given["speaker/s01"]) == "OSError: the disk went away"
    assert not given["speaker/s00"].is_empty
    assert not given["speaker/s02"].is_empty


@pytest.mark.parametrize("is_stacked", [False, True])
def test_a_damaged_file_ends_the_run_for_without_a_client_its_result_is_another(
    is_stacked: bool, world: World, tmp_path: Path
) -> None:
    shutil.copytree(world.store.folder, tmp_path / "store")
    frames = bytearray((tmp_path / "store" / "frames.f16").read_bytes())
    frames[len(frames) // 2] ^= 1
    (tmp_path / "store" / "frames.f16").write_bytes(frames)
    damaged = replace(world, store=FeatureStore.open(tmp_path / "store"))
    worker = damaged.worker(damaged.clients())
    with pytest.raises(Damaged, match=r"frames\.f16 is damaged: .* Delete .*store"):
        answers(stacked(worker) if is_stacked else worker, task_of(world), sorted(world.clients()))


def test_features_that_are_not_numbers_leave_their_client_out_and_harm_nobody(
    world: World, monkeypatch: Any
) -> None:
    worker = world.worker(world.clients())
    features, broken = world.store.features, set(world.clients()["speaker/s00"].tolist())
    clean = answers(worker, task_of(world), ["speaker/s01"])["speaker/s01"]

    def noisy(index: int) -> np.ndarray:
        frames = features(index)
        return np.full_like(frames, np.nan) if int(index) in broken else frames

    monkeypatch.setattr(world.store, "features", noisy)
    given = answers(worker, task_of(world), ["speaker/s00", "speaker/s01"])
    assert reason(given["speaker/s00"]) == "loss is nan"
    assert all(torch.equal(given["speaker/s01"].mean[name], t) for name, t in clean.mean.items())


def test_a_diverging_client_is_left_out(world: World) -> None:
    worker = world.worker(world.clients())
    task = task_of(world, lr=1e30, steps=20, clip_norm=0.0)
    assert "nan" in reason(answers(worker, task, ["speaker/s00"])["speaker/s00"])


def test_a_client_without_usable_speech_says_so(world: World) -> None:
    everything = world.store.where("pool")
    worker = SpeechWorker(world.runtime(), {"speaker/none": everything[:0], "speaker/some": everything[:2]})
    given = answers(worker, task_of(world), ["speaker/none", "speaker/some"])
    assert reason(given["speaker/none"]) == "no usable utterance among 0"
    assert not given["speaker/some"].is_empty


def test_utterances_too_short_for_their_text_are_not_trained_on(world: World, monkeypatch: Any) -> None:
    text, first = world.store.text, int(world.clients()["speaker/s00"][0])
    monkeypatch.setattr(world.store, "text", lambda i: "abcde" * 50 if int(i) == first else text(i))
    update = answers(world.worker(world.clients()), task_of(world), ["speaker/s00"])["speaker/s00"]
    assert update.reports[0].stats["num_utterances"] == 4


def test_unknown_clients_and_kinds_of_work_are_mistakes_of_the_program(world: World) -> None:
    worker = world.worker(world.clients())
    with pytest.raises(ValueError, match="no client 'speaker/nobody' among the"):
        list(worker.run(task_of(world), ["speaker/nobody"]))
    with pytest.raises(ValueError, match="unknown kind of client work 'dance'; valid: ") as refused:
        list(worker.run(Task("dance"), []))
    assert all(kind in str(refused.value) for kind in ("central", "evaluate", "train"))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_client_that_diverged_says_so_and_keeps_nothing_of_it(value: float) -> None:
    bad, good = torch.tensor([0.0, value]), torch.ones(2)
    figure = Update({"w": good}, reports=(Report("c", {"loss": value}),))
    tensor = Update({"ok": good, "w": bad}, reports=(Report("c", {"norm": 1.0}),))
    kept = Update({"w": good}, reports=(Report("c", {}),))
    assert refuse_nonfinite(figure) == Update.nothing(Failure("c", f"loss is {value}"))
    assert refuse_nonfinite(tensor, {"own/w": good}) == Update.nothing(Failure("c", "NaN or infinity in w"))
    assert refuse_nonfinite(kept, {"own/w": bad}) == Update.nothing(Failure("c", "NaN or infinity in own/w"))
    assert refuse_nonfinite(kept, {"own/w": good}) is kept


def test_evaluation_answers_with_counts_only(world: World) -> None:
    task = Task("evaluate", world.params())
    update = answers(world.worker(world.clients()), task, ["valid/s08"])["valid/s08"]
    texts = [world.store.text(int(i)) for i in world.store.where("heldout", ["s08"])]
    assert update.mean == {}
    stats = update.reports[0].stats
    assert stats["words"] == sum(len(text.split()) for text in texts)
    assert stats["characters"] == sum(map(len, texts))
    assert stats.keys() == {"words", "words_wrong", "characters", "characters_wrong"}


# --- Simulated faults -----------------------------------------------------------------------------


class Echo:
    """Answers every task with the numbers that its kind of work has to report."""

    def run(self, task: Task, clients: Sequence[str]) -> Iterator[Update]:
        bounds = work_for(task.kind).reports if task.kind in CLIENT_WORK else {}
        for client in clients:
            yield Update({}, reports=(Report(client, dict.fromkeys(bounds, 1.0)),))


def unreliable(seed: int = 1, **faults: float) -> SimulatedFaults:
    return SimulatedFaults(Unreliability(**faults), lambda client: 100.0, seed)


def recording(faults: SimulatedFaults, cohort: list[str], worker: Worker, round: int = 0) -> RecordingPool:
    return RecordingPool(
        LocalPool(worker), cohort, 0, lambda client: None, threading.Event(), round=round, faults=faults
    )


def failed(
    faults: SimulatedFaults, clients: list[str], round: int = 0, epochs: int = 1, kind: str = "train"
) -> dict[str, str]:
    """The clients that do not answer in a round, and why."""
    pool = recording(faults, clients, Echo(), round)
    pool.reduce(Task(kind, {}, {"epochs": epochs}), clients, Uniform())
    return pool.failures


MANY = [f"speaker/{n}" for n in range(2000)]


def test_dropout_has_the_probability_asked_for() -> None:
    dropped = failed(unreliable(dropout=0.3), MANY)
    assert 0.27 < len(dropped) / len(MANY) < 0.33
    assert set(dropped.values()) == {"dropped out (simulated)"}


@pytest.mark.parametrize(("dropout", "number"), [(0.0, 0), (1.0, 2000)])
def test_nobody_or_everybody_drops_out(dropout: float, number: int) -> None:
    assert len(failed(unreliable(dropout=dropout), MANY)) == number


def test_who_drops_out_depends_on_seed_round_and_client_only() -> None:
    worker = unreliable(dropout=0.3)
    dropped = failed(worker, MANY)
    assert failed(worker, MANY[::-1]).keys() == dropped.keys()
    assert failed(worker, MANY[:50]).keys() == dropped.keys() & set(MANY[:50])
    assert failed(worker, MANY, round=1).keys() != dropped.keys()
    assert failed(unreliable(dropout=0.3, seed=2), MANY).keys() != dropped.keys()


def test_slow_clients_miss_the_deadline_in_every_round() -> None:
    worker = unreliable(deadline=10.0, cost=0.1)  # 100 s of audio take a client of median speed 10 s
    slow = failed(worker, MANY)
    assert 0.45 < len(slow) / len(MANY) < 0.55
    assert failed(worker, MANY, round=7) == slow
    assert failed(worker, MANY, epochs=2).keys() > slow.keys()
    some = next(iter(slow.values()))
    assert some.startswith("too slow (simulated): ")
    assert some.endswith(" s, deadline 10 s")


def test_without_spread_the_deadline_is_a_matter_of_audio_alone() -> None:
    assert failed(unreliable(deadline=10.0, cost=0.1, speed_spread=0.0), MANY[:5]) == {}
    assert len(failed(unreliable(deadline=9.9, cost=0.1, speed_spread=0.0), MANY[:5])) == 5


def test_the_server_s_own_data_and_its_validation_clients_never_fail() -> None:
    faults = unreliable(dropout=1.0)
    assert failed(faults, [SERVER_CLIENT]) == {}
    assert failed(faults, [f"valid/{name}" for name in MANY[:5]], kind="evaluate") == {}


@pytest.mark.parametrize("kind", ["train", "evaluate", "something else"])
def test_a_client_that_is_away_is_away_for_every_kind_of_task(kind: str) -> None:
    faults = unreliable(dropout=0.3)
    assert failed(faults, MANY[:100], kind=kind) == failed(faults, MANY[:100])


def test_those_who_come_back_are_what_they_would_have_been(world: World) -> None:
    names = sorted(world.clients())
    inner = world.worker(world.clients())
    faults = SimulatedFaults(Unreliability(dropout=0.5), lambda client: 1.0, seed=4)
    pool = recording(faults, names, inner)
    update = pool.reduce(task_of(world), names, Uniform())
    left = [name for name in names if name not in pool.failures]
    assert 0 < len(left) < len(names)
    assert [report.client for report in update.reports] == left
    alone = add_up(inner.run(task_of(world), left))
    assert all(torch.equal(update.mean[name], t) for name, t in alone.mean.items())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dropout": 1.5}, "probability"),
        ({"deadline": -1.0}, "must not be negative"),
        ({"cost": 0.0}, "above 0"),
    ],
)
def test_impossible_faults_are_refused(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Unreliability(**wrong)
