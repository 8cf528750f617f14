"""What a speech synthesiser is, and what synthesisers share.

A voice of an engine at some rate and pitch is a speaker: the same text in the same voice gives the same
samples, regardless of what was said before and in which process. `data.tts.installed_engines` finds the
engines.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from antiphon.data.audio import SAMPLE_RATE, BadAudioError, at_speed, decode, resample

LEAST_SECONDS = 0.1
SILENCE = 1e-3  # a lower peak is silence
TIMEOUT = 60.0  # seconds for a program to say a sentence


@dataclass(frozen=True)
class Voice:
    """A speaker: a voice of an engine, with rate and pitch relative to its usual ones."""

    engine: str
    name: str
    rate: float = 1.0
    pitch: float = 1.0

    @property
    def speaker(self) -> str:
        """Its name in a corpus.

        >>> Voice("flite", "slt", 0.95).speaker
        'flite-slt-0.95-1.00'
        """
        return f"{self.engine}-{self.name}-{self.rate:.2f}-{self.pitch:.2f}"


class SilentError(ValueError):
    """An engine had nothing to say for a text."""


class Synthesiser(Protocol):
    """Turns text into speech. Travels to worker processes.

    Built without arguments. Raises ValueError with what to install ("name: command") if there is no engine.
    """

    @property
    def version(self) -> str:
        """What the samples depend on besides text and voice."""
        ...

    @property
    def voices(self) -> tuple[str, ...]:
        """Names of the installed English voices."""
        ...

    def say(self, text: str, voice: Voice) -> np.ndarray:
        """[samples] float32 in -1..1 at 16 kHz; raises `SilentError` if there is no speech in them."""
        ...


def check_voice(voice: Voice, names: tuple[str, ...]) -> None:
    """Refuse a voice whose name the engine does not have."""
    if voice.name not in names:
        some = ", ".join(names[:8]) + ", …" * (len(names) > 8)
        raise ValueError(f"{voice.engine} has no voice {voice.name!r}: there are {some}")


def check_speech(samples: np.ndarray, rate: int, voice: Voice) -> np.ndarray:
    """An engine's samples as float32 at 16 kHz; raises `SilentError` if there is no speech in them."""
    if len(samples) < LEAST_SECONDS * rate or np.abs(samples).max() < SILENCE:
        raise SilentError(f"{voice.engine} said nothing in voice {voice.name!r}")
    return resample(samples.astype(np.float32, copy=False), rate)


# --- Engines that are programs --------------------------------------------------------------------


def find_program(name: str, install: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ValueError(f"{name}: {install}")
    return path


def output_of(command: list[str]) -> str:
    """The standard output of a program, whatever its exit code."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT)
    return done.stdout.decode(errors="replace")


def read_speech(path: Path, voice: Voice) -> np.ndarray:
    """Samples of a file that a program wrote, resampled to the voice's pitch.

    Raises `SilentError` if the file is missing or there is no speech in it.
    """
    try:
        samples, rate = decode(path.read_bytes())
    except (BadAudioError, FileNotFoundError):
        raise SilentError(f"{voice.engine} said nothing in voice {voice.name!r}") from None
    return check_speech(at_speed(check_speech(samples, rate, voice), voice.pitch), SAMPLE_RATE, voice)
