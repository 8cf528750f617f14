"""Session adaptation on LibriSpeech (docs/adaptation.md): the rows of Table 2, from a trained model.

    python benchmarks/adaptation.py RUN --manifest librispeech/manifest.jsonl --corpus CORPUS \
        --novels books_pd/pool.tsv.gz --work FOLDER

Writes the text of sessions and organisation, speaks it, runs every row and writes results/adaptation.json:
word errors of each session before and after. `--sessions`, `--rounds` and `--set` make it small enough for a
CPU. What is in --work already is gone on with. The recipe `session-adaptation` has the same rows after a seed
model of its own.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from adaptation_texts import new_words, write_texts
from common import argument_parser, print_table, write_result

from antiphon import config
from antiphon.cli.terminal import Terminal
from antiphon.data.corpus import Corpus
from antiphon.data.session_texts import LEAK
from antiphon.experiment.runner import run_experiment
from antiphon.experiment.starting import SeedModel
from antiphon.recipes.session_adaptation import TENANT_ROUNDS, adapted_experiment, parts, table_rows
from antiphon.workflows import adaptation_corpus
from antiphon.workflows.adapt_model import session_errors
from antiphon.workflows.arguments import screen_for


def main() -> None:
    args = arguments()
    num_cores, runs = os.cpu_count() or 1, args.work / "runs"
    seed, corpus = SeedModel.open(args.run), Corpus.open(args.corpus)
    speaking = config.override(adaptation_corpus.Speaking(), args.speak)
    texts = args.work / "texts"
    there = write_texts(args.manifest, corpus, args.novels, texts, args.sentences)
    paths = [texts / "sessions" / f"{name}.txt" for name in args.sessions or there]
    found = adaptation_corpus.read_texts(seed, paths, [texts / "organisation.txt"], corpus, speaking)
    skipped = [one for text in (*found.sessions, *found.organisation) for one in text.skipped]
    dropped = sum(one.reason == LEAK for one in skipped)
    print(f"{dropped} sentences share 8 words in a row with a tested utterance and are dropped")
    tested = adaptation_corpus.scored_speech(corpus, [text.name for text in found.sessions])
    words = new_words(tested, found)
    print(
        f"of {words.said:,} words said in the tested speech, {words.new:,} are in no training transcript: "
        f"{words.in_session:,} in their session's text, {words.in_organisation:,} in the organisation's"
    )
    if args.texts_only:
        return
    with Terminal() as terminal:
        spoken, real = adaptation_corpus.make_corpus(
            args.work / "corpus", found, corpus, speaking, num_cores, partial(terminal, "synthesis")
        )
    names = parts([name for name, _ in seed.blueprint.build(seed.tokens.size).named_parameters()])
    one = adapted_experiment(seed, True, "all", args.rounds)
    rows = table_rows(str(seed.folder), names, args.rounds)
    experiment = replace(one, recipe="session-adaptation", seed=args.seed, runs=rows)
    experiment = config.override(experiment, args.settings)
    with Terminal() as terminal:
        screen = screen_for(terminal, (), experiment, runs)
        adaptation_corpus.compute_features(seed, spoken, real, num_cores, screen.features)
        resume = (runs / "experiment.json").exists()
        data = spoken.corpus.path
        run_experiment(experiment, data, runs, resume, False, args.device, 1, screen, args.only)
    result = {
        **collect(runs, list(experiment.chosen(args.only))),
        "sessions": {t.name: {"sentences": len(t.sentences), "words": t.num_words} for t in found.sessions},
        "organisation_words": sum(text.num_words for text in found.organisation),
        "synthetic_seconds": spoken.seconds,
        "dropped_for_overlap": dropped,
        "new_words": asdict(words),
        "settings": [*args.speak, *args.settings, f"rounds={args.rounds}", f"seed={args.seed}"],
    }
    print_table(("row", "WER %"), [(name, f"{wer:.2f}") for name, wer in result["wer"].items()])
    write_result(args, result)


def collect(runs: Path, names: list[str]) -> dict[str, Any]:
    """Word errors of the model that rows start from and of each row, by session and in all."""
    errors = {"baseline": session_errors(runs / names[0], "start")}
    errors |= {name: session_errors(runs / name, "best") for name in names}
    wer = {
        name: 100 * sum(wrong for wrong, _ in own.values()) / sum(words for _, words in own.values())
        for name, own in errors.items()
    }
    return {"wer": wer, "errors": errors}


def arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__, "adaptation")
    parser.add_argument("run", type=Path)
    for name in ("manifest", "corpus", "novels", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--sessions", nargs="*", default=[])
    parser.add_argument("--sentences", type=int, default=4000, help="of the organisation's text")
    parser.add_argument("--rounds", type=int, default=TENANT_ROUNDS, help="on the organisation's text")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], metavar="ROW")
    parser.add_argument("--speak", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--set", nargs="*", default=[], dest="settings", metavar="KEY=VALUE")
    parser.add_argument("--texts-only", action="store_true", help="write the texts, count their words, stop")
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


if __name__ == "__main__":
    main()
