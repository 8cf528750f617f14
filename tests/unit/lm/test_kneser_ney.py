from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.lm.arpa import load_ngram
from antiphon.lm.kneser_ney import FALLBACK, discounts, estimate
from antiphon.lm.ngram import END, END_ID, START, START_ID, UNKNOWN, State

LMPLZ = Path(__file__).parents[2] / "fixtures" / "lmplz"
TOY = ["a b", "a b", "a c", "b"]
RANDOM = np.random.default_rng(0)
TEXTS = [" ".join(RANDOM.choice(list("abcdefgh"), size=length, p=np.arange(1, 9) / 36)) for length in
         RANDOM.integers(1, 12, size=300)]  # fmt: skip


class Written:
    """Chen and Goodman's formulas written out with dictionaries: slow, and easy to check by eye."""

    def __init__(self, texts, order, min_counts):
        self.order = order
        sentences = [[START, *text.split(), END] for text in texts]
        self.words = {word for sentence in sentences for word in sentence} | {UNKNOWN}
        self.raw = Counter(
            tuple(sentence[i : i + n])
            for sentence in sentences
            for n in range(1, order + 1)
            for i in range(len(sentence) - n + 1)
        )
        before = defaultdict(set)
        for ngram in self.raw:
            before[ngram[1:]].add(ngram[0])
        self.adjusted = {
            g: c if len(g) == order or g[0] == START else len(before[g]) for g, c in self.raw.items()
        }
        self.adjusted[(START,)] = 0
        self.kept = {g for g, c in self.raw.items() if c >= ([*min_counts] + [1] * 9)[len(g) - 1]}
        self.discounts = {}
        for n in range(1, order + 1):
            counts = np.array([c for g, c in self.adjusted.items() if len(g) == n])
            self.discounts[n] = [0.0, *discounts(counts)]
        self.after = defaultdict(dict)
        for g, c in self.adjusted.items():
            self.after[g[:-1]][g[-1]] = c

    def taken(self, ngram):
        return self.discounts[len(ngram)][min(self.adjusted[ngram], 3)]

    def probability(self, word, history):
        history = tuple(history)[max(0, len(history) - self.order + 1) :]
        seen = self.after[history]
        lower = self.probability(word, history[1:]) if history else 1 / (len(self.words) - 1)
        total = sum(seen.values())
        if total == 0:
            return lower
        ngrams = [(*history, other) for other in seen]
        left = sum(self.taken(g) if g in self.kept or not history else self.adjusted[g] for g in ngrams)
        ngram = (*history, word)
        own = self.adjusted[ngram] - self.taken(ngram) if ngram in self.kept else 0.0
        return own / total + left / total * lower


def scored(model, history, word):
    """p(word | history), walking from state to state."""
    state = model.begin() if history and history[0] == START else State()
    for earlier in history[1:] if history and history[0] == START else history:
        state, _ = model.score_id(state, model.encode(earlier)[0])
    id = END_ID if word == END else model.encode(word)[0]
    return math.exp(model.score_id(state, id)[1])


def test_a_toy_corpus_gives_the_values_worked_out_by_hand():
    model = estimate(TOY, order=2)
    # Adjusted counts of unigrams are the words seen before them: a after {<s>}, b after {a, <s>}, c after
    # {a}, </s> after {b, c}: none has 3, so D falls back to 0.5, 1, 1.5. Of 6 in all, 0.5 + 1 + 0.5 + 1 = 3
    # are taken and spread over a, b, c, </s> and <unk>. Of bigrams 3, 1 and 2 have counts of 1, 2 and 3: D_2
    # would be below zero, and they fall back as well.
    spread = 3 / 6 / 5
    unigram = {"a": 0.5 / 6 + spread, "b": 1 / 6 + spread, "c": 0.5 / 6 + spread, END: 1 / 6 + spread}
    assert math.isclose(scored(model, [], UNKNOWN), spread, rel_tol=1e-6)
    for word, expected in unigram.items():
        assert math.isclose(scored(model, [], word), expected, rel_tol=1e-6)
    # After a: ab 2 and ac 1; 1 + 0.5 of 3 is taken.
    assert math.isclose(scored(model, ["a"], "b"), 1 / 3 + 1.5 / 3 * unigram["b"], rel_tol=1e-6)
    assert math.isclose(scored(model, ["a"], "c"), 0.5 / 3 + 1.5 / 3 * unigram["c"], rel_tol=1e-6)
    assert math.isclose(scored(model, ["a"], "a"), 1.5 / 3 * unigram["a"], rel_tol=1e-6)
    assert math.isclose(scored(model, ["a"], "zebra"), 1.5 / 3 * spread, rel_tol=1e-6)
    # At the start: a 3 and b 1; 1.5 + 0.5 of 4 is taken.
    assert math.isclose(scored(model, [START], "a"), 1.5 / 4 + 2 / 4 * unigram["a"], rel_tol=1e-6)


