"""Distortions of audio: speed, a room, noise, an overdriven microphone.

They are applied in this order: somebody speaks, in a room, among others, into a microphone. Only speed
changes the number of samples.

  T60   seconds until the sound in a room has fallen by 60 dB
  SNR   10 log10 of the power of speech over that of noise. Both are means over the whole utterance, pauses
        included, so the SNR can be measured again without knowing where the pauses are

Samples are floats. They may exceed 1 until a microphone clips them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.data.audio import SAMPLE_RATE, at_speed

MAX_DECAY = 80.0  # dB: echoes that are weaker are cut off


@dataclass(frozen=True)
class Room:
    """Reverberation: the direct sound, then noise that falls by 60 dB in `t60` seconds (0: no room).

    `direct`: dB by which the energy of the direct sound is above that of all echoes.
    """

    t60: float = 0.0
    direct: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.t60 <= 10:
            raise ValueError(f"a room has a t60 between 0 and 10 seconds, not {self.t60:g}")
        if not math.isfinite(self.direct):
            raise ValueError(f"direct is a number of dB, not {self.direct:g}")

    def impulse_response(self, generator: np.random.Generator) -> np.ndarray:
        """Return [samples] float64: 1 for the direct sound, then the echoes."""
        after = np.arange(1, max(2, int(MAX_DECAY / 60 * self.t60 * SAMPLE_RATE)))
        echoes = generator.standard_normal(len(after)) * 10 ** (-3 * after / (self.t60 * SAMPLE_RATE))
        echoes *= 10 ** (-self.direct / 20) / np.sqrt(np.square(echoes).sum())
        return np.concatenate([[1.0], echoes])


@dataclass(frozen=True)
class White:
    """Noise with the same power at every frequency."""

    snr: float = 5.0

    def __post_init__(self) -> None:
        _check_snr(self.snr)

    def noise(self, size: int, voices: Sequence[np.ndarray], generator: np.random.Generator) -> np.ndarray:
        return generator.standard_normal(size)


@dataclass(frozen=True)
class Babble:
    """Several other speakers at once, all equally loud, each repeated from a random sample on."""

    snr: float = 5.0
    num_voices: int = 6

    def __post_init__(self) -> None:
        _check_snr(self.snr)
        if self.num_voices < 1:
            raise ValueError(f"babble needs at least one voice, not {self.num_voices}")

    def noise(self, size: int, voices: Sequence[np.ndarray], generator: np.random.Generator) -> np.ndarray:
        mixed = np.zeros(size)
        for voice in voices:
            looped = np.resize(np.roll(voice, -int(generator.integers(len(voice)))), size)
            mixed += looped / max(math.sqrt(power(looped)), 1e-9)
        return mixed


@dataclass(frozen=True)
class Distortion:
    """Distortion of audio. `clipped`: the share of samples that the microphone clips."""

    speed: float = 1.0  # changes the pitch too: 0.9 is slower and lower
    room: Room = Room()
    noise: White | Babble | None = None  # null: no noise is added
    clipped: float = 0.0

    def __post_init__(self) -> None:
        if not 0.5 <= self.speed <= 2:
            raise ValueError(f"speed is between 0.5 and 2, not {self.speed:g}")
        if not 0 <= self.clipped < 1:
            raise ValueError(f"clipped is a share of samples between 0 and 1, not {self.clipped:g}")

    @property
    def num_voices(self) -> int:
        """The number of other speakers in the noise."""
        return self.noise.num_voices if isinstance(self.noise, Babble) else 0

    def __call__(
        self,
        samples: np.ndarray,
        voices: Sequence[np.ndarray],
        for_room: np.random.Generator,
        for_noise: np.random.Generator,
    ) -> np.ndarray:
        """Distort samples [n] to [about n / speed] float32; room and noise have their own generators."""
        distorted = at_speed(samples, self.speed)
        if self.room.t60:
            distorted = reverberated(distorted, self.room.impulse_response(for_room))
        if self.noise:
            noise = self.noise.noise(len(distorted), voices, for_noise)
            distorted = noisy(distorted, noise, self.noise.snr)
        if self.clipped:
            distorted = overdriven(distorted, self.clipped)
        return distorted.astype(np.float32)


def power(samples: np.ndarray) -> float:
    """Return the mean square."""
    return float(np.square(samples, dtype=np.float64).mean())


def reverberated(samples: np.ndarray, impulse_response: np.ndarray) -> np.ndarray:
    """Convolve samples by Fourier transforms; echoes after the end are cut off: [n] to [n] float64."""
    size = 1 << (len(samples) + len(impulse_response) - 2).bit_length()
    spectrum = np.fft.rfft(samples.astype(np.float64), size) * np.fft.rfft(impulse_response, size)
    return np.fft.irfft(spectrum, size)[: len(samples)]


def noisy(samples: np.ndarray, noise: np.ndarray, snr: float) -> np.ndarray:
    """Mix samples and noise [n] at this SNR in dB; if one of them is silent, return the samples."""
    speech, other = power(samples), power(noise)
    if speech == 0 or other == 0:
        return samples
    return samples + noise * math.sqrt(speech / other / 10 ** (snr / 10))


def overdriven(samples: np.ndarray, share: float) -> np.ndarray:
    """Amplify samples until this share of them (rounded up to a whole number) reaches ±1 and is clipped.

    >>> overdriven(np.array([0.1, -0.2, 0.3, -0.4]), 0.5).round(3).tolist()
    [0.333, -0.667, 1.0, -1.0]
    """
    limit = np.sort(np.abs(samples))[len(samples) - math.ceil(share * len(samples))]
    return np.clip(samples, -limit, limit) / limit if limit > 0 else samples


def _check_snr(snr: float) -> None:
    if not math.isfinite(snr):
        raise ValueError(f"snr is a number of dB, not {snr:g}")
