"""Finds the engines of speech synthesis that are installed, and draws speakers from their voices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from antiphon.data.espeak import Espeak
from antiphon.data.festival import Festival
from antiphon.data.flite import Flite
from antiphon.data.pico import Pico
from antiphon.data.synthesiser import Synthesiser, Voice
from antiphon.seeding import derive

RATES = (0.85, 1.15)
PITCHES = (0.9, 1.1)

# Each looks for its engine and raises ValueError, with what to install, where there is none.
ENGINES: dict[str, Callable[[], Synthesiser]] = {
    "flite": Flite,
    "festival": Festival,
    "pico": Pico,
    "espeak": Espeak,
}


def find_engines(names: Sequence[str] = ()) -> dict[str, Synthesiser]:
    """The engines asked for, all of which must be there; without names, those that are, at least one."""
    for name in names:
        if name not in ENGINES:
            raise ValueError(f"no engine {name!r}: there are {', '.join(ENGINES)}")
    if names:
        return {name: ENGINES[name]() for name in names}
    found, missing = {}, []
    for name, make in ENGINES.items():
        try:
            found[name] = make()
        except ValueError as reason:
            missing.append(str(reason))
    if not found:
        raise ValueError(
            "no speech synthesiser is installed; any of these will do:\n  " + "\n  ".join(missing)
        )
    return found


def draw_voices(engines: Mapping[str, Synthesiser], num: int, seed: int) -> tuple[Voice, ...]:
    """`num` speakers, no two alike, the engines in turn; the first ones do not depend on `num`.

    A name repeats, at another rate and pitch, only once all of its engine's have been used.
    """
    if num < 1:
        raise ValueError(f"at least one voice is needed, not {num}")
    names = {engine: _endless(engines[engine].voices, derive(seed, "names", engine)) for engine in engines}
    generator = np.random.default_rng(derive(seed, "rates and pitches"))
    voices: dict[Voice, None] = {}
    while len(voices) < num:
        for engine in engines:
            rate, pitch = (round(float(generator.uniform(*bounds)), 2) for bounds in (RATES, PITCHES))
            voices[Voice(engine, names[engine](), rate, pitch)] = None
    return tuple(voices)[:num]


def _endless(names: Sequence[str], seed: int) -> Callable[[], str]:
    """Every name once in a drawn order, then all again in another."""
    generator = np.random.default_rng(seed)
    waiting: list[str] = []

    def draw() -> str:
        if not waiting:
            waiting.extend(names[place] for place in generator.permutation(len(names)))
        return waiting.pop()

    return draw
