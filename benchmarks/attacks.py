"""Attacks and defences on the demo's corpus: WER after a few rounds in which some clients are bad.

    antiphon demo --out demo
    python benchmarks/attacks.py demo

Every run starts from the demo's seed model. The word error rate is that of the model after the last round: no
validation chooses a better one. The attackers of a seed are the same in all runs; a larger share includes
those of a smaller one. How many of them are in a round differs. Finished runs in `--runs` are not repeated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from common import argument_parser, print_table, write_result

from antiphon.algorithms.attacked import Attacked
from antiphon.algorithms.dga_rl import DgaRl
from antiphon.algorithms.fedavg import FedAvg, dga, hierarchical
from antiphon.algorithms.geometric_median import GeometricMedian
from antiphon.algorithms.krum import Krum
from antiphon.algorithms.norm_bounding import NormBounding
from antiphon.algorithms.trimmed_mean import TrimmedMean
from antiphon.algorithms.validation_wer import ValidationWer
from antiphon.core import Algorithm, Diverged
from antiphon.data.corruption.corrupted_clients import Corruption
from antiphon.data.corruption.wrong_transcripts import OfOthers
from antiphon.engine import Rounds
from antiphon.experiment.runner import run_experiment
from antiphon.experiment.settings import Experiment, Run
from antiphon.pools.recording import TooFewAnswers
from antiphon.recipes import recipe
from antiphon.server.optimizers import Adam
from antiphon.server.schedules import Cosine
from antiphon.server.weighting import Uniform
from antiphon.tasks.local_training import LocalTraining

SHARES = (0.1, 0.2, 0.3)  # of the clients that are bad
TOLERATED = 0.3  # what the rules are told
LOCAL = LocalTraining(lr=0.3, epochs=1, batch_seconds=16.0)


def defences(rounds: int) -> dict[str, Algorithm[Any]]:
    """Aggregation rules, by name; all but FedAvg with the same optimiser on the server."""
    server, schedule = Adam(lr=5e-3, epsilon=1e-5), Cosine(rounds, final=0.1)

    def adaptive(algorithm: FedAvg) -> FedAvg:
        return replace(algorithm, server_schedule=schedule)

    mean, softmax = adaptive(hierarchical(LOCAL, server)), adaptive(dga(LOCAL, 0.5, server))
    return {
        "fedavg": FedAvg(replace(LOCAL, lr=0.5), weighting=Uniform()),
        "hierarchical": mean,
        "dga": softmax,
        "dga-rl": DgaRl(softmax),
        "validation-wer": ValidationWer(mean, num_validation=4),
        "norm-bounding": NormBounding(mean, bound=0.3),
        "geometric-median": GeometricMedian(mean),
        "trimmed-mean": TrimmedMean(mean, trim=TOLERATED),
        "multi-krum": Krum(mean, bad=TOLERATED, num_averaged=0),
    }


# Attack -> what the attackers send (none: their data are bad instead).
ATTACKS: dict[str, dict[str, Any]] = {
    "none": {},
    "minus-10": {"scale": -10.0},
    "flip-and-lie": {"scale": -1.0, "loss": 0.0},
    "wrong-texts": {},
}
HEADER = {
    "none": "no attack",
    "minus-10": "−10 Δ",
    "flip-and-lie": "−Δ, loss 0",
    "wrong-texts": "wrong texts",
}


@dataclass(frozen=True)
class Case:
    """An attack by a share of the clients, with a seed."""

    attack: str
    share: float  # 0 without an attack
    seed: int

    @property
    def folder(self) -> str:
        return f"{self.attack}-{self.share:g}-seed{self.seed}"


def cases(attacks: Sequence[str], shares: Sequence[float], seeds: Sequence[int]) -> Iterator[Case]:
    """Yield every attack with every share; without an attack there is no share."""
    for seed in seeds:
        for attack in attacks:
            yield from (Case(attack, share, seed) for share in ([0.0] if attack == "none" else shares))


def experiment(demo: Path, case: Case, rounds: int, names: Sequence[str]) -> Experiment:
    """Return the runs of one case."""

    def run(algorithm: Algorithm[Any]) -> Run:
        values = ATTACKS[case.attack]
        attacked = Attacked(algorithm, case.share, **values, seed=case.seed) if values else algorithm
        seed_model = str((demo / "runs" / "seed").resolve())
        return Run(attacked, rounds=Rounds(rounds, 10, valid_every=0), start_run="", start_folder=seed_model)

    runs = {name: run(rule) for name, rule in defences(rounds).items() if name in names}
    wrong = Corruption(case.share, transcripts=OfOthers(), seed=case.seed)
    corruption = wrong if case.attack == "wrong-texts" else Corruption()
    return replace(recipe("demo"), seed=case.seed, runs=runs, corruption=corruption)


def measure(settings: Experiment, corpus: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the word error rate of each run (None: its model was lost) and the commit of its code."""
    for name in settings.runs:
        wer = None
        try:
            scores = run_experiment(settings, corpus, folder, resume=folder.exists(), device="cpu", only=name)
        except (Diverged, TooFewAnswers) as error:
            print(f"{folder.name}/{name}: {error}")
        else:
            words = scores[name]["words"]
            wer = (words["substitutions"] + words["deletions"] + words["insertions"]) / words["length"]
        print(f"{folder.name}/{name}: {percent([wer])}", flush=True)
        yield {
            "rule": name,
            "wer": wer,
            "commit": json.loads((folder / name / "run.json").read_text())["commit"],
        }


