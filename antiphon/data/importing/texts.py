"""The form of texts in a corpus: the steps of `ImportOptions.text`, and the check against the alphabet."""

from __future__ import annotations

from antiphon.data.importing.candidates import RefusedError
from antiphon.data.importing.import_options import ImportOptions
from antiphon.data.spelled_numbers import spell_numbers
from antiphon.data.transcripts import is_utf8, strange_characters
from antiphon.scoring.normalisation import APOSTROPHES, Normalisation

# Marks that are read aloud: a text that loses them no longer says what was spoken.
SPOKEN_MARKS = "%&@#§"


class StrangeCharactersError(RefusedError):
    """A text has characters outside the alphabet."""

    def __init__(self, characters: list[str]) -> None:
        super().__init__(f"characters outside the alphabet: {' '.join(map(repr, characters))}")
        self.characters = characters


class TextRewriter:
    """Writes texts in the form that the options ask for.

    >>> TextRewriter(ImportOptions())("“Don’t stop,” she said.")
    ("don't stop she said", ('lower_case', 'strip_punctuation'))
    """

    def __init__(self, options: ImportOptions) -> None:
        self.alphabet = options.characters
        default = ("nfc", "lower_case") if options.lowercase else ("nfc",)
        steps = {*(options.text or default), "collapse_spaces"}  # words are separated by single spaces
        self.spells_digits = "spell_digits" in steps
        gentle = Normalisation.of(steps - {"spell_digits"})
        thorough = Normalisation.of({*gentle.steps, "strip_punctuation"})
        if options.text:
            self.attempts = [gentle]
        elif options.derives_alphabet:
            self.attempts = [thorough]
        else:
            # Texts that the alphabet allows keep their marks, such as the last one of "the boys' room".
            self.attempts = [gentle, thorough]
        self.kept_marks = SPOKEN_MARKS + "".join(set(self.alphabet or "") - APOSTROPHES)

    def __call__(self, text: str) -> tuple[str, tuple[str, ...]]:
        """Return the text as the corpus has it, and the steps that changed it; refuse what cannot be used."""
        if not is_utf8(text):
            raise RefusedError("bad text: it is not UTF-8")
        for normalisation in self.attempts:
            result, changes = self._take(text, normalisation)
            strange = strange_characters(result, self.alphabet)
            if not strange:
                break
        if not result:
            raise RefusedError("empty text: nothing is transcribed")
        if strange:
            raise StrangeCharactersError(strange)
        return result, changes

    def _take(self, text: str, normalisation: Normalisation) -> tuple[str, tuple[str, ...]]:
        changes = []
        if self.spells_digits and (spelled := spell_numbers(text)) != text:
            changes.append("spell_digits")
            text = spelled
        for step, after in normalisation.walk(text, self.kept_marks):
            if after != text:
                changes.append(step)
            text = after
        return text, tuple(changes)
