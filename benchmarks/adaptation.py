"""Session adaptation on LibriSpeech (docs/adaptation.md): the rows of Table 2, from a trained model.

    python benchmarks/adaptation.py RUN --manifest librispeech/manifest.jsonl --corpus CORPUS \
        --novels books_pd/pool.tsv.gz --out adaptation

Writes the text of sessions and organisation, speaks it, runs every row and writes results/adaptation.json:
word errors of each session before and after. `--sessions` and `--rounds` make it small enough for a CPU. The
recipe `session-adaptation` has the same rows after a seed model of its own.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path

from antiphon import config, screen
from antiphon.data.corpus import Corpus
from antiphon.data.session_texts import LEAK
from antiphon.recipes import adaptation
from antiphon.recipes.adaptation_tables import table_rows, write_texts
from antiphon.recipes.launch import run_experiment
from antiphon.recipes.session_report import session_errors

RESULTS = Path(__file__).parent / "results" / "adaptation.json"


def main() -> None:
    args = arguments()
    num_cores = os.cpu_count() or 1
    seed, corpus = adaptation.Seed.open(args.run), Corpus.open(args.corpus)
    speaking = config.override(adaptation.Speaking(), args.speak)
    texts = args.out / "texts"
    there = write_texts(args.manifest, corpus, args.novels, texts, args.sentences)
    paths = [texts / "sessions" / f"{name}.txt" for name in args.sessions or there]
    found = adaptation.read_texts(seed, paths, [texts / "organisation.txt"], corpus, speaking)
    shared = sum(
        one.reason == LEAK for text in (*found.sessions, *found.organisation) for one in text.skipped
    )
    print(f"{shared} sentences share 8 words in a row with a tested utterance and are dropped")
    with screen.bar("synthesis") as progress:
        spoken, real = adaptation.make_corpus(
            args.out / "corpus", found, corpus, speaking, num_cores, progress
        )
    names = adaptation.parts([name for name, _ in seed.blueprint.build(2).named_parameters()])
    one = adaptation.adapted_experiment(seed, True, "all", args.rounds)
    rows = table_rows(str(seed.folder), names, args.rounds)
    experiment = replace(one, recipe="session-adaptation", runs=rows)
    experiment = config.override(experiment, [*args.settings, f"seed={args.seed}"])
    with screen.Terminal() as terminal:
        adaptation.compute_features(seed, spoken, real, num_cores, terminal.features)
        out = args.out / "runs"
        resume = (out / "experiment.json").exists()
        scores = run_experiment(experiment, args.out / "corpus", out, resume, False, args.device, 1, terminal)
    screen.console.print(screen.score_table(scores))
    first = out / next(iter(experiment.runs))
    errors = {"baseline": session_errors(first, "start")}
    errors |= {name: session_errors(out / name, "best") for name in experiment.runs}
    rates = {
        name: 100 * sum(e for e, _ in own.values()) / sum(n for _, n in own.values())
        for name, own in errors.items()
    }
    texts_told = {t.name: {"sentences": len(t.sentences), "words": t.num_words} for t in found.sessions}
    body = {
        "wer": rates,
        "errors": errors,
        "sessions": texts_told,
        "organisation_words": sum(text.num_words for text in found.organisation),
        "synthetic_seconds": spoken.seconds,
        "dropped_for_overlap": shared,
        "config": config.to_dict(experiment),
    }
    args.results.write_text(json.dumps(body, indent=1) + "\n")
    for name, rate in rates.items():
        print(f"{name:20} {rate:.2f} % WER")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    for name in ("manifest", "corpus", "novels", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--sessions", nargs="*", default=[])
    parser.add_argument("--sentences", type=int, default=4000, help="of the organisation's text")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--speak", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--set", nargs="*", default=[], dest="settings", metavar="KEY=VALUE")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
