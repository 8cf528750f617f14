"""Features of speech: computed in order, in this process or in several, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from antiphon.data.corpus import Utterance
from antiphon.data.frontends import Frontend
from antiphon.data.processes import map_in_processes

CHUNK = 16  # utterances in a message: few enough to share them evenly, enough to hide its cost
LARGEST = float(np.finfo(np.float16).max)
Extracted = Generator[tuple[Utterance, np.ndarray], None, None]  # with float16 frames [frames, dim]


class Speech(Protocol):
    """Utterances and their samples, such as a corpus. It can be sent to other processes."""

    @property
    def path(self) -> Path: ...
    def utterances(self) -> Iterator[Utterance]: ...
    def read_audio(self, utterance: Utterance) -> np.ndarray: ...


class Extractor:
    """A loaded front end, and the speech to use it on."""

    def __init__(self, speech: Speech, frontend: Frontend) -> None:
        self.speech = speech
        self.extract = frontend.load()

    def __call__(self, utterance: Utterance) -> np.ndarray:
        """Return the float16 frames [frames, dim] of an utterance."""
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)  # sums are the same in any process, and processes do not compete for cores
        try:
            return as_float16(self.extract(self.speech.read_audio(utterance)))
        except Exception as error:  # audio libraries and onnxruntime raise many kinds
            raise ValueError(
                f"cannot compute features of utterance {utterance.id} (speaker {utterance.speaker}) "
                f"of {self.speech.path}: {error}"
            ) from error
        finally:
            torch.set_num_threads(num_threads)


def as_float16(frames: np.ndarray) -> np.ndarray:
    """Return frames in half precision; ValueError if they are not finite or too large for it."""
    largest = float(np.abs(frames).max())
    if not np.isfinite(largest):
        raise ValueError("the front end gave values that are not finite numbers")
    if largest > LARGEST:
        raise ValueError(
            f"a feature value of magnitude {largest:.6g} does not fit into float16 (at most {LARGEST:.0f})"
        )
    return frames.astype(np.float16)


def extract_in_order(
    speech: Speech,
    frontend: Frontend,
    num_processes: int,
    known: Callable[[int, Utterance], np.ndarray | None] = lambda index, utterance: None,
) -> Extracted:
    """Yield every utterance with its float16 frames [frames, dim], in the order of the speech.

    known: returns the frames of an utterance if they need not be computed.
    """
    unknown = (one for index, one in enumerate(speech.utterances()) if known(index, one) is None)
    work = map_in_processes(unknown, num_processes, CHUNK, "computing features", Extractor, speech, frontend)
    with closing(work):
        for index, utterance in enumerate(speech.utterances()):
            frames = known(index, utterance)
            yield next(work) if frames is None else (utterance, frames)
