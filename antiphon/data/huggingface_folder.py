"""A model folder in Hugging Face format: its feature extractor as a front end, its tokenizer as tokens.

Samples for a model that takes waveforms (wav2vec2, HuBERT, Moonshine) are cut into frames of 320 values,
20 ms, the last one padded with zeros. Log-mel frames (Whisper) end with the audio: the model itself adds the
silence up to 30 s.

The id of the CTC blank, or of the end of a text, differs between folders; here both are id 0. So this id and
0 are exchanged in tokens and scores.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.data.audio import SAMPLE_RATE
from antiphon.data.frontends import FRONTENDS, Extract, check_samples
from antiphon.data.tokens import BOUNDARY, TOKENS, UNKNOWN_TEXT, write_tokens
from antiphon.records.folders import files_in
from antiphon.records.reading import fields_of
from antiphon.records.schema import Count

WAVE_FRAME = 320  # samples in a frame of a waveform: 20 ms
DESCRIPTIONS = {".json", ".txt", ".model"}  # suffixes of files that are not weights


def library() -> Any:
    """Import the package `transformers`, with its messages and progress bars turned off."""
    try:
        import transformers
    except ImportError as error:
        raise ValueError("Hugging Face models need transformers: pip install 'antiphon[hf]'") from error
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def opened(kind: Any, folder: str | Path, what: str) -> Any:
    """Open a local folder by a class of `transformers`, without using the network or code in the folder."""
    if not Path(folder).is_dir():
        raise ValueError(f"the Hugging Face folder {folder} does not exist: give the folder of a saved model")
    try:
        return kind.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # of many kinds: missing files, unknown classes, damaged JSON
        raise ValueError(f"the Hugging Face folder {folder} holds no {what}: {error}") from error


def architecture(folder: str | Path) -> Any:
    """Return the configuration in the folder's config.json."""
    return opened(library().AutoConfig, folder, "model (config.json)")


def boundary_of(config: Any) -> int:
    """Return the folder's id of the CTC blank, or of the end of a text; both are 0 here."""
    return int(config.eos_token_id if config.is_encoder_decoder else config.pad_token_id)


def copy_descriptions(source: str | Path, target: Path) -> None:
    """Copy the descriptions of a folder's model, extractor and tokenizer: all small files, no weights."""
    if Path(source).resolve() == target.resolve():
        return
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(Path(source).iterdir()):
        if path.suffix in DESCRIPTIONS and not path.name.endswith(".index.json"):
            shutil.copyfile(path, target / path.name)


# --- Features -------------------------------------------------------------------------------------


@FRONTENDS.register
@dataclass(frozen=True)
class HuggingFaceFeatures:
    """The feature extractor of a folder (preprocessor_config.json) as a front end."""

    folder: str

    def packed(self, folder: Path) -> HuggingFaceFeatures:
        """Copy the settings of the extractor into a model's folder, so that the folder can be moved."""
        copy_descriptions(self.folder, folder / "frontend")
        return replace(self, folder="frontend")

    def unpacked(self, folder: Path) -> HuggingFaceFeatures:
        return replace(self, folder=str(folder / self.folder))

    @property
    def dim(self) -> int:
        return WAVE_FRAME if self.is_waveform else int(self._extractor.feature_size)

    @property
    def frames_per_second(self) -> float:
        return SAMPLE_RATE / (WAVE_FRAME if self.is_waveform else self._extractor.hop_length)

    @property
    def is_waveform(self) -> bool:
        return bool(self._extractor.feature_size == 1)

    def key(self) -> str:
        """Return a digest of the extractor's settings, the same wherever its folder is."""
        settings = json.dumps(self._extractor.to_dict(), sort_keys=True, default=str)
        return f"huggingface-{hashlib.sha256(settings.encode()).hexdigest()[:16]}"

    def load(self) -> Extract:
        make = partial(waveform_frames if self.is_waveform else log_mel_frames, self._extractor)

        def extract(samples: np.ndarray) -> np.ndarray:
            """Turn samples [samples] into frames [frames, dim] float32."""
            check_samples(samples)
            return make(samples.astype(np.float32))

        return extract

    @property
    def _extractor(self) -> Any:
        return extractor_of(self.folder)


@lru_cache(maxsize=8)
def extractor_of(folder: str) -> Any:
    extractor = opened(library().AutoFeatureExtractor, folder, "feature extractor (preprocessor_config.json)")
    if extractor.sampling_rate != SAMPLE_RATE:
        rate = extractor.sampling_rate
        raise ValueError(f"the feature extractor in {folder} is for {rate} Hz, not {SAMPLE_RATE}")
    if extractor.feature_size != 1 and not hasattr(extractor, "nb_max_frames"):
        raise ValueError(
            f"the feature extractor in {folder} ({type(extractor).__name__}) gives neither waveforms nor "
            "Whisper's log-mel frames: antiphon has no model for its features"
        )
    return extractor


