"""Engines of speech synthesis.

  Flite      CMU Flite: four voices in a program that says one sentence and ends
  Festival   the Festival system with all English voices that are installed, in one running process
  Pico       SVOX Pico, through the package `ttspico`, which includes its voices
  Espeak     espeak-ng, through its library: formant synthesis, many accents and timbres

Flite and Festival take a rate. Their pitch is changed by resampling, which also moves the formants, as if the
speaker were smaller or larger. espeak-ng is GPL and not part of antiphon: only the extra `demo` installs it.
"""

from __future__ import annotations

import _ctypes
import ctypes
import math
import re
import select
import shutil
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.data.audio import SAMPLE_RATE, BadAudioError, at_speed, decode, resample
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


# --- Libraries ------------------------------------------------------------------------------------


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


ACCENT_NAMES = "en en-us en-us-nyc en-029 en-gb-scotland en-gb-x-rp en-gb-x-gbclan en-gb-x-gbcwmd"
VARIANT_NAMES = (  # those that sound like a person
    "f1 f2 f3 f4 f5 m1 m2 m3 m4 m5 m6 m7 m8 Alex Alicia Andrea Andy Annie Denis Gene Lee Mario Michael Mike "
    "adam anika antonio aunty belinda benjamin boris caleb david ed edward grandma grandpa ian john linda "
    "max michel miguel norbert pablo paul pedro quincy rob robert sandro shelby steph travis victor zac"
)
ACCENTS, VARIANTS = tuple(ACCENT_NAMES.split()), tuple(VARIANT_NAMES.split())
USUAL_RATE, USUAL_PITCH = 175, 50  # words per minute; on a scale from 0 to 99, where 50 is an octave

OUTPUT_SYNCHRONOUS = 2
DO_NOT_EXIT = 0x8000  # espeak-ng would end the process when it cannot find its data
CHARACTERS_UTF8 = 1
TIE = "\u0361"  # joins the letters of one phoneme, such as those of a diphthong
TIED_IPA = 0x02 | 0x80 | ord(TIE) << 8
LANGUAGE = re.compile(r"\([a-z-]+\)")  # before a word of another language, and after it
RATE_PARAMETER, PITCH_PARAMETER = 1, 3
Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
_espeak_lock = threading.Lock()  # a process has one espeak-ng for all callers


@ENGINES.register
class Espeak:
    """A `Synthesiser`, 70 to 200 times real time. A voice is an accent and a timbre: "en-us+f3"."""

    def __init__(self) -> None:
        try:
            import espeakng_loader
        except ImportError as error:
            raise ValueError("espeak: pip install 'antiphon[demo]'") from error
        self._library: str = espeakng_loader.get_library_path()
        self._data: str = espeakng_loader.get_data_path()

    @property
    def version(self) -> str:
        return f"espeakng-loader {version('espeakng-loader')}"

    @property
    def voices(self) -> tuple[str, ...]:
        return tuple(f"{accent}+{variant}" for accent in ACCENTS for variant in VARIANTS)

    def say(self, text: str, voice: Voice) -> np.ndarray:
        pitch = min(99, max(0, round(USUAL_PITCH + 50 * math.log2(voice.pitch))))
        samples = self.speak(text, voice.name, round(USUAL_RATE * voice.rate), pitch)
        return check_speech(samples, SAMPLE_RATE, voice)

    def speak(self, text: str, name: str, words_per_minute: int, pitch: int) -> np.ndarray:
        """Speak with rate and pitch on espeak-ng's own scales: [samples] float32 in -1..1 at 16 kHz."""
        pieces: list[bytes] = []

        def listen(samples: Any, num_samples: int, events: Any) -> int:
            if samples and num_samples > 0:
                pieces.append(ctypes.string_at(samples, 2 * num_samples))
            return 0

        callback = Callback(listen)  # stays alive here for as long as espeak-ng may call it
        with _espeak_lock, self._loaded() as (espeak, rate):
            espeak.espeak_SetSynthCallback(callback)
            self._choose(espeak, name)
            espeak.espeak_SetParameter(RATE_PARAMETER, words_per_minute, 0)
            espeak.espeak_SetParameter(PITCH_PARAMETER, pitch, 0)
            data = text.encode()
            status = espeak.espeak_Synth(data, len(data) + 1, 0, 0, 0, CHARACTERS_UTF8, None, None)
        if status != 0 or not pieces:
            raise SilentError(f"espeak-ng said nothing in voice {name!r} (status {status})")
        return resample(from_int16(b"".join(pieces)), rate)

    def phonemes(self, texts: Sequence[str], accent: str) -> list[str]:
        """Return the phonemes of each text in IPA, with `TIE` within diphthongs; punctuation is left out."""
        with _espeak_lock, self._loaded() as (espeak, _):
            self._choose(espeak, accent)
            return [self._phonemes(espeak, text.encode()) for text in texts]

    @staticmethod
    def _phonemes(espeak: Any, data: bytes) -> str:
        rest, clauses = ctypes.c_char_p(data), []
        while rest:  # every call takes one clause
            clauses.append(espeak.espeak_TextToPhonemes(ctypes.byref(rest), CHARACTERS_UTF8, TIED_IPA) or b"")
        return " ".join(LANGUAGE.sub("", b" ".join(clauses).decode()).split())

    @staticmethod
    def _choose(espeak: Any, voice: str) -> None:
        if espeak.espeak_SetVoiceByName(voice.encode()) != 0:
            raise ValueError(f"espeak-ng has no voice {voice!r}")

    @contextmanager
    def _loaded(self) -> Iterator[tuple[Any, int]]:
        """Load the library again; yield it and its sample rate.

        Phases and flutter are static variables of the library, which espeak_Terminate does not reset. Only a
        library that is loaded again gives the same samples twice. That takes 2 ms.
        """
        espeak = ctypes.CDLL(self._library)
        espeak.espeak_Synth.argtypes = [
            *(ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int, ctypes.c_uint, ctypes.c_uint),
            *(ctypes.c_void_p, ctypes.c_void_p),
        ]
        espeak.espeak_TextToPhonemes.argtypes = [ctypes.POINTER(ctypes.c_char_p), ctypes.c_int, ctypes.c_int]
        espeak.espeak_TextToPhonemes.restype = ctypes.c_char_p
        try:
            rate = espeak.espeak_Initialize(OUTPUT_SYNCHRONOUS, 0, self._data.encode(), DO_NOT_EXIT)
            if rate <= 0:
                raise ValueError(f"espeak-ng cannot read its data in {self._data}: reinstall espeakng-loader")
            espeak.espeak_ng_SetRandSeed(ctypes.c_long(1))
            espeak.srand(1)  # breath and aspiration come from C's own generator
            yield espeak, rate
        finally:
            espeak.espeak_Terminate()
            _ctypes.dlclose(espeak._handle)
