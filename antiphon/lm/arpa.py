"""N-gram models in files: ARPA, the common exchange format, and a folder that opens fast.

An ARPA file lists n-grams by order: log10 p, the words, and log10 of the back-off weight. A folder holds the
arrays of `antiphon.lm.ngram` (safetensors) and the words (JSON).
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, TextIO

import numpy as np
from safetensors.numpy import save_file

from antiphon.data.transcripts import is_utf8, numbered_lines
from antiphon.lm.ngram import NEVER, NONE, SPECIAL, START_ID, UNKNOWN, Level, NgramModel, backed_off, walk
from antiphon.records.files import Damaged, replace_text, with_usual_mode, write_json
from antiphon.records.folders import files_in, filled_folder
from antiphon.records.reading import read_as, read_tensors
from antiphon.records.schema import AtLeast, parse_number

FORMAT = "antiphon-ngram/1"
MAIN = "ngram.json"
ADVICE = "Restore the folder, or make the n-gram model again"
LN10 = math.log(10)
CHUNK = 100_000  # n-grams that are formatted at once
MAX_ORDER = 100
ARRAYS_FILE = "ngram.safetensors"
ARRAYS = ("keys", "log_probs", "backoffs")  # of a `Level`


@dataclass(frozen=True)
class NgramFile:
    """ngram.json: the words, and the order of the longest n-grams."""

    format: ClassVar = FORMAT
    what: ClassVar = "n-gram model"
    advice: ClassVar = ADVICE
    order: Annotated[int, AtLeast(1)]
    words: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.words[: len(SPECIAL)] != SPECIAL or self.order > MAX_ORDER:
            raise ValueError(f"the first words are not {', '.join(SPECIAL)}, or the order is too large")


def load_ngram(path: str | Path) -> NgramModel:
    """Open a folder of `save_ngram`, or read an ARPA file, plain or .gz."""
    path = Path(path)
    if path.is_dir():
        body = read_as(NgramFile, path / MAIN)
        return _from_arrays(body, read_tensors(path / ARRAYS_FILE, ADVICE, "np"), path)
    return _assemble(*_read(path), path.name)


def _from_arrays(body: NgramFile, arrays: Mapping[str, np.ndarray], folder: Path) -> NgramModel:
    """Return the model; refuse arrays that do not fit each other or the words, and numbers that are none.

    The arrays were compared with their checksum, if they have one: then the words or the order are wrong.
    """
    names = (MAIN, ARRAYS_FILE) if ARRAYS_FILE in body.files else (ARRAYS_FILE, MAIN)
    levels: list[Level] = []
    for order in range(1, body.order + 1):
        parts = [arrays.get(f"{order}/{name}", np.zeros(0)) for name in ARRAYS]
        keys, *numbers = parts
        limit = (len(levels[-1].keys) if levels else 1) * len(body.words)
        is_sorted = keys.dtype == np.int64 and keys.ndim == 1 and bool((np.diff(keys) > 0).all())
        is_inside = is_sorted and (len(keys) == 0 or 0 <= keys[0] <= keys[-1] < limit)
        fits = all(one.shape == keys.shape and one.dtype == np.float32 for one in numbers)
        if not is_inside or not fits or (order == 1 and len(keys) != limit):
            raise Damaged(
                f"{folder / names[0]} is damaged: it does not fit {names[1]} (order {order}). {ADVICE}"
            )
        if not all(np.isfinite(one).all() for one in numbers):
            path = folder / ARRAYS_FILE
            raise Damaged(f"{path} is damaged (order {order} has numbers that are not finite). {ADVICE}")
        levels.append(Level(*parts))
    return NgramModel(body.words, tuple(levels))


def is_arpa(path: Path) -> bool:
    """Return whether the name is that of an ARPA file; a model with another name is a folder.

    >>> is_arpa(Path("books.arpa.gz")), is_arpa(Path("books"))
    (True, False)
    """
    return path.suffix == ".arpa" or path.suffixes[-2:] == [".arpa", ".gz"]


def save_ngram(model: NgramModel, path: str | Path) -> None:
    """Write ARPA if the name ends in .arpa or .arpa.gz, a folder otherwise."""
    path = Path(path)
    if is_arpa(path):
        replace_text(path, partial(write_arpa, model), level=1)
    else:
        arrays = {
            f"{order}/{name}": np.ascontiguousarray(getattr(level, name))
            for order, level in enumerate(model.levels, 1)
            for name in ARRAYS
        }
        body = {"format": FORMAT, "order": model.order, "words": model.words}
        with filled_folder(path, MAIN) as made:
            with with_usual_mode(made / "ngram.safetensors"):
                save_file(arrays, made / "ngram.safetensors")
            write_json(made / MAIN, body, files_in(made), indent=None)


def write_arpa(model: NgramModel, file: TextIO) -> None:
    file.write("\\data\\\n")
    file.writelines(f"ngram {n}={len(level.keys)}\n" for n, level in enumerate(model.levels, 1))
    for n, level in enumerate(model.levels, 1):
        file.write(f"\n\\{n}-grams:\n")
        rows = model.ngrams(n)
        for start in range(0, len(rows), CHUNK):
            part = slice(start, start + CHUNK)
            log_probs = (level.log_probs[part] / LN10).tolist()
            backoffs = (level.backoffs[part] / LN10).tolist()
            for log_prob, row, backoff in zip(log_probs, rows[part].tolist(), backoffs, strict=True):
                end = "" if n == model.order else f"\t{backoff:.7g}"
                file.write(f"{log_prob:.7g}\t{' '.join(model.words[id] for id in row)}{end}\n")
    file.write("\n\\end\\\n")


@dataclass
class Section:
    """N-grams of one order in the order of the file: all their ids, ln p, ln of the back-off weight."""

    ids: array[int] = field(default_factory=lambda: array("q"))
    log_probs: array[float] = field(default_factory=lambda: array("d"))
    backoffs: array[float] = field(default_factory=lambda: array("d"))


def _read(path: Path) -> tuple[list[str], list[Section]]:
    """The words of an ARPA file, in the order of their ids, and its n-grams."""
    lines = numbered_lines(path)
    if not any(line == "\\data\\" for _, line in lines):
        raise ValueError(f"{path.name}: no line \\data\\: this is not an ARPA file")
    ids = {word: id for id, word in enumerate(SPECIAL)}
    sizes = _read_header(lines, path.name)
    sections = [_read_section(lines, order, size, ids, path.name) for order, size in enumerate(sizes, 1)]
    if not is_utf8("".join(ids)):
        raise ValueError(f"{path} cannot be read to its end as text: it is not UTF-8")
    return list(ids), sections


def _read_header(lines: Iterator[tuple[str, str]], name: str) -> list[int]:
    """The number of n-grams of each order."""
    sizes: list[int] = []
    for where, line in lines:
        if match := re.fullmatch(r"ngram (\d{1,3})\s*=\s*(\d{1,18})", line):
            if int(match[1]) != len(sizes) + 1:
                raise ValueError(f"{where}: order {match[1]} is announced after {len(sizes)}")
            sizes.append(int(match[2]))
        elif line == "\\1-grams:" and sizes:
            return sizes
        else:
            break
    raise ValueError(f"{name}: the header ends without '\\1-grams:'")


def _read_section(
    lines: Iterator[tuple[str, str]], order: int, size: int, ids: dict[str, int], name: str
) -> Section:
    """N-grams up to the title of the next section; unigrams add their words to `ids`."""
    section = Section()
    for where, line in lines:
        if not line.startswith("\\"):
            try:
                _read_ngram(line, order, ids, section)
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
            continue
        if line not in (f"\\{order + 1}-grams:", "\\end\\"):
            raise ValueError(f"{where}: {line!r} after the n-grams of order {order}")
        if len(section.log_probs) != size:
            count = f"{len(section.log_probs):,} n-grams of order {order}"
            raise ValueError(f"{where}: {count}, but the header says {size:,}")
        return section
    raise ValueError(f"{name}: the file ends among the n-grams of order {order}, without \\end\\")


def _read_ngram(line: str, order: int, ids: dict[str, int], section: Section) -> None:
    log_prob, *words = line.split()
    if len(words) not in (order, order + 1):
        raise ValueError(f"a probability, {order} words and perhaps a back-off weight are expected")
    try:
        section.log_probs.append(parse_number(log_prob) * LN10)
        section.backoffs.append(parse_number(words.pop()) * LN10 if len(words) > order else 0.0)
    except ValueError:
        raise ValueError("a probability or a back-off weight is not a finite number") from None
    if order == 1:
        word = UNKNOWN if words[0] == UNKNOWN.upper() else words[0]
        section.ids.append(ids.setdefault(word, len(ids)))
        return
    try:
        section.ids.extend([ids[word] for word in words])
    except KeyError as error:
        raise ValueError(f"the word {error} is not among the unigrams") from None


def _assemble(words: Sequence[str], sections: Sequence[Section], name: str) -> NgramModel:
    """Build the levels. A suffix that was pruned gets the probability that backing off gives it."""
    rows = [np.array(s.ids, dtype=np.int64).reshape(-1, order) for order, s in enumerate(sections, 1)]
    levels = [_level([], sections[0], np.arange(len(words)), rows[0][:, 0], words)]
    levels[0].log_probs[START_ID] = NEVER
    suffixes = [row[:, -1] for row in rows]  # index of each n-gram's suffix of the order reached so far
    for order in range(2, len(sections) + 1):
        keys = [
            suffixes[n - 1] * len(words) + rows[n - 1][:, -order] for n in range(order, len(sections) + 1)
        ]
        unique, inverse = np.unique(np.concatenate(keys), return_inverse=True)
        splits = np.cumsum([len(key) for key in keys])[:-1]
        suffixes[order - 1 :] = np.split(inverse, splits)
        levels.append(_level(levels, sections[order - 1], unique, suffixes[order - 1], words))
    model = NgramModel(tuple(words), tuple(levels))
    for ngrams in rows[1:]:  # an n-gram without its context could not be found
        *_, (_, indices) = walk(levels, len(words), ngrams[:, -2], ngrams[:, -3::-1])
        if (indices == NONE).any():
            ngram = " ".join(words[id] for id in ngrams[np.argmax(indices == NONE)])
            raise ValueError(f"{name}: the n-gram {ngram!r} is there, and its first words are not")
    return model


def _level(
    lower: Sequence[Level], section: Section, keys: np.ndarray, listed: np.ndarray, words: Sequence[str]
) -> Level:
    """N-grams with these keys; those with the indices `listed` are in the section."""
    log_probs, backoffs = np.full(len(keys), np.nan), np.zeros(len(keys))
    log_probs[listed], backoffs[listed] = section.log_probs, section.backoffs
    level = Level(keys, log_probs.astype(np.float32), backoffs.astype(np.float32))
    missing = np.isnan(log_probs)
    if not lower:
        level.log_probs[missing] = NEVER
    elif missing.any():
        ngrams = NgramModel(tuple(words), (*lower, level)).ngrams(len(lower) + 1)[missing].astype(np.int64)
        level.log_probs[missing] = backed_off(lower, len(words), ngrams[:, -2::-1], ngrams[:, -1])
    return level
