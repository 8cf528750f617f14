"""A corpus of sentences spoken by synthesisers, together with real speech of another corpus.

It is an ordinary corpus, made by the import. Its plan.json has a digest of its texts, voices and real speech:
a corpus with the same digest is opened again, and nothing is spoken twice.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar, TextIO

import numpy as np

from antiphon.data.audio import SAMPLE_RATE, encode_flac
from antiphon.data.corpus import Corpus, Utterance
from antiphon.data.importing.candidates import Skipped
from antiphon.data.importing.conversion import ImportOptions, import_corpus
from antiphon.data.processes import map_in_processes
from antiphon.data.session_texts import SessionText
from antiphon.data.store import Progress
from antiphon.data.tts.synthesiser import SilentError, Synthesiser, Voice
from antiphon.records.files import make_folder, saving, write_json
from antiphon.records.folders import new_folder
from antiphon.records.maker import beside, tidy, uninterrupted
from antiphon.records.reading import read_as
from antiphon.records.schema import Amount
from antiphon.seeding import derive

FORMAT = "antiphon-spoken/1"
CHUNK = 8  # sentences in a message to another process
Results = Generator[tuple["Saying", "Spoken | str"], None, None]


@dataclass(frozen=True)
class Saying:
    """A sentence to be spoken by one voice; if that voice cannot say it, the others are tried."""

    id: str
    split: str
    session: str
    spoken: str
    written: str
    voice: Voice


@dataclass(frozen=True)
class Spoken:
    """A spoken sentence: the voice that said it, and the audio as FLAC."""

    voice: Voice
    audio: bytes
    seconds: float


@dataclass(frozen=True)
class RealSpeech:
    """Utterances of a corpus to copy, each with its new split."""

    corpus: Corpus
    chosen: tuple[tuple[Utterance, str], ...]


@dataclass(frozen=True)
class SpokenCorpus:
    """A corpus of speech from text, and the sentences that no voice could say.

    num_spoken: the number of sentences spoken now, 0 if the corpus existed already.
    """

    corpus: Corpus
    unsaid: tuple[Skipped, ...]
    seconds: float  # of synthetic speech
    num_spoken: int = 0
    wall_seconds: float = 0.0


def plan_sayings(
    split: str, sessions: Sequence[SessionText], voices: Sequence[Voice], takes: int, seed: int
) -> list[Saying]:
    """Plan to have every sentence said by `takes` different voices, drawn for each sentence."""
    if not 1 <= takes <= len(voices):
        raise ValueError(f"a sentence can be said by 1 to {len(voices)} voices, not by {takes}")
    sayings = []
    for session in sessions:
        for number, sentence in enumerate(session.sentences):
            generator = np.random.default_rng(derive(seed, "takes", split, session.name, sentence.written))
            for take, index in enumerate(generator.permutation(len(voices))[:takes].tolist()):
                id = f"tts-{split}-{session.name}-{number:05d}-{take}"
                texts = (sentence.spoken, sentence.written)
                sayings.append(Saying(id, split, session.name, *texts, voices[index]))
    return sayings


def say_in_order(
    sayings: Sequence[Saying], voices: Sequence[Voice], engines: Mapping[str, Synthesiser], num_processes: int
) -> Results:
    """Yield every saying with its speech, or with the reason why no voice could say it."""
    arguments = (tuple(voices), dict(engines))
    return map_in_processes(sayings, num_processes, CHUNK, "synthesising", _speaker, *arguments)


def _speaker(voices: Sequence[Voice], engines: Mapping[str, Synthesiser]) -> Callable[[Saying], Spoken | str]:
    def speak(saying: Saying) -> Spoken | str:
        reason = ""
        for voice in (saying.voice, *(other for other in voices if other != saying.voice)):
            try:
                samples = engines[voice.engine].say(saying.spoken, voice)
            except SilentError as error:
                reason = reason or str(error)
                continue
            samples = samples / max(1.0, float(np.abs(samples).max()))
            return Spoken(voice, encode_flac(samples), len(samples) / SAMPLE_RATE)
        return f"no voice can say it: {reason}"

    return speak


def speak_corpus(
    destination: str | Path,
    sayings: Sequence[Saying],
    voices: Sequence[Voice],
    engines: Mapping[str, Synthesiser],
    real: RealSpeech | None = None,
    num_processes: int = 1,
    progress: Progress = lambda done, total: None,
) -> SpokenCorpus:
    """Make the corpus of these sayings and this real speech, or open it if it exists already."""
    destination = Path(destination)
    digest = _digest(sayings, voices, engines, real)
    tidy(destination)
    if destination.exists():
        return _open(destination, digest)
    with new_folder(destination) as folder, temporary_source(destination) as source:
        if real is not None:
            for number, (utterance, split) in enumerate(real.chosen):
                row = {name: getattr(utterance, name) for name in ("id", "speaker", "session", "text")}
                audio = real.corpus.read_bytes(utterance)
                source.add(f"real/{number:06d}.audio", {**row, "split": split}, audio)
        began = time.perf_counter()
        with closing(say_in_order(sayings, voices, engines, num_processes)) as results:
            unsaid, seconds = _write_spoken(source, results, len(sayings), progress)
        wall_seconds = time.perf_counter() - began
        alphabet = real.corpus.alphabet if real else None
        options = ImportOptions(alphabet=alphabet, lowercase=False, max_seconds=3600.0, overwrite=True)
        source.import_into(folder, options)
        plan = {
            "format": FORMAT,
            "digest": digest,
            "engines": {name: engine.version for name, engine in engines.items()},
            "voices": [asdict(voice) for voice in voices],
            "seconds": seconds,
            "unsaid": [asdict(one) for one in unsaid],
        }
        write_json(folder / "plan.json", plan)
    return SpokenCorpus(Corpus.open(destination), tuple(unsaid), seconds, len(sayings), wall_seconds)


@dataclass(frozen=True)
class PlanFile:
    """plan.json: a digest of what the corpus was made of, and what no voice could say."""

    format: ClassVar = FORMAT
    what: ClassVar = "spoken corpus"
    advice: ClassVar = "Choose another folder"
    digest: str
    seconds: Amount
    unsaid: tuple[Skipped, ...]


def _open(destination: Path, digest: str) -> SpokenCorpus:
    plan = read_as(PlanFile, destination / "plan.json")
    if plan.digest != digest:
        raise ValueError(f"{destination} was made of other texts, voices or speech: choose another folder")
    return SpokenCorpus(Corpus.open(destination), plan.unsaid, plan.seconds)


def _digest(
    sayings: Sequence[Saying],
    voices: Sequence[Voice],
    engines: Mapping[str, Synthesiser],
    real: RealSpeech | None,
) -> str:
    """Return a digest of everything that the corpus depends on."""
    digest = hashlib.sha256(FORMAT.encode())
    used = {voice.engine for voice in voices} | {saying.voice.engine for saying in sayings}
    parts: list[Any] = [{name: engine.version for name, engine in engines.items() if name in used}]
    parts += [asdict(voice) for voice in voices] + [asdict(saying) for saying in sayings]
    parts += [(utterance.to_json(), split) for utterance, split in (real.chosen if real else ())]
    for part in parts:
        digest.update(json.dumps(part).encode() + b"\n")
    return digest.hexdigest()


def _write_spoken(
    source: AudioSource, results: Results, num_sayings: int, progress: Progress
) -> tuple[list[Skipped], float]:
    """Write all speech; return what no voice could say, and the seconds of speech."""
    unsaid: list[Skipped] = []
    seconds = 0.0
    for done, (saying, spoken) in enumerate(results, 1):
        if isinstance(spoken, str):
            unsaid.append(Skipped(saying.id, saying.session, spoken))
        else:
            seconds += spoken.seconds
            row = {"id": saying.id, "split": saying.split, "session": saying.session, "text": saying.written}
            voice = {"speaker": spoken.voice.speaker, "voice": asdict(spoken.voice)}
            source.add(f"spoken/{done:06d}.flac", row | voice, spoken.audio)
        progress(done, num_sayings)
    return unsaid, seconds


@dataclass(frozen=True)
class AudioSource:
    """A folder for the import: a manifest, and a tar of audio."""

    folder: Path
    tar: tarfile.TarFile
    manifest: TextIO

    def add(self, path: str, row: Mapping[str, Any], content: bytes) -> None:
        info = tarfile.TarInfo(path)
        info.size = len(content)
        self.tar.addfile(info, BytesIO(content))
        self.manifest.write(json.dumps({**row, "path": path}) + "\n")

    def import_into(self, destination: Path, options: ImportOptions) -> None:
        """Make a corpus of everything that was added; nothing can be added afterwards."""
        self.tar.close()
        self.manifest.close()
        import_corpus(self.folder, destination, options)


@contextmanager
def temporary_source(destination: Path) -> Iterator[AudioSource]:
    """Make a source beside the corpus that will be made of it; it is removed at the end."""
    folder = beside(destination, "speaking")
    make_folder(destination.parent)
    try:
        with saving(destination):
            folder.mkdir(mode=0o700)
        with (
            saving(destination),
            tarfile.open(folder / "audio.tar", "w") as tar,
            open(folder / "manifest.jsonl", "w", encoding="utf-8") as manifest,
        ):
            yield AudioSource(folder, tar, manifest)
    finally:
        with uninterrupted():
            shutil.rmtree(folder, ignore_errors=True)
