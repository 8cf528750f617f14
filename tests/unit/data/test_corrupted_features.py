from __future__ import annotations

import multiprocessing
import shutil
from pathlib import Path

import numpy as np
import pytest
from world import FRONTEND, World

from antiphon.data.corpus import Corpus
from antiphon.data.corruption.corrupted_clients import CorruptedClients, Corruption, corrupted_features
from antiphon.data.corruption.distortion import Babble, Distortion, Room, White
from antiphon.data.corruption.wrong_transcripts import Shuffled
from antiphon.data.store import FeatureStore, compute_features
from antiphon.seeding import derive

EVERYTHING = Distortion(0.9, Room(0.2), Babble(5.0, 3), 0.02)
FILES = ("frames.f16", "index.npz", "ids.txt", "texts.txt", "store.json")


@pytest.fixture
def corpus(world: World, tmp_path: Path) -> Corpus:
    """A copy of its own for every test: what others made beside it is not there."""
    without = shutil.ignore_patterns("features")
    return Corpus.open(shutil.copytree(world.corpus, tmp_path / "corpus", ignore=without))


def corrupt(
    corpus: Corpus, corruption: Corruption, num_processes: int = 1, speakers: list[str] | None = None, **more
) -> tuple[FeatureStore, FeatureStore, CorruptedClients]:
    """The clean store, the corrupted one, and who was chosen among the last six speakers of the pool."""
    clean = compute_features(corpus, FRONTEND)
    federated = clean.where("pool", clean.speakers("pool")[2:])
    found = corruption.choose(clean, federated, 0)
    pool = clean.where("pool", speakers)
    return (
        clean,
        corrupted_features(corpus, FRONTEND, clean, corruption, found, pool, num_processes, **more),
        found,
    )


def test_only_the_chosen_utterances_of_federated_speakers_differ(corpus: Corpus) -> None:
    clean, bad, found = corrupt(corpus, Corruption(0.5, audio=EVERYTHING, keep=0.7))
    changed = set(found.utterances.tolist())
    assert {clean.speaker(index) for index in changed} < {f"s{n:02d}" for n in range(2, 8)}
    for index in range(len(clean)):
        same = np.array_equal(clean.features(index), bad.features(index))
        assert same == (index not in changed), clean.id(index)
        assert (clean.seconds[index] == bad.seconds[index]) == (index not in changed)
        assert (clean.id(index), clean.text(index)) == (bad.id(index), bad.text(index))
        assert (clean.speaker(index), clean.split(index)) == (bad.speaker(index), bad.split(index))


def test_frames_are_those_of_the_distorted_audio(corpus: Corpus) -> None:
    distortion = Distortion(1.1, Room(0.2), White(3.0), 0.01)
    _, bad, found = corrupt(corpus, Corruption(names=("speaker/s04",), seed=5, audio=distortion))
    extract = FRONTEND.load()
    for index, utterance in enumerate(corpus.utterances()):
        if index in found.utterances:
            room = np.random.default_rng(derive(5, "room", "speaker/s04"))
            noise = np.random.default_rng(derive(5, "noise", utterance.id))
            samples = distortion(corpus.read_audio(utterance), [], room, noise)
            np.testing.assert_array_equal(bad.features(index), extract(samples).astype(np.float16))
            assert bad.seconds[index] == pytest.approx(len(samples) / 16000, abs=1e-4)


