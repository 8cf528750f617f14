"""The demo's corpus: home-assistant phrases in many voices of espeak-ng.

espeak-ng is GPL and comes only with the `demo` extra. One seed decides everything: the speakers (accent,
timbre, rate, pitch), their sentences, and the noise around some of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from antiphon.data.audio import encode_flac
from antiphon.data.corpus import Corpus
from antiphon.data.importing.conversion import ImportOptions
from antiphon.data.store import Progress
from antiphon.data.tts.espeak import ACCENTS, VARIANTS, Espeak
from antiphon.data.tts.spoken_corpus import temporary_source
from antiphon.seeding import derive

# --- Speakers -------------------------------------------------------------------------------------

RATES = (130, 220)  # words per minute
PITCHES = (20, 80)  # espeak-ng's scale, 0 to 99
SNRS = (5.0, 15.0)  # decibels


@dataclass(frozen=True)
class DemoVoice:
    """A speaker: `name` is espeak-ng's voice (an accent), `variant` its timbre.

    `noise_db` is the speech-to-noise ratio (None: no noise). The power of the noise falls with frequency as
    1 / f ** noise_slope: 0 is white, 1 is pink.
    """

    name: str
    variant: str
    rate: int
    pitch: int
    noise_db: float | None = None
    noise_slope: float = 0.0


def make_voices(num: int, seed: int) -> list[DemoVoice]:
    """Draw `num` different speakers without noise; the first ones do not depend on `num`.

    Accent and timbre repeat only after every pair of them has been used.
    """
    generator = np.random.default_rng(derive(seed, "voices"))
    voices: dict[DemoVoice, None] = {}
    while len(voices) < num:
        for pair in generator.permutation(len(ACCENTS) * len(VARIANTS)):
            accent, variant = divmod(int(pair), len(VARIANTS))
            rate, pitch = (int(generator.integers(low, high + 1)) for low, high in (RATES, PITCHES))
            voices[DemoVoice(ACCENTS[accent], VARIANTS[variant], rate, pitch)] = None
    return list(voices)[:num]


def make_noisy(voices: list[DemoVoice], fraction: float, seed: int) -> list[DemoVoice]:
    """Return the voices with a `fraction` of them (rounded) in white or pink noise at 5 to 15 dB."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"the fraction of noisy speakers must be between 0 and 1, not {fraction}")
    generator = np.random.default_rng(derive(seed, "noisy voices"))
    noisy = set(generator.permutation(len(voices))[: round(fraction * len(voices))].tolist())
    ratios = np.round(generator.uniform(*SNRS, len(voices)), 1).tolist()
    slopes = generator.integers(0, 2, len(voices)).tolist()
    return [
        replace(voice, noise_db=ratios[index], noise_slope=float(slopes[index])) if index in noisy else voice
        for index, voice in enumerate(voices)
    ]


def add_noise(
    samples: np.ndarray, ratio_db: float, slope: float, generator: np.random.Generator
) -> np.ndarray:
    """Add noise to speech [samples] float32: `ratio_db` below its power, spectrum 1 / f ** slope."""
    spectrum = np.fft.rfft(generator.standard_normal(len(samples)))
    spectrum /= np.maximum(np.arange(len(spectrum)), 1.0) ** (slope / 2)
    noise = np.fft.irfft(spectrum, n=len(samples))
    wanted = np.mean(np.square(samples, dtype=np.float64)) / 10 ** (ratio_db / 10)
    return (samples + noise * np.sqrt(wanted / np.mean(np.square(noise)))).astype(np.float32)


# --- Sentences ------------------------------------------------------------------------------------

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
    """Draw a phrase of 3 to 6 words, one from each slot; the vocabulary has about 80 words."""
    slots = [slot.split() for slot in PHRASES[generator.integers(len(PHRASES))]]
    return " ".join(slot[generator.integers(len(slot))] for slot in slots)


# --- The corpus -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class SpeakerGroup:
    """The number of speakers of a split, and the fraction of them who speak in noise."""

    num_speakers: int
    noisy_fraction: float = 0.25


def synthesise_corpus(
    destination: str | Path,
    splits: Mapping[str, SpeakerGroup],
    sentences_per_speaker: int,
    seed: int,
    progress: Progress = lambda done, total: None,
) -> Corpus:
    """Make a corpus in `destination` in which no two splits share a speaker.

    Speakers are called s000, s001, …; each utterance has its voice in `extra`.
    """
    destination = Path(destination)
    if destination.exists():
        raise ValueError(f"{destination} exists already: choose another name, or delete it")
    speakers = plan_speakers(splits, seed)
    total = len(speakers) * sentences_per_speaker
    synthesiser = Espeak()
    with temporary_source(destination) as source:
        for done, (speaker, number) in enumerate(product(speakers, range(sentences_per_speaker)), 1):
            id = f"{speaker}-{number:04d}"
            split, voice = speakers[speaker]
            text, samples = speak(synthesiser, voice, derive(seed, "utterance", id))
            row = {"id": id, "split": split, "speaker": speaker, "text": text, "voice": asdict(voice)}
            source.add(f"{id}.flac", row, encode_flac(samples))
            progress(done, total)
        source.import_into(destination, ImportOptions())
    return Corpus.open(destination)


def plan_speakers(splits: Mapping[str, SpeakerGroup], seed: int) -> dict[str, tuple[str, DemoVoice]]:
    """Return speaker name -> split and voice; no two speakers have the same voice."""
    voices = make_voices(sum(group.num_speakers for group in splits.values()), seed)
    speakers: dict[str, tuple[str, DemoVoice]] = {}
    for split, group in splits.items():
        members = voices[len(speakers) : len(speakers) + group.num_speakers]
        for voice in make_noisy(members, group.noisy_fraction, derive(seed, split)):
            speakers[f"s{len(speakers):03d}"] = (split, voice)
    return speakers


def speak(synthesiser: Espeak, voice: DemoVoice, seed: int) -> tuple[str, np.ndarray]:
    """Return a random sentence and its speech, with the voice's noise: [samples] float32 at 16 kHz."""
    generator = np.random.default_rng(seed)
    text = make_sentence(generator)
    samples = synthesiser.speak(text, f"{voice.name}+{voice.variant}", voice.rate, voice.pitch)
    if voice.noise_db is not None:
        samples = add_noise(samples, voice.noise_db, voice.noise_slope, generator)
    return text, samples / max(1.0, float(np.abs(samples).max()))
