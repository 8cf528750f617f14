from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from world import World

from antiphon import config
from antiphon.algorithms.central import Central
from antiphon.core import Task, Update
from antiphon.data.corpus import Corpus
from antiphon.data.importing.conversion import import_corpus
from antiphon.data.partition import BySession, Iid
from antiphon.data.session_texts import Sentence, SessionText
from antiphon.data.tts.synthesiser import SilentError, Voice
from antiphon.engine import Rounds
from antiphon.experiment.preparation import prepare
from antiphon.experiment.settings import Experiment, Run, Speakers
from antiphon.recipes import recipe
from antiphon.recipes.session_adaptation import adapted_speakers, parts
from antiphon.workflows.adaptation_corpus import (
    Speaking,
    Texts,
    choose_real,
    draw_speech,
    make_corpus,
    scored_speech,
)


def test_the_parts_of_a_model_are_patterns_that_cover_it_once() -> None:
    names = ["encoder.a.weight", "prediction.embedding.weight", "from_encoder.bias", "output.weight"]
    found = parts(names)
    assert found["decoder"] == ("from_encoder.*", "output.*", "prediction.*")
    assert found["joint"] == ("from_encoder.*", "output.*")
    assert found["prediction"] == ("prediction.*",)
    assert "joint" not in parts(["encoder.a.weight", "output.weight"])


def test_real_speech_is_drawn_until_it_lasts_long_enough(world: World) -> None:
    corpus = Corpus.open(world.corpus)
    drawn = draw_speech(corpus, "pool", 3.0 / 3600, seed=1)
    assert sum(u.seconds for u in drawn) >= 3.0 > sum(u.seconds for u in drawn[:-1])
    assert len({u.id for u in drawn}) == len(drawn)
    assert drawn == draw_speech(corpus, "pool", 3.0 / 3600, seed=1)
    everything = draw_speech(corpus, "pool", 100.0, seed=1)
    assert {u.id for u in everything} == {u.id for u in corpus.utterances() if u.split == "pool"}


def test_a_session_is_tested_on_its_own_speech_where_there_is_any(world: World) -> None:
    corpus = Corpus.open(world.corpus)
    assert {u.session for u in scored_speech(corpus, ["s10", "slides"])} == {"s10"}
    assert {u.session for u in scored_speech(corpus, ["slides"])} == {"s10", "s11"}
    real = choose_real(corpus, ["s10"], Speaking(rehearse_hours=0.001, valid_hours=0.001))
    assert {split for _, split in real.chosen} == {"rehearsal", "heldout", "test"}


def test_a_corpus_without_a_split_that_is_needed_is_refused(world: World, tmp_path: Path) -> None:
    from antiphon.data.importing.candidates import ImportOptions

    import_corpus(world.corpus.parent / "source", tmp_path / "c", ImportOptions(where={"split": "pool"}))
    with pytest.raises(ValueError, match="has no split 'heldout'"):
        choose_real(Corpus.open(tmp_path / "c"), [], Speaking())


class Mute:
    """An engine that never says anything."""

    version = "1"
    voices = ("nobody",)

    def say(self, text: str, voice: Voice) -> np.ndarray:
        raise SilentError("mute said nothing")


