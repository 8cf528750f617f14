"""Speech synthesisers: the interface, the installed ones, and speakers drawn from their voices.

A voice of an engine at some rate and pitch is a speaker: the same text in the same voice gives the same
samples, in every process, whatever was said before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from antiphon.data.audio import resample
from antiphon.registry import Registry, unknown_name
from antiphon.seeding import derive

# Voices are drawn from engines in this order, so a module of engines imports the one before it.
HOMES = [f"antiphon.data.tts.{name}" for name in ("speech_engines", "espeak", "kokoro")]
ENGINES = Registry("antiphon.synthesisers", ("version", "voices", "say"), HOMES, is_config=False)
MIN_SECONDS = 0.1
SILENCE = 1e-3  # a lower peak is silence
RATES = (0.85, 1.15)
PITCHES = (0.9, 1.1)


@dataclass(frozen=True)
class Voice:
    """A speaker: a voice of an engine, with rate and pitch relative to its usual ones."""

    engine: str
    name: str
    rate: float = 1.0
    pitch: float = 1.0

    @property
    def speaker(self) -> str:
        """The name of the speaker in a corpus.

        >>> Voice("flite", "slt", 0.95).speaker
        'flite-slt-0.95-1.00'
        """
        return f"{self.engine}-{self.name}-{self.rate:.2f}-{self.pitch:.2f}"


class SilentError(ValueError):
    """An engine gives no speech for a text."""


class Synthesiser(Protocol):
    """Turns text into speech. It can be sent to other processes.

    Built without arguments. Raises ValueError with what to install ("name: command") if there is no engine.
    """

    @property
    def version(self) -> str:
        """The version of everything that the samples depend on besides text and voice."""
        ...

    @property
    def voices(self) -> tuple[str, ...]:
        """The names of the installed English voices."""
        ...

    def say(self, text: str, voice: Voice) -> np.ndarray:
        """Return [samples] float32 in -1..1 at 16 kHz; raise `SilentError` if there is no speech in them."""
        ...


@runtime_checkable
class Mixing(Protocol):
    """A synthesiser that can also speak with voices between its voices."""

    def mixed(self, generator: np.random.Generator) -> str:
        """Draw the name of a voice between others."""
        ...


def check_voice(voice: Voice, names: tuple[str, ...]) -> None:
    """Refuse a voice whose name the engine does not have."""
    if voice.name not in names:
        some = ", ".join(names[:8]) + ", …" * (len(names) > 8)
        raise ValueError(f"{voice.engine} has no voice {voice.name!r}: there are {some}")


def check_speech(samples: np.ndarray, rate: int, voice: Voice) -> np.ndarray:
    """Return an engine's samples as float32 at 16 kHz; raise `SilentError` if there is no speech in them."""
    if len(samples) < MIN_SECONDS * rate or np.abs(samples).max() < SILENCE:
        raise SilentError(f"{voice.engine} said nothing in voice {voice.name!r}")
    return resample(samples.astype(np.float32, copy=False), rate)


def find_engines(names: Sequence[str] = ()) -> dict[str, Synthesiser]:
    """Return the named engines, all of which must be installed; without names, all installed ones."""
    for name in names:
        if name not in ENGINES:
            raise unknown_name(name, ENGINES, "engine")
    if names:
        return {name: ENGINES[name]() for name in names}
    installed, missing = {}, []
    for name, make in ENGINES.items():
        try:
            installed[name] = make()
        except ValueError as reason:
            missing.append(str(reason))
    if not installed:
        options = "\n  ".join(missing)
        raise ValueError(f"no speech synthesiser is installed; install one of these:\n  {options}")
    return installed


def draw_voices(engines: Mapping[str, Synthesiser], num: int, seed: int) -> tuple[Voice, ...]:
    """Draw `num` different speakers, from each engine in turn; the first ones do not depend on `num`.

    When all voices of an engine have been used, it mixes them if it can. Otherwise they repeat, at another
    rate and pitch.
    """
    if num < 1:
        raise ValueError(f"at least one voice is needed, not {num}")
    names = {name: _endless(engine, derive(seed, "names", name)) for name, engine in engines.items()}
    generator = np.random.default_rng(derive(seed, "rates and pitches"))
    voices: dict[Voice, None] = {}
    while len(voices) < num:
        for engine in engines:
            rate, pitch = (round(float(generator.uniform(*bounds)), 2) for bounds in (RATES, PITCHES))
            voices[Voice(engine, next(names[engine]), rate, pitch)] = None
    return tuple(voices)[:num]


def _endless(engine: Synthesiser, seed: int) -> Iterator[str]:
    """Yield the name of every voice in random order; then mixtures of them, or all again in another order."""
    generator = np.random.default_rng(seed)
    names = engine.voices
    while names:
        yield from (names[index] for index in generator.permutation(len(names))[::-1])
        while isinstance(engine, Mixing) and len(names) > 1:
            yield engine.mixed(generator)
