"""A front end: the mean magnitude of short stretches of the signal, in frames of 20 ms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphon.data.frontends import Extract

HOP = 320


@dataclass(frozen=True)
class Loudness:
    dim: int = 4
    frames_per_second = 50.0

    def key(self) -> str:
        return f"loudness{self.dim}"

    def load(self) -> Extract:
        def extract(samples: np.ndarray) -> np.ndarray:
            num_frames = len(samples) // HOP
            stretches = samples[: num_frames * HOP].reshape(num_frames, self.dim, -1)
            return np.log1p(np.abs(stretches).mean(axis=2)).astype(np.float32)

        return extract
