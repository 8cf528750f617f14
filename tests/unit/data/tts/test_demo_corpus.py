from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from antiphon.data.tts.demo_corpus import (
    PHRASES,
    DemoVoice,
    SpeakerGroup,
    add_noise,
    make_noisy,
    make_sentence,
    make_voices,
    plan_speakers,
    synthesise_corpus,
)
from antiphon.data.tts.espeak import ACCENTS, VARIANTS, Espeak

HANNAH = DemoVoice("en-us", "f3", rate=170, pitch=60)


def said(text: str, voice: DemoVoice) -> np.ndarray:
    return Espeak().speak(text, f"{voice.name}+{voice.variant}", voice.rate, voice.pitch)


@pytest.fixture
def espeak() -> None:
    pytest.importorskip("espeakng_loader")
    pytest.importorskip("soxr")


# --- Speakers


def test_no_two_of_many_voices_are_alike() -> None:
    voices = make_voices(1000, seed=0)
    assert len(set(voices)) == 1000
    assert all(130 <= voice.rate <= 220 and 20 <= voice.pitch <= 80 for voice in voices)


def test_accent_and_timbre_repeat_only_when_every_pair_was_used() -> None:
    num_pairs = len(ACCENTS) * len(VARIANTS)
    assert len({(voice.name, voice.variant) for voice in make_voices(num_pairs, seed=1)}) == num_pairs


def test_the_seed_decides_the_voices_and_more_voices_begin_with_the_same() -> None:
    assert make_voices(20, seed=3) == make_voices(500, seed=3)[:20]
    assert make_voices(20, seed=3) != make_voices(20, seed=4)


def test_the_fraction_asked_for_is_noisy_and_nothing_else_changes() -> None:
    voices = make_voices(20, seed=0)
    noisy = make_noisy(voices, 0.3, seed=0)
    ratios = [voice.noise_db for voice in noisy if voice.noise_db is not None]
    assert len(ratios) == 6
    assert all(5 <= ratio <= 15 for ratio in ratios)
    assert [(v.name, v.variant, v.rate, v.pitch) for v in noisy] == [
        (v.name, v.variant, v.rate, v.pitch) for v in voices
    ]


def test_a_fraction_above_one_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1, not 30"):
        make_noisy(make_voices(3, seed=0), 30, seed=0)


def test_splits_share_no_voice() -> None:
    speakers = plan_speakers({"pool": SpeakerGroup(30, 0.5), "test": SpeakerGroup(10, 0.0)}, seed=0)
    voices = [(voice.name, voice.variant) for _, voice in speakers.values()]
    assert len(set(voices)) == 40
    assert [split for split, _ in speakers.values()] == ["pool"] * 30 + ["test"] * 10
    assert sum(voice.noise_db is not None for _, voice in speakers.values()) == 15


# --- Noise


@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_noise_has_the_power_asked_for(slope: float) -> None:
    speech = np.sin(np.arange(16001) / 7).astype(np.float32)
    noise = add_noise(speech, 12.0, slope, np.random.default_rng(0)) - speech
    ratio = 10 * np.log10(np.mean(speech.astype(float) ** 2) / np.mean(noise.astype(float) ** 2))
    assert ratio == pytest.approx(12.0, abs=0.01)


def test_white_noise_is_flat_and_pink_noise_halves_its_power_every_octave() -> None:
    silence = np.ones(1 << 16, dtype=np.float32)
    for slope, expected in ((0.0, 1.0), (1.0, 0.5)):
        noise = add_noise(silence, 0.0, slope, np.random.default_rng(0)) - silence
        power = np.abs(np.fft.rfft(noise)) ** 2
        octaves = power[1000:2000].mean(), power[2000:4000].mean()
        assert octaves[1] / octaves[0] == pytest.approx(expected, rel=0.1)


# --- Text


