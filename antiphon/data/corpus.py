"""A corpus on disk: an index of utterances sorted by client, and one file that holds all their audio.

    corpus.json       format, sample rate, alphabet, format of the source, totals, changes to texts
    utterances.jsonl  one utterance per line, sorted by split, speaker, session, id
    audio.pack        encoded files (FLAC, Opus, WAV) one after the other
    skipped.jsonl     the utterances that the import left out, and the reasons
    audio.pack.sums   checksums of the blocks of audio.pack

corpus.json has the checksums of the other files. Audio is compared with its checksums when it is first read.
Made by `antiphon.data.importing.conversion.import_corpus`, never changed afterwards.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from antiphon.data.audio import SAMPLE_RATE, decode
from antiphon.records.files import SUMS, CheckedBlocks, check_files, sha256_of
from antiphon.records.reading import read_as, read_lines_as
from antiphon.records.schema import Amount, Count

FORMAT = "antiphon-corpus/1"
ABOUT, PACK, INDEX = "corpus.json", "audio.pack", "utterances.jsonl"
ADVICE = "Restore the corpus, or import it again"


@dataclass(frozen=True)
class Utterance:
    """An utterance of one speaker: its audio is bytes [offset, offset + bytes) of audio.pack."""

    id: str
    speaker: str
    session: str
    split: str
    seconds: Amount
    text: str
    offset: Count
    bytes: Count
    extra: Mapping[str, Any] = field(default_factory=dict)
    advice: ClassVar = ADVICE

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


@dataclass(frozen=True)
class CorpusFile:
    """corpus.json: what it says about the corpus, and checksums of its files."""

    format: ClassVar = FORMAT
    advice: ClassVar = ADVICE
    sample_rate: Count
    alphabet: str | None
    source: str
    num_utterances: Count
    seconds: Amount
    files: Mapping[str, str] = field(default_factory=dict)
    sha256: str = ""


class Corpus:
    """A corpus folder, open for reading by any number of threads. Another process opens it again."""

    def __init__(self, path: Path, about: CorpusFile) -> None:
        self.path = path
        self.alphabet, self.source = about.alphabet, about.source
        self.num_utterances, self.seconds = about.num_utterances, about.seconds
        self._about = about
        self._pack = os.open(path / PACK, os.O_RDONLY)
        weakref.finalize(self, os.close, self._pack)
        sums = PACK + SUMS
        self._check(sums)
        self._blocks = CheckedBlocks(path / PACK, self._read, sums in about.files, ADVICE)

    @classmethod
    def open(cls, path: str | Path) -> Corpus:
        """Open a folder made by `antiphon corpus import`."""
        path = Path(path)
        if not (path / ABOUT).is_file():
            raise ValueError(
                f"{path} is not a corpus (no corpus.json): make one with `antiphon corpus import`"
            )
        about = read_as(CorpusFile, path / ABOUT, check_all=False)
        if about.sample_rate != SAMPLE_RATE:
            raise ValueError(f"{path} is at {about.sample_rate} Hz, only {SAMPLE_RATE} Hz can be read")
        for name in (INDEX, PACK):
            if not (path / name).is_file():
                raise ValueError(f"{path} has lost its {name}: import the corpus again")
        return cls(path, about)

    def __reduce__(self) -> tuple[Any, ...]:
        return Corpus.open, (self.path,)

    def __len__(self) -> int:
        return self.num_utterances

    @cached_property
    def _index(self) -> Path:
        """The list of utterances, compared with its checksum."""
        self._check(INDEX)
        return self.path / INDEX

    def _check(self, name: str) -> None:
        """Compare a file with its checksum in corpus.json, which may have been edited."""
        check_files(self.path, vars(self._about), [name], ADVICE, "" if self._about.sha256 else ABOUT)

    @property
    def fingerprint(self) -> str:
        """The SHA-256 checksum of the list of utterances, which changes with any utterance."""
        return sha256_of(self._index)

    def utterances(self) -> Iterator[Utterance]:
        """Return an iterator over all utterances in order, read from disk one by one."""
        return read_lines_as(Utterance, self._index)

    def read_bytes(self, utterance: Utterance) -> bytes:
        """Return the encoded audio of an utterance."""
        start, stop = utterance.offset, utterance.offset + utterance.bytes
        self._blocks.check(start, stop)
        data = self._read(start, stop)
        if len(data) != utterance.bytes:
            raise ValueError(
                f"utterance {utterance.id}: {self.path / PACK} is cut off, import the corpus again"
            )
        return data

    def _read(self, start: int, stop: int) -> bytes:
        return os.pread(self._pack, stop - start, start)

    def read_audio(self, utterance: Utterance) -> np.ndarray:
        """Return the samples of an utterance: [num_samples] float32 in [-1, 1], 16 kHz mono."""
        try:
            samples, rate = decode(self.read_bytes(utterance))
        except ValueError as error:
            raise ValueError(f"utterance {utterance.id} of {self.path}: {error}") from None
        assert rate == SAMPLE_RATE, f"{utterance.id}: {rate} Hz in a corpus"
        return samples
