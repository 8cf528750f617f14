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
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from antiphon.data.audio import SAMPLE_RATE, BadAudioError, at_speed, encode_flac, read_sound, resample
from antiphon.data.corpus import FORMAT, INDEX, PACK, Utterance
from antiphon.data.importing.candidates import Candidate, Progress, Skipped, StagedProgress, without_stage
from antiphon.data.importing.formats import FORMATS, choose_format
from antiphon.data.importing.import_options import STEPS, ImportOptions
from antiphon.data.importing.listing import Listing, list_candidates
from antiphon.data.importing.pseudonyms import check_key_place, hidden
from antiphon.data.processes import map_ahead
from antiphon.data.transcripts import characters_of, rare_characters
from antiphon.records.files import check_name, private, write_json, write_sums
from antiphon.records.folders import check_new_folder, new_folder
from antiphon.records.maker import tidy


@dataclass(frozen=True)
class ImportSummary:
    """Figures of an import.

    num_filtered: utterances left out by `where` or `select`, which are not `skipped`
    num_texts_changed: utterances whose text a step has changed, by step
    rare_characters: characters of an alphabet made of the texts that may be typos, with their counts
    strange_characters: texts that were skipped, by the characters outside the alphabet that they have
    """

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
    num_texts_changed: Mapping[str, int] = field(default_factory=dict)
    rare_characters: Mapping[str, int] = field(default_factory=dict)
    strange_characters: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_skipped_by_kind(self) -> dict[str, int]:
        """The number of utterances skipped for each kind of fault, most frequent first."""
        return dict(Counter(skipped.kind for skipped in self.skipped).most_common())


def import_corpus(
    source: str | Path,
    destination: str | Path,
    options: ImportOptions | None = None,
    progress: StagedProgress | Progress = lambda stage, done, total: None,
) -> ImportSummary:
    """Make a corpus folder from a source in any known format; ValueError if nothing in it can be used.

    The destination appears complete or not at all, whatever happens.

    Args:
        source: A folder or a manifest; its format is recognised.
        destination: The corpus folder to make.
        options: What to take and how; see `ImportOptions`.
        progress: A function that is called with (stage, utterances done, number of utterances); one that
            takes two arguments is called without the stage.

    Example:
        antiphon.import_corpus("recordings", "speech", antiphon.ImportOptions(speeds=(0.9, 1.1)))
    """
    source, destination, options = Path(source), Path(destination), options or ImportOptions()
    report = without_stage(progress)
    check_destination(source, destination, options.overwrite)
    if options.pseudonymise is not None:
        check_key_place(Path(options.pseudonymise), destination)
    name = choose_format(source, options.format)
    listing = list_candidates(FORMATS[name]().read(source, options), options, report)
    with new_folder(destination) as folder:
        utterances, actions, unusable = _write_utterances(folder, listing.candidates, options, report)
        skipped = (*listing.skipped, *unusable)
        if not utterances:
            raise ValueError(_nothing_left(source, listing, skipped, options))
        seconds = sum(round(one.seconds * SAMPLE_RATE) for one in utterances) / SAMPLE_RATE
        texts = _describe_texts(utterances, listing, options)
        about = {
            "format": FORMAT,
            "sample_rate": SAMPLE_RATE,
            "source": name,
            "num_utterances": len(utterances),
            "seconds": seconds,
            **texts,
        }
        with open(folder / "skipped.jsonl", "x", encoding="utf-8", opener=private) as file:
            listed = skipped if options.pseudonymise is None else map(hidden, skipped)
            file.writelines(json.dumps(asdict(one), ensure_ascii=False) + "\n" for one in listed)
        write_json(folder / "corpus.json", about, [INDEX, "skipped.jsonl", write_sums(folder / PACK)])
    return ImportSummary(
        path=destination,
        format=name,
        num_utterances=len(utterances),
        num_speakers=len({one.speaker for one in utterances}),
        seconds=seconds,
        num_copied=actions["copied"],
        num_resampled=actions["resampled"],
        num_mixed=actions["mixed"],
        num_filtered=listing.num_filtered,
        skipped=skipped,
        num_texts_changed=texts["num_texts_changed"],
        rare_characters=texts["rare_characters"],
        strange_characters=dict(listing.strange_characters.most_common()),
    )