def test_discounts_are_those_of_chen_and_goodman():
    # Y = 8 / (8 + 2 · 4) = 0.5; D_1 = 1 - 2 Y 4/8, D_2 = 2 - 3 Y 2/4, D_3+ = 3 - 4 Y 1/2
    assert discounts(np.repeat([1, 2, 3, 4, 9], [8, 4, 2, 1, 5])) == (0.5, 1.25, 2.0)


def test_discounts_of_a_tiny_corpus_fall_back():
    assert discounts(np.array([1, 1, 2])) == FALLBACK
    assert discounts(np.repeat([1, 2, 3, 4], [1, 1, 1, 50])) == FALLBACK


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("min_counts", [(), (1, 1, 2), (1, 2, 2, 3, 3)])
def test_probabilities_are_the_formulas_written_out(order, min_counts):
    model = estimate(TEXTS, order, min_counts)
    least = [*min_counts, *[min_counts[-1]] * 5] if min_counts else []
    written = Written(TEXTS, order, least)
    histories = [START, *"ab"], [START], [], list("hgfe"), ["z", "a"], list("abh"), list("hh")
    for history, word in product(histories, [*"abcdefgh", END, UNKNOWN]):
        # A word that was never seen breaks the history; so does one never seen together with the next.
        expected = written.probability(word, [h if h in written.words else UNKNOWN for h in history])
        assert math.isclose(scored(model, history, word), expected, rel_tol=1e-5), (history, word)


@given(
    texts=st.lists(st.lists(st.sampled_from("abcd"), max_size=6).map(" ".join), min_size=1, max_size=12),
    order=st.integers(1, 5),
    history=st.lists(st.sampled_from("abcdz"), max_size=6),
    pruned=st.booleans(),
    from_start=st.booleans(),
)
def test_probabilities_after_any_history_add_up_to_one(texts, order, history, pruned, from_start):
    model = estimate(texts, order, (1, 1, 2) if pruned else ())
    state = model.begin() if from_start else State()
    for word in history:
        state, _ = model.score_id(state, model.encode(word)[0])
    everything = [model.score_id(state, id)[1] for id in range(len(model.words)) if id != START_ID]
    assert math.isclose(sum(map(math.exp, everything)), 1.0, rel_tol=1e-5)


def test_words_outside_a_given_vocabulary_count_as_unknown():
    model = estimate(["a b", *(f"a {word}" for word in "cdefgh")], order=2, vocabulary=["a", "b"])
    assert model.words == (UNKNOWN, START, END, "a", "b")
    assert scored(model, ["a"], "c") == scored(model, ["a"], "never seen") > scored(model, ["a"], "b")


def test_the_start_of_a_sentence_written_in_a_text_is_not_one():
    model = estimate(["a <s> b </s>"], order=3)
    assert scored(model, [START, "a"], UNKNOWN) > scored(model, [START, "a"], "b")
    assert np.isclose(model.score_sentences(["a <s> b"])[0], model.score_sentences(["a zebra b"])[0])


@pytest.mark.parametrize(("order", "least"), [(0, ()), (3, (2,)), (3, (1, 3, 2))])
def test_orders_and_counts_that_make_no_model_are_refused(order, least):
    with pytest.raises(ValueError, match="min_counts"):
        estimate(TOY, order, least)


def test_no_text_is_refused():
    with pytest.raises(ValueError, match="no text"):
        estimate([])


def by_ngram(model):
    """Probability and back-off of every n-gram, by its words."""
    return {
        tuple(model.words[id] for id in row): (float(log_prob), float(backoff))
        for order, level in enumerate(model.levels, 1)
        for row, log_prob, backoff in zip(model.ngrams(order), level.log_probs, level.backoffs, strict=True)
    }


@pytest.mark.parametrize(("name", "order", "least"), [("order3", 3, ()), ("order4_pruned", 4, (1, 1, 2))])
def test_every_number_is_that_of_lmplz(name, order, least):
    # Made by KenLM's lmplz at 4cb443e: -o 3, and -o 4 --prune 0 0 1, both with --discount_fallback.
    theirs = by_ngram(load_ngram(LMPLZ / f"{name}.arpa.gz"))
    ours = by_ngram(estimate((LMPLZ / "text.txt").read_text().splitlines(), order, least))
    assert ours.keys() == theirs.keys()
    assert all(np.allclose(ours[ngram], theirs[ngram], atol=1e-5) for ngram in theirs)
