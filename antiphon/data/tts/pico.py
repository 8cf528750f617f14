"""SVOX Pico through the package `ttspico`, which includes its voices.

Each sentence has a new engine: an engine's output depends on what it said before.
"""

from __future__ import annotations

from importlib.metadata import version

import numpy as np

from antiphon.data.audio import SAMPLE_RATE
from antiphon.data.tts.synthesiser import Voice, check_speech, check_voice

VOICES = ("en-US", "en-GB")


class Pico:
    """A `Synthesiser`."""

    voices = VOICES

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

        check_voice(voice, VOICES)
        engine = ttspico.TtsEngine(voice.name)
        engine.rate, engine.pitch = round(100 * voice.rate), round(100 * voice.pitch)
        data = engine.speak(text) or b""
        return check_speech(np.frombuffer(data, dtype=np.int16) / np.float32(32768), SAMPLE_RATE, voice)
