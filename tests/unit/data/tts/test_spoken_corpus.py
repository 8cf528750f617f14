from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from world import World, tones

from antiphon.data.corpus import Corpus
from antiphon.data.frontends import Filterbank
from antiphon.data.session_texts import Sentence, SessionText
from antiphon.data.store import compute_features
from antiphon.data.tts.spoken_corpus import RealSpeech, Saying, SpokenCorpus, plan_sayings, speak_corpus
from antiphon.data.tts.synthesiser import SilentError, Voice, draw_voices, find_engines

VOICES = (Voice("tones", "low"), Voice("tones", "high", 1.1))


class Tones:
    """Letters as tones. Cannot say "e" at all, and "d" in the low voice."""

    version = "1"
    voices = ("low", "high")

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str, voice: Voice) -> np.ndarray:
        self.said.append(text)
        if "e" in text or ("d" in text and voice.name == "low"):
            raise SilentError("tones said nothing")
        samples = tones(text, {"low": 0.9, "high": 1.1}[voice.name], np.random.default_rng(0))
        return samples.astype(np.float32) / 32768


def session(name: str, *sentences: str) -> SessionText:
    return SessionText(name, tuple(Sentence(sentence, sentence) for sentence in sentences))


def spoken(folder: Path, engine: Tones, *sessions: SessionText, takes: int = 2) -> SpokenCorpus:
    sayings = plan_sayings("sessions", sessions, VOICES, takes, seed=0)
    return speak_corpus(folder, sayings, VOICES, {"tones": engine})


def content(corpus: Corpus) -> dict[str, bytes]:
    return {name: (corpus.path / name).read_bytes() for name in ("audio.pack", "utterances.jsonl")}


pytestmark = pytest.mark.usefixtures("sound")


@pytest.fixture
def sound() -> None:
    pytest.importorskip("soundfile")


def test_every_sentence_is_said_by_so_many_voices_into_its_own_session(tmp_path: Path) -> None:
    made = spoken(tmp_path / "c", Tones(), session("one", "ab", "ba"), session("two", "ab"))
    rows = [(u.session, u.text, u.speaker) for u in made.corpus.utterances()]
    wanted = [("one", "ab"), ("one", "ba"), ("two", "ab")]
    assert sorted(rows) == sorted((*row, voice.speaker) for row in wanted for voice in VOICES)
    assert all(u.split == "sessions" for u in made.corpus.utterances())
    assert made.seconds == pytest.approx(made.corpus.seconds)


def test_the_same_plan_is_found_again_and_nothing_is_said(tmp_path: Path) -> None:
    texts = session("one", "ab", "cab", "ec")
    first = spoken(tmp_path / "here", Tones(), texts)
    engine = Tones()
    again = spoken(tmp_path / "here", engine, texts)
    assert engine.said == []
    assert (first.num_spoken, again.num_spoken) == (6, 0)
    assert again.unsaid == first.unsaid
    assert again.seconds == first.seconds
    elsewhere = spoken(tmp_path / "there", Tones(), texts)
    assert content(elsewhere.corpus) == content(again.corpus)


@pytest.mark.parametrize("change", ["text", "takes", "version", "voice"])
def test_another_plan_is_not_taken_for_it(change: str, tmp_path: Path) -> None:
    spoken(tmp_path / "c", Tones(), session("one", "ab"))
    engine, takes, text = Tones(), 1 if change == "takes" else 2, "ba" if change == "text" else "ab"
    engine.version = "2" if change == "version" else "1"
    voices = (VOICES[0], replace(VOICES[1], rate=1.2)) if change == "voice" else VOICES
    sayings = plan_sayings("sessions", [session("one", text)], voices, takes, seed=0)
    with pytest.raises(ValueError, match="was made of other texts, voices or speech"):
        speak_corpus(tmp_path / "c", sayings, voices, {"tones": engine})
    assert engine.said == []


def test_what_one_voice_cannot_say_another_says_and_what_none_can_is_named(tmp_path: Path) -> None:
    made = spoken(tmp_path / "c", Tones(), session("one", "ad", "ae", "ab"))
    by_text: dict[str, set[str]] = {}
    for utterance in made.corpus.utterances():
        by_text.setdefault(utterance.text, set()).add(utterance.speaker)
    assert by_text == {"ad": {VOICES[1].speaker}, "ab": {voice.speaker for voice in VOICES}}
    assert [(one.where, one.kind) for one in made.unsaid] == [("one", "no voice can say it")] * 2
    assert {one.id for one in made.unsaid} == {"tts-sessions-one-00001-0", "tts-sessions-one-00001-1"}


