"""N-best lists: hypotheses with the parts of their scores kept apart, as JSON lines in and out.

One line an utterance; `id` and `nbest` have to be there, everything else may be missing:

    {"id": "84-1", "speaker": "84", "session": "84-121", "split": "test", "ref": "hello world",
     "nbest": [{"text": "hello word", "score": -3.1, "acoustic": -2.0, "lm": -9.5, "tokens": [5, 9]}]}

A list is best first by the first pass, whose own total is `score`; every other number of a hypothesis is a
part. Parts are natural logarithms or counts, before any weight, so that a second pass can weigh them anew.
Other recognisers' lists may say `hyps` for `nbest`, `meeting` for `session` and `am` for `acoustic`.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from antiphon.data.transcripts import numbered_lines

# Names of parts that first passes here give. `Hypothesis.parts` may hold others.
ACOUSTIC = "acoustic"  # ln p(tokens | speech), as far as the search has summed it
LM = "lm"  # ln p(words) under the language model of the first pass, end of sentence included
WORDS = "words"  # number of words
LENGTH = "length"  # number of tokens, the end included where the model predicts one
COVERAGE = "coverage"  # how far attention left frames unheard: at most 0

_ALIASES = {"am": ACOUSTIC}
_NOT_PARTS = {"text", "tokens", "score"}


@dataclass(frozen=True)
class Hypothesis:
    """What may have been said, what the first pass gave it, and of which parts that was made.

    >>> Hypothesis("hello word", score=-3.1, parts={"acoustic": -2.0, "lm": -9.5}).total({"lm": 0.5})
    -4.75
    """

    text: str
    tokens: tuple[int, ...] = ()
    score: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict)

    def total(self, weights: Mapping[str, float]) -> float:
        """Parts added up with these weights; a part without a weight does not count."""
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
    """By score; of those that read the same, the best; nothing that cannot be."""
    found: dict[str, Hypothesis] = {}
    for hypothesis in sorted(hypotheses, key=lambda hypothesis: -hypothesis.score):
        if hypothesis.parts[ACOUSTIC] > -math.inf:
            found.setdefault(hypothesis.text, hypothesis)
    return tuple(found.values())


def read_nbest(path: str | Path, depth: int | None = None) -> Iterator[NBest]:
    """Lists of a JSON-lines file, plain or .gz, in its order; of each the first `depth` hypotheses."""
    path = Path(path)
    seen: set[str] = set()
    try:
        for where, line in numbered_lines(path):
            entry = _nbest(_parsed(line, where), where)
            if entry.id in seen:
                raise ValueError(f"{where}: utterance {entry.id!r} has a list already, further up")
            seen.add(entry.id)
            yield replace(entry, hypotheses=entry.hypotheses[:depth])
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is damaged: it cannot be unpacked to its end ({error})") from error


def write_nbest(path: str | Path, lists: Iterable[NBest]) -> None:
    """Writes JSON lines, packed where the name ends in .gz; `read_nbest` gives the same lists again."""
    path = Path(path)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        for entry in lists:
            file.write(json.dumps(_row(entry), ensure_ascii=False, allow_nan=False) + "\n")


def _row(entry: NBest) -> dict[str, Any]:
    about = {
        "id": entry.id,
        "speaker": entry.speaker,
        "session": entry.session,
        "split": entry.split,
        "ref": entry.reference,
    }
    row: dict[str, Any] = {key: value for key, value in about.items() if value is not None}
    row["nbest"] = [
        {
            "text": hypothesis.text,
            "score": hypothesis.score,
            **hypothesis.parts,
            **({"tokens": list(hypothesis.tokens)} if hypothesis.tokens else {}),
        }
        for hypothesis in entry.hypotheses
    ]
    return row


def _parsed(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON ({error}): one object a line is expected") from None
    if not isinstance(row, dict):
        raise ValueError(f'{where}: not an object: a line is {{"id": ..., "nbest": [...]}}')
    return row


def _nbest(row: Mapping[str, Any], where: str) -> NBest:
    listed = row.get("nbest", row.get("hyps"))
    if not isinstance(listed, list) or not listed:
        raise ValueError(f"{where}: no hypotheses: 'nbest' has to be a list with at least one")
    id = _text(row, "id", where)
    if id is None:
        raise ValueError(f"{where}: no field 'id' to tell utterances apart")
    return NBest(
        id,
        tuple(_hypothesis(fields, f"{where}, hypothesis {rank}") for rank, fields in enumerate(listed, 1)),
        reference=_text(row, "ref", where),
        speaker=_text(row, "speaker", where),
        session=_text(row, "session" if "session" in row else "meeting", where),
        split=_text(row, "split", where),
    )


def _hypothesis(given: Any, where: str) -> Hypothesis:
    if not isinstance(given, dict):
        raise ValueError(f"{where}: not an object with 'text' and 'score'")
    fields: dict[str, Any] = given
    text, tokens = fields.get("text"), fields.get("tokens", [])
    if not isinstance(text, str):
        raise ValueError(f"{where}: 'text' is missing or not text")
    if not isinstance(tokens, list) or not all(type(token) is int and token >= 0 for token in tokens):
        raise ValueError(f"{where}: 'tokens' is not a list of token ids")
    parts = {
        _ALIASES.get(name, name): _number(value, name, where)
        for name, value in fields.items()
        if name not in _NOT_PARTS
    }
    return Hypothesis(text, tuple(tokens), _number(fields.get("score"), "score", where), parts)


def _number(value: Any, name: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        found = "is missing" if value is None else f"is {value!r}, not a finite number"
        raise ValueError(f"{where}: {name!r} {found}")
    return float(value)


def _text(row: Mapping[str, Any], key: str, where: str) -> str | None:
    value = row.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{where}: {key!r} is not text")
    return str(value)
