"""N-best lists: hypotheses with the parts of their scores, as JSON lines in and out.

One line per utterance; `id` and `nbest` are required, everything else may be missing:

    {"id": "84-1", "speaker": "84", "session": "84-121", "split": "test", "ref": "hello world",
     "nbest": [{"text": "hello word", "score": -3.1, "acoustic": -2.0, "lm": -9.5, "tokens": [5, 9]}]}

A list is best first by the first pass, whose total is `score`; every other number of a hypothesis is a part.
Parts are natural logarithms or counts, before any weight, so that a second pass can choose new weights.
Lists of other recognisers may use `hyps` for `nbest`, `meeting` for `session` and `am` for `acoustic`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from antiphon.data.transcripts import numbered_lines
from antiphon.records.files import replace_text
from antiphon.records.reading import parse_json
from antiphon.records.schema import finite, shown

# Names of parts in our own lists. `Hypothesis.parts` may hold others.
ACOUSTIC = "acoustic"  # ln p(tokens | speech), over the alignments that the search found
LM = "lm"  # ln p(words) under the language model of the first pass, end of sentence included
WORDS = "words"  # number of words
LENGTH = "length"  # number of tokens, the end included where the model predicts one
COVERAGE = "coverage"  # at most 0; lower if attention missed more frames

_FIELDS = {"id": "id", "speaker": "speaker", "session": "session", "split": "split", "ref": "reference"}
_ALIASES = {"am": ACOUSTIC}
MAX_TOKEN = 2**31 - 1
_NOT_PARTS = {"text", "tokens", "score"}


@dataclass(frozen=True)
class Hypothesis:
    """A possible transcript, its score in the first pass, and the parts of that score.

    >>> Hypothesis("hello word", score=-3.1, parts={"acoustic": -2.0, "lm": -9.5}).total({"lm": 0.5})
    -4.75
    """

    text: str
    tokens: tuple[int, ...] = ()
    score: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict)

    def total(self, weights: Mapping[str, float]) -> float:
        """The weighted sum of the parts; a part without a weight does not count."""
        return sum(weight * self.parts[name] for name, weight in weights.items())


@dataclass(frozen=True)
class NBest:
    """The hypotheses of one utterance, best first by the first pass."""

    id: str
    hypotheses: tuple[Hypothesis, ...]
    reference: str | None = None
    speaker: str | None = None
    session: str | None = None
    split: str | None = None


def best_first(hypotheses: Iterable[Hypothesis]) -> tuple[Hypothesis, ...]:
    """Sort by score; keep the best of equal texts, and none that is impossible."""
    by_text: dict[str, Hypothesis] = {}
    for hypothesis in sorted(hypotheses, key=lambda hypothesis: -hypothesis.score):
        if hypothesis.parts[ACOUSTIC] > -math.inf:
            by_text.setdefault(hypothesis.text, hypothesis)
    return tuple(by_text.values())


def read_nbest(path: str | Path, depth: int | None = None) -> Iterator[NBest]:
    """Read the lists of a JSON-lines file, plain or .gz, with the first `depth` hypotheses of each."""
    path = Path(path)
    seen: set[str] = set()
    for where, line in numbered_lines(path):
        entry = _nbest(line, where)
        if entry.id in seen:
            raise ValueError(f"{where}: utterance {entry.id!r} has a list already, further up")
        seen.add(entry.id)
        yield replace(entry, hypotheses=entry.hypotheses[:depth])


def write_nbest(path: str | Path, lists: Iterable[NBest]) -> None:
    """Write JSON lines, compressed if the name ends in .gz; `read_nbest` reads them."""

    def write(file: TextIO) -> None:
        for entry in lists:
            about = {key: getattr(entry, name) for key, name in _FIELDS.items()}
            row = {key: value for key, value in about.items() if value is not None}
            row["nbest"] = [
                {"text": h.text, "score": h.score, **h.parts, **({"tokens": h.tokens} if h.tokens else {})}
                for h in entry.hypotheses
            ]
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")

    replace_text(Path(path), write, is_private=True)


def _nbest(line: str, where: str) -> NBest:
    try:
        row = parse_json(line, is_finite=False)
    except ValueError as error:
        raise ValueError(f"{where}: not JSON ({error}): one object per line is expected") from None
    if not isinstance(row, dict):
        raise ValueError(f'{where}: not an object: a line is {{"id": ..., "nbest": [...]}}')
    listed = row.get("nbest", row.get("hyps"))
    if not isinstance(listed, list) or not listed:
        raise ValueError(f"{where}: no hypotheses: 'nbest' has to be a list with at least one")
    row = {"session": row.get("meeting"), **row}
    about: dict[str, Any] = {name: _text(row, key, where) for key, name in _FIELDS.items()}
    if about["id"] is None:
        raise ValueError(f"{where}: no field 'id' to tell utterances apart")
    hypotheses = [_hypothesis(fields, f"{where}, hypothesis {rank}") for rank, fields in enumerate(listed, 1)]
    return NBest(hypotheses=tuple(hypotheses), **about)


def _hypothesis(fields: dict[str, Any] | Any, where: str) -> Hypothesis:
    if not isinstance(fields, dict):
        raise ValueError(f"{where}: not an object with 'text' and 'score'")
    text, tokens = fields.get("text"), fields.get("tokens", [])
    if not isinstance(text, str):
        raise ValueError(f"{where}: 'text' is missing or not text")
    if not isinstance(tokens, list) or not all(
        type(token) is int and 0 <= token <= MAX_TOKEN for token in tokens
    ):
        raise ValueError(f"{where}: 'tokens' is not a list of token ids")
    parts = {
        _ALIASES.get(name, name): _number(value, name, where)
        for name, value in fields.items()
        if name not in _NOT_PARTS
    }
    return Hypothesis(text, tuple(tokens), _number(fields.get("score"), "score", where), parts)


def _number(value: Any, name: str, where: str) -> float:
    try:
        return finite(value)
    except ValueError:
        problem = "is missing" if value is None else f"is {shown(value)}, not a finite number"
        raise ValueError(f"{where}: {name!r} {problem}") from None


def _text(row: Mapping[str, Any], key: str, where: str) -> str | None:
    value = row.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{where}: {key!r} is not text")
    return str(value)