def waveform_frames(extractor: Any, samples: np.ndarray) -> np.ndarray:
    """Return samples, normalised if the extractor does so, as [frames, WAVE_FRAME], padded with zeros."""
    if len(samples) == 0:
        raise ValueError("too short: the audio has no samples")
    values = extractor(samples, sampling_rate=SAMPLE_RATE, return_tensors="np").input_values[0]
    values = np.pad(values, (0, -len(values) % WAVE_FRAME))
    return values.reshape(-1, WAVE_FRAME).astype(np.float32)


def log_mel_frames(extractor: Any, samples: np.ndarray) -> np.ndarray:
    """Return the frames [frames, bins] whose windows overlap the audio; all other frames are silence."""
    if not 0 < len(samples) <= extractor.n_samples:
        raise ValueError(
            f"{len(samples) / SAMPLE_RATE:.1f} s of audio: this front end takes up to "
            f"{extractor.n_samples / SAMPLE_RATE:.0f} s; import the corpus with shorter utterances"
        )
    frames = extractor(samples, sampling_rate=SAMPLE_RATE, return_tensors="np").input_features[0].T
    needed = -(-(len(samples) + extractor.n_fft // 2) // extractor.hop_length)
    return np.ascontiguousarray(frames[:needed], dtype=np.float32)


# --- Tokens ---------------------------------------------------------------------------------------


@TOKENS.register
@dataclass(frozen=True)
class HuggingFaceTokensConfig:
    """The tokens that a folder's model was trained with."""

    folder: str
    capitals: bool = False  # the folder's tokens are upper case, the corpus's texts lower case

    def fit(self, texts: Iterable[str], alphabet: str | None) -> HuggingFaceTokens:
        """Return the folder's tokens; ValueError if the tokenizer knows no character of the texts."""
        config = architecture(self.folder)
        tokens = HuggingFaceTokens(self.folder, int(config.vocab_size), boundary_of(config), self.capitals)
        ids = [id for text in texts for id in tokens.encode(text)] or tokens.encode(alphabet or "")
        if ids and set(ids) <= {tokens.unknown}:
            raise ValueError(
                f"the tokenizer in {self.folder} knows no letter of these texts: if its tokens are capitals, "
                "set tokens.capitals=true"
            )
        return tokens

    @staticmethod
    def load(folder: Path, about: Mapping[str, Any]) -> HuggingFaceTokens:
        about = {**about, "folder": str(folder / "tokenizer")}
        return fields_of(HuggingFaceTokens, about, str(folder / "tokens.json"))


@dataclass(frozen=True)
class HuggingFaceTokens:
    """A folder's tokenizer with the ids 0 and `boundary` exchanged."""

    folder: str
    size: Count
    boundary: Count
    capitals: bool = False

    @cached_property
    def _tokenizer(self) -> Any:
        return opened(library().AutoTokenizer, self.folder, "tokenizer")

    @cached_property
    def unknown(self) -> int | None:
        """The id of the unknown token; None if every text can be spelled."""
        id = self._tokenizer.unk_token_id
        return None if id in (None, self.boundary) else exchanged(id, self.boundary)

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process gets the name of the folder, not the tokenizer.
        return HuggingFaceTokens, (self.folder, self.size, self.boundary, self.capitals)

    def encode(self, text: str) -> list[int]:
        ids = self._tokenizer.encode(text.upper() if self.capitals else text, add_special_tokens=False)
        return [exchanged(id, self.boundary) for id in ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text, without special tokens such as languages."""
        known: list[list[int]] = [[]]  # the sequences between unknown tokens
        for id in ids:
            if id == self.unknown:
                known.append([])
            elif id != BOUNDARY:
                known[-1].append(exchanged(int(id), self.boundary))
        text = UNKNOWN_TEXT.join(map(self._spell, known)).removeprefix(" ")
        return text.lower() if self.capitals else text

    def _spell(self, ids: list[int]) -> str:
        """Return the text of the folder's ids, including spaces at both ends."""
        tokenizer = self._tokenizer
        if not hasattr(tokenizer, "word_delimiter_token"):
            return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
        # The decoding of a CTC tokenizer would merge equal neighbours, and strip spaces.
        space = tokenizer.word_delimiter_token
        special = set(tokenizer.all_special_tokens) - {space}
        pieces = tokenizer.convert_ids_to_tokens(ids)
        return "".join(" " if piece == space else piece for piece in pieces if piece not in special)

    def save(self, folder: str | Path) -> None:
        """Save the tokens; the tokenizer's own files go to a subfolder."""
        settings = {"size": self.size, "boundary": self.boundary, "capitals": self.capitals}
        self._tokenizer.save_pretrained(str(Path(folder) / "tokenizer"))
        files = [f"tokenizer/{name}" for name in files_in(Path(folder) / "tokenizer")]
        write_tokens(Path(folder), {"kind": "hugging_face", **settings}, files=files)


def exchanged(id: int, boundary: int) -> int:
    """Return the id, with 0 and the boundary exchanged.

    >>> [exchanged(id, boundary=2) for id in range(4)]
    [2, 1, 0, 3]
    """
    return {BOUNDARY: boundary, boundary: BOUNDARY}.get(id, id)
