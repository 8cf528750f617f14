from __future__ import annotations

import gzip
import io
import json
import math

import numpy as np
import pytest

from antiphon.lm.arpa import load_ngram, save_ngram, write_arpa
from antiphon.lm.kneser_ney import estimate
from antiphon.lm.ngram import END, END_ID, NEVER, SPECIAL, Perplexity

LN10 = math.log(10)
# "b b" was pruned, though "a b b" was not.
ARPA = """
\\data\\
ngram 1=5
ngram 2=3
ngram 3=2

\\1-grams:
-1.0\t<unk>
-99\t<s>\t-0.5
-0.75\t</s>
-0.5\ta\t-0.25
-0.625\tb\t-0.125

\\2-grams:
-0.25\t<s> a\t-0.0625
-0.375\ta b\t-0.03125
-0.4375\tb </s>

\\3-grams:
-0.1875\t<s> a b
-0.3125\ta b b

\\end\\
"""
TEXTS = ["the cat sat", "the dog sat on the cat", "a dog", "on the mat the cat sat", "the end"]


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "hand.arpa"
    path.write_text(ARPA)
    return load_ngram(path)


def score_next(model, state, word):
    return model.score_id(state, model.encode(word)[0])


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a b", [-0.25, -0.1875, -0.03125 - 0.4375]),
        ("b", [-0.5 - 0.625, -0.4375]),
        ("a", [-0.25, -0.0625 - 0.25 - 0.75]),
        ("zebra b", [-0.5 - 1.0, -0.625, -0.4375]),
        ("a b b", [-0.25, -0.1875, -0.3125, -0.4375]),
        ("a b b b", [-0.25, -0.1875, -0.3125, -0.125 - 0.625, -0.4375]),
        ("", [-0.5 - 0.75]),
    ],
)
def test_sentences_score_what_their_ngrams_say(written, text, parts):
    assert math.isclose(written.score_sentences([text])[0], sum(parts) * LN10, rel_tol=1e-6)
    state = written.begin()
    for word, expected in zip(text.split(), parts, strict=False):
        state, log_prob = score_next(written, state, word)
        assert math.isclose(log_prob, expected * LN10, rel_tol=1e-6)
    assert math.isclose(written.score_id(state, END_ID)[1], parts[-1] * LN10, rel_tol=1e-6)


def test_states_that_promise_the_same_are_the_same(written):
    after_unknown, _ = score_next(written, written.begin(), "zebra")
    assert after_unknown.words == (0,)
    after_a_b = score_next(written, score_next(written, written.begin(), "b")[0], "b")[0]
    assert len(after_a_b.words) == len(after_a_b.backoffs) <= 2


@pytest.mark.parametrize("name", ["lm.arpa", "lm.arpa.gz", "lm"])
@pytest.mark.parametrize(("order", "least"), [(1, ()), (2, ()), (5, ()), (5, (1, 1, 2))])
def test_a_model_comes_back_as_it_was_saved(tmp_path, name, order, least):
    model = estimate(TEXTS, order, least)
    save_ngram(model, tmp_path / name)
    back = load_ngram(tmp_path / name)
    tries = [*TEXTS, "the zebra sat", "cat the on", ""]
    assert np.allclose(back.score_sentences(tries), model.score_sentences(tries), rtol=0, atol=1e-4)
    assert [len(level.keys) for level in back.levels] == [len(level.keys) for level in model.levels]


def test_an_arpa_file_lists_every_ngram_once():
    file = io.StringIO()
    write_arpa(estimate(["a b", "a"], order=2), file)
    rows = [line.split("\t") for line in file.getvalue().splitlines() if "\t" in line]
    assert [row[1] for row in rows if len(row) == 3] == ["<unk>", "<s>", "</s>", "a", "b"]
    assert sorted(row[1] for row in rows if len(row) == 2) == ["<s> a", "a </s>", "a b", "b </s>"]
    assert "ngram 2=4" in file.getvalue()


def test_one_sentence_at_a_time_and_all_at_once_score_the_same():
    model = estimate(TEXTS, order=4)
    together = model.score_sentences(TEXTS)
    alone = [model.score_sentences([text])[0] for text in TEXTS]
    assert np.allclose(together, alone, atol=1e-9)


