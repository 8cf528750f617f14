"""Texts as utterances without sound, so that a client can train a language model as it trains any other.

A text has a frame of no values for each of its predictions (its tokens, and its end), and a second is a
frame: `LocalTraining.batch_seconds` then bounds the predictions of a batch, padding included.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from antiphon.data.tokens import Tokens


class Texts:
    """`Utterances` of dimension 0.

    >>> from antiphon.data.tokens import Characters
    >>> texts = Texts(["ab", "b"], Characters(" ab"))
    >>> texts.num_frames.tolist(), texts.features(0).shape
    ([3, 2], (3, 0))
    """

    dim = 0
    frames_per_second = 1.0

    def __init__(self, texts: Sequence[str], tokens: Tokens) -> None:
        self._texts = tuple(texts)
        self.num_frames = np.array([len(tokens.encode(text)) + 1 for text in texts], dtype=np.int32)
        self.first_frame = np.cumsum([0, *self.num_frames], dtype=np.int64)
        self.frames = np.zeros((int(self.first_frame[-1]), 0), dtype=np.float16)
        self.seconds = self.num_frames.astype(np.float32)

    def __len__(self) -> int:
        return len(self._texts)

    def features(self, index: int) -> np.ndarray:
        """Nothing, at every frame: [frames, 0]."""
        return self.frames[self.first_frame[index] : self.first_frame[index + 1]]

    def text(self, index: int) -> str:
        return self._texts[index]
