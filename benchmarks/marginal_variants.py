"""Ways of counting and reporting words, compared without a look at the test meetings.

    python benchmarks/marginal_variants.py LISTS.jsonl.gz --lm MODEL --background books.tsv.gz

Meetings of --split are cut into halves at random, several times; those whose names differ in the last letter
alone are a series, the same people on the same matter, and stay together. Settings (the weight of a word,
then α, β and λ) are found on one half and scored on the other, both ways round; each half is a federation
of its own. The recogniser's own model and the one that is adapted weigh 0.5 each, as in the paper. Rows: the
paper; words counted by the agreement of hypotheses; a client's own words at once; the meetings of the other
half there before; and these together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from common import argument_parser, print_table, write_result
from rich.progress import track

from antiphon.data.transcripts import read_sentences
from antiphon.decoding.nbest import NBest, read_nbest
from antiphon.decoding.rescoring import Column, Lists, tabulate, tune
from antiphon.lm.neural_lm import load_sentence_model
from antiphon.personalisation.federation import Federation, background_of
from antiphon.personalisation.marginal_adaptation import Unigram
from antiphon.personalisation.schedule import Schedule
from antiphon.personalisation.trial import Grid, SecondPass, Trial, described, search_grid

LM = "adapted"
COLUMNS = [Column("acoustic", 0.1, 0.0), Column("lm", 0.5, 0.0), Column(LM, 0.5, 0.0), Column("words")]


@dataclass(frozen=True)
class Variant:
    agreement: float = 0.0
    every_utterance: bool = False
    earlier: bool = False


VARIANTS = {
    "the paper": Variant(),
    "agreement 1": Variant(1.0),
    "agreement 2": Variant(2.0),
    "agreement 4": Variant(4.0),
    "agreement 8": Variant(8.0),
    "own words at once": Variant(every_utterance=True),
    "others there before": Variant(earlier=True),
    "agreement 4, at once": Variant(4.0, every_utterance=True),
    "agreement 4, at once, others before": Variant(4.0, True, True),
}


@dataclass(frozen=True)
class Halves:
    """Two sets of lists: settings are found on the first and scored on the second."""

    found_on: Lists
    scored: Lists
    background: Unigram
    rounds: int
    grid: Grid

    def errors(self, variant: Variant) -> tuple[int, int, str]:
        """Word errors before and after, and the settings."""
        weights = tune(self.found_on, COLUMNS)
        schedule = Schedule(self.rounds, variant.every_utterance)
        tuning = self._federation(self.found_on, self.scored, variant)
        mixture = search_grid(tuning, SecondPass(self.found_on, weights, LM), schedule, self.grid)
        second_pass = SecondPass(self.scored, weights, LM)
        trial = Trial(self._federation(self.scored, self.found_on, variant), second_pass, schedule)
        before = second_pass.best(np.zeros(len(self.scored.values)), 0.0)
        totals = [second_pass.lists.count(rows).total for rows in (before, trial.adapted(mixture))]
        return totals[0], totals[1], described(mixture)

    def _federation(self, lists: Lists, others: Lists, variant: Variant) -> Federation:
        earlier = others.entries if variant.earlier else ()
        federation = Federation.of(lists.entries, self.background, "meeting", earlier)
        return replace(federation, agreement=variant.agreement)


def halvings(entries: Sequence[NBest], number: int) -> list[tuple[list[int], list[int]]]:
    """Places of the lists of two halves of the meetings, and of the same the other way round."""
    series = np.array([str(entry.session)[:-1] for entry in entries])
    names, sizes = np.unique(series, return_counts=True)
    generator, found = np.random.default_rng(0), []
    for _ in range(number):
        order = generator.permutation(len(names))
        first = names[order][np.cumsum(sizes[order]) <= len(entries) / 2]
        inside = np.isin(series, first)
        one, other = np.flatnonzero(inside).tolist(), np.flatnonzero(~inside).tolist()
        found += [(one, other), (other, one)]
    return found


def main() -> None:
    parser = argument_parser(__doc__, "marginal_variants")
    parser.add_argument("nbest", type=Path)
    parser.add_argument("--lm", required=True, help="the background model, as for `antiphon rescore`")
    parser.add_argument("--background", type=Path, required=True, help="text that it was made of")
    parser.add_argument("--split", nargs="+", default=["heldout", "pool"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--halvings", type=int, default=6)
    parser.add_argument("--depth", type=int, default=20)
    arguments = parser.parse_args()
    everything = read_nbest(arguments.nbest, arguments.depth)
    entries = [entry for entry in everything if entry.split in arguments.split]
    grid = Grid(sigmas=(0.1,))
    if arguments.quick:
        arguments.rounds, arguments.halvings = 2, 1
        grid = Grid((0.0, 0.5), (0.0, 0.25), (1.0, 2.0), (0.1,))
    background = background_of(read_sentences(arguments.background), entries)
    lists = tabulate(entries, {LM: load_sentence_model(arguments.lm)})
    found: dict[str, list[tuple[int, int, str]]] = {name: [] for name in VARIANTS}
    for one, other in track(halvings(entries, arguments.halvings), "halves"):
        halves = Halves(lists.of(one), lists.of(other), background, arguments.rounds, grid)
        for name, variant in VARIANTS.items():
            found[name].append(halves.errors(variant))
    words = int(lists.errors[lists.starts[:-1], 3].sum())
    rows = {name: summary(results, words) for name, results in found.items()}
    show(rows)
    options = [
        arguments.nbest.name,
        "--lm",
        Path(arguments.lm).name,
        "--background",
        arguments.background.name,
    ]
    write_result(arguments, {"halvings": arguments.halvings, "variants": rows}, *options)


def summary(results: Sequence[tuple[int, int, str]], words: int) -> dict[str, Any]:
    """Both ways round of a halving together are all meetings once; mean, and every halving's change."""
    before, after = (np.array([result[side] for result in results]).reshape(-1, 2).sum(1) for side in (0, 1))
    return {
        "before": float(before.mean() / words),
        "after": float(after.mean() / words),
        "changes": (after / before - 1).tolist(),
        "settings": [result[2] for result in results],
    }


def show(rows: dict[str, dict[str, Any]]) -> None:
    first = np.array(next(iter(rows.values()))["changes"])
    table = []
    for name, row in rows.items():
        changes = 100 * np.array(row["changes"])
        gains = changes - 100 * first
        table.append(
            [
                name,
                f"{100 * row['before']:.2f}",
                f"{100 * row['after']:.2f}",
                f"{changes.mean():+.2f}",
                f"{gains.mean():+.2f} ({gains.min():+.2f} to {gains.max():+.2f})" if gains.any() else "",
            ]
        )
    print_table(["", "before %", "after %", "relative change %", "beside the first (halvings)"], table)


if __name__ == "__main__":
    main()
