"""Utterances aligned word by word, as a listing and as tables of confused words.

The format is that of NIST sclite's `pra` and `dtl` reports. The alignment is the one of `error_rate`, in
which every edit costs 1, so the counts are those of the error rate. sclite charges 4 for a substitution and 3
for a deletion or insertion: it may split the same errors in another way, and sometimes counts one more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from antiphon.scoring.error_rate import Edit, Errors, Pair, alignment

Item = TypeVar("Item", str, tuple[str, str])

_LETTERS = {Edit.MATCH: "", Edit.SUBSTITUTION: "S", Edit.DELETION: "D", Edit.INSERTION: "I"}


@dataclass(frozen=True)
class AlignedUtterance:
    """One utterance, word by word."""

    speaker: str
    utterance: str
    rows: Sequence[Pair]

    @property
    def errors(self) -> Errors:
        length = sum(said is not None for _, said, _ in self.rows)
        return Errors.count((edit for edit, _, _ in self.rows), length)


@dataclass(frozen=True)
class Confusions:
    """How often each word was replaced by another, deleted or inserted."""

    substitutions: Counter[tuple[str, str]]  # (said, heard)
    deletions: Counter[str]
    insertions: Counter[str]


def align_words(speaker: str, utterance: str, reference: str, hypothesis: str) -> AlignedUtterance:
    return AlignedUtterance(speaker, utterance, alignment(reference.split(), hypothesis.split()))


def find_confusions(utterances: Iterable[AlignedUtterance]) -> Confusions:
    """
    >>> counts = find_confusions([align_words("a", "1", "the cat sat", "a cat sat down")])
    >>> dict(counts.substitutions), dict(counts.deletions), dict(counts.insertions)
    ({('the', 'a'): 1}, {}, {'down': 1})
    """
    counts = Confusions(Counter(), Counter(), Counter())
    for utterance in utterances:
        for _, said, heard in utterance.rows:
            if said is None:
                assert heard is not None
                counts.insertions[heard] += 1
            elif heard is None:
                counts.deletions[said] += 1
            elif said != heard:
                counts.substitutions[said, heard] += 1
    return counts


def most_frequent(counts: Counter[Item]) -> list[tuple[Item, int]]:
    """
    >>> most_frequent(Counter("abcbc"))
    [('b', 2), ('c', 2), ('a', 1)]
    """
    return sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))


def format_alignments(title: str, utterances: Sequence[AlignedUtterance]) -> str:
    """Format all utterances as in sclite's `pra` report, grouped by speaker."""
    speakers: dict[str, list[AlignedUtterance]] = {}
    for utterance in utterances:
        speakers.setdefault(utterance.speaker, []).append(utterance)
    # Errors are in capitals, as sclite has them, unless capitals are part of the spelling.
    words = (word for utterance in utterances for row in utterance.rows for word in row[1:])
    capitals = all(word is None or word == word.lower() for word in words)
    lines = f"\n\n\t\tDUMP OF SYSTEM ALIGNMENT STRUCTURE\n\nSystem name:   {title}\n\nSpeakers: ".split("\n")
    lines += [f"{number:5}:  {speaker}" for number, speaker in enumerate(speakers)] + [""]
    for number, (speaker, group) in enumerate(speakers.items()):
        lines.append(f"Speaker sentences{number:4}:  {speaker}   #utts: {len(group)}")
        for utterance in group:
            lines += [*_utterance_lines(utterance, capitals), ""]
    return "\n".join(lines) + "\n"


def _utterance_lines(utterance: AlignedUtterance, capitals: bool) -> Iterator[str]:
    errors = utterance.errors
    correct = errors.length - errors.substitutions - errors.deletions
    yield f"id: ({utterance.speaker}-{utterance.utterance})"
    yield f"Scores: (#C #S #D #I) {correct} {errors.substitutions} {errors.deletions} {errors.insertions}"
    columns = [_column(row, capitals) for row in utterance.rows]
    for name, cells in zip(("REF: ", "HYP: ", "Eval:"), zip(*columns, strict=True), strict=False):
        yield f"{name} {''.join(cells)}"


def _column(row: Pair, capitals: bool) -> list[str]:
    """Return the cells of one word (said, heard, letter of the error), padded to the same width."""
    edit, said, heard = row
    shown = [word.upper() if capitals and edit is not Edit.MATCH else word for word in row[1:] if word]
    if said is None:
        shown.insert(0, "*" * len(shown[0]))
    if heard is None:
        shown.append("*" * len(shown[0]))
    width = max(map(len, shown)) + 1
    return [cell.ljust(width) for cell in (*shown, _LETTERS[edit])]


def format_confusions(confusions: Confusions) -> str:
    """Format the tables of sclite's `dtl` report, most frequent first."""
    pairs = [(f"{said} ==> {heard}", n) for (said, heard), n in most_frequent(confusions.substitutions)]
    tables = {
        "CONFUSION PAIRS": pairs,
        "INSERTIONS": most_frequent(confusions.insertions),
        "DELETIONS": most_frequent(confusions.deletions),
    }
    return "\n\n\n".join(_count_table(title, counts) for title, counts in tables.items())


def _count_table(title: str, counts: Sequence[tuple[str, int]]) -> str:
    lines = [f"{title:<33}Total                 ({len(counts)})", ""]
    lines += [f"{rank:4}:{count:5}  ->  {item}" for rank, (item, count) in enumerate(counts, start=1)]
    return "\n".join([*lines, "     -------", f"{sum(count for _, count in counts):10}"]) + "\n"
