"""Who was taken for whom: utterances aligned word by word, as a listing and as tables of confusions.

The look is that of NIST sclite's `pra` and `dtl` reports. The alignment is `error_rate`'s, every edit at a
cost of 1, so that the counts here are those of the error rate. sclite's own costs are 4 for a substitution
and 3 for a deletion or insertion: it may split the same errors otherwise, and now and then count one more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from antiphon.scoring.error_rate import Edit, Errors, alignment

Item = TypeVar("Item", str, tuple[str, str])
Row = tuple[Edit, str | None, str | None]  # what happened, the word said, the word heard

_LETTERS = {Edit.MATCH: "", Edit.SUBSTITUTION: "S", Edit.DELETION: "D", Edit.INSERTION: "I"}


@dataclass(frozen=True)
class Aligned:
    """One utterance, word for word."""

    speaker: str
    utterance: str
    rows: Sequence[Row]

    @property
    def errors(self) -> Errors:
        length = sum(said is not None for _, said, _ in self.rows)
        return Errors.count((edit for edit, _, _ in self.rows), length)


@dataclass(frozen=True)
class Confusions:
    """How often each word was taken for another, was missed, or was heard where nobody said it."""

    substitutions: Counter[tuple[str, str]]  # (said, heard)
    deletions: Counter[str]
    insertions: Counter[str]


def align_words(speaker: str, utterance: str, reference: str, hypothesis: str) -> Aligned:
    return Aligned(speaker, utterance, alignment(reference.split(), hypothesis.split()))


def find_confusions(utterances: Iterable[Aligned]) -> Confusions:
    """
    >>> found = find_confusions([align_words("a", "1", "the cat sat", "a cat sat down")])
    >>> dict(found.substitutions), dict(found.deletions), dict(found.insertions)
    ({('the', 'a'): 1}, {}, {'down': 1})
    """
    found = Confusions(Counter(), Counter(), Counter())
    for utterance in utterances:
        for _, said, heard in utterance.rows:
            if said is None:
                assert heard is not None
                found.insertions[heard] += 1
            elif heard is None:
                found.deletions[said] += 1
            elif said != heard:
                found.substitutions[said, heard] += 1
    return found


def most_frequent(counts: Counter[Item]) -> list[tuple[Item, int]]:
    """
    >>> most_frequent(Counter("abcbc"))
    [('b', 2), ('c', 2), ('a', 1)]
    """
    return sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))


def format_alignments(title: str, utterances: Sequence[Aligned]) -> str:
    """Every utterance with its words under one another, as sclite's `pra` report; speaker after speaker."""
    speakers: dict[str, list[Aligned]] = {}
    for utterance in utterances:
        speakers.setdefault(utterance.speaker, []).append(utterance)
    # Errors are in capitals, as sclite has them, unless capitals are part of the spelling.
    words = (word for utterance in utterances for row in utterance.rows for word in row[1:])
    capitals = all(word is None or word == word.lower() for word in words)
    lines = [
        "",
        "",
        "\t\tDUMP OF SYSTEM ALIGNMENT STRUCTURE",
        "",
        f"System name:   {title}",
        "",
        "Speakers: ",
    ]
    lines += [f"{number:5}:  {speaker}" for number, speaker in enumerate(speakers)] + [""]
    for number, (speaker, own) in enumerate(speakers.items()):
        lines.append(f"Speaker sentences{number:4}:  {speaker}   #utts: {len(own)}")
        for utterance in own:
            lines += [*_utterance_lines(utterance, capitals), ""]
    return "\n".join(lines) + "\n"


def _utterance_lines(utterance: Aligned, capitals: bool) -> Iterator[str]:
    errors = utterance.errors
    correct = errors.length - errors.substitutions - errors.deletions
    yield f"id: ({utterance.speaker}-{utterance.utterance})"
    yield (f"Scores: (#C #S #D #I) {correct} {errors.substitutions} {errors.deletions} {errors.insertions}")
    if not utterance.rows:
        return
    columns = [_column(row, capitals) for row in utterance.rows]
    for name, cells in zip(("REF: ", "HYP: ", "Eval:"), zip(*columns, strict=True), strict=True):
        yield f"{name} {''.join(cells)}"


def _column(row: Row, capitals: bool) -> list[str]:
    """The cells of one word, each as wide as the widest and a space: said, heard, letter of the error."""
    edit, said, heard = row
    shown = [word.upper() if capitals and edit is not Edit.MATCH else word for word in row[1:] if word]
    if said is None:
        shown.insert(0, "*" * len(shown[0]))
    if heard is None:
        shown.append("*" * len(shown[0]))
    width = max(map(len, shown)) + 1
    return [cell.ljust(width) for cell in (*shown, _LETTERS[edit])]


def format_confusions(confusions: Confusions) -> str:
    """Most frequent first, as in sclite's `dtl` report."""
    pairs = [(f"{said} ==> {heard}", n) for (said, heard), n in most_frequent(confusions.substitutions)]
    tables = (
        ("CONFUSION PAIRS", pairs),
        ("INSERTIONS", most_frequent(confusions.insertions)),
        ("DELETIONS", most_frequent(confusions.deletions)),
    )
    return "\n\n\n".join(_count_table(title, counts) for title, counts in tables)


def _count_table(title: str, counts: Sequence[tuple[str, int]]) -> str:
    lines = [f"{title:<33}Total                 ({len(counts)})", ""]
    lines += [f"{place:4}:{count:5}  ->  {what}" for place, (what, count) in enumerate(counts, start=1)]
    return "\n".join([*lines, "     -------", f"{sum(count for _, count in counts):10}"]) + "\n"
