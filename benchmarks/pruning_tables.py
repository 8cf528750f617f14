"""Tables 2 to 4 and Figure 4 of Federated Pruning from the recipe pruning-librispeech, over seeds.

    antiphon run pruning-librispeech --data CORPUS --out out/0 --set frontend.path=ENCODER.onnx --set seed=0
    …                                      (the same for seeds 1 and 2)
    python benchmarks/pruning_tables.py out/0 out/1 out/2 --plots docs --speed CORPUS

Error rates of test speakers: means with 95 % intervals by Student's t over seeds; the relative change against
`dense`, which took the same rounds unpruned, with an interval over speakers (errors pooled over seeds); the
same against `weight` at the same sparsity, and at all of them together; bytes of the last round's models over
those of `dense`; and weights that came back when masks were made anew, in all rounds. With `--speed`, models
of the first seed recognise some test speech on one thread of the CPU, in turn: processor seconds a second of
speech, medians, and a plot of WER against them. `small` is a dense model of the pruned one's size that was
trained from nothing in the same way.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, print_table
from pruning_plots import DENSE, draw_plots, way_of
from seeds import Trained, check_seeds, compared, error_rate, pooled_errors, to_json

from antiphon.decoding.search import recognise
from antiphon.report.formatting import NONE
from antiphon.report.run_folder import RunFolder
from antiphon.scoring.statistics import Interval, relative_interval, signed
from antiphon.workflows.run_decoder import RunDecoder

SMALL = "small"
USUAL = "weight"  # the way that others are compared with
ALL = "all"
TURNS, SECONDS = 5, 120.0


def sparsity_of(config: Mapping[str, Any]) -> float | None:
    """Of a run; None where nothing is pruned."""
    pruning = config["algorithm"].get("federated_pruning")
    return None if pruning is None else float(pruning["sparsity"])


def row_of(seeds: Sequence[Trained], name: str) -> dict[str, Any]:
    """A run over the seeds, beside `dense`."""
    runs = [(one.runs[name], one.runs[DENSE]) for one in seeds if name in one.runs]
    revived = [sum(entry["metrics"].get("revived_weights", 0.0) for entry in run.trained) for run, _ in runs]
    return {
        **compared(seeds, name, DENSE),
        "sparsity": sparsity_of(runs[0][0].about["config"]),
        "bytes_of_dense": float(np.mean([_last_bytes(run) / _last_bytes(dense) for run, dense in runs])),
        "revived_weights": float(np.mean(revived)),
    }


def _last_bytes(run: RunFolder) -> int:
    return int(run.trained[-1]["bytes_down"])


def beside_usual(
    seeds: Sequence[Trained], rows: Mapping[str, Any], ways: Sequence[str]
) -> dict[str, dict[str, Interval | None]]:
    """Every way's change of errors against `weight`: at each sparsity, and at all of them together."""
    sparsities = {n: f"{f['sparsity']:g}" for n, f in rows.items() if f["sparsity"] is not None}
    found: dict[str, dict[str, Interval | None]] = {}
    for way in ways:
        pairs = {s: (n, f"{USUAL}-{s}") for n, s in sparsities.items() if way_of(n) == way}
        pairs = {s: pair for s, pair in pairs.items() if pair[1] in rows}
        found[way] = {s: _change(seeds, [pair]) for s, pair in pairs.items()}
        found[way][ALL] = _change(seeds, list(pairs.values())) if pairs else None
    return found


def _change(seeds: Sequence[Trained], pairs: Sequence[tuple[str, str]]) -> Interval | None:
    """Of the first of each pair against the second, errors pooled over pairs and seeds."""
    split = seeds[0].config["speakers"]["test"]
    both = [(one.runs[a], one.runs[b]) for one in seeds for a, b in pairs if {a, b} <= one.runs.keys()]
    errors, others = (pooled_errors(runs, split)[0] for runs in zip(*both, strict=True))
    return relative_interval(errors, others)


