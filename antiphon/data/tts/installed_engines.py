"""The engines of speech synthesis: which are installed, and speakers drawn from their voices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from antiphon.data.tts.espeak import Espeak
from antiphon.data.tts.festival import Festival
from antiphon.data.tts.flite import Flite
from antiphon.data.tts.pico import Pico
from antiphon.data.tts.synthesiser import Synthesiser, Voice
from antiphon.registry import Registry, unknown_name
from antiphon.seeding import derive

RATES = (0.85, 1.15)
PITCHES = (0.9, 1.1)

# In this order voices are drawn from them.
ENGINES = Registry("antiphon.synthesisers", ("version", "voices", "say"), is_config=False)
for engine in (Flite, Festival, Pico, Espeak):
    ENGINES.register(engine)


def find_engines(names: Sequence[str] = ()) -> dict[str, Synthesiser]:
    """The named engines, all of which must be installed; without names, all installed ones, at least one."""
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
    """`num` different speakers, from each engine in turn; the first ones do not depend on `num`.

    A voice repeats, at another rate and pitch, only after all voices of its engine have been used.
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
    """Draw every name once in random order, then all again in another order."""
    generator = np.random.default_rng(seed)
    waiting: list[str] = []

    def draw() -> str:
        if not waiting:
            waiting.extend(names[index] for index in generator.permutation(len(names)))
        return waiting.pop()

    return draw
