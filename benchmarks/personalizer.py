"""What personalisation adds to a second pass on a device: milliseconds an utterance, and as a ratio.

    python benchmarks/personalizer.py
    python benchmarks/personalizer.py --lm books --nbest lists.jsonl.gz

Without arguments, random words: a trigram model of a vocabulary of 100,000, a client that has said 2,000 of
them, lists of 20 hypotheses that differ in three words. Each list is ranked with the background model alone
and with the adapted one, in turn, so that both see the same moods of the machine; `added` is the median of
differences.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from common import argument_parser, print_table, write_result

from antiphon.decoding.nbest import Hypothesis, NBest, read_nbest
from antiphon.lm.kneser_ney import estimate
from antiphon.lm.neural_lm import load_sentence_model
from antiphon.lm.ngram import SentenceModel
from antiphon.personalisation.device import Personalizer
from antiphon.personalisation.marginal_adaptation import Unigram, estimate_unigram

DEPTH, LENGTH, CHANGED = 20, 12, 3
GOAL = 1.0  # milliseconds
REPEATS = 3


def random_texts(generator: np.random.Generator, words: list[str], number: int) -> list[str]:
    """Sentences of words as frequent as Zipf has it."""
    places = np.minimum(generator.zipf(1.2, (number, LENGTH)) - 1, len(words) - 1)
    return [" ".join(words[place] for place in row) for row in places]


def random_list(generator: np.random.Generator, words: list[str], number: int) -> NBest:
    best = random_texts(generator, words, 1)[0].split()
    hypotheses = []
    for rank in range(DEPTH):
        text = list(best)
        for place in generator.integers(0, LENGTH, CHANGED if rank else 0):
            text[place] = words[int(generator.integers(len(words)))]
        hypotheses.append(Hypothesis(" ".join(text), score=-float(rank)))
    return NBest(str(number), tuple(hypotheses))


def milliseconds(action: Callable[[], Any]) -> float:
    """The shortest of a few times: others use the machine."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        action()
        times.append(1000 * (time.perf_counter() - began))
    return min(times)


def rank_plainly(lm: SentenceModel, entry: NBest) -> NBest:
    """What `Personalizer.rescore` does, without personalisation."""
    log_probs = lm.score_sentences([hypothesis.text for hypothesis in entry.hypotheses])
    scored = [
        replace(h, score=h.score + float(p), parts={**h.parts, "lm": float(p)})
        for h, p in zip(entry.hypotheses, log_probs, strict=True)
    ]
    return replace(entry, hypotheses=tuple(sorted(scored, key=lambda hypothesis: -hypothesis.score)))


def measure(lm: SentenceModel, background: Unigram, lists: list[NBest], num_said: int) -> dict[str, Any]:
    device = Personalizer(lm, background)
    device.receive(background.probabilities[::-1].copy())
    device.observe(NBest("said", (Hypothesis(" ".join(background.words[1 : num_said + 1])),)))
    rank_plainly(lm, lists[0]), device.rescore(lists[0])  # whatever is made once is made now
    plain, adapted, observing = [], [], []
    for entry in lists:
        plain.append(milliseconds(partial(rank_plainly, lm, entry)))
        adapted.append(milliseconds(partial(device.rescore, entry)))
        known = device.marginals
        observing.append(milliseconds(partial(device.observe, entry)))
        device.marginals = known  # the cache stays as large as it was meant to be
    added = [more - less for more, less in zip(adapted, plain, strict=True)]
    words = device.marginals.client_words
    return {
        "vocabulary": background.size,
        "words_said": len(words.ids),
        "cache_bytes": words.ids.nbytes + words.counts.nbytes,
        "hypotheses": statistics.mean(len(entry.hypotheses) for entry in lists),
        "plain_ms": statistics.median(plain),
        "adapted_ms": statistics.median(adapted),
        "added_ms": statistics.median(added),
        "added_ms_95": float(np.quantile(added, 0.95)),
        "observe_ms": statistics.median(observing),
        "ratio": statistics.median(adapted) / statistics.median(plain),
    }


def random_setting(size: int, number: int) -> tuple[SentenceModel, Unigram, list[NBest]]:
    generator = np.random.default_rng(0)
    words = [f"w{place}" for place in range(size)]
    texts = random_texts(generator, words, size // 2)
    lists = [random_list(generator, words, place) for place in range(number)]
    return estimate(texts, order=3), estimate_unigram(texts, words), lists


def real_setting(arguments: argparse.Namespace, number: int) -> tuple[SentenceModel, Unigram, list[NBest]]:
    entries = list(islice(read_nbest(arguments.nbest, DEPTH), number))
    texts = [hypothesis.text for entry in entries for hypothesis in entry.hypotheses]
    return load_sentence_model(arguments.lm), estimate_unigram(texts), entries


def main() -> None:
    parser = argument_parser(__doc__, "personalizer")
    parser.add_argument("--lm", type=Path, help="a model of `antiphon lm`; else one of random words")
    parser.add_argument("--nbest", type=Path, help="lists to be ranked, with --lm")
    arguments = parser.parse_args()
    if (arguments.lm is None) != (arguments.nbest is None):
        parser.error("--lm and --nbest go together")
    number = 20 if arguments.quick else 1000
    options: list[str] = []
    if arguments.lm is not None:
        lm, background, lists = real_setting(arguments, number)
        options = ["--lm", arguments.lm.name, "--nbest", arguments.nbest.name]
    else:
        lm, background, lists = random_setting(1000 if arguments.quick else 100_000, number)
    found = measure(lm, background, lists, num_said=2000)
    print_table(
        ["", "ms"],
        [
            ["ranked with the background model", f"{found['plain_ms']:.3f}"],
            ["ranked with the adapted model", f"{found['adapted_ms']:.3f}"],
            [f"added (goal: below {GOAL:g})", f"{found['added_ms']:.3f}"],
            ["added, 95 % of lists below", f"{found['added_ms_95']:.3f}"],
            ["observing a list", f"{found['observe_ms']:.3f}"],
        ],
    )
    print(f"{found['ratio']:.2f} times the time without; {found['words_said']:,} words in the cache")
    write_result(arguments, {"goal_ms": GOAL, **found}, *options)


if __name__ == "__main__":
    main()
