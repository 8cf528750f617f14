"""Pseudonyms in place of the names of speakers, sessions and utterances.

A pseudonym is the beginning of HMAC-SHA256(key, name) in hexadecimal digits. The same name has the same
pseudonym in every corpus that is imported with the same key. Without the key, nobody can find the name to a
pseudonym, or test a guess.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from antiphon.data.importing.candidates import Candidate, Skipped
from antiphon.records.key_file import make_key, read_key

NUM_DIGITS = 20  # 80 bits: of ten million names, two share a pseudonym with a probability of 4e-11


@dataclass(frozen=True)
class Pseudonyms:
    """Makes pseudonyms of names.

    >>> Pseudonyms(bytes(32))("ada")
    'f511103a4f5f11256c03'
    """

    key: bytes

    @classmethod
    def open(cls, path: Path) -> Pseudonyms:
        """Use the key in a file; make the file if there is none."""
        make_key(path)
        return cls(read_key(path, "key of pseudonyms", "choose another file"))

    def __call__(self, name: str) -> str:
        return hmac.new(self.key, name.encode(), hashlib.sha256).hexdigest()[:NUM_DIGITS]

    def hide(self, candidate: Candidate) -> Candidate:
        """Return an utterance with pseudonyms, and without the fields that antiphon does not need."""
        id, speaker, session = map(self, (candidate.id, candidate.speaker, candidate.session))
        return replace(candidate, id=id, speaker=speaker, session=session, extra={})

    def hide_ids(self, by_id: Mapping[str, Any]) -> dict[str, Any]:
        return {self(id): value for id, value in by_id.items()}


def hidden(skipped: Skipped) -> Skipped:
    """Return a skipped utterance without names: only the kind of its fault is left."""
    return Skipped("", "", skipped.kind)


def check_key_place(key: Path, destination: Path) -> None:
    """Refuse a key in the folder of the corpus: whoever gets the corpus would get the key."""
    if key.resolve().is_relative_to(destination.resolve()):
        raise ValueError(f"the key {key} must not be in the corpus {destination}: keep it somewhere private")