def percent(rates: Sequence[float | None]) -> str:
    """Return the mean of some rates, with their standard deviation if there are several."""
    found = [100 * rate for rate in rates if rate is not None]
    if len(found) < len(rates):
        return "lost" if not found else f"{fmean(found):.1f}, {len(rates) - len(found)} lost"
    return f"{fmean(found):.1f}" + (f" ± {stdev(found):.1f}" if len(found) > 1 else "")


def tables(runs: Sequence[dict[str, Any]], rules: Sequence[str], attacks: Sequence[str]) -> None:
    """Print a table for each share of bad clients: the mean over seeds."""
    for share in sorted({run["share"] for run in runs if run["share"]}):
        print(f"\n{100 * share:g} % of the clients are bad:\n")
        rows = []
        for rule in rules:
            found = [
                [r["wer"] for r in runs if (r["rule"], r["attack"]) == (rule, a) and r["share"] in (0, share)]
                for a in attacks
            ]
            rows.append([rule, *map(percent, found)])
        print_table(["WER %", *(HEADER[attack] for attack in attacks)], rows)


def main() -> None:
    parser = argument_parser(__doc__, "attacks")
    parser.add_argument("demo", type=Path, help="the folder that antiphon demo made")
    parser.add_argument("--runs", type=Path, default=Path("attacks"), help="the folder of the runs")
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="of the clients that are bad")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--defences", nargs="+", choices=defences(1), default=list(defences(1)))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 1 if arguments.quick else arguments.rounds
    runs = []
    for case in cases(arguments.attacks, arguments.shares, arguments.seeds):
        settings = experiment(arguments.demo, case, rounds, arguments.defences)
        for run in measure(settings, arguments.demo / "corpus", arguments.runs / case.folder):
            runs.append({"attack": case.attack, "share": case.share, "seed": case.seed, **run})
    tables(runs, arguments.defences, arguments.attacks)
    chosen = {name: getattr(arguments, name) for name in ("shares", "seeds", "attacks", "defences")}
    options = [f"--{name} {' '.join(map(str, values))}" for name, values in chosen.items()]
    result = {"rounds": rounds, **chosen, "runs": runs}
    write_result(arguments, result, str(arguments.demo), *options, f"--rounds {rounds}")


if __name__ == "__main__":
    main()
