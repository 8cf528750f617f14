"""How much of the gap from the seed model to central training does each run close?

    antiphon run librispeech --data CORPUS --out out/0 --set frontend.path=ENCODER.onnx --set seed=0
    …                                      (the same for seeds 1 and 2)
    python benchmarks/gap.py out/0 out/1 out/2

Errors of the test speakers are pooled over the seeds for which a run has been scored; intervals come
from resampling speakers. A gap is measured on the same seeds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

NUM_RESAMPLES = 10_000


def errors_by_speaker(experiment: Path, run: str, unit: str) -> np.ndarray:
    """[2, speakers]: errors and lengths."""
    scores = json.loads((experiment / run / "evaluation" / "test" / "best" / "scores.json").read_text())
    rows = [speaker[unit] for _, speaker in sorted(scores["speakers"].items())]
    wrong = [row["substitutions"] + row["deletions"] + row["insertions"] for row in rows]
    return np.array([wrong, [row["length"] for row in rows]], dtype=float)


def resampled(errors: np.ndarray) -> np.ndarray:
    """Error rates of the speakers drawn with replacement: the same draws for every run. [resamples]"""
    drawn = np.random.default_rng(0).integers(0, errors.shape[1], (NUM_RESAMPLES, errors.shape[1]))
    return errors[0][drawn].sum(axis=1) / errors[1][drawn].sum(axis=1)


def measure(experiments: list[Path], run: str, unit: str, reference: str) -> dict[str, Any]:
    """Figures of one run, and of the gap on the same seeds."""
    names = dict.fromkeys((run, "seed", reference))
    each = {name: [errors_by_speaker(e, name, unit) for e in experiments] for name in names}
    pooled = {name: np.sum(parts, axis=0) for name, parts in each.items()}
    draws = {name: resampled(errors) for name, errors in pooled.items()}
    rates = {name: float(errors[0].sum() / errors[1].sum()) for name, errors in pooled.items()}
    gap = (draws["seed"] - draws[run]) / (draws["seed"] - draws[reference])
    return {
        "rate": rates[run],
        "interval": np.quantile(draws[run], [0.025, 0.975]).tolist(),
        "by_seed": [float(errors[0].sum() / errors[1].sum()) for errors in each[run]],
        "gap_closed": (rates["seed"] - rates[run]) / (rates["seed"] - rates[reference]),
        "gap_interval": np.quantile(gap, [0.025, 0.975]).tolist(),
    }


def scored(experiments: list[Path], run: str) -> list[Path]:
    """The experiments in which a run has been scored."""
    return [e for e in experiments if (e / run / "evaluation" / "test" / "best" / "scores.json").exists()]


def plot(experiments: list[Path], runs: list[str], path: Path) -> None:
    """Validation WER by round, a line a run: the mean of the seeds, as far as all of them got."""
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.add_subplot(xlabel="round", ylabel="WER on the held-out speakers, %")
    for run in runs:
        journals = [(e / run / "journal.jsonl").read_text().splitlines() for e in experiments]
        curves = [
            {e["round"]: e["valid"]["wer"] for e in map(json.loads, j) if "valid" in e} for j in journals
        ]
        rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
        means = [100 * np.mean([curve[number] for curve in curves]) for number in rounds]
        axes.plot(rounds, means, label=run, linewidth=1.5)
    start = json.loads((experiments[0] / "fedavg" / "journal.jsonl").read_text().splitlines()[0])
    axes.set_ylim(top=105 * start["valid"]["wer"])
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path)


def percent(value: float, interval: list[float], digits: int) -> str:
    low, high = (f"{100 * end:.{digits}f}" for end in interval)
    return f"{100 * value:.{digits}f} [{low}, {high}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("experiments", nargs="+", type=Path, help="folders of one recipe with several seeds")
    parser.add_argument("--reference", default="central", help="the run that closes the whole gap")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "librispeech.json")
    parser.add_argument("--plot", type=Path, help="where to draw validation WER by round (.svg, .png)")
    options = parser.parse_args()
    about = [json.loads((e / "experiment.json").read_text()) for e in options.experiments]
    having = {run: scored(options.experiments, run) for run in about[0]["runs"]}
    runs = [run for run, where in having.items() if where]
    figures = {
        name: {run: measure(having[run], run, unit, options.reference) for run in runs}
        for name, unit in (("wer", "words"), ("cer", "characters"))
    }
    table = Table(title=f"Test speakers, {len(about)} seeds pooled, 95 % intervals over speakers")
    for column in ("run", "WER %", "by seed", "CER %", "gap closed, WER %", "gap closed, CER %"):
        table.add_column(column, justify="left" if column == "run" else "right", no_wrap=True)
    for run in runs:
        wer, cer = figures["wer"][run], figures["cer"][run]
        seeds = " ".join(f"{100 * rate:.1f}" for rate in wer["by_seed"])
        rates = [percent(f["rate"], f["interval"], 1) for f in (wer, cer)]
        gaps = [percent(f["gap_closed"], f["gap_interval"], 0) for f in (wer, cer)]
        table.add_row(run, rates[0], seeds, rates[1], *(["–", "–"] if run == "seed" else gaps))
    Console(width=130).print(table)
    if options.plot:
        plot(options.experiments, runs, options.plot)
    first = json.loads((options.experiments[0] / "seed" / "run.json").read_text())
    options.out.parent.mkdir(exist_ok=True)
    body = {
        "command": "python benchmarks/gap.py OUT0 OUT1 OUT2, after antiphon run librispeech for each seed",
        "seeds": [a["config"]["seed"] for a in about],
        "versions": first["versions"],
        "device": first["device"],
        "commit": first["commit"],
        **figures,
    }
    options.out.write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
