from __future__ import annotations

import numpy as np
import pytest

from antiphon.data.audio import SAMPLE_RATE
from antiphon.data.corruption.distortion import (
    Babble,
    Distortion,
    Room,
    White,
    noisy,
    overdriven,
    reverberated,
)

VOICES = [
    np.random.default_rng(n).standard_normal(3000 + 500 * n).astype(np.float32) * 10.0**-n for n in range(4)
]


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def tone(hertz: float, seconds: float = 1.0) -> np.ndarray:
    time = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    return (0.3 * np.sin(2 * np.pi * hertz * time)).astype(np.float32)


def distorted(distortion: Distortion, samples: np.ndarray, place: int = 0, moment: int = 0) -> np.ndarray:
    return distortion(samples, VOICES, generator(place), generator(moment))


def decibels(signal: np.ndarray, other: np.ndarray) -> float:
    return float(10 * np.log10(np.square(signal, dtype=float).sum() / np.square(other, dtype=float).sum()))


# --- Noise ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "noise", [White(snr=5), White(snr=-7.5), Babble(snr=5), Babble(snr=20, num_voices=1)]
)
def test_the_ratio_of_speech_to_noise_is_exact(noise: White | Babble) -> None:
    speech = tone(440)
    heard = distorted(Distortion(noise=noise), speech)
    assert decibels(speech, heard.astype(float) - speech) == pytest.approx(noise.snr, abs=1e-3)


def test_white_noise_has_the_same_power_in_every_octave_per_hertz() -> None:
    noise = White().noise(1 << 16, [], generator())
    spectrum = np.square(np.abs(np.fft.rfft(noise)))
    bands = [band.mean() for band in np.array_split(spectrum[1:], 8)]
    assert np.ptp(bands) / np.mean(bands) < 0.1


def test_every_voice_of_babble_is_as_loud_and_goes_on_to_the_end() -> None:
    noise = Babble().noise(20000, VOICES, generator())
    turned = generator()
    expected = np.zeros(20000)
    for voice in VOICES:  # by hand: one sample after another, from a random place, round and round
        first = int(turned.integers(len(voice)))
        looped = np.array([voice[(first + n) % len(voice)] for n in range(20000)], dtype=float)
        expected += looped / np.sqrt(np.mean(looped**2))
    np.testing.assert_allclose(noise, expected, rtol=1e-5, atol=1e-5)


def test_silence_stays_silent_and_silent_noise_changes_nothing() -> None:
    speech = tone(440)
    assert not noisy(np.zeros(100), np.ones(100), 5.0).any()
    np.testing.assert_array_equal(noisy(speech, np.zeros(len(speech)), 5.0), speech)


# --- Rooms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("t60", [0.2, 0.6, 1.5])
def test_a_room_falls_by_60_decibels_in_its_t60(t60: float) -> None:
    response = Room(t60).impulse_response(generator())
    # Schroeder (1965): what is still to come decays like the room; a line through -5 to -35 dB, T60 = 2 T30.
    left = 10 * np.log10(np.cumsum(np.square(response[1:])[::-1])[::-1])
    left -= left[0]
    part = np.flatnonzero((left < -5) & (left > -35))
    slope, _ = np.polyfit(part / SAMPLE_RATE, left[part], 1)
    assert -60 / slope == pytest.approx(t60, rel=0.05)


@pytest.mark.parametrize("direct", [-6.0, 0.0, 12.0])
def test_the_direct_sound_is_above_the_echoes_by_what_was_asked(direct: float) -> None:
    response = Room(0.4, direct).impulse_response(generator())
    assert response[0] == 1
    assert decibels(response[:1], response[1:]) == pytest.approx(direct)


def test_reverberation_is_a_convolution_that_keeps_the_length() -> None:
    samples, response = generator().standard_normal(501), generator(1).standard_normal(77)
    np.testing.assert_allclose(
        reverberated(samples, response), np.convolve(samples, response)[:501], atol=1e-12
    )


def test_the_room_is_of_the_place_and_the_noise_of_the_moment() -> None:
    room, noise, speech = Distortion(room=Room(0.3)), Distortion(noise=White()), tone(300)
    np.testing.assert_array_equal(distorted(room, speech, moment=1), distorted(room, speech, moment=2))
    np.testing.assert_array_equal(distorted(noise, speech, place=1), distorted(noise, speech, place=2))
    assert not np.array_equal(distorted(room, speech, place=1), distorted(room, speech, place=2))
    assert not np.array_equal(distorted(noise, speech, moment=1), distorted(noise, speech, moment=2))


# --- Speed and clipping ---------------------------------------------------------------------------


@pytest.mark.parametrize("speed", [0.8, 1.25])
def test_speed_changes_duration_and_pitch(speed: float) -> None:
    heard = distorted(Distortion(speed=speed), tone(500, seconds=2.0))
    assert len(heard) == pytest.approx(2 * SAMPLE_RATE / speed, abs=1)
    loudest = np.argmax(np.abs(np.fft.rfft(heard * np.hanning(len(heard)))))
    assert loudest * SAMPLE_RATE / len(heard) == pytest.approx(500 * speed, abs=1)


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5])
def test_the_share_that_was_asked_for_is_clipped_and_the_rest_is_only_louder(share: float) -> None:
    samples = (0.05 * generator().standard_normal(10000)).astype(np.float32)
    heard = distorted(Distortion(clipped=share), samples)
    is_clipped = np.abs(heard) == 1
    assert is_clipped.sum() == share * 10000
    assert np.abs(samples[is_clipped]).min() >= np.abs(samples[~is_clipped]).max()
    gains = heard[~is_clipped] / samples[~is_clipped]
    assert gains.min() == pytest.approx(gains.max(), rel=1e-5)


def test_silence_cannot_be_overdriven() -> None:
    assert not overdriven(np.zeros(10), 0.5).any()


# --- All of it ------------------------------------------------------------------------------------


def test_no_distortion_is_no_change() -> None:
    np.testing.assert_array_equal(distorted(Distortion(), tone(200)), tone(200))


def test_noise_is_measured_against_what_comes_out_of_the_room() -> None:
    room, speech = Room(0.5), tone(350)
    alone = distorted(Distortion(1.1, room), speech)
    mixed = distorted(Distortion(1.1, room, White(snr=3)), speech)
    assert decibels(alone, mixed.astype(float) - alone) == pytest.approx(3, abs=1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Distortion(speed=0.4), "speed is between 0.5 and 2, not 0.4"),
        (lambda: Distortion(clipped=1.0), "clipped is a share of samples"),
        (lambda: Room(-1.0), "t60 between 0 and 10 seconds, not -1"),
        (lambda: Room(0.1, float("nan")), "direct is a number of dB"),
        (lambda: White(float("inf")), "snr is a number of dB"),
        (lambda: Babble(num_voices=0), "at least one voice"),
    ],
    ids=["speed", "clipped", "t60", "direct", "snr", "voices"],
)
def test_what_cannot_be_is_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
