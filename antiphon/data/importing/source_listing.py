"""The first half of an import: check the candidates of a source without opening audio, and sort them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from antiphon.data.importing.candidates import Candidate, ImportOptions, RefusedError, Skipped
from antiphon.data.transcripts import is_utf8, normalise, strange_characters
from antiphon.seeding import derive

Progress = Callable[[int, int | None], None]  # done, total (None until the whole source is listed)


@dataclass(frozen=True)
class Listing:
    """The candidates of a source whose audio is to be opened, and those that were skipped."""

    candidates: list[Candidate]  # in the order of the corpus
    skipped: list[Skipped]
    num_filtered: int
    keys: set[str]  # the fields that `where` can name


def list_candidates(
    items: Iterable[Candidate | Skipped], options: ImportOptions, progress: Progress
) -> Listing:
    """Check all candidates as far as possible without opening audio, and sort them."""
    candidates: list[Candidate] = []
    skipped: list[Skipped] = []
    keys: set[str] = set()
    where_by_id: dict[str, str] = {}
    num_filtered = 0
    for number, item in enumerate(items):
        if number % 1000 == 0:
            progress(number, None)
        if isinstance(item, Skipped):
            skipped.append(item)
            continue
        try:
            candidate = _checked(item, options)
            names = {"split": candidate.split, "speaker": candidate.speaker, "session": candidate.session}
            fields = {**candidate.extra, **names}
            keys.update(fields)
            if any(str(fields.get(key)) != value for key, value in options.where.items()):
                num_filtered += 1
                continue
            if candidate.id in where_by_id:
                raise RefusedError(f"duplicate id: already at {where_by_id[candidate.id]}")
            where_by_id[candidate.id] = candidate.where
            if isinstance(candidate.audio, str):
                raise RefusedError(candidate.audio)
            candidates.append(replace(candidate, text=_checked_text(candidate.text, options)))
        except RefusedError as reason:
            skipped.append(Skipped(item.id, item.where, str(reason)))
    if options.split_speakers and candidates:
        speakers = {candidate.speaker for candidate in candidates}
        splits = assign_splits(speakers, options.split_speakers, options.seed)
        candidates = [replace(candidate, split=splits[candidate.speaker]) for candidate in candidates]
    pool = [candidate for candidate in candidates if candidate.split == "pool"]
    candidates += [_at_speed(candidate, speed) for candidate in pool for speed in options.speeds]
    candidates.sort(key=lambda one: (one.split, one.speaker, one.session, one.id))
    return Listing(candidates, skipped, num_filtered, keys)


def _at_speed(candidate: Candidate, speed: float) -> Candidate:
    """Copy for training (T. Ko et al., "Audio Augmentation for Speech Recognition", Interspeech 2015)."""
    extra = {**candidate.extra, "speed": speed}
    return replace(candidate, id=f"{candidate.id}-speed{speed:g}", speed=speed, extra=extra)


def _checked(candidate: Candidate, options: ImportOptions) -> Candidate:
    """Return the candidate with its split; refuse names that cannot be printed."""
    split = options.split if candidate.split is None else options.splits.get(candidate.split, candidate.split)
    names = {"id": candidate.id, "speaker": candidate.speaker, "session": candidate.session, "split": split}
    for key, name in names.items():
        # Bytes that are not UTF-8 have become surrogates, which are not printable either.
        if not name or not name.isprintable():
            raise RefusedError(f"bad name: the {key} is empty or cannot be printed: {name!a}")
    return replace(candidate, split=split)


def _checked_text(text: str, options: ImportOptions) -> str:
    if not is_utf8(text):
        raise RefusedError("bad text: it is not UTF-8")
    text = normalise(text, options.lowercase)
    if not text:
        raise RefusedError("empty text: nothing is transcribed")
    if strange := strange_characters(text, options.alphabet):
        raise RefusedError(f"characters outside the alphabet: {' '.join(map(repr, strange))}")
    return text


def assign_splits(
    speakers: Iterable[str], fractions: tuple[float, float, float], seed: int
) -> dict[str, str]:
    """Assign speakers to pool, heldout and test by fractions; only the seed and the names decide.

    A split with a fraction above 0 gets at least one speaker.

    >>> sorted(assign_splits("abcde", (0.6, 0.2, 0.2), seed=0).values())
    ['heldout', 'pool', 'pool', 'pool', 'test']
    """
    order = sorted(speakers, key=lambda speaker: (derive(seed, "split", speaker), speaker))
    shares = zip(("pool", "heldout", "test"), fractions, strict=True)
    # The largest split comes last and takes the rest after rounding.
    wanted = sorted(((name, share) for name, share in shares if share > 0), key=lambda item: item[1])
    if len(order) < len(wanted):
        names = ", ".join(name for name, _ in wanted)
        raise ValueError(f"{len(order)} speakers cannot be divided into {names}: set split instead")
    splits: dict[str, str] = {}
    for number, (name, share) in enumerate(wanted, 1):
        num_after = len(wanted) - number
        count = max(1, round(share * len(order))) if num_after else len(order)
        free = order[len(splits) :]
        splits |= dict.fromkeys(free[: min(count, len(free) - num_after)], name)
    return splits
