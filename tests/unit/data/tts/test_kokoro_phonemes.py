from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.data.tts.espeak import TIE, Espeak
from antiphon.data.tts.kokoro_phonemes import NUMBERS, split_phonemes, to_phonemes, translate

SENTENCES = [
    "Hello, world!",
    "The chairman thanked those present; and closed the meeting.",
    "It was decided, after some discussion, to write to the minister again.",
    "She said (a lie) that eight boys joined a church choir",
    "how infinite the wealth of love and hope garnered in these same tiny treasure houses and oh",
    "i've been used to fish but he said to himself as he passed the lodge gates i'll get rich somehow",
]


@pytest.fixture(scope="module")
def espeak() -> Espeak:
    pytest.importorskip("espeakng_loader")
    return Espeak()


# What misaki 0.9.4 gives: EspeakFallback(british).
@pytest.mark.parametrize(
    ("text", "american", "british"),
    [
        ("Hello, world!", "həlˈO, wˈɜɹld!", "həlˈQ, wˈɜːld!"),
        ("little bottle written button", "lˈɪTᵊl bˈɑTᵊl ɹˈɪtn bˈʌtn", "lˈɪtᵊl bˈɒtᵊl ɹˈɪtən bˈʌtən"),
        (
            "I can't believe four boys know it.",
            "I kˈænt bᵻlˈiv fˈɔɹ bˈYz nˈO ɪt.",
            "I kˈɑːnt bɪlˈiːv fˈɔː bˈYz nˈQ ɪt.",
        ),
        ("eight proud judges", "ˈAt pɹˈWd ʤˈʌʤᵻz", "ˈAt pɹˈWd ʤˈʌʤɪz"),
    ],
)
def test_phonemes_are_those_of_misaki(espeak: Espeak, text: str, american: str, british: str) -> None:
    assert to_phonemes(text, espeak, is_british=False) == american
    assert to_phonemes(text, espeak, is_british=True) == british


# us_gold.json and gb_gold.json of misaki, where its EspeakFallback differs; "of the" are two words.
@pytest.mark.parametrize(
    ("text", "is_british", "phonemes"),
    [
        ("chairs", True, "ʧˈɛːz"),
        ("here", True, "hˈɪə"),
        ("during", False, "dˈʊɹɪŋ"),
        ("federated", False, "fˈɛdəɹˌATᵻd"),
        ("the end of the ship", False, "ði ˈɛnd ʌv ðə ʃˈɪp"),
        ("from the start", True, "fɹʌm ðə stˈɑːt"),
        ("my other father", True, "mI ˈʌðə fˈɑːðə"),
        ("lost for a moment", False, "lˈɔst fɔɹ ɐ mˈOmənt"),
        ("good for the ship", True, "ɡˈʊd fɔː ðə ʃˈɪp"),
        ("he was a king of an island", False, "hi wʌz ɐ kˈɪŋ ʌv ɐn ˈIlənd"),
        ("one of a kind", True, "wˈɒn ɒv ɐ kˈInd"),
        ("an ape saw a bird", False, "ɐn ˈAp sˈɔ ɐ bˈɜɹd"),
        ("aloud", False, "əlˈWd"),
        ("I'm sure", False, "ˌIm ʃˈʊɹ"),
    ],
)
def test_phonemes_are_those_of_the_dictionary(
    espeak: Espeak, text: str, is_british: bool, phonemes: str
) -> None:
    assert to_phonemes(text, espeak, is_british) == phonemes


def test_punctuation_stays_and_other_signs_go(espeak: Espeak) -> None:
    text = '«Oh», she said -- [aside] (softly) – "now"…'
    assert to_phonemes(text, espeak, is_british=False) == ('“ˈO”, ʃi sˈɛd — əsˈId (sˈɔftli) — "nˈW"…')
    assert to_phonemes("", espeak, is_british=False) == ""
    assert to_phonemes("...", espeak, is_british=True) == "..."


