"""Engines of speech synthesis that are programs, and a small library.

  Flite      CMU Flite: four voices in a program that says one sentence and ends
  Festival   the Festival system with all English voices that are installed, in one running process
  Pico       SVOX Pico, through the package `ttspico`, which includes its voices

Flite and Festival take a rate. Their pitch is changed by resampling, which also moves the formants, as if the
speaker were smaller or larger.
"""

from __future__ import annotations

import re
import select
import shutil
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Callable
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.data.audio import SAMPLE_RATE, BadAudioError, at_speed, decode
from antiphon.data.tts.synthesiser import ENGINES, SilentError, Voice, check_speech, check_voice

TIMEOUT = 60.0  # seconds for a program to say a sentence


# --- Programs -------------------------------------------------------------------------------------


def find_program(name: str, install: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ValueError(f"{name}: {install}")
    return path


def output_of(command: list[str]) -> str:
    """Return the standard output of a program, whatever its exit code."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT)
    return done.stdout.decode(errors="replace")


def record(say: Callable[[Path], None], voice: Voice) -> np.ndarray:
    """Return the samples of the file that a program writes, resampled to the voice's pitch.

    Raises `SilentError` if the file is missing or there is no speech in it.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sound.wav"
        say(path)
        try:
            samples, rate = decode(path.read_bytes())
        except (BadAudioError, FileNotFoundError):
            raise SilentError(f"{voice.engine} said nothing in voice {voice.name!r}") from None
    return at_pitch(samples, rate, voice)


def at_pitch(samples: np.ndarray, rate: int, voice: Voice) -> np.ndarray:
    """Return an engine's samples at 16 kHz, resampled to the voice's pitch, which also changes their rate."""
    return check_speech(at_speed(check_speech(samples, rate, voice), voice.pitch), SAMPLE_RATE, voice)


@ENGINES.register
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
        # The other voices have 8 kHz, or only tell the time.
        return tuple(name for name in ("slt", "rms", "awb", "kal16") if name in installed)

    def say(self, text: str, voice: Voice) -> np.ndarray:
        check_voice(voice, self.voices)
        stretch = f"duration_stretch={voice.pitch / voice.rate:.4f}"

        def say(path: Path) -> None:
            words = path.with_name("text")
            words.write_text(text, encoding="utf-8")
            options = ["-voice", voice.name, "--setf", stretch, "-f", str(words), "-o", str(path)]
            command, nothing = [self._program, *options], subprocess.DEVNULL
            try:
                subprocess.run(command, stdin=nothing, capture_output=True, check=True, timeout=TIMEOUT)
            except subprocess.TimeoutExpired:
                raise SilentError(f"flite did not finish in {TIMEOUT:.0f} s") from None
            except subprocess.CalledProcessError as error:
                raise SilentError(f"flite ended with code {error.returncode}") from None

        return record(say, voice)


ENGLISH = ("cmu_us_", "nitech_us_", "kal_", "ked_", "rab_", "don_", "en1_", "us1_", "us2_", "us3_")
DONE = "said-it"
SAY = "(define (say_it text file) (utt.save.wave (utt.synth (eval (list 'Utterance 'Text text))) file 'riff))"
_festival_lock = threading.Lock()


@ENGINES.register
class Festival:
    """A `Synthesiser`. One process is kept running, because starting it takes longer than a sentence.

    Its speech does not depend on earlier sentences (a test compares).
    """

    def __init__(self) -> None:
        self._program = find_program("festival", "apt-get install festival festvox-us-slt-hts")
        self._process: subprocess.Popen[bytes] | None = None
        if not self.voices:
            raise ValueError("festival: it has no English voice, apt-get install festvox-us-slt-hts")

    def __reduce__(self) -> tuple[Any, ...]:
        return Festival, ()  # another process starts its own

    @cached_property
    def version(self) -> str:
        match = re.search(r"System: (\S+)", output_of([self._program, "--version"]))
        return f"festival {match[1]}" if match else "festival"

    @cached_property
    def voices(self) -> tuple[str, ...]:
        names = re.findall(r"\w+", output_of([self._program, "--batch", "(print (voice.list))"]))
        return tuple(name for name in sorted(names) if name.startswith(ENGLISH))

    def say(self, text: str, voice: Voice) -> np.ndarray:
        check_voice(voice, self.voices)
        slower = voice.pitch / voice.rate  # resampling to the pitch makes it faster again
        # The voice sets its own stretch, so ours comes after it; HTS voices have another setting.
        stretch = f"(Parameter.set 'Duration_Stretch {slower:.4f})"
        if voice.name.endswith("_hts"):
            stretch = f'(set! hts_engine_params (cons \'("-r" {1 / slower:.4f}) hts_engine_params))'
        words = re.sub(r'["\\]', " ", text)  # these would end the string
        setting = f"(voice_{voice.name})\n{stretch}\n"
        return record(lambda path: self._execute(f'{setting}(say_it "{words}" "{path}")\n'), voice)

    def _execute(self, commands: str) -> None:
        """Have Festival execute commands; after an error it continues with the next one."""
        with _festival_lock:
            process = self._running()
            assert process.stdin is not None
            try:
                process.stdin.write(f'{commands}(format stderr "{DONE}\\n")\n'.encode())
                process.stdin.flush()
                self._wait(process)
            except (OSError, SilentError) as error:
                process.kill()
                self._process = None
                raise SilentError(f"festival gave up: {error}") from None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            command = [self._program, "--pipe"]
            pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
            self._process = subprocess.Popen(command, stdin=pipe, stdout=nothing, stderr=pipe, bufsize=0)
            weakref.finalize(self, _end, self._process)
            assert self._process.stdin is not None
            self._process.stdin.write(f"{SAY}\n".encode())
        return self._process

    @staticmethod
    def _wait(process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None  # standard output is buffered
        output = b""
        while DONE.encode() not in output:
            if not select.select([process.stderr], [], [], TIMEOUT)[0]:
                raise SilentError(f"no answer in {TIMEOUT:.0f} s")
            if not (piece := process.stderr.read(1 << 16)):
                raise SilentError("it ended")
            output += piece


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


# --- A library ------------------------------------------------------------------------------------


def from_int16(data: bytes) -> np.ndarray:
    return np.frombuffer(data, dtype=np.int16) / np.float32(32768)


@ENGINES.register
class Pico:
    """A `Synthesiser`. Each sentence has a new engine: its output depends on what it said before."""

    voices = ("en-US", "en-GB")

    def __init__(self) -> None:
        try:
            import ttspico  # noqa: F401
        except ImportError:
            raise ValueError("pico: pip install ttspico") from None

    @property
    def version(self) -> str:
        return f"ttspico {version('ttspico')}"

    def say(self, text: str, voice: Voice) -> np.ndarray:
        import ttspico

        check_voice(voice, self.voices)
        engine = ttspico.TtsEngine(voice.name)
        engine.rate, engine.pitch = round(100 * voice.rate), round(100 * voice.pitch)
        return check_speech(from_int16(engine.speak(text) or b""), SAMPLE_RATE, voice)
