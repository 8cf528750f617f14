from __future__ import annotations

import builtins
import io
import wave
from typing import Any

import numpy as np
import pytest

from antiphon.data.audio import (
    SAMPLE_RATE,
    BadAudioError,
    Sound,
    decode,
    encode_flac,
    read_sound,
    resample,
)

soundfile = pytest.importorskip("soundfile")


def noise(num_samples: int = 16000, num_channels: int = 1) -> np.ndarray:
    samples = np.random.default_rng(0).integers(-8000, 8000, (num_samples, num_channels)).astype(np.int16)
    return samples


def encoded(samples: np.ndarray, rate: int = SAMPLE_RATE, **kwargs: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, **({"format": "WAV", "subtype": "PCM_16"} | kwargs))
    return file.getvalue()


def test_sixteen_bit_samples_come_back_exactly_from_flac() -> None:
    samples = np.array([-32768, -1, 0, 1, 32767], np.int16)
    decoded, rate = decode(encode_flac(samples.astype(np.float32) / 32768))
    assert rate == SAMPLE_RATE
    assert decoded.dtype == np.float32
    np.testing.assert_array_equal(decoded * 32768, samples)


def test_encoding_clips_what_is_too_loud() -> None:
    decoded, _ = decode(encode_flac(np.array([2.0, -2.0], np.float32)))
    np.testing.assert_array_equal(decoded * 32768, [32767, -32768])


def test_several_channels_become_their_mean() -> None:
    decoded, _ = decode(encoded(np.array([[1000, 3000], [0, -2000]], np.int16)))
    np.testing.assert_allclose(decoded * 32768, [2000, -1000])


def test_a_named_channel_is_taken_alone() -> None:
    sound = read_sound(io.BytesIO(encoded(np.array([[1000, 3000]], np.int16))))
    np.testing.assert_allclose(sound.mono(1) * 32768, [3000])


def test_a_channel_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadAudioError, match="no such channel: 2 of 1"):
        Sound(np.zeros((4, 1), np.float32), SAMPLE_RATE, True).mono(2)


def test_a_part_is_cut_at_the_right_samples() -> None:
    samples = noise()
    sound = read_sound(io.BytesIO(encoded(samples, format="FLAC")), start=0.25, stop=0.5)
    np.testing.assert_array_equal(sound.samples * 32768, samples[4000:8000])
    assert not sound.is_whole


def test_a_part_that_is_the_file_but_for_rounding_is_the_whole_file() -> None:
    assert read_sound(io.BytesIO(encoded(noise(16007))), stop=1.0).is_whole


@pytest.mark.parametrize(
    ("start", "stop"), [(-0.1, 0.5), (0.5, 0.5), (0.5, 1.2), (1.0, 1.05), (float("nan"), 1)]
)
def test_a_part_outside_the_file_is_refused(start: float, stop: float) -> None:
    with pytest.raises(BadAudioError, match="segment out of range"):
        read_sound(io.BytesIO(encoded(noise())), start, stop)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"format": "WAV", "subtype": "PCM_16"},
        {"format": "FLAC", "subtype": "PCM_16"},
        {"format": "OGG", "subtype": "OPUS"},
        {"format": "OGG", "subtype": "VORBIS"},
        {"format": "MP3", "subtype": "MPEG_LAYER_III"},
    ],
    ids=lambda kwargs: kwargs["subtype"],
)
@pytest.mark.parametrize("share", [0.05, 0.5, 0.98])
def test_truncated_audio_is_refused(kwargs: dict[str, str], share: float) -> None:
    data = encoded(noise(48000), **kwargs)
    assert decode(data)[0].shape == (48000,)
    with pytest.raises(BadAudioError, match=r"truncated audio|unreadable audio"):
        decode(data[: int(len(data) * share)])


@pytest.mark.parametrize("data", [b"", b"nothing that is audio" * 100, b"OggS", b"RIFF\0\0\0\0WAVE"])
def test_what_is_not_audio_is_refused(data: bytes) -> None:
    with pytest.raises(BadAudioError, match=r"unreadable audio|truncated audio"):
        decode(data)


def test_a_reason_is_the_same_every_time() -> None:
    reasons = set()
    for _ in range(2):
        with pytest.raises(BadAudioError) as caught:
            decode(b"nothing")
        reasons.add(str(caught.value))
    assert reasons == {"unreadable audio: Format not recognised."}


def test_a_file_without_samples_is_refused() -> None:
    with pytest.raises(BadAudioError, match="no audio"):
        decode(encoded(noise(0)))


def test_a_length_that_is_a_lie_is_never_allocated() -> None:
    data = bytearray(encoded(noise(), format="FLAC"))
    data[21] |= 0x0F  # the 36-bit number of samples in a FLAC header
    data[22:26] = b"\xff\xff\xff\xff"
    with pytest.raises(BadAudioError, match="too long"):
        read_sound(io.BytesIO(bytes(data)), max_seconds=60)


def test_a_length_that_is_not_given_is_refused() -> None:
    data = bytearray(encoded(noise(), format="FLAC"))
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    with pytest.raises(BadAudioError, match="length unknown"):
        decode(bytes(data))


def test_samples_that_are_not_numbers_are_refused() -> None:
    with pytest.raises(BadAudioError, match="not numbers"):
        decode(encoded(np.array([0.0, np.nan], np.float32), subtype="FLOAT"))


def test_resampling_keeps_a_tone_and_its_length() -> None:
    time = np.arange(8000) / 8000
    resampled = resample(np.sin(2 * np.pi * 440 * time).astype(np.float32), 8000)
    assert resampled.dtype == np.float32
    expected = np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    np.testing.assert_allclose(resampled[1000:-1000], expected[1000:-1000], atol=1e-3)


@pytest.fixture
def without_soundfile(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def fake(name: str, *args: Any, **kwargs: Any) -> Any:
        if name in ("soundfile", "soxr"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", fake)


@pytest.mark.usefixtures("without_soundfile")
class TestWithoutSoundfile:
    def test_plain_wav_is_read(self) -> None:
        file = io.BytesIO()
        with wave.open(file, "wb") as out:
            out.setparams((2, 2, 16000, 0, "NONE", ""))
            out.writeframes(np.array([[16384, 0], [-32768, -32768]], "<i2").tobytes())
        np.testing.assert_array_equal(decode(file.getvalue())[0], [0.25, -1.0])

    @pytest.mark.parametrize("data", [b"fLaC", b"RIFF\x14\0\0\0WAVEjunk\xe8\3\0\0" + bytes(8)])
    def test_anything_else_says_what_to_install(self, data: bytes) -> None:
        with pytest.raises(ValueError, match=r"antiphon\[audio\]") as caught:
            decode(data)
        assert not isinstance(caught.value, BadAudioError)  # or every utterance would be skipped one by one

    def test_resampling_and_encoding_say_what_to_install(self) -> None:
        with pytest.raises(ValueError, match=r"antiphon\[audio\]"):
            resample(np.zeros(8, np.float32), 8000)
        with pytest.raises(ValueError, match=r"antiphon\[audio\]"):
            encode_flac(np.zeros(8, np.float32))