def test_phonemes_do_not_depend_on_what_was_spoken_before(espeak: Espeak) -> None:
    before = [to_phonemes(text, espeak, is_british=False) for text in SENTENCES]
    espeak.speak("something else", "en-gb-scotland+f3", 200, 70)
    assert [to_phonemes(text, espeak, is_british=False) for text in SENTENCES[::-1]] == before[::-1]


@pytest.mark.parametrize(("own", "other"), [("en-us", "en-us"), ("en", "en-gb")])
def test_espeak_gives_the_phonemes_of_phonemizer(espeak: Espeak, own: str, other: str) -> None:
    """phonemizer (or phonemizer-fork) is another way to the same library."""
    backend = pytest.importorskip("phonemizer.backend")
    wrapper = pytest.importorskip("phonemizer.backend.espeak.wrapper").EspeakWrapper
    wrapper.set_library(espeak._library)
    wrapper.set_data_path(espeak._data)
    oracle = backend.EspeakBackend(other, with_stress=True, tie=True)
    expected = [text.strip() for text in oracle.phonemize(SENTENCES)]
    texts = [oracle._punctuator.remove(text) for text in SENTENCES]
    assert espeak.phonemes(texts, own) == expected


def test_a_phoneme_of_another_language_is_no_flag(espeak: Espeak) -> None:
    assert "(" not in "".join(espeak.phonemes(["Bonjour Zürich, naïve café"], "en-us"))


def test_numbers_are_those_of_the_model() -> None:
    some = {";": 1, "…": 10, '"': 11, " ": 16, "\u0303": 17, "A": 24, "I": 25, "O": 31, "Q": 33, "T": 36}
    more = {"W": 39, "Y": 41, "f": 48, "h": 50, "z": 68, "æ": 72, "ð": 81, "ə": 83, "ɜ": 87, "ɡ": 92}
    last = {"ɪ": 102, "ŋ": 112, "θ": 119, "ɹ": 123, "ʃ": 131, "ʧ": 133, "ʊ": 135, "ʌ": 138, "ʒ": 147}
    for table in (some, more, last, {"ˈ": 156, "ˌ": 157, "ː": 158, "ʰ": 162, "ʲ": 164, "↓": 169, "ᵻ": 177}):
        assert {symbol: NUMBERS[symbol] for symbol in table} == table
    assert len(NUMBERS) == len(set(NUMBERS.values())) == 114


def test_numbers_are_those_of_kokoro_onnx() -> None:
    spec = find_spec("kokoro_onnx")
    if spec is None or spec.origin is None:
        pytest.skip("needs pip install kokoro-onnx")
    config = json.loads((Path(spec.origin).parent / "config.json").read_text(encoding="utf-8"))
    assert config["vocab"] == NUMBERS


def test_every_symbol_of_a_translation_has_a_number(espeak: Espeak) -> None:
    for is_british, accent in ((False, "en-us"), (True, "en")):
        for phonemes in espeak.phonemes(SENTENCES, accent):
            assert set(translate(phonemes, is_british)) <= set(NUMBERS)
            assert TIE not in translate(phonemes, is_british)


# --- Long texts


@pytest.mark.parametrize(
    ("phonemes", "parts"),
    [
        ("aa. bb. cc. dd", ["aa. bb.", "cc. dd"]),
        ("aaaa, bbb cc? d", ["aaaa,", "bbb cc?", "d"]),
        ("aa bbbb cc dddd", ["aa bbbb", "cc dddd"]),
        ("aaaaaaaaaaaaa", ["aaaaaaaaaa", "aaa"]),
        ("“aa!” bb cc dd", ["“aa!”", "bb cc dd"]),
        ("", []),
    ],
)
def test_parts_end_where_a_speaker_pauses(phonemes: str, parts: list[str]) -> None:
    assert split_phonemes(phonemes, limit=10) == parts


@given(st.text(alphabet="ab.,! ", max_size=200).map(lambda text: " ".join(text.split())), st.integers(1, 40))
def test_parts_are_short_enough_and_together_the_whole(phonemes: str, limit: int) -> None:
    parts = split_phonemes(phonemes, limit)
    assert all(0 < len(part) <= limit for part in parts)
    assert "".join(parts).replace(" ", "") == phonemes.replace(" ", "")
