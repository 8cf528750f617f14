"""Texts for session adaptation on LibriSpeech, and which words of the tested speech they bring.

A session is a chapter of the test split. Its text is the rest of its book, as far as it was read for
LibriSpeech: transcripts of other chapters, and of the same chapter what is not in the corpus. Of a book with
several chapters in the test split the longest is tested, the others are text. The organisation's text is from
novels of other authors. What shares 8 words in a row with a tested utterance is dropped, and counted
(`antiphon.data.session_texts`).
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.data.corpus import Corpus, Utterance
from antiphon.data.session_texts import SessionText
from antiphon.workflows.adaptation_corpus import Texts


def write_texts(
    manifest: Path, corpus: Corpus, novels: Path, folder: Path, num_sentences: int = 4000, seed: int = 0
) -> dict[str, int]:
    """Writes sessions/<chapter>.txt and organisation.txt; returns each session's number of sentences.

    `manifest`: LibriSpeech's, with the fields split, session, book; `novels`: book, tab, sentence, gzipped.
    """
    with open(manifest) as lines:
        sessions = session_sentences([json.loads(line) for line in lines], corpus)
    (folder / "sessions").mkdir(parents=True, exist_ok=True)
    for name, sentences in sessions.items():
        (folder / "sessions" / f"{name}.txt").write_text("".join(f"{one}\n" for one in sentences))
    with gzip.open(novels, "rt") as file:
        lines_of = [line.rstrip("\n").partition("\t")[2] for line in file]
    drawn = np.random.default_rng(seed).permutation(len(lines_of))[:num_sentences]
    (folder / "organisation.txt").write_text(
        "".join(f"{lines_of[place]}\n" for place in sorted(drawn.tolist()))
    )
    return {name: len(sentences) for name, sentences in sessions.items()}


def session_sentences(rows: Iterable[Mapping[str, Any]], corpus: Corpus) -> dict[str, list[str]]:
    """Chapter -> what else was read of its book, for the longest tested chapter of every book."""
    tested: dict[str, set[str]] = defaultdict(set)
    for utterance in corpus.utterances():
        if utterance.split == "test":
            tested[utterance.session].add(utterance.id)
    by_book: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        by_book[row["book"]].append(row)
    sessions = {}
    for read in by_book.values():
        chapters = sorted({row["session"] for row in read} & tested.keys())
        if chapters:
            longest = max(chapters, key=lambda chapter: len(tested[chapter]))
            text = [row["text"] for row in read if row["id"] not in tested[longest]]
            if text:
                sessions[longest] = text
    return sessions


@dataclass(frozen=True)
class NewWords:
    """Words of tested speech, counted as often as they are said, and those that no training transcript has:
    how many, and how many of them the text of their own session has, and the organisation's.
    """

    said: int
    new: int
    in_session: int
    in_organisation: int


def new_words(tested: Iterable[Utterance], texts: Texts) -> NewWords:
    """What adaptation can learn of words alone."""
    own = {text.name: words_of([text]) for text in texts.sessions}
    organisation = words_of(texts.organisation)
    said = [(word, utterance.session) for utterance in tested for word in utterance.text.split()]
    new = [(word, session) for word, session in said if word not in texts.known_words]
    return NewWords(
        len(said),
        len(new),
        sum(word in own.get(session, ()) for word, session in new),
        sum(word in organisation for word, _ in new),
    )


def words_of(texts: Iterable[SessionText]) -> set[str]:
    return {word for text in texts for one in text.sentences for word in one.written.split()}
