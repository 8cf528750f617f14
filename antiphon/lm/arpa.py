"""N-gram models in files: ARPA, which everybody reads, and a folder that opens at once.

An ARPA file lists n-grams by order: log10 p, the words, and log10 of the back-off weight. A folder holds the
arrays of `antiphon.lm.ngram` as they are (safetensors) and the words (JSON).
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import numpy as np
from safetensors.numpy import load_file, save_file

from antiphon.lm.ngram import NEVER, NONE, SPECIAL, START_ID, UNKNOWN, Level, NgramModel, backed_off, walk

FORMAT = "antiphon-ngram/1"
LN10 = math.log(10)
CHUNK = 100_000  # lines that are formatted before they are written


def load_ngram(path: str | Path) -> NgramModel:
    """Opens a folder of `save_ngram`, or reads an ARPA file, plain or .gz."""
    path = Path(path)
    if path.is_dir():
        return _open_folder(path)
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as file:
            return _assemble(_Reader(file, path.name).read(), path.name)
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read to its end as text: {error}") from error


def save_ngram(model: NgramModel, path: str | Path) -> None:
    """Writes ARPA where the name ends in .arpa or .arpa.gz, a folder otherwise."""
    path = Path(path)
    if path.suffix == ".arpa":
        with path.open("w", encoding="utf-8") as file:
            write_arpa(model, file)
    elif path.suffixes[-2:] == [".arpa", ".gz"]:
        with gzip.open(path, "wt", encoding="utf-8", compresslevel=1) as file:
            write_arpa(model, file)
    else:
        _save_folder(model, path)


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
            texts = (" ".join(map(model.words.__getitem__, row)) for row in rows[part].tolist())
            lines = zip(log_probs, texts, backoffs, strict=True)
            if n == model.order:
                file.writelines(f"{log_prob:.7g}\t{text}\n" for log_prob, text, _ in lines)
            else:
                file.writelines(
                    f"{log_prob:.7g}\t{text}\t{backoff:.7g}\n" for log_prob, text, backoff in lines
                )
    file.write("\n\\end\\\n")


@dataclass
class Section:
    """N-grams of one order as they are listed: ids in a row, ln p, ln of the back-off weight."""

    ids: array[int] = field(default_factory=lambda: array("q"))
    log_probs: array[float] = field(default_factory=lambda: array("d"))
    backoffs: array[float] = field(default_factory=lambda: array("d"))


class _Reader:
    """Goes through the lines of an ARPA file once; words get their ids from the unigrams."""

    def __init__(self, file: TextIO, name: str) -> None:
        self.lines, self.name, self.number = file, name, 0
        self.ids = {word: id for id, word in enumerate(SPECIAL)}

    def read(self) -> tuple[list[str], list[Section]]:
        announced = self._header()
        sections = []
        for order, num_ngrams in enumerate(announced, 1):
            section = self._section(order)
            if len(section.log_probs) != num_ngrams:
                found = len(section.log_probs)
                raise self._error(f"{found:,} n-grams of order {order}, but the header says {num_ngrams:,}")
            sections.append(section)
        return list(self.ids), sections

    def _header(self) -> list[int]:
        if not any(line == "\\data\\" for line in self._stripped()):
            raise self._error("no line \\data\\: this is not an ARPA file")
        sizes: list[int] = []
        for line in self._stripped():
            if found := re.fullmatch(r"ngram (\d+)\s*=\s*(\d+)", line):
                if int(found[1]) != len(sizes) + 1:
                    raise self._error(f"order {found[1]} is announced after {len(sizes)}")
                sizes.append(int(found[2]))
            elif line == "\\1-grams:" and sizes:
                return sizes
            elif line:
                break
        raise self._error("the header ends without '\\1-grams:'")

    def _section(self, order: int) -> Section:
        """Everything up to the title of the next section, which is read away."""
        section = Section()
        for line in self._stripped():
            if not line:
                continue
            if line.startswith("\\"):
                if line not in (f"\\{order + 1}-grams:", "\\end\\"):
                    raise self._error(f"{line!r} after the n-grams of order {order}")
                return section
            self._take(line, order, section)
        raise self._error(f"the file ends among the n-grams of order {order}, without \\end\\")

    def _take(self, line: str, order: int, section: Section) -> None:
        log_prob, *rest = line.split()
        if len(rest) not in (order, order + 1):
            raise self._error(f"a probability, {order} words and perhaps a back-off weight are expected")
        try:
            section.log_probs.append(float(log_prob) * LN10)
            section.backoffs.append(float(rest[order]) * LN10 if len(rest) > order else 0.0)
        except ValueError:
            raise self._error("a probability or a back-off weight is not a number") from None
        words = rest[:order]
        if order == 1:
            word = UNKNOWN if words[0] == UNKNOWN.upper() else words[0]
            section.ids.append(self.ids.setdefault(word, len(self.ids)))
            return
        try:
            section.ids.extend([self.ids[word] for word in words])
        except KeyError as error:
            raise self._error(f"the word {error} is not among the unigrams") from None

    def _stripped(self) -> Iterator[str]:
        for line in self.lines:
            self.number += 1
            yield line.strip()

    def _error(self, message: str) -> ValueError:
        return ValueError(f"{self.name}:{self.number}: {message}")


def _assemble(listed: tuple[list[str], list[Section]], name: str) -> NgramModel:
    """Levels from the sections. A suffix that was pruned away comes back with the value it had anyway."""
    words, sections = listed
    rows = [np.array(s.ids, dtype=np.int64).reshape(-1, order) for order, s in enumerate(sections, 1)]
    levels = [_unigrams(sections[0], len(words))]
    places = [row[:, -1] for row in rows]  # of the suffix, of the order reached so far, of every n-gram
    for order in range(2, len(sections) + 1):
        keys = [places[n - 1] * len(words) + rows[n - 1][:, -order] for n in range(order, len(sections) + 1)]
        different, inverse = np.unique(np.concatenate(keys), return_inverse=True)
        splits = np.cumsum([len(key) for key in keys])[:-1]
        places[order - 1 :] = np.split(inverse, splits)
        levels.append(_level(levels, sections[order - 1], different, places[order - 1], words))
    model = NgramModel(tuple(words), tuple(levels))
    for order in range(2, len(levels) + 1):
        _check_contexts(model, rows[order - 1], name)
    return model


def _unigrams(section: Section, num_words: int) -> Level:
    log_probs = np.full(num_words, NEVER, dtype=np.float32)
    backoffs = np.zeros(num_words, dtype=np.float32)
    listed = np.array(section.ids)
    log_probs[listed], backoffs[listed] = section.log_probs, section.backoffs
    log_probs[START_ID] = NEVER
    return Level(np.arange(num_words), log_probs, backoffs)


def _level(
    lower: Sequence[Level], section: Section, keys: np.ndarray, places: np.ndarray, words: Sequence[str]
) -> Level:
    """N-grams with these keys, of which those at `places` are listed in the section."""
    log_probs = np.full(len(keys), np.nan)
    log_probs[places] = section.log_probs
    backoffs = np.zeros(len(keys))
    backoffs[places] = section.backoffs
    level = Level(keys, log_probs.astype(np.float32), backoffs.astype(np.float32))
    missing = np.isnan(log_probs)
    if missing.any():
        ngrams = NgramModel(tuple(words), (*lower, level)).ngrams(len(lower) + 1)[missing].astype(np.int64)
        level.log_probs[missing] = backed_off(lower, len(words), ngrams[:, -2::-1], ngrams[:, -1])
    return level


def _check_contexts(model: NgramModel, rows: np.ndarray, name: str) -> None:
    """A context that is missing would be forgotten on the way to its n-gram."""
    *_, (_, places) = walk(model.levels, len(model.words), rows[:, -2], rows[:, -3::-1])
    if (places == NONE).any():
        ngram = " ".join(model.words[id] for id in rows[np.argmax(places == NONE)])
        raise ValueError(f"{name}: the n-gram {ngram!r} is there, and its first words are not")


def _save_folder(model: NgramModel, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {
        f"{order}/{name}": np.ascontiguousarray(getattr(level, name))
        for order, level in enumerate(model.levels, 1)
        for name in ("keys", "log_probs", "backoffs")
    }
    save_file(arrays, folder / "ngram.safetensors")
    body = {"format": FORMAT, "order": model.order, "words": model.words}
    (folder / "ngram.json").write_text(json.dumps(body, ensure_ascii=False), encoding="utf-8")


def _open_folder(folder: Path) -> NgramModel:
    try:
        body = json.loads((folder / "ngram.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} holds no n-gram model (cannot read ngram.json: {error})") from error
    if body.get("format") != FORMAT:
        raise ValueError(f"{folder / 'ngram.json'} has format {body.get('format')!r}, not {FORMAT!r}")
    arrays = load_file(folder / "ngram.safetensors")
    names = ("keys", "log_probs", "backoffs")
    levels = [Level(*(arrays[f"{order}/{name}"] for name in names)) for order in range(1, body["order"] + 1)]
    return NgramModel(tuple(body["words"]), tuple(levels))
