"""A small many-speaker corpus out of nothing: home-assistant phrases spoken by espeak-ng.

espeak-ng is GPL and comes with the `demo` extra only. Everything follows from one seed: who speaks
(accent, timbre, rate, pitch), what they say, and the noise around some of them.
"""

from __future__ import annotations

import _ctypes
import ctypes
import json
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.data.audio import SAMPLE_RATE, encode_flac, resample
from antiphon.data.corpus import Corpus
from antiphon.data.importing import ImportOptions, import_corpus
from antiphon.seeding import derive

Progress = Callable[[int, int], None]  # (utterances done, utterances in all)

# --- Who speaks -----------------------------------------------------------------------------------

ACCENTS = (
    "en",
    "en-us",
    "en-us-nyc",
    "en-029",
    "en-gb-scotland",
    "en-gb-x-rp",
    "en-gb-x-gbclan",
    "en-gb-x-gbcwmd",
)
# Those of espeak-ng's variants that sound like a person.
LIKE_PEOPLE = (
    "f1 f2 f3 f4 f5 m1 m2 m3 m4 m5 m6 m7 m8 Alex Alicia Andrea Andy Annie Denis Gene Lee Mario Michael Mike "
    "adam anika antonio aunty belinda benjamin boris caleb david ed edward grandma grandpa ian john linda "
    "max michel miguel norbert pablo paul pedro quincy rob robert sandro shelby steph travis victor zac"
)
VARIANTS = tuple(LIKE_PEOPLE.split())
RATES = (130, 220)  # words a minute
PITCHES = (20, 80)  # espeak-ng's scale, 0 to 99
SNRS = (5.0, 15.0)  # decibels


@dataclass(frozen=True)
class Voice:
    """A speaker: `name` is espeak-ng's voice (an accent), `variant` its timbre.

    `noise_db` is the speech-to-noise ratio where they speak (None: silence around them); the noise's
    power falls with frequency as 1 / f ** noise_slope: 0 is white, 1 is pink.
    """

    name: str
    variant: str
    rate: int
    pitch: int
    noise_db: float | None = None
    noise_slope: float = 0.0


def make_voices(num: int, seed: int) -> list[Voice]:
    """`num` speakers, no two alike, in silence; the first ones do not depend on `num`.

    Accent and timbre repeat only once every pair of them has been used.
    """
    generator = np.random.default_rng(derive(seed, "voices"))
    voices: dict[Voice, None] = {}
    while len(voices) < num:
        for pair in generator.permutation(len(ACCENTS) * len(VARIANTS)):
            accent, variant = divmod(int(pair), len(VARIANTS))
            rate, pitch = (int(generator.integers(low, high + 1)) for low, high in (RATES, PITCHES))
            voices[Voice(ACCENTS[accent], VARIANTS[variant], rate, pitch)] = None
    return list(voices)[:num]


