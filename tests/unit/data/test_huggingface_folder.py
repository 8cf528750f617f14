"""The front end and the tokens of a folder in Hugging Face format."""

from __future__ import annotations

import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_folders import PROMPT, extractor_for, transformers, write_folder

from antiphon.data.extraction import as_float16
from antiphon.data.huggingface_folder import WAVE_FRAME, HuggingFaceFeatures, HuggingFaceTokensConfig
from antiphon.data.tokens import load_tokens
from antiphon.decoding.fusion import surfaces


@pytest.fixture(scope="module")
def wav2vec2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("wav2vec2"), "wav2vec2")


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("whisper"), "whisper")


# --- Features -------------------------------------------------------------------------------------


def test_samples_become_frames_of_twenty_milliseconds_with_zeros_at_the_end(wav2vec2: Path) -> None:
    frontend = HuggingFaceFeatures(str(wav2vec2))
    samples = np.random.default_rng(0).normal(0.3, 0.2, 1000).astype(np.float32)
    frames = frontend.load()(samples)
    assert (frontend.dim, frontend.frames_per_second) == (WAVE_FRAME, 50.0)
    assert frames.shape == (4, WAVE_FRAME)
    normal = (samples - samples.mean()) / samples.std()
    np.testing.assert_allclose(frames.reshape(-1)[:1000], normal, atol=1e-4)
    assert not frames.reshape(-1)[1000:].any()
    # The store keeps half precision: 11 bits, an error of less than 2^-11 of each value.
    assert np.abs(as_float16(frames).astype(np.float32) - frames).max() <= np.abs(frames).max() / 2**11


def test_log_mel_frames_end_where_the_audio_does(whisper: Path) -> None:
    frontend = HuggingFaceFeatures(str(whisper))
    assert (frontend.dim, frontend.frames_per_second) == (8, 100.0)
    assert frontend.load()(np.zeros(16000, dtype=np.float32)).shape == (102, 8)  # ceil((16000 + 200) / 160)
    with pytest.raises(ValueError, match=r"2\.1 s of audio: this front end takes up to 2 s"):
        frontend.load()(np.zeros(33000, dtype=np.float32))


def test_the_key_is_that_of_the_settings_wherever_the_folder_lies(wav2vec2: Path, tmp_path: Path) -> None:
    shutil.copytree(wav2vec2, tmp_path / "copy")
    keys = {HuggingFaceFeatures(str(folder)).key() for folder in (wav2vec2, tmp_path / "copy")}
    assert len(keys) == 1
    extractor_for("moonshine").save_pretrained(tmp_path / "other")
    assert HuggingFaceFeatures(str(tmp_path / "other")).key() not in keys


def test_an_extractor_for_another_rate_is_refused(tmp_path: Path) -> None:
    transformers.Wav2Vec2FeatureExtractor(sampling_rate=8000).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is for 8000 Hz"):
        HuggingFaceFeatures(str(tmp_path)).key()


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch, wav2vec2: Path) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"pip install 'antiphon\[hf\]'"):
        HuggingFaceTokensConfig(str(wav2vec2)).fit([], None)


# --- Tokens ---------------------------------------------------------------------------------------


def test_letters_of_a_ctc_folder_with_its_blank_at_zero(wav2vec2: Path) -> None:
    tokens = HuggingFaceTokensConfig(str(wav2vec2), capitals=True).fit(["bad cab"], None)
    # <s> </s> <unk> <pad> | A B C D E; 0 and the blank, 3, change places.
    assert (tokens.size, tokens.boundary) == (10, 3)
    assert tokens.encode("add x") == [5, 8, 8, 4, 2]
    assert tokens.decode([0, 5, 8, 0, 8, 4, 2, 3]) == "add ⁇"
    assert surfaces(tokens)[4:7] == (" ", "a", "b")


def test_subwords_of_a_decoder_with_the_end_at_zero(whisper: Path) -> None:
    tokens = HuggingFaceTokensConfig(str(whisper)).fit([], None)
    assert (tokens.size, tokens.boundary) == (16, 1)
    theirs = transformers.AutoTokenizer.from_pretrained(whisper)
    for text in ("abc de", "a cd ab", "eee"):
        ids = tokens.encode(text)
        assert ids == theirs(text, add_special_tokens=False).input_ids  # neither 0 nor 1 among them
        prompt = theirs.convert_tokens_to_ids(list(PROMPT))
        assert tokens.decode([*prompt, *ids, 0]) == text


@pytest.mark.parametrize("name", ["wav2vec2", "whisper"])
def test_saved_tokens_need_the_folder_no_more(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", name)
    tokens = HuggingFaceTokensConfig(str(folder), capitals=name == "wav2vec2").fit([], None)
    ids = tokens.encode("abc de")
    tokens.save(tmp_path / "saved")
    shutil.rmtree(folder)
    for found in (
        load_tokens(tmp_path / "saved"),
        pickle.loads(pickle.dumps(load_tokens(tmp_path / "saved"))),
    ):
        assert found.size == tokens.size
        assert found.encode("abc de") == ids
        assert found.decode(ids) == "abc de"


def test_texts_of_which_nothing_is_known_are_refused(wav2vec2: Path) -> None:
    with pytest.raises(ValueError, match=r"set tokens\.capitals=true"):
        HuggingFaceTokensConfig(str(wav2vec2)).fit(["abc"], None)