def test_more_takes_than_voices_are_refused() -> None:
    for takes in (0, 3):
        with pytest.raises(ValueError, match=f"by 1 to 2 voices, not by {takes}"):
            plan_sayings("sessions", [session("one", "ab")], VOICES, takes, seed=0)


def test_a_sentence_keeps_its_voices_whatever_else_is_said() -> None:
    def voices_of(*sessions: SessionText) -> list[Voice]:
        sayings: list[Saying] = plan_sayings("sessions", sessions, draw, 2, seed=0)
        return [saying.voice for saying in sayings if saying.session == "one" and saying.written == "ab"]

    draw = tuple(Voice("tones", f"v{number}") for number in range(9))
    alone = voices_of(session("one", "ab"))
    assert len(set(alone)) == 2
    assert voices_of(session("zero", "ab", "ba"), session("one", "ba", "ab")) == alone


def test_two_processes_make_the_bytes_of_one(tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader")
    engines = find_engines(["espeak"])
    voices = draw_voices(engines, 3, seed=0)
    sayings = plan_sayings("sessions", [session("one", *(["good morning", "at last"]))], voices, 3, seed=0)
    made = [
        speak_corpus(tmp_path / str(num), sayings, voices, engines, num_processes=num).corpus
        for num in (1, 2)
    ]
    assert content(made[0]) == content(made[1])


# --- Real speech beside it


def real_speech(world: World) -> RealSpeech:
    corpus = Corpus.open(world.corpus)
    return RealSpeech(
        corpus, tuple((u, "rehearsal" if u.split == "pool" else u.split) for u in corpus.utterances())
    )


def test_real_speech_is_taken_over_byte_for_byte(world: World, tmp_path: Path) -> None:
    real = real_speech(world)
    sayings = plan_sayings("sessions", [session("s10", "ab")], VOICES, 1, seed=0)
    made = speak_corpus(tmp_path / "c", sayings, VOICES, {"tones": Tones()}, real).corpus
    copied = {u.id: u for u in made.utterances() if not u.id.startswith("tts-")}
    assert len(copied) == len(real.corpus)
    for utterance, split in real.chosen:
        own = copied[utterance.id]
        assert (own.split, own.speaker, own.session, own.text) == (
            *(split, utterance.speaker, utterance.session, utterance.text),
        )
        assert made.read_bytes(own) == real.corpus.read_bytes(utterance)
    assert json.loads((made.path / "plan.json").read_text())["voices"][0]["name"] == "low"


def test_features_that_are_there_are_borrowed_and_equal_those_computed(world: World, tmp_path: Path) -> None:
    real = real_speech(world)
    frontend = Filterbank(dim=8)
    compute_features(real.corpus, frontend)
    sayings = plan_sayings("sessions", [session("s10", "ab", "cab")], VOICES, 1, seed=0)
    made = [speak_corpus(tmp_path / name, sayings, VOICES, {"tones": Tones()}, real).corpus for name in "ab"]
    ids = frozenset(utterance.id for utterance, _ in real.chosen)
    borrowed = compute_features(made[0], frontend, lender=real.corpus, lent=ids)
    computed = compute_features(made[1], frontend)
    assert [borrowed.id(i) for i in range(len(borrowed))] == [computed.id(i) for i in range(len(computed))]
    np.testing.assert_array_equal(borrowed.frames, computed.frames)
    np.testing.assert_array_equal(borrowed.first_frame, computed.first_frame)


def test_a_lender_without_features_is_left_as_it_is(world: World, tmp_path: Path) -> None:
    real = real_speech(world)
    sayings = plan_sayings("sessions", [session("s10", "ab")], VOICES, 1, seed=0)
    made = speak_corpus(tmp_path / "c", sayings, VOICES, {"tones": Tones()}, real).corpus
    frontend = Filterbank(dim=9)
    ids = frozenset(utterance.id for utterance, _ in real.chosen)
    store = compute_features(made, frontend, lender=real.corpus, lent=ids)
    assert len(store) == len(made)
    assert not (world.corpus / "features" / frontend.key()).exists()
