from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from antiphon.data.tokens import (
    Characters,
    CharactersConfig,
    SavedTokensConfig,
    Tokens,
    UnigramConfig,
    load_tokens,
)

ALPHABET = " abcdefghijklmnopqrstuvwxyz'"
TEXTS = ["turn on the kitchen light", "turn off the radio", "what is the time", "set the timer"]


def unigram(size: int = 34, alphabet: str | None = ALPHABET) -> Tokens:
    return UnigramConfig(size).fit(TEXTS, alphabet)


def test_characters_of_the_alphabet_need_no_text() -> None:
    tokens = CharactersConfig().fit([], ALPHABET)
    assert tokens.size == 2 + 28
    assert tokens.encode(" a'") == [2, 4, 3]


def test_without_an_alphabet_the_characters_are_those_of_the_texts_and_the_space() -> None:
    assert CharactersConfig().fit(["baa", "cab"], None) == Characters(" abc")


def test_no_characters_at_all_are_refused() -> None:
    with pytest.raises(ValueError, match="no characters to make tokens of"):
        CharactersConfig().fit([], None)


@pytest.mark.parametrize("tokens", [CharactersConfig().fit([], ALPHABET), unigram()])
class TestEveryKindOfTokens:
    def test_text_of_the_alphabet_survives_a_round_trip(self, tokens: Tokens) -> None:
        for text in (*TEXTS, "", "a", "don't quiz jack", "zzz"):
            assert tokens.decode(tokens.encode(text)) == text

    def test_ids_stay_within_size_and_the_boundary_is_never_encoded(self, tokens: Tokens) -> None:
        ids = [id for text in (*TEXTS, "§ é") for id in tokens.encode(text)]
        assert 1 <= min(ids) <= max(ids) < tokens.size

    def test_the_boundary_is_not_written(self, tokens: Tokens) -> None:
        ids = [part for id in tokens.encode("turn on") for part in (0, id, 0)]
        assert tokens.decode(ids) == "turn on"

    def test_an_unknown_character_is_token_1_and_is_written_so(self, tokens: Tokens) -> None:
        assert 1 in tokens.encode("aé")
        assert tokens.decode(tokens.encode("aé")) == "a⁇"

    def test_tokens_are_the_same_after_saving_and_loading(self, tokens: Tokens, tmp_path: Path) -> None:
        tokens.save(tmp_path / "new" / "tokens")
        assert load_tokens(tmp_path / "new" / "tokens") == tokens

    def test_tokens_travel_to_other_processes(self, tokens: Tokens) -> None:
        tokens.encode("a")
        assert pickle.loads(pickle.dumps(tokens)) == tokens


def test_unigram_has_the_size_asked_for_and_joins_what_occurs_often() -> None:
    tokens = UnigramConfig(32).fit([*TEXTS, *["turn"] * 9], ALPHABET)
    assert tokens.size == 32
    assert len(tokens.encode("turn")) < 4


def test_unigram_training_is_deterministic() -> None:
    assert unigram() == unigram()


def test_characters_of_the_alphabet_that_the_texts_lack_are_known() -> None:
    assert 1 not in unigram().encode("q'z")
    assert 1 in unigram(21, alphabet=None).encode("q'z")


def test_a_size_too_large_for_the_text_is_refused_with_the_largest_that_works() -> None:
    with pytest.raises(ValueError, match="too few different pieces for size=5000: choose at most") as caught:
        unigram(5000)
    largest = int(str(caught.value).split()[-1])
    assert unigram(largest).size == largest


def test_a_size_too_small_for_the_alphabet_is_refused_with_the_smallest_that_works() -> None:
    with pytest.raises(ValueError, match=r"size=10 is too small.*choose at least") as caught:
        unigram(10)
    smallest = int(str(caught.value).split()[-1])
    assert unigram(smallest).size == smallest


def test_unigram_needs_text() -> None:
    with pytest.raises(ValueError, match="no text was given"):
        UnigramConfig(30).fit(["", ""], ALPHABET)


def test_training_says_nothing_of_the_texts(capfd: pytest.CaptureFixture[str]) -> None:
    unigram()
    assert capfd.readouterr() == ("", "")


def test_a_folder_without_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no tokens"):
        load_tokens(tmp_path)


def test_tokens_of_an_unknown_kind_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tokens.json").write_text(json.dumps({"format": "antiphon-tokens/1", "kind": "words"}))
    with pytest.raises(ValueError, match=r"tokens\.json is not of a kind"):
        load_tokens(tmp_path)


@pytest.mark.parametrize("of_a_run", [True, False])
def test_saved_tokens_are_those_of_the_folder_whatever_the_texts(of_a_run: bool, tmp_path: Path) -> None:
    folder = tmp_path / "model" if of_a_run else tmp_path
    unigram().save(folder)
    assert SavedTokensConfig(str(tmp_path)).fit(["zebra"], "xyz") == unigram()
    with pytest.raises(ValueError, match="holds no tokens"):
        SavedTokensConfig(str(tmp_path / "nowhere")).fit([], None)
