"""What decoding is worth: a model alone, a beam, n-grams in the search, a Transformer in a second pass.

    antiphon run speech-ctc --data CORPUS --out out/ctc --set frontend.path=ENCODER.onnx
    antiphon lm ngram TEXT --out books
    antiphon lm train TEXT --out transformer
    python benchmarks/decoding.py out/ctc/central … --lm books --neural transformer

Every row is one run's model on the test speakers. Weights of the language models are found on the held-out
speakers: those in the search by searching some of their speech again and again with a narrow beam, those of
the second pass on the lists of all of it. Oracles are of the lists that the second pass was given. With
`--workers` that many processes share the speech of each search, and its real-time factor is of all together.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import argument_parser, print_table, write_result
from rich.progress import track

from antiphon.decoding.fusion import Fusion
from antiphon.decoding.nbest import WORDS
from antiphon.decoding.rescoring import SCORE, Column, Lists, tabulate, tune
from antiphon.decoding.search import recognise
from antiphon.decoding.tuning import Ranking
from antiphon.experiment.preparation import choose_device
from antiphon.lm.arpa import load_ngram
from antiphon.lm.neural_lm import load_sentence_model
from antiphon.lm.ngram import SentenceModel
from antiphon.scoring.error_rate import Errors, word_errors
from antiphon.workflows.run_decoder import RunDecoder, Trials

DEPTHS = (5, 20, 100)
NEURAL = "neural"


def measure(
    decoder: RunDecoder,
    ngram: Fusion | None,
    neural: SentenceModel | None,
    splits: Sequence[str],
    width: int,
    trials: Trials,
) -> dict[str, Any]:
    heldout, test = (decoder.store.where(split=split) for split in splits)
    models = {NEURAL: neural} if neural is not None else {}
    plain = tabulate(decoder.nbest(test, width, decoder.tuned(Ranking(), heldout, trials)), {})
    found = {"greedy": rate(greedy(decoder, test)), "beam": rate(plain.count(plain.first()))}
    if ngram is None:
        return found | oracles(plain)
    ranking = decoder.tuned(Ranking(ngram), heldout, trials)
    began = time.perf_counter()
    lists = list(decoder.nbest(test, width, ranking))
    found["real_time_factor"] = (time.perf_counter() - began) / float(decoder.store.seconds[test].sum())
    found["weights"] = ranking.weights
    fused = tabulate(lists, models)
    found["ngram"] = rate(fused.count(fused.first()))
    if models:
        columns = [Column(SCORE, 1.0, 0.0), Column(NEURAL, lowest=0.0), Column(WORDS)]
        weights = tune(tabulate(decoder.nbest(heldout, width, ranking), models), columns)
        found["rescored"] = rate(fused.count(fused.best(weights)))
        found["rescoring_weights"] = weights
    return found | oracles(fused)


def greedy(decoder: RunDecoder, indices: np.ndarray) -> Errors:
    recognizer, store = decoder.recognizer, decoder.store
    heard = recognise(recognizer.model, recognizer.tokens, store, indices, decoder.device)
    return sum((word_errors(store.text(index), text) for index, text in heard.items()), Errors())


def rate(errors: Errors) -> dict[str, Any]:
    counts = {kind: getattr(errors, kind) for kind in ("substitutions", "deletions", "insertions", "length")}
    return {"wer": errors.rate, **counts}


def oracles(lists: Lists) -> dict[str, Any]:
    return {f"oracle_{depth}": rate(lists.count(lists.oracle(depth))) for depth in DEPTHS}


def main() -> None:
    parser = argument_parser(__doc__, "decoding")
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")
    parser.add_argument("--lm", type=Path, help="an n-gram model for the search")
    parser.add_argument("--neural", type=Path, help="a model for the second pass")
    parser.add_argument("--data", type=Path, help="another corpus than the runs' own")
    parser.add_argument("--splits", nargs=2, default=("heldout", "test"), help="for weights, and for results")
    parser.add_argument("--width", type=int, default=100, help="of the last beam")
    parser.add_argument("--trial-width", type=int, default=Trials.width, help="of beams that find weights")
    parser.add_argument("--trial-seconds", type=float, default=Trials.seconds, help="of speech for each")
    parser.add_argument("--workers", type=int, default=1, help="processes that search, on the CPU")
    parser.add_argument("--device", default="auto", help="of the model for the second pass")
    arguments = parser.parse_args()
    device = str(choose_device(arguments.device))
    ngram = Fusion(load_ngram(arguments.lm)) if arguments.lm else None
    neural = load_sentence_model(arguments.neural, device) if arguments.neural else None
    given = Trials(arguments.trial_width, arguments.trial_seconds)
    trials = Trials(2, 10.0) if arguments.quick else given
    results = {}
    for run in track(arguments.runs, "decoding"):
        with RunDecoder.open(run, arguments.data, "cpu").in_processes(arguments.workers, ngram) as decoder:
            results[name_of(run)] = measure(decoder, ngram, neural, arguments.splits, arguments.width, trials)
        write_result(arguments, {"width": arguments.width, "runs": results}, *options(arguments))
    tell(results)


def name_of(run: Path) -> str:
    """The folders of an experiment and its run: out/ctc/central is ctc/central."""
    return "/".join(run.resolve().parts[-2:])


def options(arguments: argparse.Namespace) -> Sequence[str]:
    models = {"--lm": arguments.lm, "--neural": arguments.neural}
    given = [f"{option} {path.name}" for option, path in models.items() if path]
    trials = [f"--trial-width {arguments.trial_width}", f"--trial-seconds {arguments.trial_seconds:g}"]
    return [*(name_of(run) for run in arguments.runs), *given, f"--width {arguments.width}", *trials]


def tell(results: dict[str, dict[str, Any]]) -> None:
    ways = ["greedy", "beam", "ngram", "rescored", *(f"oracle_{depth}" for depth in DEPTHS)]
    header = ["test WER %", "greedy", "beam", "+ n-gram", "+ second pass", *(f"oracle {d}" for d in DEPTHS)]
    print_table(
        header,
        [
            [name, *(f"{100 * found[way]['wer']:.2f}" if way in found else "–" for way in ways)]
            for name, found in results.items()
        ],
    )


if __name__ == "__main__":
    main()