def print_rows(
    rows: Mapping[str, Any], ways: Sequence[str], beside: Mapping[str, Mapping[str, Interval | None]]
) -> None:
    others = {name: found for name, found in rows.items() if found["sparsity"] is None}
    print_table(
        ["run", "WER %", "relative to dense, %"],
        [[n, error_rate(f["wer"]), NONE if n == DENSE else signed(f["relative_to_baseline"], 1)]
         for n, f in others.items()],
    )  # fmt: skip
    sparsities = [f"{s:g}" for s in sorted({found["sparsity"] for found in rows.values()} - {None})]
    for title, cell in CELLS.items():
        print()
        print_table(
            [title, *sparsities],
            [[way, *(cell(rows[n]) if (n := f"{way}-{s}") in rows else NONE for s in sparsities)]
             for way in ways],
        )  # fmt: skip
    print()
    print_table(
        [f"relative to {USUAL}, %", *sparsities, ALL],
        [[way, *(signed(change, 1) if (change := beside[way].get(s)) else NONE for s in (*sparsities, ALL))]
         for way in ways if way != USUAL],
    )  # fmt: skip


CELLS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "WER %": lambda found: error_rate(found["wer"]),
    "relative to dense, %": lambda found: signed(found["relative_to_baseline"], 1),
    "bytes, of dense": lambda found: f"{found['bytes_of_dense']:.3f}",
    "weights that came back": lambda found: f"{found['revived_weights']:,.0f}",
}


def print_speed(rows: Mapping[str, Any], factors: Mapping[str, float]) -> None:
    print()
    head = ["run", "real-time factor", "of dense", "WER %"]
    dense = factors[DENSE]
    print_table(
        head,
        [[n, f"{f:.5f}", f"{f / dense:.3f}", error_rate(rows[n]["wer"])] for n, f in factors.items()],
    )


def real_time_factors(folders: Mapping[str, Path], corpus: Path, split: str) -> dict[str, float]:
    """Processor seconds a second of speech of each model, greedy search, one thread, models in turn."""
    torch.set_num_threads(1)
    decoders = {name: RunDecoder.open(folder, corpus, "cpu") for name, folder in folders.items()}
    store = next(iter(decoders.values())).store
    everything = store.where(split=split)
    chosen = everything[:: max(1, round(float(store.seconds[everything].sum()) / SECONDS))]
    found: dict[str, list[float]] = {name: [] for name in decoders}
    for turn in range(TURNS + 1):
        for name, decoder in decoders.items():
            start = time.process_time()
            recognise(decoder.recognizer.model, decoder.recognizer.tokens, store, chosen, decoder.device)
            if turn:  # the first warms up
                found[name].append((time.process_time() - start) / float(store.seconds[chosen].sum()))
    return {name: float(np.median(values)) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("experiments", nargs="+", type=Path, help="folders that differ in their seed")
    parser.add_argument("--out", type=Path, default=RESULTS / "pruning-tables.json")
    parser.add_argument("--plots", type=Path, help="folder for pruning-sparsity.svg and pruning-speed.svg")
    parser.add_argument("--speed", type=Path, help="a corpus whose test speech is recognised on one thread")
    parser.add_argument(
        "--ways", nargs="*", default=["weight", "adaptive", "aligned"], help="whose speed is measured"
    )
    options = parser.parse_args()
    seeds = [Trained.load(path) for path in options.experiments]
    try:
        check_seeds(seeds, DENSE)
    except ValueError as error:
        parser.error(str(error))
    rows = {name: row_of(seeds, name) for name in seeds[0].config["runs"] if name in seeds[0].runs}
    ways = list(dict.fromkeys(way_of(name) for name, found in rows.items() if found["sparsity"] is not None))
    beside = beside_usual(seeds, rows, ways)
    print_rows(rows, ways, beside)
    factors: dict[str, float] = {}
    if options.speed:
        chosen = [name for name in rows if name in (DENSE, SMALL) or way_of(name) in options.ways]
        folders = {name: seeds[0].runs[name].path for name in chosen}
        factors = real_time_factors(folders, options.speed, seeds[0].config["speakers"]["test"])
        print_speed(rows, factors)
    if options.plots:
        draw_plots(rows, factors, options.plots)
    about = seeds[0].runs[DENSE].about
    body = {
        "command": "python benchmarks/pruning_tables.py OUT..., after antiphon run pruning-librispeech",
        **{key: about.get(key) for key in ("versions", "commit", "device")},
        "seeds": [one.config["seed"] for one in seeds],
        "runs": rows,
        "relative_to_weight": beside,
        "real_time_factors": factors,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(body, indent=1, default=to_json) + "\n")


if __name__ == "__main__":
    main()