def _describe_texts(utterances: list[Utterance], listing: Listing, options: ImportOptions) -> dict[str, Any]:
    """Return the alphabet of a corpus, its rare characters, and how many texts each step changed."""
    changes = Counter(step for one in utterances for step in listing.text_changes.get(one.id, ()))
    counts = characters_of(one.text for one in utterances) if options.derives_alphabet else Counter()
    return {
        "alphabet": "".join(sorted(counts)) if options.derives_alphabet else options.characters,
        "num_texts_changed": {step: changes[step] for step in STEPS if changes[step]},
        "rare_characters": rare_characters(counts),
    }


def check_destination(source: Path, destination: Path, overwrite: bool) -> None:
    """Refuse, before any work, a destination that must not be written or replaced."""
    check_new_folder(destination.parent)
    tidy(destination)
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
    assert not isinstance(candidate.audio, str), "a listing keeps only audio that was found"
    try:
        with candidate.audio.open() as file:
            sound = read_sound(file, candidate.start, candidate.stop, options.max_seconds)
            samples = resample(sound.mono(candidate.channel), sound.rate)
            _check_length(len(samples) / SAMPLE_RATE, candidate.duration, options.min_seconds)
            is_plain = sound.rate == SAMPLE_RATE and sound.num_channels == 1 and candidate.speed == 1
            is_copied = sound.is_whole and is_plain and options.pseudonymise is None  # files may have names
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
        raise BadAudioError(f"too short: {seconds:.3f} s, less than {min_seconds:g} s (--min-seconds)")
    if claimed is not None and abs(seconds - claimed) > max(0.5, 0.1 * claimed):
        raise BadAudioError(
            f"duration mismatch: the audio lasts {seconds:.2f} s, its source says {claimed:.2f} s"
        )


def _write_utterances(
    folder: Path, candidates: list[Candidate], options: ImportOptions, progress: Progress
) -> tuple[list[Utterance], Counter[str], list[Skipped]]:
    """Write audio.pack and utterances.jsonl; return utterances, counts of actions, and skipped ones."""
    for split in sorted({str(one.split) for one in candidates}):
        check_name(split, "split", "rename it with --rename-split")
    utterances: list[Utterance] = []
    actions: Counter[str] = Counter()
    skipped: list[Skipped] = []
    num_threads = options.num_threads or os.cpu_count() or 1
    # A few items ahead, so that little audio is in memory at once.
    prepare = partial(_prepare, options=options)
    prepared = map_ahead(ThreadPoolExecutor(num_threads), prepare, candidates, 4 * num_threads)
    progress(0, len(candidates))
    with (
        open(folder / PACK, "xb", opener=private) as pack,
        open(folder / INDEX, "x", encoding="utf-8", errors="backslashreplace", opener=private) as index,
        closing(prepared),
    ):
        for done, (one, result) in enumerate(prepared, 1):
            if isinstance(result, Skipped):
                skipped.append(result)
            else:
                assert one.split is not None
                audio = (pack.tell(), len(result.data))
                names = (one.id, one.speaker, one.session, one.split)
                utterances.append(Utterance(*names, result.seconds, one.text, *audio, one.extra))
                index.write(utterances[-1].to_json() + "\n")
                pack.write(result.data)
                actions.update(result.actions)
            progress(done, len(candidates))
    return utterances, actions, skipped


def _nothing_left(
    source: Path, listing: Listing, skipped: tuple[Skipped, ...], options: ImportOptions
) -> str:
    """Return the message of an import that skipped everything: the most frequent reasons, with examples."""
    lines = [f"nothing in {source} can be used: {len(skipped)} utterances skipped"]
    if listing.num_filtered:
        lines.append(_why_filtered(listing, options))
    examples = {one.kind: one for one in reversed(skipped)}
    for kind, count in Counter(one.kind for one in skipped).most_common(5):
        lines.append(f"{count} x {examples[kind].reason} ({examples[kind].where})")
    return "\n  ".join(lines)


def _why_filtered(listing: Listing, options: ImportOptions) -> str:
    wanted = ", ".join(f"{key}={value}" for key, value in options.where.items())
    keys = ", ".join(sorted(listing.keys))
    reasons = [f"do not have {wanted} (fields: {keys})"] if wanted else []
    reasons += [f"are not listed in {options.select}"] if options.select else []
    return f"{listing.num_filtered} {' or '.join(reasons)}"
