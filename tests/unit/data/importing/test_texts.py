"""The form of imported texts: punctuation, digits, case, alphabets, and what is said about them."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from sources import Source

from antiphon.data.corpus import Corpus
from antiphon.data.importing.candidates import RefusedError
from antiphon.data.importing.conversion import ImportOptions, ImportSummary
from antiphon.data.importing.texts import TextRewriter
from antiphon.data.tokens import CharactersConfig
from antiphon.data.transcripts import ALPHABETS

Run = Callable[..., ImportSummary]


def written(sentence: str, **options: Any) -> str:
    return TextRewriter(ImportOptions(**options))(sentence)[0]


def test_by_default_a_text_with_punctuation_is_kept_without_it() -> None:
    assert written("“Don’t stop,” she said – twenty-one!") == "don't stop she said twenty one"
    assert written("'Go,' he said: the boys' room.") == "go he said the boys room"


def test_a_text_that_the_alphabet_allows_keeps_its_marks() -> None:
    assert written("'TIS THE BOYS' ROOM") == "'tis the boys' room"
    assert written("Orang-utan, ya!", alphabet="abcdefghijklmnopqrstuvwxyz- ") == "orang-utan ya"


def test_marks_that_are_spoken_are_not_dropped() -> None:
    for mark in "%&@#$+":
        with pytest.raises(RefusedError, match="outside the alphabet"):
            written(f"rock {mark} roll.")


def test_any_character_is_kept_with_any_unless_steps_are_named() -> None:
    for alphabet in (None, "any"):
        assert written("Ja, 12!", alphabet=alphabet, lowercase=False) == "Ja, 12!"
        assert written("Ja, 12!", alphabet=alphabet, text=["strip_punctuation"]) == "Ja 12"


def test_named_steps_are_the_only_ones_but_words_have_single_spaces() -> None:
    assert written(" A  B ", text=["nfc"], alphabet="AB ") == "A B"
    decomposed = unicodedata.normalize("NFD", "é")
    assert written(decomposed, text=["lower_case"], alphabet="any") == decomposed
    assert written(decomposed, text=["nfc"], alphabet="any") == "é"
    with pytest.raises(RefusedError, match="outside the alphabet: '!'"):
        written("stop!", text=["lower_case"])


def test_digits_are_spelled_before_punctuation_goes() -> None:
    steps = ["nfc", "spell_digits", "lower_case", "strip_punctuation"]
    assert written("It cost 1,250. On the 21st!", text=steps) == (
        "it cost one thousand two hundred fifty on the twenty first"
    )
    with pytest.raises(RefusedError, match="outside the alphabet: '0' '1' '9'"):
        written("the 1990s", text=steps)


def test_only_punctuation_is_an_empty_text() -> None:
    with pytest.raises(RefusedError, match="empty text"):
        written("...")


@pytest.mark.parametrize("language", sorted(ALPHABETS))
def test_an_alphabet_is_what_the_default_steps_leave(language: str) -> None:
    letters = ALPHABETS[language]
    assert len(set(letters)) == len(letters)
    assert letters == unicodedata.normalize("NFC", letters.lower())
    sentence = f"a{letters}a" if "a" in letters else f"а{letters}а" if "а" in letters else letters
    assert set(written(sentence.upper().replace("SS", "ß"), alphabet=language)) <= set(letters)


def test_languages() -> None:
    assert written("Zwölf Boxkämpfer, groß!", alphabet="de") == "zwölf boxkämpfer groß"
    assert written("L’été, ça va ?", alphabet="fr") == "l'été ça va"
    assert written("¿Qué? ¡Año!", alphabet="es") == "qué año"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": ["strip"]}, "unknown step 'strip'.*strip_punctuation"),
        ({"text": ["lower_case"], "lowercase": False}, "--keep-case"),
        ({"alphabet": "xx"}, "no alphabet called 'xx': use one of en, .*auto or any"),
        ({"alphabet": "de", "text": ["spell_digits"]}, "for English, but the alphabet is 'de'"),
        ({"columns": {"speeker": "x"}}, "unknown part 'speeker'.*did you mean 'speaker'"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImportOptions(**options)


def test_what_was_changed_is_counted_in_the_summary_and_in_the_corpus(source: Source, run: Run) -> None:
    source.add("b", text="Go, 2 of you!").add("c", text="GO").add("d", text="Look: fine.").add(
        "bad", b"", text="A!"
    )
    summary = run(text=["spell_digits", "strip_punctuation", "lower_case"], speeds=(0.9,))
    assert summary.num_texts_changed == {"spell_digits": 1, "lower_case": 3, "strip_punctuation": 2}
    about = json.loads((summary.path / "corpus.json").read_text())
    assert about["num_texts_changed"] == summary.num_texts_changed
    assert about["alphabet"] == ALPHABETS["en"]
    assert about["rare_characters"] == {}
    texts = {u.id: u.text for u in Corpus.open(summary.path).utterances()}
    assert (texts["b"], texts["c"], texts["d"]) == ("go two of you", "go", "look fine")


def test_an_alphabet_made_of_the_texts_names_the_rare_characters(source: Source, run: Run) -> None:
    for number in range(5):
        source.add(f"u{number}", text="Ärger, immer Ärger!")
    source.add("typo", text="emø").add("unreadable", b"", text="жук")
    summary = run(alphabet="auto")
    corpus = Corpus.open(summary.path)
    assert corpus.alphabet == "".join(sorted(set("some words ärger immer emø")))
    assert summary.rare_characters == {"d": 1, "w": 1, "ø": 1, "o": 2, "s": 2}
    assert (
        json.loads((summary.path / "corpus.json").read_text())["rare_characters"] == summary.rare_characters
    )
    assert "ä" in CharactersConfig().fit([], corpus.alphabet).characters


def test_skipped_texts_are_counted_by_the_characters_that_they_have(source: Source, run: Run) -> None:
    source.add("b", text="zwölf").add("c", text="öfter 1")
    assert run().strange_characters == {"ö": 2, "1": 1}
