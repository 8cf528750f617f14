"""The import: make a corpus folder from a source. Every utterance is read, checked, and copied or encoded.

Audio files that hold one utterance, 16 kHz mono, are copied byte for byte. All other audio is cut, averaged
over its channels, resampled and written as 16-bit FLAC. Utterances that cannot be used are skipped with a
reason. The same source gives the same bytes. Threads read the audio: libsndfile releases the interpreter's
lock.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from antiphon.data.audio import SAMPLE_RATE, BadAudioError, at_speed, encode_flac, read_sound, resample
from antiphon.data.corpus import FORMAT, Utterance
from antiphon.data.importing.candidates import Blob, Candidate, ImportOptions, Skipped
from antiphon.data.importing.formats import FORMATS, choose_format
from antiphon.data.importing.source_listing import Listing, Progress, list_candidates
from antiphon.data.processes import map_ahead
from antiphon.records.files import new_folder, sync


@dataclass(frozen=True)
class ImportSummary:
    """Figures of an import. num_filtered counts utterances left out by `where`, which are not `skipped`."""

    path: Path
    format: str
    num_utterances: int
    num_speakers: int
    seconds: float
    num_copied: int
    num_resampled: int
    num_mixed: int
    num_filtered: int
    skipped: tuple[Skipped, ...]

    @property
    def num_skipped_by_kind(self) -> dict[str, int]:
        """The number of utterances skipped for each kind of fault, most frequent first."""
        return dict(Counter(skipped.kind for skipped in self.skipped).most_common())


def import_corpus(
    source: str | Path,
    destination: str | Path,
    options: ImportOptions | None = None,
    progress: Progress = lambda done, total: None,
) -> ImportSummary:
    """Make a corpus folder from a source in any known format; ValueError if nothing in it can be used.

    The destination appears complete or not at all, whatever happens.

    Args:
        source: A folder or a manifest; its format is recognised.
        destination: The corpus folder to make.
        options: What to take and how; see `ImportOptions`.
        progress: A function that is called with (utterances done, number of utterances).

    Example:
        antiphon.import_corpus("recordings", "speech", antiphon.ImportOptions(speeds=(0.9, 1.1)))
    """
    source, destination, options = Path(source), Path(destination), options or ImportOptions()
    check_destination(source, destination, options.overwrite)
    name = choose_format(source, options.format)
    listing = list_candidates(FORMATS[name]().read(source, options), options, progress)
    with new_folder(destination) as folder:
        writer = _Writer(folder)
        writer.add_all(listing.candidates, options, progress)
        skipped = (*listing.skipped, *writer.skipped)
        if not writer.num_utterances:
            raise ValueError(_nothing_left(source, listing, skipped, options))
        writer.finish(name, options.alphabet, skipped)
    return ImportSummary(
        path=destination,
        format=name,
        num_utterances=writer.num_utterances,
        num_speakers=len(writer.speakers),
        seconds=writer.seconds,
        num_copied=writer.counts["copied"],
        num_resampled=writer.counts["resampled"],
        num_mixed=writer.counts["mixed"],
        num_filtered=listing.num_filtered,
        skipped=skipped,
    )


def check_destination(source: Path, destination: Path, overwrite: bool) -> None:
    """Refuse, before any work, a destination that must not be written or replaced."""
    if not destination.exists() and not destination.is_symlink():
        return
    if not overwrite:
        raise ValueError(f"{destination} exists already: choose another name, or overwrite it (--overwrite)")
    if source.resolve().is_relative_to(destination.resolve()):
        raise ValueError(f"{destination} holds the source {source}: it cannot be replaced by the corpus")
    is_folder = destination.is_dir() and not destination.is_symlink()
    if not is_folder or not ((destination / "corpus.json").is_file() or not any(destination.iterdir())):
        raise ValueError(f"{destination} is not a corpus: only a corpus is ever overwritten")


@dataclass(frozen=True)
class _Prepared:
    """Encoded audio ready to be written, and what was done to it: copied, or resampled, mixed."""

    data: bytes
    seconds: float
    actions: tuple[str, ...]


def _prepare(candidate: Candidate, options: ImportOptions) -> _Prepared | Skipped:
    """Read, check and, where needed, encode the audio of one utterance."""
    assert isinstance(candidate.audio, Blob), "a listing keeps only audio that was found"
    try:
        with candidate.audio.open() as file:
            sound = read_sound(file, candidate.start, candidate.stop, options.max_seconds)
            samples = resample(sound.mono(candidate.channel), sound.rate)
            _check_length(len(samples) / SAMPLE_RATE, candidate.duration, options.min_seconds)
            is_plain = sound.rate == SAMPLE_RATE and sound.num_channels == 1 and candidate.speed == 1
            is_copied = sound.is_whole and is_plain
            samples = at_speed(samples, candidate.speed)
            file.seek(0)
            data = file.read() if is_copied else encode_flac(samples)
    except BadAudioError as reason:
        return Skipped(candidate.id, candidate.where, str(reason))
    except OSError as error:
        return Skipped(candidate.id, candidate.where, f"unreadable file: {error.strerror}")
    actions = {
        "copied": is_copied,
        "resampled": sound.rate != SAMPLE_RATE,
        "mixed": sound.num_channels > 1 and candidate.channel is None,
    }
    return _Prepared(data, len(samples) / SAMPLE_RATE, tuple(name for name, done in actions.items() if done))


def _check_length(seconds: float, claimed: float | None, min_seconds: float) -> None:
    if seconds < min_seconds:
        raise BadAudioError(f"too short: {seconds:.3f} s, less than {min_seconds:g} s (min_seconds)")
    if claimed is not None and abs(seconds - claimed) > max(0.5, 0.1 * claimed):
        raise BadAudioError(
            f"duration mismatch: the audio lasts {seconds:.2f} s, its source says {claimed:.2f} s"
        )


class _Writer:
    """Writes a corpus into an empty folder, one utterance after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.skipped: list[Skipped] = []
        self.speakers: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.num_utterances = self.num_samples = 0

    @property
    def seconds(self) -> float:
        return self.num_samples / SAMPLE_RATE

    def add_all(self, candidates: list[Candidate], options: ImportOptions, progress: Progress) -> None:
        num_threads = options.num_threads or os.cpu_count() or 1
        threads = ThreadPoolExecutor(num_threads)
        # A few items ahead, so that little audio is in memory at once.
        prepared = map_ahead(threads, partial(_prepare, options=options), candidates, 4 * num_threads)
        progress(0, len(candidates))
        with (
            open(self.folder / "audio.pack", "xb") as pack,
            open(self.folder / "utterances.jsonl", "x", encoding="utf-8", errors="backslashreplace") as index,
            closing(prepared),
        ):
            for done, (candidate, result) in enumerate(prepared, 1):
                if isinstance(result, Skipped):
                    self.skipped.append(result)
                else:
                    index.write(self._utterance(candidate, result, pack.tell()).to_json() + "\n")
                    pack.write(result.data)
                progress(done, len(candidates))

    def _utterance(self, candidate: Candidate, result: _Prepared, offset: int) -> Utterance:
        self.num_utterances += 1
        self.counts.update(result.actions)
        self.num_samples += round(result.seconds * SAMPLE_RATE)
        self.speakers.add(candidate.speaker)
        assert candidate.split is not None
        names = (candidate.id, candidate.speaker, candidate.session, candidate.split)
        return Utterance(*names, result.seconds, candidate.text, offset, len(result.data), candidate.extra)

    def finish(self, source: str, alphabet: str | None, skipped: Iterable[Skipped]) -> None:
        with open(self.folder / "skipped.jsonl", "x", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(one), ensure_ascii=False) + "\n" for one in skipped)
        about = {
            "format": FORMAT,
            "sample_rate": SAMPLE_RATE,
            "alphabet": alphabet,
            "source": source,
            "num_utterances": self.num_utterances,
            "seconds": self.seconds,
        }
        with open(self.folder / "corpus.json", "x", encoding="utf-8") as file:
            file.write(json.dumps(about, ensure_ascii=False, indent=2) + "\n")
        for path in self.folder.iterdir():
            sync(path)  # before the folder gets its name: a crash must not leave a corpus with holes


def _nothing_left(
    source: Path, listing: Listing, skipped: tuple[Skipped, ...], options: ImportOptions
) -> str:
    """Return the message of an import that skipped everything: the most frequent reasons, with examples."""
    lines = [f"nothing in {source} can be used: {len(skipped)} utterances skipped"]
    if listing.num_filtered:
        wanted = ", ".join(f"{key}={value}" for key, value in options.where.items())
        keys = ", ".join(sorted(listing.keys))
        lines.append(f"{listing.num_filtered} do not have {wanted} (fields: {keys})")
    examples = {one.kind: one for one in reversed(skipped)}
    for kind, count in Counter(one.kind for one in skipped).most_common(5):
        lines.append(f"{count} x {examples[kind].reason} ({examples[kind].where})")
    return "\n  ".join(lines)
