"""Experiments that differ in their seed alone: what tables over seeds have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from antiphon.records.reading import read_object
from antiphon.report.formatting import bounds, percent
from antiphon.report.run_folder import RunFolder, runs_of
from antiphon.scoring.statistics import Interval, relative_interval

# 97.5 % quantiles of Student's t for 1, 2, … degrees of freedom; beyond, the last is on the safe side.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass(frozen=True)
class Trained:
    """One experiment folder: the runs that have been scored, by name."""

    path: Path
    config: Mapping[str, Any]
    runs: Mapping[str, RunFolder]

    @classmethod
    def load(cls, path: Path) -> Trained:
        if not (path / "experiment.json").is_file():
            raise ValueError(f"{path} is no experiment: it has no experiment.json (give what --out was)")
        config = read_object(path / "experiment.json")["config"]
        runs = {folder.name: RunFolder.load(folder) for folder in runs_of(path)}
        split = config["speakers"]["test"]
        scored = {name: run for name, run in runs.items() if "best" in run.evaluations.get(split, {})}
        return cls(path, config, scored)


def check_seeds(experiments: Sequence[Trained], baseline: str) -> None:
    """Refuses experiments without their baseline, that have a seed twice, or differ in something else."""
    first, *others = experiments
    for one in experiments:
        if baseline not in one.runs:
            raise ValueError(f"{one.path}: {baseline!r} has not been scored; others are compared with it")
    seen = {first.config["seed"]: first.path}
    for one in others:
        if one.config["seed"] in seen:
            raise ValueError(f"{one.path} and {seen[one.config['seed']]} have the same seed: leave one out")
        seen[one.config["seed"]] = one.path
        differing = [key for key in one.config if key != "seed" and one.config[key] != first.config.get(key)]
        if differing:
            raise ValueError(f"{one.path} and {first.path} differ in {', '.join(differing)}, not in seed")


def compared(seeds: Sequence[Trained], name: str, baseline: str) -> dict[str, Any]:
    """Error rates of a run over the seeds with which it has been scored, and beside those of another."""
    having = [one for one in seeds if name in one.runs]
    split = having[0].config["speakers"]["test"]
    scores = [one.runs[name].evaluations[split]["best"].overall for one in having]
    errors, others = (pooled_errors([one.runs[n] for one in having], split)[0] for n in (name, baseline))
    return {
        "seeds": [one.config["seed"] for one in having],
        "wer": over_seeds([score.words.rate for score in scores]),
        "cer": over_seeds([score.characters.rate for score in scores]),
        "relative_to_baseline": relative_interval(errors, others),
    }


def over_seeds(rates: Sequence[float]) -> dict[str, Any]:
    """Mean with the 95 % interval of Student's t; no interval of one seed."""
    middle, interval = mean(rates), None
    if len(rates) > 1:
        half = STUDENT[min(len(rates) - 1, len(STUDENT)) - 1] * stdev(rates) / math.sqrt(len(rates))
        interval = [middle - half, middle + half]
    return {"mean": middle, "interval": interval, "by_seed": list(rates)}


def pooled_errors(runs: Sequence[RunFolder], split: str) -> np.ndarray:
    """[2, speakers]: word errors and words, summed over runs."""
    found = [run.evaluations[split]["best"].speakers for run in runs]
    counts = [[(s[name].words.total, s[name].words.length) for name in sorted(s)] for s in found]
    return np.array(counts, dtype=float).sum(axis=0).T


def error_rate(figures: Mapping[str, Any]) -> str:
    interval = Interval(figures["mean"], *figures["interval"]) if figures["interval"] else None
    return f"{percent(figures['mean'])} {bounds(interval)}".strip()


def to_json(value: Any) -> Any:
    """Intervals as their fields."""
    if isinstance(value, Interval):
        return vars(value)
    raise TypeError(f"{value!r} is not JSON")
