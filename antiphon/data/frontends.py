"""Front ends turn samples into frames: log-mel filterbanks, or a frozen pretrained encoder.

Both are small frozen settings that can be sent to other processes; `load()` returns the function that does
the work. `key()` names the exact output, so features of two front ends never mix.

>>> extract = Filterbank().load()
>>> extract(np.zeros(16000, dtype=np.float32)).shape
(98, 80)
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from antiphon.data import onnx_session
from antiphon.data.audio import SAMPLE_RATE
from antiphon.records.files import sha256_of
from antiphon.registry import Registry

Extract = Callable[[np.ndarray], np.ndarray]


class Frontend(Protocol):
    """Samples [samples] at 16 kHz to frames [frames, dim] float32. A frozen dataclass of settings.

    One that needs files may also have `packed(folder)`, which copies them into a model's folder and returns
    the front end as it is stored there, and `unpacked(folder)`, its inverse.
    """

    @property
    def dim(self) -> int: ...
    @property
    def frames_per_second(self) -> float: ...
    def key(self) -> str: ...
    def load(self) -> Extract: ...


HOMES = ["antiphon.data.frontends", "antiphon.data.encoders", "antiphon.data.huggingface_folder"]
FRONTENDS = Registry("antiphon.frontends", kind=Frontend, homes=HOMES, default="filterbank")


# --- Filterbank: Kaldi's definition, without dither -----------------------------------------------

WINDOW = 400  # 25 ms
HOP = 160  # 10 ms
FFT_SIZE = 512
PREEMPHASIS = 0.97
LOWEST_HERTZ = 20.0
LOG_FLOOR = torch.finfo(torch.float32).eps
SMALLEST_DEVIATION = 1e-3  # a mel bin that never changes becomes 0 instead of amplified rounding


@FRONTENDS.register
@dataclass(frozen=True)
class Filterbank:
    """Log-mel energies every 10 ms: Kaldi's fbank (25 ms Povey window, preemphasis 0.97, 20 Hz to 8 kHz).

    As in Kaldi, samples are scaled to the 16-bit range and only whole windows make frames:
    frames = 1 + (samples - 400) // 160. There is no dither. `normalise` scales each mel bin of an utterance
    to mean 0 and variance 1 over time.
    """

    dim: int = 80  # number of mel bins
    normalise: bool = True

    @property
    def frames_per_second(self) -> float:
        return SAMPLE_RATE / HOP

    def key(self) -> str:
        return f"filterbank{self.dim}{'-normalised' if self.normalise else ''}-1"

    def load(self) -> Extract:
        if self.dim < 1:
            raise ValueError(f"a filterbank needs at least one mel bin, not dim={self.dim}")
        # Povey's window: a Hann window to the power 0.85, like a Hamming window that reaches 0.
        window = torch.hann_window(WINDOW, periodic=False, dtype=torch.float64).pow(0.85).float()
        banks = mel_banks(self.dim)

        def extract(samples: np.ndarray) -> np.ndarray:
            """Samples [samples] to log-mel energies [frames, dim] float32."""
            check_samples(samples)
            if len(samples) < WINDOW:
                raise ValueError(
                    f"too short: {len(samples)} samples, one frame needs {WINDOW} "
                    f"({1000 * WINDOW // SAMPLE_RATE} ms at {SAMPLE_RATE} Hz)"
                )
            frames = torch.from_numpy(samples.astype(np.float32)).mul_(32768.0).unfold(0, WINDOW, HOP)
            energies = (power_spectra(frames, window) @ banks).clamp_(min=LOG_FLOOR).log_()
            return (normalised(energies) if self.normalise else energies).numpy()

        return extract


def power_spectra(frames: Tensor, window: Tensor) -> Tensor:
    """Turn frames [frames, WINDOW] into power [frames, FFT_SIZE // 2 + 1], in Kaldi's order of operations."""
    frames = frames - frames.mean(dim=1, keepdim=True)
    # The first sample of a frame replaces the one before it, so that frames do not depend on each other.
    before = torch.cat([frames[:, :1], frames[:, :-1]], dim=1)
    spectra = torch.fft.rfft((frames - PREEMPHASIS * before) * window, n=FFT_SIZE)
    return spectra.real.square() + spectra.imag.square()


def normalised(energies: Tensor) -> Tensor:
    """Scale each column of [frames, dim] to mean 0 and variance 1; a constant column becomes 0."""
    deviation, mean = torch.std_mean(energies, dim=0, correction=0, keepdim=True)
    return (energies - mean) / deviation.clamp(min=SMALLEST_DEVIATION)


def mel_banks(dim: int) -> Tensor:
    """Return triangles, equally spaced and linear in mel: [FFT_SIZE // 2 + 1, dim]; Nyquist has no weight."""

    def mel(hertz: np.ndarray) -> np.ndarray:
        return 1127.0 * np.log1p(hertz / 700.0)

    low, high = mel(np.array([LOWEST_HERTZ, SAMPLE_RATE / 2]))
    step = (high - low) / (dim + 1)
    left = low + step * np.arange(dim)
    bins = mel(np.arange(FFT_SIZE // 2 + 1) * SAMPLE_RATE / FFT_SIZE)[:, None]
    banks = np.maximum(np.minimum((bins - left) / step, (left + 2 * step - bins) / step), 0.0)
    banks[-1] = 0.0
    return torch.from_numpy(banks.astype(np.float32))


def check_samples(samples: np.ndarray) -> None:
    if samples.ndim != 1:
        raise ValueError(f"samples must be one channel [samples], not an array of shape {samples.shape}")


# --- A frozen pretrained encoder ------------------------------------------------------------------


@FRONTENDS.register
@dataclass(frozen=True)
class OnnxEncoder:
    """A pretrained encoder in an ONNX file: float32 [1, samples] at 16 kHz in, [1, frames, dim] out.

    It may also take a mask of the samples, int64 [1, samples]. Dimension and frame rate are measured on
    silence.
    """

    path: str

    def unpacked(self, folder: Path) -> OnnxEncoder:
        """Look for the file beside the model, under its name, if it is not at its path."""
        if Path(self.path).exists():
            return self
        moved = folder / Path(self.path).name
        if not moved.exists():
            raise ValueError(
                f"the model in {folder} needs the ONNX encoder {self.path}, which does not exist: "
                f"put the file there, or beside the model as {moved}"
            )
        return replace(self, path=str(moved))

    @property
    def dim(self) -> int:
        return self._probe().dim

    @property
    def frames_per_second(self) -> float:
        return SAMPLE_RATE / self._probe().hop

    def key(self) -> str:
        return f"onnx-{self._probe().sha256[:16]}"

    def load(self) -> Extract:
        return load_encoder(self.path)

    def _probe(self) -> Probe:
        check_exists(self.path)
        stat = os.stat(self.path)
        return probe(self.path, stat.st_size, stat.st_mtime_ns)


class Probe(NamedTuple):
    """Properties of an encoder file, as measured."""

    sha256: str
    dim: int
    hop: int


@lru_cache(maxsize=8)
def probe(path: str, num_bytes: int, modified_ns: int) -> Probe:
    """Measure the encoder at `path`; size and time are arguments so that a changed file is measured again."""
    extract = load_encoder(path)
    dim = extract(np.zeros(SAMPLE_RATE, dtype=np.float32)).shape[1]

    def num_frames(num_samples: int) -> int:
        return len(extract(np.zeros(num_samples, dtype=np.float32)))

    # The exact frame rate: the distance between two lengths at which one more frame appears.
    first = next_frame_at(num_frames, SAMPLE_RATE)
    second = next_frame_at(num_frames, first)
    return Probe(sha256_of(Path(path)), dim, second - first)


def next_frame_at(num_frames: Callable[[int], int], start: int) -> int:
    """Return the smallest number of samples that gives more frames than `start` samples do.

    >>> next_frame_at(lambda samples: samples // 320, 16000)
    16320
    """
    lengths = range(start, start + SAMPLE_RATE + 1)
    index = bisect_right(lengths, num_frames(start), key=num_frames)
    if index == len(lengths):
        raise ValueError(
            "the ONNX encoder gives the same number of frames for an utterance and one a second longer; "
            "antiphon needs an encoder whose number of frames follows the length of the audio"
        )
    return lengths[index]


def load_encoder(path: str) -> Extract:
    session = open_session(path)
    names = [node.name for node in session.get_inputs()]

    def extract(samples: np.ndarray) -> np.ndarray:
        """Samples [samples] to the encoder's frames [frames, dim] float32."""
        check_samples(samples)
        # The errors of onnxruntime have no base class but Exception. A too short input is one of them.
        inputs = (samples.astype(np.float32)[None], np.ones((1, len(samples)), dtype=np.int64))
        try:
            frames = session.run(None, dict(zip(names, inputs, strict=False)))[0]
        except Exception as error:
            raise ValueError(f"the encoder {path} failed on {len(samples)} samples: {error}") from error
        if frames.ndim != 3 or frames.shape[0] != 1:
            raise ValueError(f"the encoder {path} gave shape {frames.shape}; expected [1, frames, dim]")
        if frames.shape[1] == 0:
            raise ValueError(f"too short: the encoder {path} gives no frame for {len(samples)} samples")
        return frames[0].astype(np.float32)

    return extract


def open_session(path: str) -> Any:
    """Open an encoder, and check what it takes."""
    check_exists(path)
    session = onnx_session.open_onnx(path, "an ONNX front end")
    types = [(node.type, len(node.shape)) for node in session.get_inputs()]
    if types not in ([("tensor(float)", 2)], [("tensor(float)", 2), ("tensor(int64)", 2)]):
        raise ValueError(
            f"the ONNX encoder {path} must take one float input [batch, samples] of audio at "
            f"{SAMPLE_RATE} Hz, but it takes: {onnx_session.describe_inputs(session)}"
        )
    return session


def check_exists(path: str) -> None:
    if not Path(path).is_file():
        raise ValueError(f"the ONNX encoder {path} does not exist: give the path of a model file (.onnx)")
