"""Engines that are programs (flite, festival) or a small binding (pico).

flite and festival take a rate; a pitch is given to them by resampling, which moves the formants as well, as
if the speaker were smaller or larger. Every sentence is said by a fresh process (pico: a fresh engine): what
was said before could be heard otherwise.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import numpy as np

from antiphon.data.audio import SAMPLE_RATE, at_speed, decode
from antiphon.data.voices import SilentError, Voice, heard, no_voice

TIMEOUT = 60.0  # seconds for a sentence
FLITE_VOICES = ("slt", "rms", "awb", "kal16")  # the others are of 8 kHz, or tell the time only
FESTIVAL_ENGLISH = ("cmu_us_", "nitech_us_", "kal_", "ked_", "rab_", "don_", "en1_", "us1_", "us2_", "us3_")
PICO_VOICES = ("en-US", "en-GB")
PICO_RATE = SAMPLE_RATE


class Flite:
    """CMU Flite: four voices, compiled into the program."""

    def __init__(self) -> None:
        self._program = _find("flite", "flite", "apt-get install flite")

    @cached_property
    def version(self) -> str:
        found = re.search(r"version: (\S+)", _told([self._program, "--version"]))
        return found[1] if found else "flite"

    @cached_property
    def voices(self) -> tuple[str, ...]:
        there = _told([self._program, "-lv"]).split()
        return tuple(name for name in FLITE_VOICES if name in there)

    def say(self, text: str, voice: Voice) -> np.ndarray:
        if voice.name not in self.voices:
            raise no_voice(voice, self.voices)
        with tempfile.TemporaryDirectory() as folder:
            words, sound = Path(folder) / "text", Path(folder) / "sound.wav"
            words.write_text(text, encoding="utf-8")
            stretch = f"duration_stretch={voice.pitch / voice.rate:.4f}"
            _run([self._program, "-voice", voice.name, "--setf", stretch, "-f", str(words), "-o", str(sound)])
            return _higher(sound, voice)


class Festival:
    """The Festival speech synthesis system, with whatever English voices are installed."""

    def __init__(self) -> None:
        install = "apt-get install festival festvox-us-slt-hts"
        self._program = _find("festival", "festival", install)
        self._speaker = _find("text2wave", "festival", install)
        if not self.voices:
            raise ValueError("festival has no English voice: apt-get install festvox-us-slt-hts")

    @cached_property
    def version(self) -> str:
        found = re.search(r"System: (\S+)", _told([self._program, "--version"]))
        return f"festival {found[1]}" if found else "festival"

    @cached_property
    def voices(self) -> tuple[str, ...]:
        said = _told([self._program, "--batch", "(print (voice.list))"])
        names = sorted(re.findall(r"[A-Za-z0-9_]+", said))
        return tuple(name for name in names if name.startswith(FESTIVAL_ENGLISH))

    def say(self, text: str, voice: Voice) -> np.ndarray:
        if voice.name not in self.voices:
            raise no_voice(voice, self.voices)
        with tempfile.TemporaryDirectory() as folder:
            words, sound = Path(folder) / "text", Path(folder) / "sound.wav"
            words.write_text(text, encoding="utf-8")
            slower = voice.pitch / voice.rate  # resampling will make up for the pitch
            # The voice sets a stretch of its own, so ours comes after it; HTS voices have it elsewhere.
            hts = f'(set! hts_engine_params (cons \'("-r" {1 / slower:.4f}) hts_engine_params))'
            stretch = f"(Parameter.set 'Duration_Stretch {slower:.4f})"
            orders = (f"(voice_{voice.name})", hts if voice.name.endswith("_hts") else stretch)
            chosen = [word for order in orders for word in ("-eval", order)]
            _run([self._speaker, *chosen, "-o", str(sound), str(words)])
            return _higher(sound, voice)


class Pico:
    """SVOX Pico through `ttspico`, which brings its voices."""

    def __init__(self) -> None:
        try:
            import ttspico  # noqa: F401
        except ImportError:
            raise ValueError("pico: pip install ttspico") from None

    @property
    def version(self) -> str:
        return f"ttspico {version('ttspico')}"

    @property
    def voices(self) -> tuple[str, ...]:
        return PICO_VOICES

    def say(self, text: str, voice: Voice) -> np.ndarray:
        import ttspico

        if voice.name not in PICO_VOICES:
            raise no_voice(voice, PICO_VOICES)
        engine = ttspico.TtsEngine(voice.name)
        engine.rate, engine.pitch = round(100 * voice.rate), round(100 * voice.pitch)
        data = engine.speak(text) or b""
        return heard(np.frombuffer(data, dtype=np.int16) / np.float32(32768), PICO_RATE, voice)


def _find(program: str, engine: str, install: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise ValueError(f"{engine}: {install}")
    return path


def _told(command: list[str]) -> str:
    """What a program says about itself, whatever its exit code."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT)
    return done.stdout.decode(errors="replace")


def _run(command: list[str]) -> None:
    """Lets a program say a text; what goes wrong in it is silence."""
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise SilentError(f"{Path(command[0]).name} did not come to an end in {TIMEOUT:.0f} s") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()
        raise SilentError(f"{Path(command[0]).name} failed: {' '.join(said[-1:])}") from None


def _higher(sound: Path, voice: Voice) -> np.ndarray:
    """A file that a program wrote, at 16 kHz and as high as the voice; for nothing, they write no file."""
    samples, rate = decode(sound.read_bytes()) if sound.exists() else (np.zeros(0, np.float32), SAMPLE_RATE)
    return heard(at_speed(heard(samples, rate, voice), voice.pitch), SAMPLE_RATE, voice)