def test_sentences_are_short_and_use_a_small_vocabulary() -> None:
    generator = np.random.default_rng(0)
    sentences = [make_sentence(generator) for _ in range(3000)]
    words = {word for sentence in sentences for word in sentence.split()}
    assert words == {word for phrase in PHRASES for slot in phrase for word in slot.split()}
    assert 60 <= len(words) <= 80
    assert {len(sentence.split()) for sentence in sentences} <= set(range(2, 7))
    assert set("".join(sentences)) <= set("abcdefghijklmnopqrstuvwxyz ")


# --- Speech


@pytest.mark.usefixtures("espeak")
def test_speech_is_mono_at_16_khz_and_as_long_as_it_takes_to_say() -> None:
    samples = said("turn on the kitchen light", HANNAH)
    assert samples.dtype == np.float32
    assert samples.ndim == 1
    assert 1.0 < len(samples) / 16000 < 2.5
    assert 0.05 < np.abs(samples).max() <= 1.0


@pytest.mark.usefixtures("espeak")
def test_what_is_said_does_not_depend_on_what_was_said_before() -> None:
    for variant in ("Alicia", "Gene", "f3"):  # these have noise, flutter, and neither
        voice = DemoVoice("en-us", variant, 170, 50)
        first = said("good morning anna", voice)
        said("something else entirely", HANNAH)
        np.testing.assert_array_equal(said("good morning anna", voice), first)


@pytest.mark.usefixtures("espeak")
def test_rate_pitch_accent_and_timbre_are_heard() -> None:
    text = "call peter again"
    usual = said(text, HANNAH)
    assert len(said(text, DemoVoice("en-us", "f3", 220, 60))) < len(usual)
    for other in (replace(HANNAH, pitch=20), replace(HANNAH, name="en-029"), replace(HANNAH, variant="m3")):
        samples = said(text, other)
        common = min(len(samples), len(usual))
        assert not np.allclose(samples[:common], usual[:common], atol=0.01)


@pytest.mark.usefixtures("espeak")
def test_every_accent_and_timbre_is_there() -> None:
    for voice in [DemoVoice(name, "f1", 200, 50) for name in ACCENTS] + [
        DemoVoice("en", v, 200, 50) for v in VARIANTS
    ]:
        assert len(said("one", voice)) > 1600


@pytest.mark.usefixtures("espeak")
def test_an_unknown_voice_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"no voice 'xx-none\+f3'"):
        said("one", DemoVoice("xx-none", "f3", 170, 50))


def test_without_espeak_the_user_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    with pytest.raises(ValueError, match=r"pip install 'antiphon\[demo\]'"):
        Espeak()


# --- A corpus


def test_a_synthesised_corpus_holds_what_was_planned_and_is_the_same_every_time(tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader")
    pytest.importorskip("soundfile")
    splits = {"pool": SpeakerGroup(3, 0.34), "test": SpeakerGroup(2, 0.0)}
    calls: list[tuple[int, int]] = []
    corpora = [
        synthesise_corpus(
            tmp_path / "here" / name, splits, 4, seed=5, progress=lambda *call: calls.append(call)
        )
        for name in ("one", "two")
    ]
    assert calls[:20] == [(done, 20) for done in range(1, 21)]
    utterances = list(corpora[0].utterances())
    assert len(utterances) == 20
    assert {(u.split, u.speaker) for u in utterances} == {
        *(("pool", f"s00{i}") for i in range(3)),
        *(("test", f"s00{i}") for i in (3, 4)),
    }
    assert sum(u.extra["voice"]["noise_db"] is not None for u in utterances) == 4
    assert all(len(corpora[0].read_audio(u)) == round(u.seconds * 16000) for u in utterances)
    for name in ("audio.pack", "utterances.jsonl"):
        assert (corpora[0].path / name).read_bytes() == (corpora[1].path / name).read_bytes()
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["one", "two"]


def test_an_existing_destination_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="exists already"):
        synthesise_corpus(tmp_path, {"pool": SpeakerGroup(1)}, 1, seed=0)