def test_babble_is_of_others_in_the_pool(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[list[str]] = []
    original = Corpus.read_audio

    def record(self, utterance):
        read.append([utterance.split, utterance.speaker])
        return original(self, utterance)

    compute_features(corpus, FRONTEND)
    monkeypatch.setattr(Corpus, "read_audio", record)
    _, _, found = corrupt(corpus, Corruption(names=("speaker/s04",), audio=Distortion(noise=Babble(5, 3))))
    assert len(read) == 4 * len(found.utterances)
    for first in range(0, len(read), 4):
        *voices, own = read[first : first + 4]
        assert own == ["pool", "s04"]
        assert all(split == "pool" for split, _ in voices)
        assert len({speaker for _, speaker in voices} - {"s04"}) == 3


def test_babble_without_anybody_else_is_refused(corpus: Corpus) -> None:
    with pytest.raises(ValueError, match="there is nobody but s04: take white noise"):
        corrupt(
            corpus, Corruption(names=("speaker/s04",), audio=Distortion(noise=Babble())), speakers=["s04"]
        )


def test_the_bytes_do_not_depend_on_the_number_of_workers(
    corpus: Corpus, world: World, tmp_path: Path
) -> None:
    twin = Corpus.open(shutil.copytree(world.corpus, tmp_path / "twin"))
    corruption = Corruption(0.5, audio=EVERYTHING)
    _, one, _ = corrupt(corpus, corruption)
    _, two, _ = corrupt(twin, corruption, num_processes=2)
    assert one.folder.name == two.folder.name
    for name in FILES:
        assert (one.folder / name).read_bytes() == (two.folder / name).read_bytes(), name


def test_what_was_computed_once_is_found_again_and_never_taken_for_another(corpus: Corpus) -> None:
    calls: list[tuple[int, int]] = []

    def folder(corruption: Corruption) -> str:
        return corrupt(corpus, corruption, progress=lambda *call: calls.append(call))[1].folder.name

    noisy = Corruption(0.5, audio=Distortion(noise=White(5.0)))
    first = folder(noisy)
    assert calls[-1] == (len(calls), len(calls))
    calls.clear()
    assert folder(noisy) == first
    assert not calls
    others = [
        Corruption(),
        Corruption(0.5, audio=Distortion(noise=White(6.0))),
        Corruption(0.25, audio=Distortion(noise=White(5.0))),
        Corruption(0.5, audio=Distortion(noise=White(5.0)), keep=0.5),
        Corruption(0.5, audio=Distortion(noise=White(5.0)), seed=1),
    ]
    assert len({first, *map(folder, others)}) == 6


def test_a_store_of_a_corpus_that_changed_is_computed_again(corpus: Corpus) -> None:
    noisy = Corruption(0.5, audio=Distortion(noise=White()))
    _, before, _ = corrupt(corpus, noisy)
    index = Path(corpus.path) / "utterances.jsonl"
    index.write_text(index.read_text().replace('"text": "', '"text": "b'))
    _, after, _ = corrupt(corpus, noisy)
    assert (after.folder, after.text(0)) == (before.folder, "b" + before.text(0))
    assert after.fingerprint != before.fingerprint


def test_an_interrupted_computation_leaves_nothing_and_can_be_done_again(corpus: Corpus) -> None:
    noisy = Corruption(0.5, audio=Distortion(noise=White()))
    compute_features(corpus, FRONTEND)

    def interrupt(done: int, total: int) -> None:
        if done == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        corrupt(corpus, noisy, progress=interrupt)
    assert [path.name for path in (Path(corpus.path) / "features").iterdir()] == [FRONTEND.key()]
    assert len(corrupt(corpus, noisy)[1]) == len(corpus)


def test_an_utterance_that_cannot_be_distorted_is_named(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.data.corruption.distortion.at_speed", lambda samples, speed: samples[:10])
    with pytest.raises(ValueError, match=r"utterance s04-0 \(speaker s04\) .* too short: 10 samples"):
        corrupt(corpus, Corruption(names=("speaker/s04",), audio=Distortion(speed=2.0)))


def test_wrong_transcripts_need_no_other_features_and_travel_to_processes(corpus: Corpus) -> None:
    clean, bad, found = corrupt(corpus, Corruption(0.5, transcripts=Shuffled()))
    assert bad.folder == clean.folder
    changed = [index for index in range(len(clean)) if clean.text(index) != bad.text(index)]
    assert changed == found.utterances.tolist()
    with multiprocessing.get_context("forkserver").Pool(1) as process:
        assert process.map(bad.text, changed) == [bad.text(index) for index in changed]


def test_nobody_chosen_is_the_clean_store(corpus: Corpus) -> None:
    clean, same, _ = corrupt(corpus, Corruption(audio=EVERYTHING, transcripts=Shuffled()))
    assert (same.folder, same.fingerprint) == (clean.folder, clean.fingerprint)
    assert not same.other_texts
