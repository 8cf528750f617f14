"""CMU Flite: four voices in a program that says one sentence and ends.

Voices take a rate. Their pitch is changed by resampling, which also moves the formants, as if the speaker
were smaller or larger.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from functools import cached_property
from pathlib import Path

import numpy as np

from antiphon.data.tts.synthesiser import (
    TIMEOUT,
    SilentError,
    Voice,
    check_voice,
    find_program,
    output_of,
    read_speech,
)

VOICES = ("slt", "rms", "awb", "kal16")  # the others have 8 kHz, or only tell the time


class Flite:
    """A `Synthesiser`."""

    def __init__(self) -> None:
        self._program = find_program("flite", "apt-get install flite")

    @cached_property
    def version(self) -> str:
        match = re.search(r"version: (\S+)", output_of([self._program, "--version"]))
        return match[1] if match else "flite"

    @cached_property
    def voices(self) -> tuple[str, ...]:
        installed = output_of([self._program, "-lv"]).split()
        return tuple(name for name in VOICES if name in installed)

    def say(self, text: str, voice: Voice) -> np.ndarray:
        check_voice(voice, self.voices)
        with tempfile.TemporaryDirectory() as folder:
            words, sound = Path(folder) / "text", Path(folder) / "sound.wav"
            words.write_text(text, encoding="utf-8")
            stretch = f"duration_stretch={voice.pitch / voice.rate:.4f}"
            self._run("-voice", voice.name, "--setf", stretch, "-f", str(words), "-o", str(sound))
            return read_speech(sound, voice)

    def _run(self, *options: str) -> None:
        """Run the program; any failure is a `SilentError`."""
        command = [self._program, *options]
        try:
            subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=TIMEOUT
            )
        except subprocess.TimeoutExpired:
            raise SilentError(f"flite did not finish in {TIMEOUT:.0f} s") from None
        except subprocess.CalledProcessError as error:
            raise SilentError(f"flite ended with code {error.returncode}") from None
