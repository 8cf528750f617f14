"""The first half of an import: the candidates of a source are checked without opening audio, and sorted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from antiphon.data.importing.candidates import Candidate, ImportOptions, RefusedError, Skipped
from antiphon.data.transcripts import is_utf8, normalise, strange_characters
from antiphon.seeding import derive

Progress = Callable[[int, int | None], None]  # done, total (None while the source is still being listed)


@dataclass(frozen=True)
class Listing:
    """The candidates of a source that should be opened, and those that were skipped."""

    candidates: list[Candidate]  # in the order of the corpus
    skipped: list[Skipped]
    num_filtered: int
    keys: set[str]  # the fields that `where` can name


def list_candidates(
    items: Iterable[Candidate | Skipped], options: ImportOptions, progress: Progress
) -> Listing:
    """Check all candidates as far as possible without opening audio, and sort them."""
    kept: list[Candidate] = []
    listing = Listing([], [], 0, set())
    num_filtered = 0
    first_seen: dict[str, str] = {}
    for number, item in enumerate(items):
        if number % 1000 == 0:
            progress(number, None)
        if isinstance(item, Skipped):
            listing.skipped.append(item)
            continue
        try:
            candidate = _checked(item, options)
            fields = _fields(candidate)
            listing.keys.update(fields)
            if any(str(fields.get(key)) != value for key, value in options.where.items()):
                num_filtered += 1
                continue
            if candidate.id in first_seen:
                raise RefusedError(f"duplicate id: already at {first_seen[candidate.id]}")
            first_seen[candidate.id] = candidate.where
            if isinstance(candidate.audio, str):
                raise RefusedError(candidate.audio)
            kept.append(_with_good_text(candidate, options))
        except RefusedError as reason:
            listing.skipped.append(Skipped(item.id, item.where, str(reason)))
    if options.split_speakers and kept:
        splits = assign_splits(
            {candidate.speaker for candidate in kept}, options.split_speakers, options.seed
        )
        kept = [replace(candidate, split=splits[candidate.speaker]) for candidate in kept]
    kept += [_at_speed(one, speed) for one in kept if one.split == "pool" for speed in options.speeds]
    kept.sort(key=lambda candidate: (candidate.split, candidate.speaker, candidate.session, candidate.id))
    return replace(listing, candidates=kept, num_filtered=num_filtered)


def _at_speed(candidate: Candidate, speed: float) -> Candidate:
    """A copy for training (T. Ko et al., "Audio Augmentation for Speech Recognition", Interspeech 2015)."""
    extra = {**candidate.extra, "speed": speed}
    return replace(candidate, id=f"{candidate.id}-speed{speed:g}", speed=speed, extra=extra)


def _fields(candidate: Candidate) -> dict[str, Any]:
    names = {"split": candidate.split, "speaker": candidate.speaker, "session": candidate.session}
    return {**candidate.extra, **names}


def _checked(candidate: Candidate, options: ImportOptions) -> Candidate:
    """The candidate with its split; refused if its names cannot be printed."""
    split = options.split if candidate.split is None else options.splits.get(candidate.split, candidate.split)
    names = {"id": candidate.id, "speaker": candidate.speaker, "session": candidate.session, "split": split}
    for key, name in names.items():
        # Bytes that are not UTF-8 came as surrogates, which are not printable either.
        if not name or not name.isprintable():
            raise RefusedError(f"bad name: the {key} is empty or cannot be printed: {name!a}")
    return replace(candidate, split=split)


def _with_good_text(candidate: Candidate, options: ImportOptions) -> Candidate:
    if not is_utf8(candidate.text):
        raise RefusedError("bad text: it is not UTF-8")
    text = normalise(candidate.text, options.lowercase)
    if not text:
        raise RefusedError("empty text: nothing is transcribed")
    strange = strange_characters(text, options.alphabet)
    if strange:
        raise RefusedError(f"characters outside the alphabet: {' '.join(map(repr, strange))}")
    return replace(candidate, text=text)


def assign_splits(
    speakers: Iterable[str], fractions: tuple[float, float, float], seed: int
) -> dict[str, str]:
    """Assign speakers to pool, heldout and test by fractions; only the seed and the names decide.

    A split with a fraction above 0 gets at least one speaker.

    >>> sorted(assign_splits("abcde", (0.6, 0.2, 0.2), seed=0).values())
    ['heldout', 'pool', 'pool', 'pool', 'test']
    """
    order = sorted(speakers, key=lambda speaker: (derive(seed, "split", speaker), speaker))
    wanted = {
        name: share for name, share in zip(("pool", "heldout", "test"), fractions, strict=True) if share > 0
    }
    if len(order) < len(wanted):
        raise ValueError(
            f"{len(order)} speakers cannot be divided into {', '.join(wanted)}: set split instead"
        )
    splits: dict[str, str] = {}
    # The largest split comes last and takes the rest after rounding.
    for number, name in enumerate(sorted(wanted, key=lambda name: wanted[name]), 1):
        num_after = len(wanted) - number
        count = max(1, round(wanted[name] * len(order))) if num_after else len(order)
        free = order[len(splits) :]
        splits |= dict.fromkeys(free[: min(count, len(free) - num_after)], name)
    return splits
