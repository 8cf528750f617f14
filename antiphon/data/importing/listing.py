"""The list of utterances to import: candidates that are checked as far as possible without opening audio."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from antiphon.data.importing.candidates import Candidate, Progress, RefusedError, Skipped
from antiphon.data.importing.import_options import ImportOptions
from antiphon.data.importing.pseudonyms import Pseudonyms
from antiphon.data.importing.selection import Selection
from antiphon.data.importing.texts import StrangeCharactersError, TextRewriter
from antiphon.records.reading import parse_json
from antiphon.seeding import derive


@dataclass
class Listing:
    """The candidates of a source whose audio is to be opened, and those that were left out."""

    candidates: list[Candidate] = field(default_factory=list)  # in the order of the corpus
    skipped: list[Skipped] = field(default_factory=list)
    num_filtered: int = 0  # by `where` or `select`
    keys: set[str] = field(default_factory=set)  # the fields that `where` can name
    text_changes: dict[str, tuple[str, ...]] = field(default_factory=dict)  # id -> steps that changed it
    strange_characters: Counter[str] = field(default_factory=Counter)  # skipped texts by character


def list_candidates(
    items: Iterable[Candidate | Skipped], options: ImportOptions, progress: Progress
) -> Listing:
    """Check all candidates as far as possible without opening audio, and sort them."""
    listing = Listing()
    selection = None if options.select is None else Selection(options.select)
    rewrite = TextRewriter(options)
    where_by_id: dict[str, str] = {}
    for number, item in enumerate(items):
        if number % 1000 == 0:
            progress(number, None)
        split = selection.split_of(item.id) if selection else None
        if selection and split is None and item.id:
            listing.num_filtered += 1
        elif isinstance(item, Skipped):
            listing.skipped.append(item)
        else:
            try:
                _add(item, split, listing, where_by_id, rewrite, options)
            except StrangeCharactersError as reason:
                listing.strange_characters.update(reason.characters)
                listing.skipped.append(Skipped(item.id, item.where, str(reason)))
            except RefusedError as reason:
                listing.skipped.append(Skipped(item.id, item.where, str(reason)))
    listing.skipped += selection.missing() if selection else []
    candidates = _with_splits(listing.candidates, options)
    if options.pseudonymise is not None and candidates:
        pseudonyms = Pseudonyms.open(Path(options.pseudonymise))
        candidates = list(map(pseudonyms.hide, candidates))
        listing.text_changes = pseudonyms.hide_ids(listing.text_changes)
    listing.candidates = _with_speeds(candidates, options)
    return listing


def _add(
    item: Candidate,
    split: str | None,
    listing: Listing,
    where_by_id: dict[str, str],
    rewrite: TextRewriter,
    options: ImportOptions,
) -> None:
    """Add one utterance of the source to a listing, unless `where` filters it out or it is refused."""
    candidate = _checked(item, split, options)
    names = {"split": candidate.split, "speaker": candidate.speaker, "session": candidate.session}
    fields = {**candidate.extra, **names}
    listing.keys.update(fields)
    if any(str(fields.get(key)) != value for key, value in options.where.items()):
        listing.num_filtered += 1
        return
    if candidate.id in where_by_id:
        raise RefusedError(f"duplicate id: already at {where_by_id[candidate.id]}")
    where_by_id[candidate.id] = candidate.where
    if isinstance(candidate.audio, str):
        raise RefusedError(candidate.audio)
    text, changes = rewrite(candidate.text)
    if changes:
        listing.text_changes[candidate.id] = changes
    listing.candidates.append(replace(candidate, text=text))


def _with_splits(candidates: list[Candidate], options: ImportOptions) -> list[Candidate]:
    """Return the candidates with new splits, if asked for."""
    if not options.split_speakers or not candidates:
        return candidates
    speakers = {candidate.speaker for candidate in candidates}
    splits = assign_splits(speakers, options.split_speakers, options.seed)
    return [replace(candidate, split=splits[candidate.speaker]) for candidate in candidates]


def _with_speeds(candidates: list[Candidate], options: ImportOptions) -> list[Candidate]:
    """Return the candidates, also at other speeds if asked for, in the order of the corpus."""
    pool = [candidate for candidate in candidates if candidate.split == "pool"]
    candidates = candidates + [_at_speed(candidate, speed) for candidate in pool for speed in options.speeds]
    return sorted(candidates, key=lambda one: (one.split, one.speaker, one.session, one.id))


def _at_speed(candidate: Candidate, speed: float) -> Candidate:
    """Copy for training (T. Ko et al., "Audio Augmentation for Speech Recognition", Interspeech 2015)."""
    extra = {**candidate.extra, "speed": speed}
    return replace(candidate, id=f"{candidate.id}-speed{speed:g}", speed=speed, extra=extra)


def _checked(candidate: Candidate, split: str | None, options: ImportOptions) -> Candidate:
    """Return the candidate with its split, or with the given one; refuse names that cannot be printed."""
    if split is None and candidate.split is not None:
        split = options.splits.get(candidate.split, candidate.split)
    split = options.split if split is None else split
    names = {"id": candidate.id, "speaker": candidate.speaker, "session": candidate.session, "split": split}
    for key, name in names.items():
        # Bytes that are not UTF-8 have become surrogates, which are not printable either.
        if not name or not name.isprintable():
            raise RefusedError(f"bad name: the {key} is empty or cannot be printed: {name!a}")
    return replace(candidate, split=split, extra=_storable(candidate.extra))


def _storable(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a corpus can hold: not NaN, or text that is not UTF-8."""
    kept: dict[str, Any] = {}
    for key, value in extra.items():
        with suppress(ValueError):
            kept |= parse_json(json.dumps({key: value}))
    return kept


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