def test_sessions_that_no_voice_can_say_are_refused(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("soundfile")
    monkeypatch.setattr("antiphon.workflows.adaptation_corpus.find_engines", lambda names: {"mute": Mute()})
    texts = Texts((SessionText("one", (Sentence("A.", "a"),)),), (), frozenset())
    with pytest.raises(
        ValueError, match="no voice can say anything of the sessions: no voice can say it: mute"
    ):
        make_corpus(tmp_path / "c", texts, Corpus.open(world.corpus), Speaking(num_voices=2))


def test_speakers_of_named_splits_are_server_clients_and_organisation(world: World) -> None:
    """Pool as rehearsal, test as sessions: who is who does not depend on the names."""
    who = Speakers(pool="test", valid="heldout", test="heldout", server="pool", organisation="heldout")
    groups = who.groups(world.store)
    for name, split in {"seed": "pool", "federated": "test", "organisation": "heldout"}.items():
        np.testing.assert_array_equal(groups[name], world.store.where(split))
    assert set(groups["both"]) == {*world.store.where("pool"), *world.store.where("test")}
    clients = BySession()(world.store, groups["federated"], seed=0)
    for client, indices in clients.items():
        assert {f"session/{world.store.session(i)}" for i in indices} == {client}


def test_data_of_an_organisation_needs_one() -> None:
    with pytest.raises(ValueError, match="data is seed, federated or both, not 'organisation'"):
        Experiment(runs={"one": Run(data="organisation", start_run="")})
    run = Run(data={"seed": 4, "organisation": 1}, start_run="")
    Experiment(speakers=adapted_speakers(True), runs={"one": run})


@pytest.mark.parametrize(
    "data", ["0*seed+organisation", "seed+seed", "x*seed", "*seed", "2*3*seed", "-1*seed", {}, {"seed": 0}]
)
def test_how_often_is_a_number_and_a_group_is_named_once(data: str | dict[str, int]) -> None:
    with pytest.raises(ValueError, match="data is seed, federated, both, organisation or seed"):
        Experiment(speakers=adapted_speakers(True), runs={"one": Run(data=data, start_run="")})
    run = config.from_dict(Run, {"data": data, "start": ""})
    with pytest.raises(ValueError, match="data is seed, federated, both, organisation or seed"):
        Experiment(speakers=adapted_speakers(True), runs={"one": run})


def test_a_pass_takes_utterances_as_often_as_is_asked_for(world: World) -> None:
    who = Speakers(pool="test", valid="heldout", test="heldout", server="pool", organisation="heldout")
    rounds = Rounds(total=1, cohort=1)
    run = Run(Central(), {"seed": 3, "organisation": 1}, Iid(1), start_run="", rounds=rounds)
    experiment = Experiment(speakers=who, runs={"one": run})
    prepared = prepare(experiment, world.corpus, device="cpu")
    (taken,) = prepared.clients["one"].values()
    values, counts = np.unique(taken, return_counts=True)
    expected = dict.fromkeys(world.store.where("pool").tolist(), 3)
    expected |= dict.fromkeys(world.store.where("heldout").tolist(), 1)
    assert dict(zip(values.tolist(), counts.tolist(), strict=True)) == expected


def test_central_training_of_a_part_leaves_the_rest_alone(world: World) -> None:
    class Moved:
        """A pool that adds one to whatever it is sent."""

        def reduce(self, task: Task, cohort: object, weigh: object) -> Update:
            from antiphon.core import Report

            mean = {name: tensor + 1 for name, tensor in task.tensors.items()}
            return Update(mean, reports=(Report("all", {"num_steps": 1.0}),))

    params = world.params()
    algorithm = Central(trainable=("output.*",))
    after, _ = algorithm.round(algorithm.init(params), ["all"], Moved())  # type: ignore[arg-type]
    assert list(after.params) == list(params)
    for name, value in params.items():
        assert bool((after.params[name] == value + (1 if name.startswith("output.") else 0)).all())
    with pytest.raises(ValueError, match="decoder"):
        Central(trainable=("decoder.*",)).init(params)


def test_the_table_s_rows_start_from_what_they_continue() -> None:
    rows = recipe("session-adaptation").runs
    assert {name: run.start_run for name, run in rows.items()} == {
        "seed": "",
        "tenant-encoder": "seed",
        "tenant-decoder": "seed",
        "tenant-real": "seed",
        "sessions-alone": "tenant-real",
        "sessions-real": "tenant-real",
        "real-all": "seed",
        "tenant-real-all": "seed",
        "sessions-real-all": "tenant-real-all",
    }
