"""The table of the recipe table1: error rates of test speakers, and how many rounds each row needed.

    antiphon run table1 --data CORPUS --out clean/0 --set frontend.path=ENCODER.onnx --set seed=0
    antiphon run docs/examples/table1-babble.yaml --data CORPUS --out babble/0 … (and so on)
    python benchmarks/table1.py clean/* babble/* wrong-texts/* --plots docs

Experiments are grouped by their corruption; those of a group differ in their seed alone. Rounds are counted
on the character error rate of the validation speakers, where it was measured, without the start:

- the target of a seed is the lowest CER that the baseline (plain hierarchical) ever had with that seed;
- rounds to reach: the first with a CER at or below the target; "> 50" where none of 50 was;
- rounds to own best: the first with the row's own lowest CER, which is the held-out CER of the table;
- late CER: the median of the last five, what one has who does not pick the best round.

Over seeds: medians, a row that did not reach the target counting as the slowest; error rates as means with
95 % intervals by Student's t, and their difference to the baseline's with an interval over speakers (errors
pooled over seeds, speakers resampled, paired). A round of central training is something else: not counted.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, median_low
from typing import Any

import numpy as np
from common import RESULTS, print_table
from seeds import Trained, check_seeds, error_rate, over_seeds, pooled_errors
from seeds import to_json as seeds_to_json
from table1_plots import draw_plots

from antiphon.algorithms.dga_rl import DgaRl
from antiphon.algorithms.fedavg import FedAvg
from antiphon.algorithms.geometric_median import GeometricMedian
from antiphon.recipes.table1 import SERVER, SERVER_LR, TRIALS, trial_name
from antiphon.recipes.table1 import table1 as recipe
from antiphon.report.formatting import NONE, percent
from antiphon.report.run_folder import RunFolder
from antiphon.report.tables import weights_by_kind
from antiphon.scoring.statistics import difference_interval, plural, round_of_best, round_to_target, signed

LATE = 5  # validations


@dataclass(frozen=True)
class Reached:
    """The round at which something was reached; None where it was not in `limit` rounds."""

    round: int | None
    limit: int

    def __str__(self) -> str:
        return f"> {self.limit}" if self.round is None else str(self.round)

    @property
    def order(self) -> tuple[bool, int]:
        """Not reached comes after every round."""
        return (self.round is None, self.limit if self.round is None else self.round)


# --- One run --------------------------------------------------------------------------------------


def cer_by_round(run: RunFolder) -> tuple[list[int], list[float]]:
    """Validation CER of trained models: the start is no result of the row."""
    rounds, values = run.validation.get("cer", (np.empty(0), np.empty(0)))
    return [int(r) for r in rounds[rounds > 0]], values[rounds > 0].tolist()


def target_of(run: RunFolder, gain: float = 1.0) -> float:
    """The CER to reach: the lowest of a run, or what it had after a share of its gain over the start."""
    _, values = cer_by_round(run)
    if not values:
        raise ValueError(f"{run.path} has no validation CER: it sets the target, see rounds.valid_every")
    start = float(run.validation["cer"][1][0])
    return start - gain * (start - min(values))


def late_cer(run: RunFolder) -> float:
    """Of a run whose CER jumps from round to round, the lowest is luck; this is not."""
    return median(cer_by_round(run)[1][-LATE:])


def rounds_to(run: RunFolder, target: float) -> Reached:
    return Reached(round_to_target(*cer_by_round(run), target), run.num_finished)


def rounds_to_best(run: RunFolder) -> Reached:
    return Reached(round_of_best(*cer_by_round(run)), run.num_finished)


def seconds_until(run: RunFolder, reached: Reached) -> float | None:
    """Seconds of training until a round, candidates that were measured included, validation not."""
    if reached.round is None:
        return None
    return sum(line["train_seconds"] for line in run.clock if 0 < line["round"] <= reached.round)


def is_central(run: RunFolder) -> bool:
    return "central" in run.about["config"]["algorithm"]


# --- Over seeds -----------------------------------------------------------------------------------


def typical(values: Sequence[Reached]) -> Reached:
    """The median; of an even number the slower one of the middle."""
    return sorted(values, key=lambda value: value.order)[len(values) // 2]


def speed_up(baseline: Sequence[Reached], row: Sequence[Reached]) -> tuple[float, bool]:
    """(median over seeds of the baseline's rounds over the row's, whether it is only an upper bound).

    Of an even number the lower one, as in `typical`.
    """
    ratios = []
    for one, other in zip(baseline, row, strict=True):
        assert one.round is not None, "the baseline reaches its own best"
        ratios.append((other.round is not None, one.round / (other.round or other.limit)))
    is_exact, ratio = median_low(ratios)
    return ratio, not is_exact


# --- One condition --------------------------------------------------------------------------------


def condition_of(corruption: Mapping[str, Any]) -> str:
    """What was done to clients, in words.

    >>> condition_of({"fraction": 0.0, "names": []})
    'clean'
    """
    if not corruption["fraction"] and not corruption["names"]:
        return "clean"
    what = []
    for kind, noise in (corruption["audio"]["noise"] or {}).items():
        what.append(f"{kind} at {noise['snr']:g} dB")
    for kind in corruption["transcripts"] or {}:
        what.append({"of_others": "transcripts of others", "shuffled": "shuffled transcripts"}[kind])
    who = f"{corruption['fraction']:.0%}" if corruption["fraction"] else f"{len(corruption['names'])}"
    return f"{who} of clients: {' and '.join(what) or 'corrupted'}"


def by_condition(experiments: Sequence[Trained], baseline: str) -> dict[str, list[Trained]]:
    """Experiments of the same corruption; they must differ in nothing else but the seed."""
    groups: dict[str, list[Trained]] = {}
    for one in experiments:
        groups.setdefault(condition_of(one.config["corruption"]), []).append(one)
    for group in groups.values():
        check_seeds(group, baseline)
    return groups


def measure(seeds: Sequence[Trained], name: str, baseline: str, gain: float) -> dict[str, Any]:
    """Figures of one row, over the seeds with which it has been scored."""
    having = [one for one in seeds if name in one.runs]
    runs, references = [one.runs[name] for one in having], [one.runs[baseline] for one in having]
    split = having[0].config["speakers"]["test"]
    scores = [run.evaluations[split]["best"].overall for run in runs]
    errors, theirs = pooled_errors(runs, split), pooled_errors(references, split)
    figures: dict[str, Any] = {
        "seeds": [one.config["seed"] for one in having],
        "wer": over_seeds([score.words.rate for score in scores]),
        "cer": over_seeds([score.characters.rate for score in scores]),
        "wer_less_baseline": difference_interval(errors[0], theirs[0], errors[1]),
        "seconds": median_low([run.total_seconds or 0.0 for run in runs]),
    }
    if any(is_central(run) for run in runs):
        return figures
    targets = [target_of(run, gain) for run in references]
    reached = [rounds_to(run, target) for run, target in zip(runs, targets, strict=True)]
    base = [rounds_to(run, target) for run, target in zip(references, targets, strict=True)]
    ratio, is_bound = speed_up(base, reached)
    ticks = [line for run in runs for line in run.clock if line["round"] > 0]
    steps = [line["train_seconds"] for line in ticks]
    return {
        **figures,
        "target_cer": targets,
        "reached": reached,
        "best": [rounds_to_best(run) for run in runs],
        "heldout_cer": over_seeds([target_of(run) for run in runs]),
        "late_cer": over_seeds([late_cer(run) for run in runs]),
        "speed_up": ratio,
        "speed_up_is_upper_bound": is_bound,
        "round_seconds": median_low(steps),
        "weight_over_equal_share": mean_weights(runs),
        "candidates_share": sum(line.get("task_evaluate_seconds", 0.0) for line in ticks) / sum(steps),
        "seconds_to_reach": [seconds_until(run, r) for run, r in zip(runs, reached, strict=True)],
    }


def mean_weights(runs: Sequence[RunFolder]) -> dict[str, float]:
    """Of clean and of corrupted clients, over rounds and seeds; nothing where none were corrupted."""
    found = [weights_by_kind(run) for run in runs]
    if not all(found):
        return {}
    return {kind: float(np.mean([kinds[kind][1].mean() for kinds in found])) for kind in found[0]}


def choice(row: str, value: float) -> list[str]:
    """Settings of `table1` by which a row takes the value of one of its trials.

    All rows built on `hierarchical` have its server's rate; those of softmax are all in the table. The row
    `rl-cohort` has the value of `rl`, from which it differs in its network alone.
    """
    if row == "softmax":
        return []
    if row != "hierarchical":
        rows = ["rl", "rl-cohort"] if row == "rl" else [row]
        return [f"runs.{name}.{TRIALS[row].setting}={value:g}" for name in rows]
    found = []
    for name, run in recipe().runs.items():
        algorithm = run.algorithm
        path = SERVER_LR
        if isinstance(algorithm, DgaRl | GeometricMedian):
            algorithm, path = algorithm.inner, "algorithm.inner.server.lr"
        if isinstance(algorithm, FedAvg) and algorithm.server == SERVER:
            found.append(f"runs.{name}.{path}={value:g}")
    return found


def choices(trials: Trained) -> list[str]:
    """For each row with all its trials, the settings of the one whose held-out CER was ever lowest."""
    found = []
    for row, tried in TRIALS.items():
        by_value = {value: trials.runs.get(trial_name(row, value)) for value in tried.runs}
        lowest = {value: target_of(run) for value, run in by_value.items() if run is not None}
        if len(lowest) == len(by_value):
            found += choice(row, min(lowest, key=lambda value: lowest[value]))
    return found


# --- Printing -------------------------------------------------------------------------------------


def cells(name: str, figures: Mapping[str, Any], baseline: str) -> list[str]:
    difference = NONE if name == baseline else signed(figures["wer_less_baseline"])
    rates = [error_rate(figures["wer"]), error_rate(figures["cer"])]
    if "reached" not in figures:
        return [name, *rates, difference, *[NONE] * 6, f"{figures['seconds']:.0f}"]
    sign = "< " if figures["speed_up_is_upper_bound"] else ""
    return [
        name,
        *rates,
        difference,
        with_seeds(figures["reached"]),
        f"{sign}{figures['speed_up']:.2f}",
        with_seeds(figures["best"]),
        percent(figures["heldout_cer"]["mean"]),
        percent(figures["late_cer"]["mean"]),
        f"{figures['round_seconds']:.2f}",
        f"{figures['seconds']:.0f}",
    ]


def with_seeds(values: Sequence[Reached]) -> str:
    """The median, and in parentheses what each seed gave."""
    each = ", ".join(map(str, values))
    return f"{typical(values)} ({each})" if len(values) > 1 else each


HEAD = ("run", "WER %", "CER %", "WER − baseline", "rounds to reach", "times as fast", "rounds to own best",
        "held-out CER %", "late CER %", "s / round", "s in all")  # fmt: skip


def print_condition(condition: str, rows: Mapping[str, Any], seeds: Sequence[Trained], baseline: str) -> None:
    print(f"\n{condition}; {plural(len(seeds), 'seed')}; baseline: {baseline}\n")
    print_table(HEAD, [cells(name, figures, baseline) for name, figures in rows.items()])
    for one in seeds:
        start, best = (target_of(one.runs[baseline], gain) for gain in (0.0, 1.0))
        if best >= start:
            print(
                f"\n{one.path}: {baseline} never got below the CER it started from ({percent(start)} %): "
                f"its best after the start, {percent(best)} %, is all there is to reach"
            )


def to_json(value: Any) -> Any:
    return vars(value) if isinstance(value, Reached) else seeds_to_json(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("experiments", nargs="+", type=Path, help="folders: seeds and conditions")
    parser.add_argument("--baseline", default="hierarchical", help="the run whose best CER is to be reached")
    parser.add_argument("--gain", type=float, default=1.0, help="share of the baseline's gain to be reached")
    parser.add_argument("--out", type=Path, default=RESULTS / "table1.json")
    parser.add_argument("--choose", action="store_true", help="settings of table1, from trials")
    parser.add_argument("--plots", type=Path, help="folder for table1-CONDITION-wer.svg and -weights.svg")
    options = parser.parse_args()
    try:
        conditions = by_condition([Trained.load(path) for path in options.experiments], options.baseline)
    except ValueError as error:
        parser.error(str(error))
    if options.choose:
        for condition, seeds in conditions.items():
            print("\n".join([f"# {condition}", *choices(seeds[0])]))
        return
    result: dict[str, Any] = {}
    for condition, seeds in conditions.items():
        names = dict.fromkeys(name for one in seeds for name in one.config["runs"] if name in one.runs)
        result[condition] = {n: measure(seeds, n, options.baseline, options.gain) for n in names}
        print_condition(condition, result[condition], seeds, options.baseline)
        if options.plots:
            draw_plots(
                condition, {n: [s.runs[n] for s in seeds if n in s.runs] for n in names}, options.plots
            )
    first = next(iter(conditions.values()))[0].runs[options.baseline].about
    body = {
        "command": "python benchmarks/table1.py OUT..., after antiphon run for each seed and condition",
        **{key: first.get(key) for key in ("versions", "commit", "device")},
        "baseline": options.baseline,
        "gain": options.gain,
        "conditions": result,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(body, indent=1, default=to_json) + "\n")


if __name__ == "__main__":
    main()
