"""Run a front end over speech: in order, in this process or in several, in bounded memory."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from antiphon.data.corpus import Utterance
from antiphon.data.frontends import Frontend
from antiphon.data.processes import chunks, in_processes

CHUNK = 16  # utterances a message: small enough to share evenly, large enough to hide its cost
LARGEST = float(np.finfo(np.float16).max)
Extracted = Generator[tuple[Utterance, np.ndarray], None, None]  # with float16 frames [frames, dim]


class Speech(Protocol):
    """Utterances and their samples: a corpus, or some of it, changed. Travels to worker processes."""

    @property
    def path(self) -> Path: ...
    def utterances(self) -> Iterator[Utterance]: ...
    def read_audio(self, utterance: Utterance) -> np.ndarray: ...


class Extractor:
    """A front end, loaded, on speech that is open."""

    def __init__(self, speech: Speech, frontend: Frontend) -> None:
        self.speech = speech
        self.extract = frontend.load()

    def frames(self, utterances: Sequence[Utterance]) -> list[np.ndarray]:
        """The float16 frames [frames, dim] of each utterance, on one thread wherever this runs."""
        with one_thread():
            return [self._frames(utterance) for utterance in utterances]

    def _frames(self, utterance: Utterance) -> np.ndarray:
        # Audio libraries and onnxruntime raise what they like; the user needs to know for which utterance.
        try:
            return as_float16(self.extract(self.speech.read_audio(utterance)))
        except Exception as error:
            raise ValueError(
                f"cannot compute features of utterance {utterance.id} (speaker {utterance.speaker}) "
                f"of {self.speech.path}: {error}"
            ) from error


def as_float16(frames: np.ndarray) -> np.ndarray:
    """Frames [frames, dim] in half precision; refused where they are not numbers or do not fit.

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
    """One torch thread: sums come out the same in any process, and workers do not fight over cores."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def extract_in_order(speech: Speech, frontend: Frontend, num_workers: int) -> Extracted:
    """Every utterance with its float16 frames [frames, dim], in the order of the speech."""
    if num_workers < 1:
        raise ValueError(f"num_workers must be at least 1, not {num_workers}")
    if num_workers == 1:
        extractor = Extractor(speech, frontend)
        for chunk in chunks(speech.utterances(), CHUNK):
            yield from zip(chunk, extractor.frames(chunk), strict=True)
    else:
        yield from _in_processes(speech, frontend, num_workers)


def _in_processes(speech: Speech, frontend: Frontend, num_workers: int) -> Extracted:
    work = in_processes(
        chunks(speech.utterances(), CHUNK),
        _work,
        num_workers,
        "computing features",
        _start_worker,
        speech,
        frontend,
    )
    with closing(work):
        for chunk, frames in work:
            yield from zip(chunk, frames, strict=True)


_extractor: Extractor | None = None  # one in each worker process


def _start_worker(speech: Speech, frontend: Frontend) -> None:
    global _extractor
    _extractor = Extractor(speech, frontend)


def _work(utterances: list[Utterance]) -> list[np.ndarray]:
    assert _extractor is not None
    return _extractor.frames(utterances)
