"""A speech synthesiser: a tone for every text."""

from __future__ import annotations

import numpy as np

from antiphon.data.tts.synthesiser import Voice


class Beeps:
    version = "1"
    voices = ("low", "high")

    def say(self, text: str, voice: Voice) -> np.ndarray:
        hertz = 100 * (1 + self.voices.index(voice.name)) + 7 * len(text)
        seconds = np.arange(16000) / 16000
        return (0.3 * np.sin(2 * np.pi * hertz * seconds)).astype(np.float32)
