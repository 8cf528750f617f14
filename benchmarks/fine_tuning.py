"""What marginals replace: federated fine-tuning of the same language model, on the same lists.

    python benchmarks/fine_tuning.py LISTS.jsonl.gz --lm LM --background books.tsv.gz --heldout others.tsv.gz

LM is a folder of `antiphon lm train`. The protocol is that of `antiphon personalize` (T rounds, T + 1
groups), meetings as clients; the recogniser's own model and the one that is adapted weigh 0.5 each, the
weight of a word is found on the unadapted model. Rows: nothing adapted; marginals, their settings from the
whole grid; the server's model after federated averaging on first-pass texts; every client's own, which is
the server's after the same local steps once more. The learning rate is that of --lr with the fewest errors
of either model. All settings are found on the same few meetings of --tune.

Seconds are processor time per client and round on one thread, including the server's work and its checkpoint.
Bytes are what a pool carries. The perplexity of --heldout, a sample of text like the background's, shows what
a model forgot.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from common import argument_parser, print_table, write_result
from federated_lm import FineTuned, FineTuning
from rich.progress import track

from antiphon.algorithms.fedavg import fedavg
from antiphon.core import Tensors
from antiphon.data.transcripts import read_sentences
from antiphon.decoding.nbest import NBest, read_nbest
from antiphon.decoding.rescoring import Column, Lists, tabulate, tune
from antiphon.lm.neural_lm import NeuralLm
from antiphon.personalisation.federation import Federation, background_of
from antiphon.personalisation.marginal_adaptation import Mixture, Unigram
from antiphon.personalisation.schedule import Schedule
from antiphon.personalisation.trial import BASELINE, Grid, Row, SecondPass, Trial, described, search_grid
from antiphon.tasks.local_training import LocalTraining

LM = "neural"
COLUMNS = [Column("acoustic", 0.1, 0.0), Column("lm", 0.5, 0.0), Column(LM, 0.5, 0.0), Column("words")]


class Meetings:
    """Lists of some meetings, scored by the unadapted model."""

    def __init__(self, entries: Sequence[NBest], lm: NeuralLm, background: Unigram, rounds: int) -> None:
        self.lm, self.schedule = lm, Schedule(rounds)
        self.federation = Federation.of(entries, background, "meeting")
        self.lists = tabulate(entries, {LM: lm})

    def trial(self, weights: dict[str, float]) -> Trial:
        return Trial(self.federation, SecondPass(self.lists, weights, LM), self.schedule)

    def fine_tuned(self, lr: float, arguments: argparse.Namespace) -> FineTuned:
        local = LocalTraining(lr, arguments.epochs, batch_seconds=arguments.batch_tokens)
        tuning = FineTuning(self.federation.entries, self.federation.clients, self.lm, fedavg(local))
        return tuning.run(self.schedule.rounds)

    def best(self, scores: np.ndarray, weights: dict[str, float]) -> np.ndarray:
        """Rows of the hypotheses chosen, with other scores of the language model."""
        values = self.lists.values.copy()
        values[:, self.lists.columns.index(LM)] = scores
        return replace(self.lists, values=values).best(weights)


def errors(lists: Lists, rows: np.ndarray) -> int:
    return lists.count(rows).total


def find_rate(
    meetings: Meetings, weights: dict[str, float], arguments: argparse.Namespace
) -> tuple[float, list[dict[str, float]]]:
    """The learning rate with the fewest errors, of the shared or of personal models; and all trials."""
    tried = []
    for lr in track(arguments.lr, "learning rates"):
        found = meetings.fine_tuned(lr, arguments)
        shared, personal = (
            errors(meetings.lists, meetings.best(scores, weights))
            for scores in (found.shared, found.personal)
        )
        tried.append({"lr": lr, "shared": shared, "personal": personal})
        print(f"learning rate {lr:g}: {shared} errors, personal models {personal}", flush=True)
    return min(tried, key=lambda trial: min(trial["shared"], trial["personal"]))["lr"], tried


def perplexity(lm: NeuralLm, params: Tensors, texts: Sequence[str]) -> float:
    """Of texts, by this model with other parameters, which it keeps."""
    lm.model.load_state_dict(params)
    return lm.perplexity(texts).value


def marginals(trial: Trial, mixture: Mixture) -> tuple[np.ndarray, dict[str, float]]:
    """What is chosen with marginals, and what a client spends on them in a round."""
    number = len(trial.federation.clients) * trial.schedule.rounds
    began = time.process_time()
    history = trial.federation.history(mixture.sigma, trial.schedule)
    seconds = (time.process_time() - began) / number
    row = 8 * trial.federation.background.size  # float64: one there, one back
    different = float(np.mean([len(known.client_words.ids) for known in history]))
    rows = trial.second_pass.best(trial.federation.ratios(history, mixture), mixture.lam)
    spent = {"bytes_down": row, "bytes_up": row, "seconds": seconds, "different_words": different}
    return rows, spent


def measure(arguments: argparse.Namespace, parts: dict[str, Sequence[NBest]]) -> dict[str, Any]:
    lm = NeuralLm.load(arguments.lm)
    texts = list(read_sentences(arguments.heldout))
    texts = texts[:: max(1, len(texts) // arguments.sentences)]
    background = background_of(read_sentences(arguments.background), [*chain(*parts.values())])
    tuning, scored = (
        Meetings(parts[split], lm, background, arguments.rounds)
        for split in (arguments.tune, arguments.split)
    )
    weights = tune(tuning.lists, COLUMNS)
    trial = tuning.trial(weights)
    mixture = search_grid(trial.federation, trial.second_pass, trial.schedule, Grid())
    lr, tried = find_rate(tuning, weights, arguments)
    trial = scored.trial(weights)
    adapted, spent = marginals(trial, mixture)
    found = scored.fine_tuned(lr, arguments)
    number = len(trial.federation.clients) * arguments.rounds
    cost = {"bytes_down": found.bytes_down / number, "bytes_up": found.bytes_up / number}
    cost["seconds"] = found.seconds / number
    baseline = trial.second_pass.unadapted()
    before = lm.perplexity(texts).value
    shared, *own = (perplexity(lm, params, texts) for params in found.models.values())
    rows = {
        BASELINE: (baseline, {}, before),
        "marginals": (adapted, spent, before),
        "fine-tuning, shared": (scored.best(found.shared, weights), cost, shared),
        "fine-tuning, personal": (
            scored.best(found.personal, weights),
            cost,
            float(np.exp(np.log(own).mean())),
        ),
    }
    return {
        "weights": weights,
        "marginals": described(mixture),
        "trials": tried,
        "local": {"lr": lr, "epochs": arguments.epochs, "batch_tokens": arguments.batch_tokens},
        "clients": {
            split: len(m.federation.clients)
            for split, m in ((arguments.tune, tuning), (arguments.split, scored))
        },
        "rows": [_row(trial.row(name, chosen, baseline), *more) for name, (chosen, *more) in rows.items()],
    }


def _row(row: Row, cost: dict[str, float], forgotten: float) -> dict[str, Any]:
    return {
        "name": row.name,
        "wer": row.rate,
        "change": [row.change.estimate, row.change.low, row.change.high] if row.change else None,
        "p": row.test.p,
        **cost,
        "perplexity": forgotten,
    }


def chosen_clients(entries: Sequence[NBest], number: int) -> list[NBest]:
    """Lists of so many meetings, spread over all in the order of the file; 0 for all."""
    names = list(dict.fromkeys(entry.session for entry in entries))
    kept = set(names[:: -(-len(names) // number)]) if number else set(names)
    return [entry for entry in entries if entry.session in kept]


def main() -> None:
    parser = argument_parser(__doc__, "fine_tuning")
    parser.add_argument("nbest", type=Path)
    parser.add_argument("--lm", type=Path, required=True, help="folder of `antiphon lm train`")
    parser.add_argument("--background", type=Path, required=True, help="text the model was trained on")
    parser.add_argument("--heldout", type=Path, required=True, help="other text of that kind")
    parser.add_argument("--sentences", type=int, default=500, help="of --heldout that are read")
    parser.add_argument("--tune", default="heldout")
    parser.add_argument("--tune-clients", type=int, default=6, help="meetings of --tune; 0 for all")
    parser.add_argument("--split", default="test")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--lr", type=float, nargs="+", default=[0.1, 0.3, 1.0])
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-tokens", type=int, default=256)
    arguments = parser.parse_args()
    number = 0
    if arguments.quick:
        number = arguments.tune_clients = arguments.rounds = 2
        arguments.lr, arguments.sentences = arguments.lr[:1], 20
    entries = list(read_nbest(arguments.nbest, arguments.depth))
    wanted = {arguments.tune: arguments.tune_clients, arguments.split: number}
    parts = {
        split: chosen_clients([entry for entry in entries if entry.split == split], most)
        for split, most in wanted.items()
    }
    result = measure(arguments, parts)
    show(result)
    options = [arguments.nbest.name, "--lm", arguments.lm.name, "--background", arguments.background.name]
    write_result(arguments, result, *options, "--heldout", arguments.heldout.name)


def show(result: dict[str, Any]) -> None:
    print(f"marginals: {result['marginals']}; fine-tuning: {result['local']}; clients: {result['clients']}")
    table = []
    for row in result["rows"]:
        is_adapted = "bytes_up" in row
        change = [100 * value for value in row["change"] or []]
        table.append(
            [
                row["name"],
                f"{100 * row['wer']:.2f}",
                "{:+.2f} [{:+.2f}, {:+.2f}]".format(*change) if is_adapted and change else "",
                f"{row['p']:.2g}" if is_adapted else "",
                f"{row['bytes_down'] / 1e6:.2f}" if is_adapted else "",
                f"{row['bytes_up'] / 1e6:.2f}" if is_adapted else "",
                f"{row['seconds']:.3f}" if is_adapted else "",
                f"{row['perplexity']:.1f}",
            ]
        )
    header = ["", "WER %", "relative change %", "p", "MB down", "MB up", "seconds", "perplexity of books"]
    print_table(header, table)


if __name__ == "__main__":
    main()
