"""espeak-ng, through its library: formant synthesis with many accents and timbres, and phonemes of text.

It is GPL and not part of antiphon: only the extra `demo` installs it.
"""

from __future__ import annotations

import _ctypes
import ctypes
import math
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import numpy as np

from antiphon.data.audio import SAMPLE_RATE, resample
from antiphon.data.tts.speech_engines import from_int16
from antiphon.data.tts.synthesiser import ENGINES, SilentError, Voice, check_speech

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
