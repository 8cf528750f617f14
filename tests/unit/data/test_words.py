from __future__ import annotations

import pytest

from antiphon.data.tokens import Words, WordsConfig, load_words


def test_the_most_frequent_words_are_kept():
    words = WordsConfig(size=4).fit(["b a", "a c b", "a"], None)
    assert words.vocabulary == ("a", "b")
    assert words.size == 4
    assert words.encode("a zebra b") == [2, 1, 3]
    assert words.decode([0, 2, 1, 3, 0]) == "a ⁇ b"


def test_words_come_back_as_they_were_saved(tmp_path):
    words = Words(("naïve", "go"))
    words.save(tmp_path / "new")
    assert load_words(tmp_path / "new") == words


def test_what_is_no_vocabulary_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no words"):
        load_words(tmp_path)
    (tmp_path / "words.json").write_text('{"format": "other"}')
    with pytest.raises(ValueError, match="format 'other'"):
        load_words(tmp_path)
    with pytest.raises(ValueError, match="no words"):
        WordsConfig().fit(["", " "], None)
