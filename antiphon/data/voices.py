"""Voices: who can speak a text, whatever engine is behind it.

A voice of an engine at some rate and pitch is a speaker: the same text in the same voice gives the same
samples, whatever was said before and in whichever process. `antiphon.data.engines` finds the engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from antiphon.data.audio import resample

LEAST_SECONDS = 0.1
SILENCE = 1e-3  # a peak below this is nobody speaking


@dataclass(frozen=True)
class Voice:
    """A speaker: one of an engine's voices, so much faster and higher than it usually speaks."""

    engine: str
    name: str
    rate: float = 1.0
    pitch: float = 1.0

    @property
    def speaker(self) -> str:
        """What it is called in a corpus.

        >>> Voice("flite", "slt", 0.95).speaker
        'flite-slt-0.95-1.00'
        """
        return f"{self.engine}-{self.name}-{self.rate:.2f}-{self.pitch:.2f}"


class SilentError(ValueError):
    """An engine had nothing to say for a text."""


class Synthesiser(Protocol):
    """Turns text into speech. Travels to worker processes."""

    @property
    def version(self) -> str:
        """What the samples depend on besides text and voice."""
        ...

    @property
    def voices(self) -> tuple[str, ...]:
        """Names of the English voices that are installed."""
        ...

    def say(self, text: str, voice: Voice) -> np.ndarray:
        """[samples] float32 in -1..1 at 16 kHz; raises `SilentError` where nothing is to be heard."""
        ...


def heard(samples: np.ndarray, rate: int, voice: Voice) -> np.ndarray:
    """An engine's samples as float32 at 16 kHz; refused where there is no speech in them."""
    if len(samples) < LEAST_SECONDS * rate or np.abs(samples).max() < SILENCE:
        raise SilentError(f"{voice.engine} said nothing in voice {voice.name!r}")
    return resample(samples.astype(np.float32, copy=False), rate)


def no_voice(voice: Voice, there: tuple[str, ...]) -> ValueError:
    some = ", ".join(there[:8])
    return ValueError(
        f"{voice.engine} has no voice {voice.name!r}: there are {some}{', …' * (len(there) > 8)}"
    )
