"""What marginals are worth as language models: perplexity by meeting, with eq. 1 normalised.

    python benchmarks/marginal_perplexity.py MEETINGS.jsonl.gz --background books.tsv.gz

The protocol is that of `antiphon personalize` (T rounds, T + 1 groups), on the texts themselves: what a
meeting has said is counted as it was transcribed, not as it was recognised. Rows: the background model
alone, with everyone's words (α = 0.75), with the meeting's own (β = 0.75), with both (α = 0.5, β = 0.25:
the paper's). Twice: the background is books, and it is books and the meetings of another split (--other),
over the same vocabulary, that of both. λ is found on --tune.

MEETINGS holds objects with `id`, `meeting`, `split` and `text`, in time order.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from common import argument_parser, print_table, write_result
from normalised_lm import Normalised, normalised
from rich.progress import track

from antiphon.data.transcripts import numbered_lines, read_sentences
from antiphon.decoding.nbest import Hypothesis, NBest
from antiphon.lm.kneser_ney import estimate
from antiphon.personalisation.federation import Federation
from antiphon.personalisation.marginal_adaptation import Marginals, Mixture, Unigram, estimate_unigram
from antiphon.personalisation.schedule import Schedule
from antiphon.scoring.statistics import rate_interval

WAYS = {"background": (0.0, 0.0), "everyone": (0.75, 0.0), "own": (0.0, 0.75), "both": (0.5, 0.25)}
LAMBDAS = (0.25, 0.5, 0.75, 1.0)


def read_meetings(path: Path) -> list[NBest]:
    rows = [json.loads(line) for _, line in numbered_lines(path)]
    return [
        NBest(row["id"], (Hypothesis(row["text"]),), session=row["meeting"], split=row["split"])
        for row in rows
    ]


def log_probs(
    model: Normalised, history: Sequence[Marginals], texts: Sequence[str], mixture: Mixture
) -> np.ndarray:
    """ln p' of each text; texts under the same marginals are scored together."""
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for place, known in enumerate(history):
        everyone, own = mixture.alpha and id(known.shared_words), mixture.beta and id(known.client_words)
        groups[int(everyone), int(own)].append(place)
    found = np.zeros(len(texts))
    for places in groups.values():
        known = history[places[0]]
        factors = Marginals(known.background, mixture, known.shared_words, known.client_words)
        found[places] = model.score_sentences([texts[place] for place in places], factors)
    return found


class Background:
    """A model of texts, its unigram, and meetings that are read with it."""

    def __init__(
        self, texts: Sequence[str], vocabulary: set[str], min_counts: Sequence[int], rounds: int
    ) -> None:
        self.unigram: Unigram = estimate_unigram(texts, vocabulary)
        self.model = normalised(estimate(texts, 3, min_counts, vocabulary), self.unigram)
        self.schedule = Schedule(rounds)

    def measure(self, entries: Sequence[NBest], mixtures: Sequence[Mixture]) -> list[np.ndarray]:
        """ln p' of every text, for each of the mixtures."""
        federation = Federation.of(entries, self.unigram, "meeting")
        history = federation.history(0.0, self.schedule)
        texts = [entry.hypotheses[0].text for entry in entries]
        return [log_probs(self.model, history, texts, each) for each in track(mixtures, "meetings")]


def by_meeting(entries: Sequence[NBest], found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Negative ln p' and predictions (words and ends) of each meeting."""
    names = {name: place for place, name in enumerate(dict.fromkeys(entry.session for entry in entries))}
    where = [names[entry.session] for entry in entries]
    sizes = [len(entry.hypotheses[0].text.split()) + 1 for entry in entries]
    return np.bincount(where, -found), np.bincount(where, sizes)


def compare(background: Background, tuning: Sequence[NBest], scored: Sequence[NBest]) -> dict[str, Any]:
    """Perplexities of all ways, each with the λ that was best on `tuning`."""
    rows: dict[str, Any] = {}
    baseline = np.zeros(0)
    for way, (alpha, beta) in WAYS.items():
        tried = [Mixture(alpha, beta, lam) for lam in (LAMBDAS if alpha + beta else (0.0,))]
        totals = (
            [float(each.sum()) for each in background.measure(tuning, tried)] if len(tried) > 1 else [0.0]
        )
        mixture = tried[int(np.argmax(totals))]
        costs, sizes = by_meeting(scored, background.measure(scored, [mixture])[0])
        baseline = baseline if len(baseline) else costs
        interval = rate_interval(costs, sizes)
        assert interval is not None
        rows[way] = {
            "lambda": mixture.lam,
            "perplexity": float(np.exp(interval.estimate)),
            "interval": [float(np.exp(interval.low)), float(np.exp(interval.high))],
            "meetings_better": int((costs < baseline).sum()),
            "meetings": len(costs),
            "tuning_log_probs": totals,
        }
    return rows


def main() -> None:
    parser = argument_parser(__doc__, "marginal_perplexity")
    parser.add_argument("meetings", type=Path)
    parser.add_argument("--background", type=Path, required=True, help="text, as for `antiphon lm ngram`")
    parser.add_argument(
        "--other", default="pool", help="meetings whose text joins the background, the second time"
    )
    parser.add_argument("--tune", default="heldout")
    parser.add_argument("--split", default="test")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    entries = read_meetings(arguments.meetings)
    if arguments.quick:
        entries = [entry for place, entry in enumerate(entries) if place % 20 == 0]
    parts = {split: [e for e in entries if e.split == split] for split in {e.split for e in entries}}
    books = list(islice(read_sentences(arguments.background), 2000 if arguments.quick else None))
    more = [entry.hypotheses[0].text for entry in parts[arguments.other]]
    vocabulary = {word for text in (*books, *more) for word in text.split()}
    said = [word for e in parts[arguments.split] for word in e.hypotheses[0].text.split()]
    unknown = sum(word not in vocabulary for word in said) / len(said)
    found: dict[str, Any] = {}
    for name, texts in (("books", books), ("books and meetings", books + more)):
        background = Background(texts, vocabulary, (1, 1, 2), arguments.rounds)
        found[name] = compare(background, parts[arguments.tune], parts[arguments.split])
    print(f"{len(vocabulary):,} words in the vocabulary; {100 * unknown:.2f} % of what is said is not in it")
    show(found)
    write_result(
        arguments,
        {"rounds": arguments.rounds, "unknown": unknown, "backgrounds": found},
        *options_of(arguments),
    )


def options_of(arguments: argparse.Namespace) -> list[str]:
    return [arguments.meetings.name, "--background", arguments.background.name]


def show(found: dict[str, Any]) -> None:
    rows = []
    for name, ways in found.items():
        for way, row in ways.items():
            low, high = row["interval"]
            change = row["perplexity"] / ways["background"]["perplexity"] - 1
            rows.append(
                [
                    name,
                    way,
                    f"{row['lambda']:g}" if row["lambda"] else "",
                    f"{row['perplexity']:.1f} [{low:.1f}, {high:.1f}]",
                    f"{100 * change:+.1f} %" if change else "",
                    f"{row['meetings_better']} of {row['meetings']}" if change else "",
                ]
            )
    print_table(["background", "adapted with", "λ", "perplexity", "change", "meetings better"], rows)


if __name__ == "__main__":
    main()