def make_noisy(voices: list[Voice], fraction: float, seed: int) -> list[Voice]:
    """The same voices, `fraction` of them (rounded) in white or pink noise at 5 to 15 dB."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"the fraction of noisy speakers must be between 0 and 1, not {fraction}")
    generator = np.random.default_rng(derive(seed, "noisy voices"))
    noisy = set(generator.permutation(len(voices))[: round(fraction * len(voices))].tolist())
    ratios = np.round(generator.uniform(*SNRS, len(voices)), 1).tolist()
    slopes = generator.integers(0, 2, len(voices)).tolist()
    return [
        replace(voice, noise_db=ratios[place], noise_slope=float(slopes[place])) if place in noisy else voice
        for place, voice in enumerate(voices)
    ]


def add_noise(
    samples: np.ndarray, ratio_db: float, slope: float, generator: np.random.Generator
) -> np.ndarray:
    """Speech [samples] float32 with noise `ratio_db` below its power, spectrum 1 / f ** slope."""
    spectrum = np.fft.rfft(generator.standard_normal(len(samples)))
    spectrum /= np.maximum(np.arange(len(spectrum)), 1.0) ** (slope / 2)
    noise = np.fft.irfft(spectrum, n=len(samples))
    wanted = np.mean(np.square(samples, dtype=np.float64)) / 10 ** (ratio_db / 10)
    return (samples + noise * np.sqrt(wanted / np.mean(np.square(noise)))).astype(np.float32)


# --- What they say --------------------------------------------------------------------------------

ROOMS = "kitchen bedroom bathroom garage hall garden"
NUMBERS = "one two three four five six seven eight nine ten"
NAMES = "anna peter maria david sarah john"
PHRASES = (
    ("turn", "on off up down", "the", ROOMS, "light lamp heater fan radio"),
    ("open close lock", "the", ROOMS, "door window"),
    ("call text", NAMES, "now again later"),
    ("play stop", "some the", "jazz rock piano news", "music"),
    ("set", "a the", "timer alarm", "for", NUMBERS, "minutes hours"),
    ("add", NUMBERS, "eggs apples lemons", "please"),
    ("what", "is", "the", "time weather date"),
    ("good", "morning night evening", NAMES),
)


def make_sentence(generator: np.random.Generator) -> str:
    """A phrase of 3 to 6 words, one from each slot, out of a vocabulary of about 80."""
    slots = [slot.split() for slot in PHRASES[generator.integers(len(PHRASES))]]
    return " ".join(slot[generator.integers(len(slot))] for slot in slots)


# --- espeak-ng ------------------------------------------------------------------------------------

OUTPUT_SYNCHRONOUS = 2
DO_NOT_EXIT = 0x8000  # espeak-ng would end the process when it cannot find its data
CHARACTERS_UTF8 = 1
RATE_PARAMETER, PITCH_PARAMETER = 1, 3
Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
_lock = threading.Lock()  # espeak-ng is one per process, not one per caller


class Synthesiser:
    """Text to speech: what comes out depends on text and voice only, never on what was said before."""

    def __init__(self) -> None:
        try:
            import espeakng_loader
        except ImportError as error:
            raise ValueError("synthesis needs espeak-ng: pip install 'antiphon[demo]'") from error
        self._library: str = espeakng_loader.get_library_path()
        self._data: str = espeakng_loader.get_data_path()

    def say(self, text: str, voice: Voice) -> np.ndarray:
        """The text spoken by the voice, without its noise: [samples] float32 in -1..1 at 16 kHz."""
        heard: list[bytes] = []

        def listen(samples: Any, num_samples: int, events: Any) -> int:
            if samples and num_samples > 0:
                heard.append(ctypes.string_at(samples, 2 * num_samples))
            return 0

        callback = Callback(listen)  # kept alive here for as long as espeak-ng may call it
        with _lock, self._loaded() as (espeak, rate):
            espeak.espeak_SetSynthCallback(callback)
            name = f"{voice.name}+{voice.variant}"
            if espeak.espeak_SetVoiceByName(name.encode()) != 0:
                raise ValueError(f"espeak-ng has no voice {name!r}")
            espeak.espeak_SetParameter(RATE_PARAMETER, voice.rate, 0)
            espeak.espeak_SetParameter(PITCH_PARAMETER, voice.pitch, 0)
            data = text.encode()
            status = espeak.espeak_Synth(data, len(data) + 1, 0, 0, 0, CHARACTERS_UTF8, None, None)
        if status != 0 or not heard:
            raise ValueError(f"espeak-ng said nothing in voice {name!r} (status {status})")
        return resample(np.frombuffer(b"".join(heard), dtype=np.int16) / np.float32(32768), rate)

    @contextmanager
    def _loaded(self) -> Iterator[tuple[Any, int]]:
        """The library, loaded afresh, and its sample rate.

        Phases and flutter live in the library's static variables and survive espeak_Terminate: only a
        library that is loaded again says the same thing twice. That takes 2 ms.
        """
        espeak = ctypes.CDLL(self._library)
        espeak.espeak_Synth.argtypes = [
            *(ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int, ctypes.c_uint, ctypes.c_uint),
            *(ctypes.c_void_p, ctypes.c_void_p),
        ]
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


# --- A corpus of it -------------------------------------------------------------------------------


@dataclass(frozen=True)
class SpeakerGroup:
    """How many speakers a split has, and what fraction of them speak in noise."""

    num_speakers: int
    noisy_fraction: float = 0.25


def synthesise_corpus(
    destination: str | Path,
    splits: Mapping[str, SpeakerGroup],
    sentences_per_speaker: int,
    seed: int,
    progress: Progress | None = None,
) -> Corpus:
    """A corpus in `destination` in which every split has speakers of its own.

    Speakers are called s000, s001, …; their voice is kept in each utterance's `extra`.
    """
    destination = Path(destination)
    if destination.exists():
        raise ValueError(f"{destination} exists already: choose another name, or delete it")
    destination.parent.mkdir(parents=True, exist_ok=True)
    speakers = plan_speakers(splits, seed)
    total = len(speakers) * sentences_per_speaker
    with tempfile.TemporaryDirectory(prefix=".synthesis-", dir=destination.parent) as scratch:
        folder = Path(scratch)
        with tarfile.open(folder / "audio.tar", "w") as tar, open(folder / "manifest.jsonl", "w") as manifest:
            spoken = speak_all(speakers, sentences_per_speaker, seed)
            for done, (row, audio) in enumerate(spoken, 1):
                add_file(tar, row["path"], audio)
                manifest.write(json.dumps(row) + "\n")
                if progress is not None:
                    progress(done, total)
        import_corpus(folder, destination, ImportOptions())
    return Corpus.open(destination)


def plan_speakers(splits: Mapping[str, SpeakerGroup], seed: int) -> dict[str, tuple[str, Voice]]:
    """Speaker name -> split and voice; no two speakers of any splits are alike."""
    voices = make_voices(sum(group.num_speakers for group in splits.values()), seed)
    speakers: dict[str, tuple[str, Voice]] = {}
    for split, group in splits.items():
        own = voices[len(speakers) : len(speakers) + group.num_speakers]
        for voice in make_noisy(own, group.noisy_fraction, derive(seed, split)):
            speakers[f"s{len(speakers):03d}"] = (split, voice)
    return speakers


def speak_all(
    speakers: Mapping[str, tuple[str, Voice]], sentences_per_speaker: int, seed: int
) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Every speaker's sentences: a row of the manifest and the audio as FLAC."""
    synthesiser = Synthesiser()
    for speaker, (split, voice) in speakers.items():
        for number in range(sentences_per_speaker):
            id = f"{speaker}-{number:04d}"
            text, samples = speak(synthesiser, voice, derive(seed, "utterance", id))
            row = {
                "id": id,
                "path": f"{id}.flac",
                "split": split,
                "speaker": speaker,
                "session": speaker,
                "duration": len(samples) / SAMPLE_RATE,
                "text": text,
                "voice": asdict(voice),
            }
            yield row, encode_flac(samples)


def speak(synthesiser: Synthesiser, voice: Voice, seed: int) -> tuple[str, np.ndarray]:
    """A random sentence and its sound in the voice's surroundings: [samples] float32 at 16 kHz."""
    generator = np.random.default_rng(seed)
    text = make_sentence(generator)
    samples = synthesiser.say(text, voice)
    if voice.noise_db is not None:
        samples = add_noise(samples, voice.noise_db, voice.noise_slope, generator)
    return text, samples / max(1.0, float(np.abs(samples).max()))


def add_file(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, BytesIO(content))
