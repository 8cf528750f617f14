"""Features of speech by a front end: in order, in this process or in several, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
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
    """Utterances and their samples, such as a corpus. Travels to worker processes."""

    @property
    def path(self) -> Path: ...
    def utterances(self) -> Iterator[Utterance]: ...
    def read_audio(self, utterance: Utterance) -> np.ndarray: ...


class Extractor:
    """A loaded front end and the speech to use it on."""

    def __init__(self, speech: Speech, frontend: Frontend) -> None:
        self.speech = speech
        self.extract = frontend.load()

    def __call__(self, utterance: Utterance) -> np.ndarray:
        """The float16 frames [frames, dim] of an utterance, on one thread wherever this runs."""
        # Audio libraries and onnxruntime raise any exception; the user needs to know the utterance.
        try:
            with one_thread():
                return as_float16(self.extract(self.speech.read_audio(utterance)))
        except Exception as error:
            raise ValueError(
                f"cannot compute features of utterance {utterance.id} (speaker {utterance.speaker}) "
                f"of {self.speech.path}: {error}"
            ) from error


def as_float16(frames: np.ndarray) -> np.ndarray:
    """Frames [frames, dim] in half precision; refused if they are not finite or do not fit.

    >>> as_float16(np.array([[1e5]]))
    Traceback (most recent call last):
    ValueError: a feature value of magnitude 100000 does not fit into float16 (at most 65504)
    """
    largest = float(np.abs(frames).max())
    if not np.isfinite(largest):
        raise ValueError("the front end gave values that are not finite numbers")
    if largest > LARGEST:
        raise ValueError(
            f"a feature value of magnitude {largest:.6g} does not fit into float16 (at most {LARGEST:.0f})"
        )
    return frames.astype(np.float16)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one torch thread: sums are the same in any process, and workers do not compete for cores."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def extract_in_order(
    speech: Speech,
    frontend: Frontend,
    num_processes: int,
    known: Callable[[int, Utterance], np.ndarray | None] = lambda index, utterance: None,
) -> Extracted:
    """Every utterance with its float16 frames [frames, dim], in the order of the speech.

    known: gives the frames of utterances for which they need not be computed.
    """
    todo = (one for index, one in enumerate(speech.utterances()) if known(index, one) is None)
    work = map_in_processes(todo, num_processes, CHUNK, "computing features", Extractor, speech, frontend)
    with closing(work):
        for index, utterance in enumerate(speech.utterances()):
            frames = known(index, utterance)
            yield next(work) if frames is None else (utterance, frames)