def test_perplexity_counts_words_ends_and_unknown_words(written):
    perplexity = written.perplexity(["a b", "zebra b"])
    log10 = (-0.25 - 0.1875 - 0.46875) + (-1.5 - 0.625 - 0.4375)
    assert (perplexity.num_words, perplexity.num_sentences, perplexity.num_unknown) == (4, 2, 1)
    assert math.isclose(perplexity.value, 10 ** (-log10 / 6), rel_tol=1e-6)
    assert Perplexity(6 * math.log(0.25), 4, 2).value == pytest.approx(4.0)


def test_without_a_start_or_unknown_word_in_the_file_they_are_impossible(tmp_path):
    path = tmp_path / "x.arpa"
    path.write_text("\\data\\\nngram 1=2\n\n\\1-grams:\n-0.5\ta\n-0.25\t</s>\n\n\\end\\\n")
    model = load_ngram(path)
    assert math.isclose(score_next(model, model.begin(), "zebra")[1], NEVER, rel_tol=1e-6)
    assert math.isclose(model.score_sentences(["a"])[0], -0.75 * LN10, rel_tol=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\\data\\", "data", "not an ARPA file"),
        ("ngram 2=3", "ngram 2=4", "hand.arpa:19: 3 n-grams of order 2, but the header says 4"),
        ("ngram 2=3", "ngram 3=3", "hand.arpa:4: order 3 is announced after 1"),
        ("-0.5\ta\t-0.25", "high\ta\t-0.25", "hand.arpa:11: a probability or a back-off weight is not"),
        ("-0.375\ta b\t-0.03125", "-0.375\ta", "hand.arpa:16: a probability, 2 words"),
        ("-0.375\ta b\t-0.03125", "-0.375\ta q", "hand.arpa:16: the word 'q' is not among the unigrams"),
        ("-0.25\t<s> a\t-0.0625", "-0.25\t<s> b\t0", "'<s> a b' is there, and its first words are not"),
        ("\\3-grams:", "\\4-grams:", "after the n-grams of order 2"),
        ("\\end\\", "", "without \\end\\"),
    ],
)
def test_a_bad_arpa_file_is_named_with_its_line(tmp_path, old, new, message):
    path = tmp_path / "hand.arpa"
    path.write_text(ARPA.replace(old, new))
    with pytest.raises(ValueError) as error:
        load_ngram(path)
    assert message in str(error.value)


def test_a_packed_file_cut_short_is_named(tmp_path):
    path = tmp_path / "x.arpa.gz"
    path.write_bytes(gzip.compress(ARPA.encode())[:-20])
    with pytest.raises(ValueError, match=r"x\.arpa\.gz"):
        load_ngram(path)


def test_a_folder_that_holds_no_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no n-gram model"):
        load_ngram(tmp_path)
    (tmp_path / "ngram.json").write_text('{"format": "other"}')
    with pytest.raises(ValueError, match="format 'other'"):
        load_ngram(tmp_path)


@pytest.mark.parametrize("edit", [{"order": 4}, {"words": [*SPECIAL, "cat"]}])
def test_words_or_an_order_that_do_not_fit_are_blamed_on_their_own_file(tmp_path, edit):
    save_ngram(estimate(TEXTS, 3), tmp_path / "lm")
    path = tmp_path / "lm" / "ngram.json"
    body = {**json.loads(path.read_text()), **edit}
    del body["sha256"]
    path.write_text(json.dumps(body))
    with pytest.raises(ValueError, match=r"ngram\.json is damaged: it does not fit ngram\.safetensors"):
        load_ngram(tmp_path / "lm")
    del body["files"]  # as older versions wrote it: nobody knows which one is wrong
    path.write_text(json.dumps(body))
    with pytest.raises(ValueError, match=r"ngram\.safetensors is damaged: it does not fit ngram\.json"):
        load_ngram(tmp_path / "lm")


def test_the_end_of_a_sentence_is_not_a_word_of_a_text(written):
    assert END in written.words
    assert written.encode(END)[0] == 0
