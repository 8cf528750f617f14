"""Programs that speak: found, asked about themselves, and what they wrote."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np

from antiphon.data.audio import SAMPLE_RATE, BadAudioError, at_speed, decode
from antiphon.data.voices import SilentError, Voice, heard

TIMEOUT = 60.0  # seconds for a sentence


def find_program(name: str, install: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ValueError(f"{name}: {install}")
    return path


def told(command: list[str]) -> str:
    """What a program says about itself, whatever its exit code."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT)
    return done.stdout.decode(errors="replace")


def heard_in_file(sound: Path, voice: Voice) -> np.ndarray:
    """A file that a program wrote, at 16 kHz and as high as the voice; for nothing, an empty one or none."""
    try:
        samples, rate = decode(sound.read_bytes())
    except (BadAudioError, FileNotFoundError):
        raise SilentError(f"{voice.engine} said nothing in voice {voice.name!r}") from None
    return heard(at_speed(heard(samples, rate, voice), voice.pitch), SAMPLE_RATE, voice)
