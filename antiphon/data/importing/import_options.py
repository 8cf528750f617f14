"""The user's options of an import."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from antiphon.config import unknown
from antiphon.data.transcripts import ALPHABETS

STEPS = ("nfc", "spell_digits", "lower_case", "strip_punctuation", "collapse_spaces")
ROLES = ("audio", "text", "speaker", "split", "session", "id")
AUTO, ANY = "auto", "any"


@dataclass(frozen=True)
class ImportOptions:
    """Options of an import.

    Args:
        format: The format of the source; by default it is recognised.
        split: The split of utterances whose source names no split.
        splits: New names of splits by their old names, such as dev-clean=heldout.
        split_speakers: Fractions of the speakers for pool, heldout and test, whatever the source says.
        seed: The seed of `split_speakers`.
        where: Take only utterances whose field (split, speaker, session or another) has this value.
        select: A file of lines "id, tab, split": take only these utterances, in these splits.
        text: Steps that change the texts: nfc, spell_digits (English), lower_case, strip_punctuation,
            collapse_spaces. By default nfc, lower_case and collapse_spaces; strip_punctuation too if the text
            has characters outside the alphabet.
        lowercase: Change texts to lower case, unless `text` says what to do.
        alphabet: The characters that texts may have: a language (en, de, es, fr, ...), the characters
            themselves, auto (all that the texts have) or any. Texts with other characters are skipped.
        min_seconds: Skip shorter utterances.
        max_seconds: Skip longer utterances.
        speeds: Add the utterances of the pool also at these speeds (0.9 is slower and lower).
        columns: Columns of a table by what they hold: audio, text, speaker, split, session or id.
        client_key: The field that names the speaker, in formats that have named fields.
        session_key: The field that names the session, in formats that have named fields.
        audio_root: Another folder, besides the source, that may hold audio files.
        pseudonymise: A file with a secret key, which is made if it is missing: names of speakers, sessions
            and utterances are replaced by pseudonyms, and fields that antiphon does not need are left out.
        num_threads: The number of threads that read audio; by default one for each core.
        overwrite: Replace the corpus in the destination.
    """

    format: str | None = None
    split: str = "pool"
    splits: Mapping[str, str] = field(default_factory=dict)
    split_speakers: tuple[float, float, float] | None = None
    seed: int = 0
    where: Mapping[str, str] = field(default_factory=dict)
    select: str | Path | None = None
    text: Sequence[str] = ()
    lowercase: bool = True
    alphabet: str | None = "en"
    min_seconds: float = 0.1
    max_seconds: float = 60.0
    speeds: tuple[float, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    client_key: str = "speaker"
    session_key: str = "session"
    audio_root: str | Path | None = None
    pseudonymise: str | Path | None = None
    num_threads: int | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.min_seconds < self.max_seconds:
            bounds = f"{self.min_seconds:g} and {self.max_seconds:g}"
            raise ValueError(f"--min-seconds must be at least 0 and below --max-seconds, got {bounds}")
        fractions = self.split_speakers
        if fractions and (len(fractions) != 3 or min(fractions) < 0 or not math.isclose(sum(fractions), 1)):
            raise ValueError(f"--split-speakers takes three fractions that add up to 1, got {fractions}")
        if self.select is not None and fractions:
            raise ValueError("--select names the splits: --split-speakers cannot be used with it")
        for role in self.columns:
            if role not in ROLES:
                raise unknown(role, ROLES, "--column", "part")
        self._check_texts()
        if bad := [speed for speed in self.speeds if not 0.5 <= speed <= 2 or speed == 1]:
            raise ValueError(f"--speeds are between 0.5 and 2, and 1 is always included: got {bad[0]:g}")
        if len(set(self.speeds)) < len(self.speeds):
            raise ValueError(f"a speed is given twice: {', '.join(f'{speed:g}' for speed in self.speeds)}")
        if self.num_threads is not None and self.num_threads < 1:
            raise ValueError(f"num_threads must be at least 1, got {self.num_threads}")

    def _check_texts(self) -> None:
        for step in self.text:
            if step not in STEPS:
                raise unknown(step, STEPS, "--text", "step")
        if "lower_case" in self.text and not self.lowercase:
            raise ValueError("--text lower_case cannot be used with --keep-case (in Python: lowercase=False)")
        if self.alphabet == "":
            raise ValueError("--alphabet is empty: 'any' (in Python: alphabet=None) takes every character")
        if self.characters == self.alphabet and re.fullmatch(r"\w{2,3}", self.alphabet or ""):
            languages = ", ".join(ALPHABETS)
            raise ValueError(
                f"--alphabet: no alphabet called {self.alphabet!r}: use one of {languages}, {AUTO} or {ANY}, "
                "or write all characters"
            )
        if "spell_digits" in self.text and self.alphabet in ALPHABETS and self.alphabet != "en":
            raise ValueError(f"--text spell_digits is for English, but the alphabet is {self.alphabet!r}")

    @property
    def characters(self) -> str | None:
        """The characters that texts may have; None if all are allowed or `alphabet` is auto."""
        return None if self.alphabet in (None, AUTO, ANY) else ALPHABETS.get(self.alphabet, self.alphabet)

    @property
    def derives_alphabet(self) -> bool:
        """Whether the alphabet of the corpus is made of the characters of its texts."""
        return self.alphabet == AUTO
