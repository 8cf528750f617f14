"""Beam search for CTC: the utterances of a batch together, against one utterance after another.

    python benchmarks/beam.py

Sixteen utterances of random words, as posteriors of characters with noise, 41.7 frames a second. Both ways
take turns; their lists must be equal. Seconds are those of the processor, one thread; ratios are medians.
"Times real time" is what the batch reaches on one core.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from common import TOKENS, parse_arguments, print_table, write_result

from antiphon.decoding.beams.ctc_beam import CtcBeam
from antiphon.decoding.beams.prefixes import speller_for
from antiphon.decoding.fusion import Fusion
from antiphon.decoding.nbest import Hypothesis
from antiphon.lm.kneser_ney import estimate

FRAMES_PER_SECOND, CHARACTERS_PER_SECOND = 41.7, 14
Lists = Sequence[tuple[Hypothesis, ...]]


@dataclass(frozen=True)
class Size:
    """How much is done."""

    num_words: int = 5_000
    num_sentences: int = 2_000
    words_per_sentence: int = 18
    batch: int = 16
    widths: tuple[int, ...] = (8, 16, 64)
    turns: int = 9


QUICK = Size(50, 40, 4, 3, (4,), 2)


def sentences(size: Size, random: np.random.Generator) -> list[str]:
    """Return sentences of made-up words, few of them frequent."""
    letters = list(TOKENS.characters[1:27])
    words = ["".join(random.choice(letters, random.integers(2, 9))) for _ in range(size.num_words)]
    share = 1 / np.arange(1, size.num_words + 1)
    drawn = random.choice(words, (size.num_sentences, size.words_per_sentence), p=share / share.sum())
    return [" ".join(row) for row in drawn]


def posteriors(texts: Sequence[str], random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return ln p of tokens [B, T, num_tokens], each of a text in a frame of its own, and lengths [B]."""
    lengths = np.array([round(len(text) / CHARACTERS_PER_SECOND * FRAMES_PER_SECOND) for text in texts])
    logits = 2 * random.standard_normal((len(texts), max(lengths), TOKENS.size))
    for row, (text, length) in enumerate(zip(texts, lengths, strict=True)):
        path = np.zeros(length, dtype=np.int64)
        path[np.sort(random.choice(length, len(text), replace=False))] = TOKENS.encode(text)
        logits[row, np.arange(length), path] += 7
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True), lengths


def measure(size: Size, log_probs: np.ndarray, lengths: np.ndarray, beam: CtcBeam) -> dict[str, Any]:
    """Search both ways in turn."""

    def search(parts: Sequence[slice]) -> tuple[float, Lists]:
        began = time.process_time()
        lists = [
            found
            for part in parts
            for found in beam.read(log_probs[part], lengths[part], TOKENS, speller_for(beam.fusion, TOKENS))
        ]
        return time.process_time() - began, lists

    ways = {"together": [slice(None)], "alone": [slice(row, row + 1) for row in range(size.batch)]}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(size.turns):
        lists = {}
        for name in sorted(ways, reverse=bool(turn % 2)):
            taken, lists[name] = search(ways[name])
            seconds[name].append(taken)
        tokens = {name: [[h.tokens for h in found] for found in both] for name, both in lists.items()}
        if tokens["together"] != tokens["alone"]:
            raise AssertionError("both ways must find the same lists")
    ratios = [alone / together for together, alone in zip(*seconds.values(), strict=True)]
    return {
        "width": beam.width,
        "language_model": beam.fusion is not None,
        "ratio": statistics.median(ratios),
        "quartiles": statistics.quantiles(ratios)[::2],
        "times_real_time": float(lengths.sum()) / FRAMES_PER_SECOND / statistics.median(seconds["together"]),
    }


def main() -> None:
    arguments = parse_arguments(__doc__, "beam")
    size, random = QUICK if arguments.quick else Size(), np.random.default_rng(0)
    texts = sentences(size, random)
    log_probs, lengths = posteriors(texts[: size.batch], random)
    model = estimate(texts, order=3)
    beams = [
        CtcBeam(width, fusion=fusion) for fusion in (None, Fusion(model, 1.0, 1.0)) for width in size.widths
    ]
    rows = [measure(size, log_probs, lengths, beam) for beam in beams]
    lines = [
        [
            str(row["width"]),
            "3-gram" if row["language_model"] else "none",
            "{:.2f} [{:.2f}, {:.2f}]".format(row["ratio"], *row["quartiles"]),
            f"{row['times_real_time']:.0f}",
        ]
        for row in rows
    ]
    print_table(["width", "language model", "one after another / together [quartiles]", "× real time"], lines)
    write_result(arguments, {"utterances": size.batch, "rows": rows})


if __name__ == "__main__":
    main()
